"""One of two workers: how much memory a broadcast and a comparison of a 300 MB model add at most.

Prints a line of JSON: by how many bytes the peak memory of the process has grown.
"""

import json
import pathlib

import tensorflow as tf

import grace_tf
from grace_tf.aggregation.consistency.plan_handshake import digest_of_variables

group = grace_tf.init(timeout=60)


def status(name):
    """VmHWM, the peak since it was last reset, or VmRSS, as of now; bytes."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def added(call):
    before = status("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    call()
    return status("VmHWM") - before


shapes = [(50, 1_000_000)] + 5 * [(5_000_000,)]
variables = [tf.Variable(tf.fill(shape, 1.0 + group.rank)) for shape in shapes]
for _ in range(2):  # memory that TensorFlow's threads keep for later collectives stays out of it
    group.broadcast(variables[1:2], 1)
told = {
    # Where other processes are busy, TensorFlow's threads hold what they have not sent yet.
    "broadcast": min(added(lambda: group.broadcast(variables, 1)) for _ in range(4)),
    "read": added(lambda: variables[0].read_value()),
    "compared": added(lambda: digest_of_variables(variables)),
    "equal": all(bool(tf.reduce_all(v == 2.0)) for v in variables),
}
print(json.dumps(told))
group.barrier()
