"""What importing grace_tf does to a fresh process: `imports.py clean|without|old`, one line."""

import importlib.util
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
how = sys.argv[1]


class WithoutTensorFlow:
    """Hides an installed TensorFlow from imports."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            raise ModuleNotFoundError(f"No module named {name!r}", name="tensorflow")


def old_tensorflow():
    spec = importlib.util.spec_from_loader("tensorflow", loader=None)
    sys.modules["tensorflow"] = module = importlib.util.module_from_spec(spec)
    module.__version__ = "2.14.1"


if how == "clean":
    import tensorflow as tf

    before = {*sys.modules}

    import grace_tf

    imported = {name.partition(".")[0] for name in {*sys.modules} - before}
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    devices = len(tf.config.list_logical_devices("CPU"))
    packages = sorted(imported & {"keras", "tf_keras", "grace_tf"})
    print(devices, "grace_tf.keras" in sys.modules, *packages)
else:
    sys.meta_path.insert(0, WithoutTensorFlow()) if how == "without" else old_tensorflow()
    try:
        import grace_tf  # noqa: F401
    except ImportError as error:
        print(f"{type(error).__name__}: {error}")
