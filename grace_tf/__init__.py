"""Compressed gradients for distributed TensorFlow and Keras.

model.compile(optimizer=grace_tf.wrap(opt, "qsgd"), ...)
"""

from grace_tf.cli.run import start_up as _start_up

_start_up.hide()  # only where this process is the command line

_NEEDED = (
    "grace_tf needs TensorFlow 2.15 or newer: pip install tensorflow-cpu, "
    "or pip install 'tensorflow[and-cuda]' for GPUs"
)

try:
    import tensorflow as _tf
except ModuleNotFoundError as _error:
    if _error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(f"{_NEEDED}.", name="tensorflow") from None
if tuple(int(x) for x in _tf.__version__.split(".")[:2]) < (2, 15):
    raise ImportError(f"{_NEEDED} (this is {_tf.__version__}).")

from grace_tf import keras, schedules, testing  # noqa: E402
from grace_tf.aggregation.aggregator import Aggregator  # noqa: E402
from grace_tf.aggregation.all_reduce import all_reduce  # noqa: E402
from grace_tf.core.compressor import Compressor  # noqa: E402
from grace_tf.core.context import Context  # noqa: E402
from grace_tf.core.memory import Memory  # noqa: E402
from grace_tf.core.registry import available, get, recipe, register  # noqa: E402
from grace_tf.core.version import __version__  # noqa: E402
from grace_tf.distribute import CompressedAllReduce  # noqa: E402
from grace_tf.keras import unwrap, wrap  # noqa: E402
from grace_tf.line.grace_params import from_params  # noqa: E402
from grace_tf.transports.world import (  # noqa: E402
    barrier,
    broadcast,
    init,
    local_rank,
    rank,
    shard,
    size,
)

__all__ = [
    "Aggregator",
    "CompressedAllReduce",
    "Compressor",
    "Context",
    "Memory",
    "__version__",
    "all_reduce",
    "available",
    "barrier",
    "broadcast",
    "from_params",
    "get",
    "init",
    "keras",
    "local_rank",
    "rank",
    "recipe",
    "register",
    "schedules",
    "shard",
    "size",
    "testing",
    "unwrap",
    "wrap",
]


def __dir__() -> list:
    return sorted(__all__)
