"""A pytest plugin: runs tests that know nothing of grace_tf through one of its doors.

`--door wrap` wraps every optimizer by `none` as soon as it is constructed; `--door ops` gives every
MirroredStrategy `CompressedAllReduce("none")`; `--door plain` changes nothing.  The outcome of each
test is appended to the file of `--outcomes` at once, so that a crash loses no others.
"""

import functools
import importlib.util
import json
import sys
import types

import pytest

_constructing = set()  # ids of optimizers whose constructor is running
_not_collected = []


def pytest_addoption(parser):
    parser.addoption("--door", choices=("plain", "wrap", "ops"), required=True)
    parser.addoption("--outcomes", required=True)
    parser.addoption("--devices", type=int, default=0, help="virtual CPUs")


def pytest_configure(config):
    for name in ("requires_trainable_backend", "multi_device"):  # of Keras' own conftest
        config.addinivalue_line("markers", f"{name}: of Keras' own tests")
    if importlib.util.find_spec("conftest") is None:
        fixtures = sys.modules["conftest"] = types.ModuleType("conftest")
        fixtures.skip_if_backend = skip_if_backend
    if config.getoption("devices"):
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        several = [tf.config.LogicalDeviceConfiguration()] * config.getoption("devices")
        tf.config.set_logical_device_configuration(cpu, several)
    door = config.getoption("door")
    if door == "wrap":
        wrap_all()
    elif door == "ops":
        compress_all()


def pytest_collection(session):
    # Tests of Keras import it whatever the backend; nothing else may take it for the real one.
    if importlib.util.find_spec("keras") and importlib.util.find_spec("jax") is None:
        import keras  # noqa: F401

        sys.modules["jax"] = types.ModuleType("jax")


def skip_if_backend(backend, reason):
    """What Keras' own conftest, which its package does not hold, gives to its tests."""
    import keras

    return pytest.mark.skipif(keras.config.backend() == backend, reason=reason)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call" or report.outcome != "passed":
        reason = str(call.excinfo.value) if call.excinfo else ""
        with open(item.config.getoption("outcomes"), "a") as file:
            file.write(json.dumps([item.nodeid, report.outcome, reason[:300]]) + "\n")


def pytest_collection_finish(session):
    if getattr(sys.modules.get("jax"), "__file__", None) is None:
        sys.modules.pop("jax", None)
    # Errors of collection are outcomes as well: a file that needs what is not installed.
    for report in _not_collected:
        last = str(report.longrepr).strip().splitlines()[-1]
        with open(session.config.getoption("outcomes"), "a") as file:
            file.write(json.dumps([report.nodeid, "not collected", last]) + "\n")


def pytest_collectreport(report):
    if report.failed:
        _not_collected.append(report)


def wrap_all():
    """Wraps every optimizer by `none` at the end of its outermost constructor."""
    from grace_tf.keras.optimizers import bases

    for base in bases():
        for cls in (base, *_subclasses(base)):
            _around_constructor(cls)
        base.__init_subclass__ = classmethod(_with_new_subclass)


def _with_new_subclass(cls):
    _around_constructor(cls)


def _subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def _around_constructor(cls):
    own = vars(cls).get("__init__")
    if own is None or hasattr(own, "_grace_around"):
        return

    @functools.wraps(own)
    def __init__(self, *args, **kwargs):
        outermost = id(self) not in _constructing
        _constructing.add(id(self))
        try:
            own(self, *args, **kwargs)
        finally:
            if outermost:
                _constructing.discard(id(self))
        if outermost:
            _wrap(self)

    __init__._grace_around = True
    cls.__init__ = __init__


def _wrap(optimizer):
    from grace_tf.keras.classes import Wrapped, attach, is_bare
    from grace_tf.keras.optimizers import bases, innermost
    from grace_tf.line.settings import settings

    if innermost(optimizer) is optimizer and type(optimizer) not in bases():
        if not isinstance(optimizer, Wrapped) or is_bare(optimizer):
            attach(optimizer, settings("none"))  # as `wrap`; of a MultiOptimizer's some may be so


def compress_all():
    """Gives MirroredStrategy and the tests' own cross-device ops `CompressedAllReduce("none")`."""
    from tensorflow.python import distribute
    from tensorflow.python.distribute import cross_device_ops, mirrored_strategy

    import grace_tf

    extended = mirrored_strategy.MirroredExtended
    own = extended.__init__

    @functools.wraps(own)
    def __init__(self, container_strategy, devices=None, cross_device_ops=None, **keywords):
        if not isinstance(cross_device_ops, grace_tf.CompressedAllReduce):
            cross_device_ops = grace_tf.CompressedAllReduce("none", inner=cross_device_ops)
        own(self, container_strategy, devices, cross_device_ops, **keywords)

    extended.__init__ = __init__
    seen_by_tests = types.ModuleType(cross_device_ops.__name__)
    vars(seen_by_tests).update(vars(cross_device_ops))
    for name in ("ReductionToOneDevice", "HierarchicalCopyAllReduce", "NcclAllReduce"):
        setattr(seen_by_tests, name, _compressing(getattr(cross_device_ops, name)))
    distribute.cross_device_ops = seen_by_tests


def _compressing(cls):
    import grace_tf

    def make(*args, **kwargs):
        return grace_tf.CompressedAllReduce("none", inner=cls(*args, **kwargs))

    return make
