"""Compressed gradients for distributed TensorFlow and Keras.

model.compile(optimizer=grace_tf.wrap(opt, "qsgd"), ...)
"""

from grace_tf.cli.run import start_up as _start_up
from grace_tf.core.version import __version__

_NEEDED = (
    "grace_tf needs TensorFlow 2.15 or newer: pip install tensorflow-cpu, "
    "or pip install 'tensorflow[and-cuda]' for GPUs"
)
# Commands that need TensorFlow import all of this by `_start_up.import_package`; `--help` and `run`
# do not, and so answer in a tenth of the time.
if _start_up.imports_all():
    try:
        import tensorflow as _tf
    except ModuleNotFoundError as _error:
        if _error.name != "tensorflow":
            raise
        raise ModuleNotFoundError(f"{_NEEDED}.", name="tensorflow") from None
    if tuple(int(x) for x in _tf.__version__.split(".")[:2]) < (2, 15):
        raise ImportError(f"{_NEEDED} (this is {_tf.__version__}).")

    from grace_tf import keras, schedules, testing
    from grace_tf.aggregation.aggregator import Aggregator
    from grace_tf.aggregation.all_reduce import all_reduce
    from grace_tf.cli.explained import explain
    from grace_tf.core.compressor import Compressor
    from grace_tf.core.context import Context
    from grace_tf.core.memory import Memory
    from grace_tf.core.registry import available, get, recipe, register
    from grace_tf.distribute import CompressedAllReduce
    from grace_tf.keras import unwrap, wrap
    from grace_tf.line.grace_params import from_params
    from grace_tf.transports.world.world import (
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
    "explain",
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


def __dir__() -> list[str]:
    return sorted(__all__)
