"""Four virtual CPUs, and one strategy per process and number of replicas."""

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)
# The suite is one of many small graphs: more threads would only wait for each other.
tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(2)

_strategies: dict[int, tf.distribute.Strategy] = {}


def mirrored(replicas: int) -> tf.distribute.Strategy:
    """The process's MirroredStrategy of so many virtual CPUs.

    Strategies of one process share collective keys, so each number of replicas gets only one.
    """
    if replicas not in _strategies:
        devices = [f"CPU:{i}" for i in range(replicas)]
        _strategies[replicas] = tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
    return _strategies[replicas]
