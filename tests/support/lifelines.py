"""Workers of one process that have a lifeline, over real connections."""

import socket
import time
from unittest import mock

import tensorflow as tf

from grace_tf.transports.lifeline import (
    connections,
    door,
    tensorflow_engine,
    versions,
)
from grace_tf.transports.lifeline.connections import Lifeline
from grace_tf.transports.lifeline.sockets import listen

say = door.say
SOON = 30.0  # seconds; what is waited for comes at once


class LifelineCase(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        # The collectives of this process, where other tests run, must stay whole.
        patch = mock.patch.object(tensorflow_engine, "abort")
        self.aborted = patch.start()
        self.addCleanup(patch.stop)

    def lines(self, size, patience=SOON, token=7):
        server = listen(0)
        port = server.getsockname()[1]
        made = [Lifeline(0, size, patience, token=token, server=server)]
        made += [
            Lifeline(rank, size, patience, find=lambda: ("127.0.0.1", port, token))
            for rank in range(1, size)
        ]
        for line in made:
            self.addCleanup(line.abandon)
            self.assertTrue(line.joined(SOON))
        return made

    def introduced(self, server, worker, let_in=True):
        """A connection that says with a proof that it is this worker's."""
        here = socket.create_connection(("127.0.0.1", server.getsockname()[1]), SOON)
        hello = {"magic": connections._MAGIC, "rank": worker, "versions": versions.HERE}
        answer, _, _ = door.introduce(here, hello, "7 ", time.monotonic() + SOON)
        self.assertEqual(answer is not None, let_in)
        return here

    def heard(self, line, topic):
        """Collects what a worker hears."""
        told = []
        line.on(topic, lambda worker, data: told.append([worker, data]))
        return told

    def wait(self, line, true):
        self.assertTrue(line.until(true, SOON))
