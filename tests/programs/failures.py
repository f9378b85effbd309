"""Worker 0 meets a worker 1 that is gone, late or never comes; prints the error's sentence."""

import json
import os
import signal
import socket
import sys

import tensorflow as tf

from grace_tf.transports import tensorflow_server
from grace_tf.transports.world import world

KEY = 1 << 20
how = sys.argv[1]
task = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def told(attempt):
    try:
        attempt()
    except (RuntimeError, tf.errors.OpError) as error:
        return [type(error).__name__, str(error)]
    return None


def until_ended():
    while True:
        signal.pause()


def other_worker():
    if how == "never":
        until_ended()
    if how == "lost":  # when all have met
        tensorflow_server.start = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    if how == "taken":
        own = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][1]
        with socket.create_server(("", int(own.rpartition(":")[2]))):
            print(json.dumps({"init": told(lambda: world.init(timeout=5))}), flush=True)
        sys.exit(3)
    pg = world.init(timeout=5)
    pg.sum([tf.ones([2])], KEY)
    pg.handshake([os.getpid()])
    until_ended()


def first_worker():
    if how == "never":
        return {"uninitialised": told(world.rank), "init": told(lambda: world.init(timeout=3))}
    if how in ("lost", "taken"):
        return {"init": told(lambda: world.init(timeout=5))}
    pg = world.init(timeout=5)
    step = tf.function(lambda: pg.sum([tf.ones([2])], KEY)[0])
    step()
    other = int(pg.handshake([os.getpid()])[1, 0])
    if how == "killed":
        os.kill(other, signal.SIGKILL)
    found = {"barrier": told(world.barrier), "step": told(step)}
    found["broadcast"] = told(lambda: world.broadcast([tf.Variable(1.0)]))
    try:
        step()
    except tf.errors.OpError as error:
        found["explained"] = pg.explain(error)
    return found


if task == 1:
    other_worker()
print(json.dumps(first_worker()))
sys.exit(3)
