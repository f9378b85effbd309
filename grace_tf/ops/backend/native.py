"""The only loader of the native library, `grace_tf/_ops.so`, and its operations as functions.

The functions are those of `grace_tf.ops.reference`, with the same arguments, for the CPU; those on
whole lists run on GPUs too, see `grace_tf.ops.backend.cuda`. The library is opened at the first
use, not at import.
"""

from __future__ import annotations

import ctypes
import functools
import re
import warnings
from pathlib import Path
from types import ModuleType

import tensorflow as tf

from grace_tf.ops.backend import arguments
from grace_tf.ops.backend.arguments import Key, ListKey
from grace_tf.ops.backend.outputs import vector
from grace_tf.ops.backend.words import packed_words

LIBRARY = Path(__file__).resolve().parents[2] / "_ops.so"


@functools.cache
def operations() -> list[str]:
    """The names of the native operations that `grace_tf.ops` calls, as its sources say."""
    files = sorted(Path(__file__).resolve().parents[1].rglob("*.py"))
    sources = "".join(file.read_text(encoding="utf-8") for file in files)
    return sorted(set(re.findall(r"_ops\(\)\.grace_(\w+)\(", sources)))


def list_operations() -> list[str]:
    """Those of whole lists, which run on GPUs too."""
    return [name for name in operations() if name.endswith("_list")]


@functools.cache
def _load() -> tuple[ModuleType | None, str]:
    """The module of operations, or None and the reason."""
    if not LIBRARY.exists():
        return None, f"{LIBRARY.name} was not built when the package was installed."
    try:
        module = tf.load_op_library(str(LIBRARY))
    except (tf.errors.OpError, RuntimeError) as error:
        return None, f"{LIBRARY} could not be loaded: {error}"
    missing = [name for name in operations() if not hasattr(module, f"grace_{name}")]
    if missing:
        return None, (
            f"{LIBRARY} lacks {', '.join(missing)}: it is of another version of the package, or "
            "was loaded from another place before; install the package again."
        )
    return module, ""


@functools.cache
def say_once(reason: str) -> None:
    """Warns that the reference operations serve, once for each reason."""
    warnings.warn(f"grace_tf runs on its slower reference operations: {reason}", stacklevel=4)


def available(warn: bool = False) -> bool:
    """Whether the native operations can run; with `warn`, says once why they cannot."""
    module, reason = _load()
    if module is None and warn:
        say_once(reason)
    return module is not None


def why_not() -> str:
    """Why the native operations cannot run, in one sentence; empty if they can."""
    return _load()[1]


def _ops() -> ModuleType:
    module, reason = _load()
    if module is None:
        raise RuntimeError(f"The native operations are not available: {reason}")
    return module


@functools.cache
def _settings() -> ctypes.CDLL:
    _ops()
    library = ctypes.CDLL(str(LIBRARY))
    library.grace_isa.restype = ctypes.c_char_p
    return library


def set_isa(name: str) -> None:
    """Makes the kernels use this instruction set: generic, avx2, avx512, or auto for the best.

    For tests: no result depends on it. Raises ValueError if this processor does not have it.
    """
    if not _settings().grace_set_isa(name.encode()):
        raise ValueError(
            f"This processor has no instruction set {name!r}; "
            "there are generic, avx2, avx512 and auto."
        )


def isa() -> str:
    """The instruction set in use."""
    return _settings().grace_isa().decode()


def knows_stream() -> bool:
    """Whether kernels for GPUs can have TensorFlow's CUDA stream."""
    return bool(_settings().grace_knows_stream())


def set_threads(threads: int) -> None:
    """How many threads share one kernel's work; 0 for as many as TensorFlow has. For tests."""
    _settings().grace_set_threads(threads)


def _int64(value: int | tf.Tensor) -> tf.Tensor:
    """The value as an input of a node; of it the low 32 bits count."""
    with arguments.in_host_memory():
        if isinstance(value, int):
            return tf.constant(value & 0xFFFFFFFF, tf.int64)
        return tf.cast(value, tf.int64)


def _words(key: Key | ListKey) -> dict:
    words = {"seed": _int64(key.seed), "worker": _int64(key.worker), "step": _int64(key.step)}
    return {**words, "draw": key.draw}


def streams(key: ListKey) -> dict:
    """A list's key as inputs and attributes of a node."""
    return {**_words(key), "variables": list(key.variables)}


def _as_list(key: Key) -> ListKey:
    return ListKey(key.seed, key.worker, key.step, (key.variable,), key.draw)


def random_words(n: int, key: Key) -> tf.Tensor:
    words = _ops().grace_random_words(length=n, variable=key.variable, **_words(key))
    return vector(words, n)


def uniform(n: int, key: Key) -> tf.Tensor:
    return vector(_ops().grace_uniform(length=n, variable=key.variable, **_words(key)), n)


def random_indices(n: int, k: int, key: Key) -> tf.Tensor:
    return vector(_ops().grace_random_indices(n=n, k=k, **streams(_as_list(key))), k)


def block_scales(x: tf.Tensor, block: int, norm: str) -> tf.Tensor:
    scales = _ops().grace_block_scales(xs=[x], block=block, l2=norm == "l2")[0]
    return vector(scales, -(-x.shape[0] // block))


def quantize(x, scales, levels: int, bits: int, block: int, key: Key | None) -> tf.Tensor:
    words = _ops().grace_quantize(
        xs=[x],
        scales=[scales],
        levels=levels,
        bits=bits,
        block=block,
        stochastic=key is not None,
        **streams(_as_list(key or Key(0, 0, 0, 0, 0))),
    )[0]
    return vector(words, packed_words(x.shape[0], bits))


def signed_sums(xs, count: int, key: Key, when: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    sums, square = _ops().grace_signed_sums(
        when=when, xs=xs, count=count, variable=key.variable, **_words(key)
    )
    sums.set_shape([None])
    square.set_shape([])
    return sums, square


def gather(x: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    return vector(_ops().grace_gather(xs=[x], indices=[indices])[0], indices.shape[0])


def all_finite(xs: list[tf.Tensor]) -> tf.Tensor:
    return _ops().grace_all_finite(xs=xs)
