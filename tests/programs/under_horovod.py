"""Runs other programs of this folder one after the other under Horovod, in one process.

under_horovod.py PROGRAM ARGUMENTS… [-- PROGRAM ARGUMENTS…]…

Prints "== PROGRAM ARGUMENTS" before each.  The timeout of the first counts for all.
"""

import pathlib
import runpy
import sys

import horovod.tensorflow as hvd
import tensorflow as tf

from grace_tf.transports.world import world

hvd.init()
# As group_contract.py wants it, which may run when TensorFlow's runtime has started.
tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(2)
folder = pathlib.Path(__file__).parent
sys.path.insert(0, str(folder))
for i, words in enumerate(" ".join(sys.argv[1:]).split(" -- ")):
    print(f"== {words}", flush=True)
    sys.argv = [str(folder / words.split()[0]), *words.split()[1:]]
    if i == 1:
        # The later programs call init() with a timeout, which it refuses once the workers have met.
        world.current().begin = lambda *_: None
    runpy.run_path(sys.argv[0], run_name="__main__")
