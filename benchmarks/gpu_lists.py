"""Calls of the CUDA library's launchers on lists of gradients, for gpu_kernels.py.

The structures are those of the headers in custom_ops/kernels.
"""

from __future__ import annotations

import ctypes
import runpy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WORKERS = 2
LLOYD = Path(__file__).resolve().parents[1] / "grace_tf" / "ops" / "reference" / "lloyd.py"


class Pointers(ctypes.Structure):
    """Accumulated of compensate.h."""

    _fields_ = [("x", ctypes.c_void_p), ("residual", ctypes.c_void_p), ("times", ctypes.c_float)]


class EncodeInput(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("residual_out", ctypes.c_void_p),
        ("n", ctypes.c_int64),
    ]


class DecodeOutput(ctypes.Structure):
    _fields_ = [("total", ctypes.c_void_p), ("n", ctypes.c_int64)]


class Key(ctypes.Structure):
    """PhiloxKey of philox.h."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("seed", "worker", "step", "variable_draw")]


class Encoded(ctypes.Structure):
    _fields_ = [
        ("source", Pointers),
        ("n", ctypes.c_int64),
        ("words", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("residual_out", ctypes.c_void_p),
        ("variable_draw", ctypes.c_uint32),
        ("stratum", ctypes.c_uint32),
    ]


class Decoded(ctypes.Structure):
    _fields_ = [
        ("n", ctypes.c_int64),
        ("words_at", ctypes.c_int64),
        ("scales_at", ctypes.c_int64),
        ("total", ctypes.c_void_p),
    ]


class Quantization(ctypes.Structure):
    _fields_ = [
        ("levels", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("block", ctypes.c_int64),
        ("minmax", ctypes.c_bool),
    ]


class ListCode(ctypes.Structure):
    _fields_ = [("quantization", Quantization), ("norm", ctypes.c_int)]


class Rows(ctypes.Structure):
    _fields_ = [
        ("words", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("workers", ctypes.c_int64),
        ("words_stride", ctypes.c_int64),
        ("scales_stride", ctypes.c_int64),
    ]


class RotatedCode(ctypes.Structure):
    _fields_ = [
        ("bits", ctypes.c_int32),
        ("resolution", ctypes.c_int32),
        ("block", ctypes.c_int64),
        ("least", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("centroids", ctypes.c_float * 128),
        ("limits", ctypes.c_int32 * 128),
    ]


class RotatedRows(ctypes.Structure):
    _fields_ = [
        ("words", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("workers", ctypes.c_int64),
    ]


class MatrixSize(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("rows", "columns", "rank")]


class Factors(ctypes.Structure):
    _fields_ = [("p", ctypes.c_void_p), ("q", ctypes.c_void_p)]


class Case(NamedTuple):
    """One call of a launcher: its arguments but the last three, and the memory it writes."""

    launcher: str
    arguments: list
    outputs: list
    held: list
    """What must live as long as the call."""
    traffic: float
    """The bytes that it must read and write at least."""


class Lists:
    """A list of gradients in some memory, and the calls that work on it while it lives."""

    def __init__(self, memory: Any, lengths: list[int]) -> None:
        self._memory, self._lengths, self._count = memory, lengths, len(lengths)
        self._n = sum(lengths)
        draw = np.random.default_rng(0)
        rows = [draw.standard_normal(n, np.float32) for n in lengths]
        self._xs = list(map(memory.put, rows))
        self._residuals = [memory.put(row[::-1].copy()) for row in rows]
        self._kept = [memory.put(np.zeros(n, np.float32)) for n in lengths]
        self._totals = [memory.put(np.zeros(n, np.float32)) for n in lengths]

    def cases(self) -> dict[str, Case]:
        return {
            "sign pack": self._signs(),
            "sign vote": self._votes(),
            "absmax": self._absmax(),
            "quantise 4 bits, blocks of 512": self._quantise(7, 4, 512),
            "quantise 8 bits, whole tensors": self._quantise(127, 8, 0),
            "decode and accumulate 4 bits": self._dequantise(7, 4, 512),
            "top-k 1 %": self._top_k(0.01),
            "scatter 1 %": self._scatter(0.01),
            "finite": self._finite(),
            "rotate 4 bits, blocks of 512": self._rotate(4, 512),
            "decode and accumulate rotated 4 bits": self._rotate_back(4, 512),
            "M Q, rank 4": self._project(4),
            "Mt P with the residual, rank 4": self._reproject(4),
            "P Qt, rank 4": self._expand(4),
            "orthonormal columns, rank 4": self._orthonormal(4),
        }

    def _new(self, count: int, dtype: Any) -> Any:
        return self._memory.put(np.zeros(count, dtype))

    def _at(self, memory: Any, offset: int = 0) -> int:
        return self._memory.pointer(memory) + 4 * offset

    def _array(self, kind: type, items: list) -> Any:
        return (kind * len(items))(*items)

    def _sources(self) -> Any:
        """What an encoder reads where there is no residual: the gradients."""
        sources = [EncodeInput(self._at(x), None, None, n) for x, n in zip(self._xs, self._lengths)]
        return self._array(EncodeInput, sources)

    def _compensated(self) -> Any:
        """The buffers of an encoder with residuals: gradients, old residuals and new residuals."""
        rows = zip(self._xs, self._residuals, self._kept, self._lengths)
        items = [EncodeInput(*map(self._at, row), n) for *row, n in rows]
        return self._array(EncodeInput, items)

    def _targets(self) -> Any:
        """The output of a decoder: where it writes the total of each tensor."""
        items = [DecodeOutput(self._at(t), n) for t, n in zip(self._totals, self._lengths)]
        return self._array(DecodeOutput, items)

    def _signs(self) -> Case:
        size = sum(-(-n // 32) for n in self._lengths)
        words, finite = self._new(size, np.uint32), self._new(1, np.uint8)
        arguments = [self._sources(), ctypes.c_int64(self._count), ctypes.c_float(1.0)]
        arguments += [self._pointer(words), self._pointer(finite)]
        return Case("sign_list", arguments, [words, finite], [], 4.125 * self._n)

    def _votes(self) -> Case:
        stride = sum(-(-n // 32) for n in self._lengths)
        bits = np.random.default_rng(1).integers(0, 2**32, WORKERS * stride, np.uint32)
        words = self._memory.put(bits.view(np.int32))
        arguments = [self._pointer(words), ctypes.c_int64(WORKERS)]
        arguments += [self._targets(), ctypes.c_int64(self._count)]
        arguments += [ctypes.c_float(0.5)]
        return Case("vote_list", arguments, self._totals, [words], (4 + WORKERS / 8) * self._n)

    def _absmax(self) -> Case:
        scales, finite = self._new(self._count, np.float32), self._new(1, np.uint8)
        arguments = [self._sources(), ctypes.c_int64(self._count), ctypes.c_float(1.0)]
        arguments += [ctypes.c_float(0.0), self._pointer(scales), self._pointer(finite)]
        return Case("ternary_scales", arguments, [scales, finite], [], 4 * self._n)

    def _code(self, levels: int, bits: int, block: int) -> tuple:
        """The code, and how many words and scales each tensor has."""
        code = ListCode(Quantization(levels, bits, block, False), 0)
        words = [bits * -(-n // 32) for n in self._lengths]
        scales = [-(-n // (block or n)) for n in self._lengths]
        return code, words, scales

    def _quantise(self, levels: int, bits: int, block: int) -> Case:
        code, word_sizes, scale_sizes = self._code(levels, bits, block)
        words = self._new(sum(word_sizes), np.uint32)
        scales, finite = self._new(sum(scale_sizes), np.float32), self._new(1, np.uint8)
        word_starts, scale_starts = np.cumsum([0, *word_sizes]), np.cumsum([0, *scale_sizes])
        items = []
        for i, n in enumerate(self._lengths):
            source = Pointers(self._at(self._xs[i]), self._at(self._residuals[i]), 1.0)
            own = self._at(words, int(word_starts[i])), self._at(scales, int(scale_starts[i]))
            items.append(Encoded(source, n, *own, self._at(self._kept[i]), i << 8, 0))
        key = Key(1, 2, 3, 0)
        arguments = [self._array(Encoded, items), ctypes.c_int64(self._count), code]
        arguments += [ctypes.byref(key), self._pointer(finite)]
        return Case(
            "quantize_list",
            arguments,
            [words, scales, *self._kept, finite],
            [key],
            (12 + bits / 8) * self._n,
        )

    def _dequantise(self, levels: int, bits: int, block: int) -> Case:
        code, word_sizes, scale_sizes = self._code(levels, bits, block)
        strides = sum(word_sizes), sum(scale_sizes)
        draw = np.random.default_rng(2)
        bits_of = draw.integers(0, 2**32, WORKERS * strides[0], np.uint32)
        words = self._memory.put(bits_of.view(np.int32))
        scales = self._memory.put(draw.random(WORKERS * strides[1], np.float32))
        finite = self._new(1, np.uint8)
        word_starts, scale_starts = np.cumsum([0, *word_sizes]), np.cumsum([0, *scale_sizes])
        items = [
            Decoded(n, int(word_starts[i]), int(scale_starts[i]), self._at(self._totals[i]))
            for i, n in enumerate(self._lengths)
        ]
        rows = Rows(self._at(words), self._at(scales), WORKERS, *strides)
        arguments = [rows, self._array(Decoded, items), ctypes.c_int64(self._count)]
        arguments += [code.quantization, ctypes.c_float(0.5), self._pointer(finite)]
        return Case(
            "dequantize_list",
            arguments,
            [*self._totals, finite],
            [words, scales],
            (4 + WORKERS * bits / 8) * self._n,
        )

    def _counts(self, ratio: float) -> Any:
        return (ctypes.c_int64 * self._count)(*(max(1, int(ratio * n)) for n in self._lengths))

    def _top_k(self, ratio: float) -> Case:
        ks = self._counts(ratio)
        values, indices = self._new(sum(ks), np.float32), self._new(sum(ks), np.int32)
        finite = self._new(1, np.uint8)
        arguments = [self._compensated(), ctypes.c_int64(self._count), ctypes.c_float(1.0)]
        arguments += [ks, *map(self._pointer, (values, indices, finite))]
        return Case(
            "top_k_list",
            arguments,
            [values, indices, *self._kept, finite],
            [],
            12 * self._n + 8 * sum(ks),
        )

    def _scatter(self, ratio: float) -> Case:
        ks, draw = self._counts(ratio), np.random.default_rng(3)
        rows = [
            np.sort(draw.choice(n, k, replace=False)).astype(np.int32)
            for _ in range(WORKERS)
            for n, k in zip(self._lengths, ks)
        ]
        indices = self._memory.put(np.concatenate(rows))
        values = self._memory.put(draw.standard_normal(WORKERS * sum(ks), np.float32))
        finite, fault = self._new(1, np.uint8), self._new(3, np.int32)
        arguments = [self._targets(), ctypes.c_int64(self._count)]
        arguments += [self._pointer(values), self._pointer(indices), None]
        arguments += [ctypes.c_int64(WORKERS), ks, ctypes.c_float(0.5)]
        arguments += [self._pointer(finite), self._pointer(fault)]
        outputs = [*self._totals, finite, fault]
        return Case(
            "scatter_list",
            arguments,
            outputs,
            [indices, values],
            4 * self._n + 8 * WORKERS * sum(ks),
        )

    def _finite(self) -> Case:
        finite = self._new(1, np.uint8)
        items = [DecodeOutput(self._at(x), n) for x, n in zip(self._xs, self._lengths)]  # as Floats
        arguments = [self._array(DecodeOutput, items), ctypes.c_int64(self._count)]
        return Case("all_finite", [*arguments, self._pointer(finite)], [finite], [], 4 * self._n)

    def _rotated(self, bits: int, block: int) -> tuple:
        """(code, keys of the random signs, number of words, number of scales) of all tensors."""
        lloyd = runpy.run_path(str(LLOYD))
        code = RotatedCode(bits, lloyd["resolution"](bits), block, 0, 1 << (bits - 1))
        code.centroids[: code.count] = lloyd["CENTROIDS"][bits]
        code.limits[: code.count - 1] = lloyd["thresholds"](bits)
        keys = self._array(Key, [Key(1, 2, 3, i << 8) for i in range(self._count)])
        rests = [n % block for n in self._lengths]
        filled = [max(32, 1 << (r - 1).bit_length()) if r else 0 for r in rests]
        padded = [n - r + size for n, r, size in zip(self._lengths, rests, filled)]
        return code, keys, bits * sum(padded) // 32, sum(-(-n // block) for n in self._lengths)

    def _rotate(self, bits: int, block: int) -> Case:
        code, keys, word_count, scale_count = self._rotated(bits, block)
        words, scales = self._new(word_count, np.uint32), self._new(scale_count, np.float32)
        finite = self._new(1, np.uint8)
        arguments = [self._compensated(), ctypes.c_int64(self._count), ctypes.c_float(1.0)]
        arguments += [keys, ctypes.byref(code), *map(self._pointer, (words, scales, finite))]
        outputs = [words, scales, *self._kept, finite]
        return Case("encode_rotated", arguments, outputs, [code], (12 + bits / 8) * self._n)

    def _rotate_back(self, bits: int, block: int) -> Case:
        code, keys, word_count, scale_count = self._rotated(bits, block)
        draw = np.random.default_rng(4)
        bits_of = draw.integers(0, 2**32, WORKERS * word_count, np.uint32)
        words = self._memory.put(bits_of.view(np.int32))
        scales = self._memory.put(draw.random(WORKERS * scale_count, np.float32))
        finite = self._new(1, np.uint8)
        rows = RotatedRows(self._at(words), self._at(scales), WORKERS)
        arguments = [self._targets(), ctypes.c_int64(self._count), rows, keys]
        arguments += [ctypes.byref(code), ctypes.c_float(0.5), self._pointer(finite)]
        return Case(
            "decode_rotated",
            arguments,
            [*self._totals, finite],
            [words, scales, code],
            (4 + WORKERS * bits / 8) * self._n,
        )

    def _matrices(self, rank: int) -> tuple:
        """(sizes of the matrices, elements of all P, of all Q, and of the dense tensors).

        Each tensor is treated as a matrix with about as many rows as columns.  Elements at its end
        that do not fill a row are left out.  A tensor too small for this rank is sent dense.
        """
        sizes = []
        for n in self._lengths:
            columns = 1 << max(0, (n.bit_length() - 1) // 2)
            low = columns > 2 * rank
            sizes.append(MatrixSize(n // columns, columns, rank) if low else MatrixSize(n, 1, 0))
        return (
            self._array(MatrixSize, sizes),
            sum(size.rows * size.rank for size in sizes),
            sum(size.columns * size.rank for size in sizes),
            sum(size.rows for size in sizes if not size.rank),
        )

    def _factor(self, seed: int, count: int) -> Any:
        return self._memory.put(np.random.default_rng(seed).standard_normal(count, np.float32))

    def _project(self, rank: int) -> Case:
        sizes, p_count, q_count, dense_count = self._matrices(rank)
        factor, p = self._factor(5, q_count), self._new(p_count, np.float32)
        dense, finite = self._new(dense_count, np.float32), self._new(1, np.uint8)
        starts = np.cumsum([0, *(size.columns * size.rank for size in sizes)])
        qs = (ctypes.c_void_p * self._count)(*(self._at(factor, int(at)) for at in starts[:-1]))
        arguments = [self._compensated(), ctypes.c_int64(self._count), ctypes.c_float(1.0)]
        arguments += [sizes, qs, *map(self._pointer, (p, dense, finite))]
        outputs = [p, dense, *self._kept, finite]
        return Case("project_list", arguments, outputs, [factor], 12 * self._n)

    def _reproject(self, rank: int) -> Case:
        sizes, p_count, q_count, _ = self._matrices(rank)
        p, q = self._factor(6, p_count), self._new(q_count, np.float32)
        rows = zip(self._xs, self._kept, self._lengths)
        items = [EncodeInput(self._at(x), None, self._at(kept), n) for x, kept, n in rows]
        arguments = [self._array(EncodeInput, items), ctypes.c_int64(self._count)]
        arguments += [ctypes.c_float(1.0), sizes, self._pointer(p), self._pointer(q)]
        arguments += [Factors(None, None)]
        return Case("reproject_list", arguments, [q, *self._kept], [p], 8 * self._n)

    def _expand(self, rank: int) -> Case:
        sizes, p_count, q_count, dense_count = self._matrices(rank)
        factors = [self._factor(7, p_count), self._factor(8, q_count), self._factor(9, dense_count)]
        finite = self._new(1, np.uint8)
        arguments = [self._targets(), ctypes.c_int64(self._count), sizes]
        arguments += [*map(self._pointer, factors), ctypes.c_float(0.5), self._pointer(finite)]
        return Case("expand_list", arguments, [*self._totals, finite], factors, 4 * self._n)

    def _orthonormal(self, rank: int) -> Case:
        sizes, p_count, _, _ = self._matrices(rank)
        p, basis = self._factor(10, p_count), self._new(p_count, np.float32)
        arguments = [sizes, ctypes.c_int64(self._count), self._pointer(p), self._pointer(basis)]
        return Case("orthonormal_list", arguments, [basis], [p], 8 * p_count)

    def _pointer(self, memory: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._memory.pointer(memory))
