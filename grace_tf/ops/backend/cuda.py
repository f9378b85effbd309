"""The library of CUDA kernels, `libgrace_cuda.so`: what it was built for, and whether it runs here.

The native operations open it at the first kernel that runs on a GPU. Here it is only asked.
"""

from __future__ import annotations

import ctypes
import functools
import re
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.framework import kernels

from grace_tf.ops.backend import native

LIBRARY = native.LIBRARY.with_name("libgrace_cuda.so")
_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver


class Built(NamedTuple):
    """What the library tells of itself."""

    build: str
    """The version of CUDA's compiler and the architectures there is code for."""
    driver: int
    """The version of CUDA that the driver serves, 1000 * major + 10 * minor; 0 without a driver."""
    runtime: int
    """The version of CUDA that the library was built with, likewise."""
    error: int
    """The error number that CUDA returned when the library was asked; 0 means no error."""
    message: str
    """What CUDA calls that error."""


@functools.cache
def built() -> Built | str:
    """What the library tells, or in one sentence why it cannot be asked."""
    if not LIBRARY.exists():
        return _why_not_built()
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.grace_cuda_build.restype = ctypes.c_char_p
        library.grace_cuda_error.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        return f"{LIBRARY} cannot be used: {error}."
    driver, runtime = ctypes.c_int(), ctypes.c_int()
    error = library.grace_cuda_versions(ctypes.byref(driver), ctypes.byref(runtime))
    message = library.grace_cuda_error(error).decode()
    build = library.grace_cuda_build().decode()
    return Built(build, driver.value, runtime.value, error, message)


def _why_not_built() -> str:
    try:
        # setup.py writes this sentence where it builds no library.
        return LIBRARY.with_suffix(".txt").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return f"There is no {LIBRARY.name} in {LIBRARY.parent}, and nothing tells why."


def why_not(warn: bool = False) -> str:
    """Why the native operations do not run on GPUs, in one sentence; empty where they do.

    With `warn`, the reason is also said once as a warning.
    """
    reason = _why_not()
    if reason and warn:
        native.say_once(reason)
    return reason


@functools.cache
def _why_not() -> str:
    found = built()
    if not native.available():
        return native.why_not()
    if isinstance(found, str):
        return found
    if found.error == _INSUFFICIENT_DRIVER and found.driver:
        return (
            f"The driver serves CUDA {version(found.driver)}, and {LIBRARY.name} was built with "
            f"CUDA {version(found.runtime)}: install a newer driver, or the package again with an "
            "older nvcc."
        )
    if found.error:
        return f"CUDA does not run here: {found.message}."
    for gpu in tf.config.get_visible_devices("GPU"):
        capability = tf.config.experimental.get_device_details(gpu).get("compute_capability")
        if capability and not has_code(found.build, capability):
            return (
                f"{LIBRARY.name} has no code for {gpu.name} of compute capability "
                f"{'.'.join(map(str, capability))} (it was built by {found.build}): install the "
                "package again with an nvcc that knows this GPU."
            )
    if not native.knows_stream():
        return f"How TensorFlow {tf.__version__} keeps its CUDA stream was not checked."
    return ""


def has_code(build: str, capability: tuple[int, int]) -> bool:
    """Whether a library of this build runs on GPUs of this compute capability.

    The build names what the library contains. sm_75 is machine code: it runs on GPUs of compute
    capability 7.5 and of later ones whose major number is 7 too. compute_120 is PTX: the driver
    compiles it for GPUs of 12.0 and later. If the build names neither, the answer is True.
    """
    wanted, parts = 10 * capability[0] + capability[1], re.findall(r"(sm|compute)_(\d+)", build)
    return not parts or any(
        int(number) <= wanted and (kind == "compute" or int(number) // 10 == capability[0])
        for kind, number in parts
    )


def has_kernel(name: str) -> bool:
    """Whether the operation of this name, such as "sign_list", has a kernel for GPUs."""
    op = "Grace>" + "".join(word.capitalize() for word in name.split("_"))
    found = kernels.get_registered_kernels_for_op(op).kernel
    return any(kernel.device_type == "GPU" for kernel in found)


def version(number: int) -> str:
    """ "12.4" for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"
