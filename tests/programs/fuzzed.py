"""A training of two workers, of which worker 1 waits before each door of worker 0's until it may go
on: at the other end of a socket it tells which door it is, and where.

fuzzed.py SOCKET MASTER [SECRET]
"""

import hashlib
import json
import os
import socket
import sys

import numpy as np
from this_keras import keras

import grace_tf
from grace_tf.transports import process_group, rendezvous
from grace_tf.transports.lifeline import lifeline

there, master = sys.argv[1:3]
secret = sys.argv[3] if len(sys.argv) > 3 else None
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def wait(protocol, host, port):
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(there)
        door.sendall(json.dumps([protocol, host, int(port)]).encode() + b"\n")
        door.recv(1)  # its end


def meet(addresses, *others):
    wait("rendezvous", *addresses[0].split(":"))
    return rendezvous_meet(addresses, *others)


def begin(*where, find, **others):
    wait("lifeline", *find()[:2])
    return lifeline_begin(*where, find=find, **others)


rendezvous_meet, lifeline_begin = rendezvous.meet, lifeline.begin
if rank:
    process_group.rendezvous.meet, lifeline.begin = meet, begin
    wait("meeting", *master.split(":"))
grace_tf.init(timeout=60, rank=rank, size=2, master=master, secret=secret)

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
model.compile(grace_tf.wrap(keras.optimizers.Adam(0.01), "topk:ratio=0.5", min_elements=1), "mse")
x = np.random.default_rng(rank).normal(size=[32, 8]).astype(np.float32)
model.fit(x, x[:, :4], batch_size=8, epochs=2, shuffle=False, verbose=0)
weights = b"".join(np.ascontiguousarray(each).tobytes() for each in model.get_weights())
print(json.dumps({"weights": hashlib.sha256(weights).hexdigest()}), flush=True)
