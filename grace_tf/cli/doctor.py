"""The command `doctor`: describes this installation, for questions and for bug reports."""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pathlib
import platform
import sys
from collections.abc import Iterator

import tensorflow as tf

from grace_tf.cli.tables import print_table
from grace_tf.core.version import __version__
from grace_tf.keras import flavours, repairs
from grace_tf.ops.backend import cuda, native
from grace_tf.transports.lifeline import lifeline
from grace_tf.transports.world import world


def main(options: argparse.Namespace) -> int:
    """Prints the table of findings and, below it, the verdict."""
    rows = findings()
    if options.verbose:
        rows += [*_guards(), *_repairs()]
    print_table("grace_tf doctor", ("what", "found"), rows)
    print(f"verdict: {verdict()}")
    return 0


def verdict() -> str:
    """One line: whether training works here as it should, or what to do first."""
    try:
        world.expected_size()
    except ValueError as error:
        return f"training cannot start: {error}"
    if not native.available():
        return (
            "training works, on the slower reference operations: install g++, and then grace_tf "
            f"again ({native.why_not()})"
        )
    if _meaning_of_tf_keras() not in flavours.PACKAGES:
        return (
            "training works with the package keras, but tf.keras cannot be imported: install "
            "tf_keras, or unset TF_USE_LEGACY_KERAS."
        )
    if tf.config.list_physical_devices("GPU") and cuda.why_not():
        return f"training works, but on GPUs by the slower reference operations: {cuda.why_not()}"
    return "all is well: grace_tf can train here."


def findings() -> list[list[str]]:
    """[what, found] rows, without guards and repairs."""
    return [
        ["grace_tf", __version__],
        ["Python", f"{platform.python_version()} on {platform.platform()}, {os.cpu_count()} cores"],
        ["TensorFlow", tf.__version__],
        ["Keras", _versions_of_keras()],
        ["tf.keras means", _meaning_of_tf_keras()],
        ["native operations", native_library()],
        ["threads of native operations", threads()],
        ["CUDA library", cuda_library()],
        ["GPUs", _gpus()],
        ["workers around", _surroundings()],
        ["Horovod", horovod()],
    ]


def _versions_of_keras() -> str:
    """The versions of the installed packages among keras and tf_keras, or "not installed"."""
    told = []
    for package in flavours.PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            told.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(told) or "not installed"


def _meaning_of_tf_keras() -> str:
    """The package that `tf.keras` is: "keras", or "tf_keras" with TF_USE_LEGACY_KERAS=1."""
    try:
        return flavours.chosen().package
    except (AttributeError, ImportError) as error:  # TF_USE_LEGACY_KERAS is set, tf_keras missing
        return lifeline.first_line(error)


def native_library() -> str:
    """Whether the native operations run and with which instructions, or why not."""
    if not native.available():
        return f"no, the reference operations serve: {native.why_not()}"
    return f"yes, {native.isa()}"


def threads() -> str:
    """Whether the native operations use several threads, or why not."""
    if not native.available():
        return "none: there are no native operations"
    if ctypes.CDLL(str(native.LIBRARY)).grace_shares_threads():
        return "TensorFlow's own"
    return (
        f"one: what TensorFlow's threads look like was not checked for {tf.__version__} (it was "
        "for 2.15 to 2.21)"
    )


def _gpus() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "none"
    reason = cuda.why_not()
    serve = f"the reference operations, because: {reason}" if reason else "the native operations"
    return f"{', '.join(gpu.name for gpu in gpus)}; there serve {serve}"


def cuda_library() -> str:
    """The build of the kernels for GPUs, and whether CUDA's driver here can run them."""
    found = cuda.built()
    if isinstance(found, str):
        return found
    if found.error:
        return f"{found.build}; not usable here: {found.message}"
    missing = [name for name in native.list_operations() if not cuda.has_kernel(name)]
    lacks = f"; without a kernel, so on the CPU: {', '.join(missing)}" if missing else ""
    return f"{found.build}; the driver serves CUDA {cuda.version(found.driver)}{lacks}"


def _surroundings() -> str:
    try:
        expected = world.expected_size()
    except ValueError as error:
        return str(error)
    if expected == 1:
        return "none: no TF_CONFIG or scheduler speaks of more than this process"
    return f"{expected}, by TF_CONFIG, a scheduler or Horovod; init() connects them"


def horovod() -> str:
    """Which Horovod this Python has, or why none that works."""
    if importlib.util.find_spec("horovod") is None:
        return f"not installed{_last_attempt()}"
    try:
        found = importlib.import_module("horovod.tensorflow")
    except Exception as error:  # its library lacks symbols if it was built for another TensorFlow
        return f"installed, but it cannot be imported: {lifeline.first_line(error)}"
    built = {"Gloo": found.gloo_built(), "MPI": found.mpi_built()}
    controllers = [name for name, there in built.items() if there]
    if not controllers:
        return "installed, but built without Gloo and without MPI: its workers cannot meet"
    version = sys.modules["horovod"].__version__
    return f"{version}, built for this TensorFlow ({', '.join(controllers)})"


def _last_attempt() -> str:
    """The error that the last `make horovod` has left in this environment, if it failed."""
    log = pathlib.Path(sys.prefix, "horovod.log")
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f": {lines[-1]}" if lines else ""


def _guards() -> list[list[str]]:
    """One row for each guard that the import has put into Keras or tf.distribute; no repairs."""
    found = collections.defaultdict(set)
    known = {cls: cls.__name__ for cls in _classes_of_keras()}
    known.update((cls, name) for name, cls in inspect.getmembers(tf.distribute, inspect.isclass))
    for cls, known_as in known.items():
        for name, held in vars(cls).items():
            while held is not None:  # a repair may wrap a guard
                function = getattr(held, "replacement", held)
                module = inspect.getmodule(getattr(function, "__code__", None))
                ours = module is not None and module.__name__.startswith("grace_tf.")
                if ours and module is not repairs:
                    found[module].add(f"{known_as}.{name}")
                held = vars(held).get("__wrapped__") if inspect.isfunction(held) else None
    rows = []
    for module, names in found.items():
        purpose = (inspect.getdoc(module) or "").splitlines()[0]
        where = ", ".join(sorted(names))
        rows.append([f"guard: {module.__name__.rpartition('.')[2]}", f"in {where}. {purpose}"])
    return sorted(rows)


def _classes_of_keras() -> Iterator[type]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in flavours.PACKAGES and module is not None:
            yield from (held for held in vars(module).values() if inspect.isclass(held))


def _repairs() -> list[list[str]]:
    """One row per repair of Keras: its purpose, and whether it is applied."""
    rows = []
    for name, function in inspect.getmembers(repairs, inspect.isfunction):
        if name.startswith("_") or function.__module__ != repairs.__name__:
            continue
        purpose = (inspect.getdoc(function) or "").splitlines()[0]
        if name in repairs.APPLIED:
            state = f"applied to {repairs.APPLIED[name]}"
        elif any(keras.is_3 for keras in flavours.imported()):
            state = "applied when first needed"
        else:
            state = "not needed by this Keras"
        rows.append([f"repair: {name}", f"{state}. {purpose}"])
    return rows
