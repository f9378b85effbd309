"""Sets of indices in few bits, on whole lists of tensors.

A set of at most k of the numbers below n is written in `index_words(n, k)` int32 words, whatever
the set, as a code of Elias and Fano. With l the largest number of bits for which k * 2^l <= n,
entry i of the ascending indices is split into its l low bits and the rest, h_i. The low bits lie
one after another, from the lowest bit of the first word on, and fill up whole words. After them
comes a bitmap of k + floor((n - 1) / 2^l) bits, also filled up to words, in which bit h_i + i is
set. Where a plain bitmap of n bits takes no more words (for k > n / 4, about), it takes the place
of both. What is not used is zero.

That is about l + 1 + n / (k 2^l) bits an entry: 8.56 at k = n / 100. No code can do with less than
log2 C(n, k) / k on average, which is 8.08 there. A code of varying length comes closer. This code
takes half a bit more, but its size is fixed, and any part of its bitmap can be decoded by itself
once the bits before it are counted.

Any words decode: the j-th of the bits set in the bitmap gives entry j, together with the j-th low
bits. Bits set beyond the k-th count for nothing. An entry that lacks its bit, or would come to n or
more, is n: outside.

Tensor i of a list has `lengths[i]` elements and up to `ks[i]` entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from grace_tf.ops import dispatch
from grace_tf.ops.backend import arguments, native
from grace_tf.ops.backend.outputs import counted, decoded, shaped_like, totals_of, vector
from grace_tf.ops.reference import index_sets as reference
from grace_tf.ops.reference.index_sets import index_layout


def index_words(n: int, k: int) -> int:
    """How many words a set of at most k of the numbers below n takes, 1 <= k <= n < 2^31."""
    return index_layout(n, k).words


def pack_list(
    indices: tf.Tensor, counts: tf.Tensor | None, lengths: Sequence[int], ks: Sequence[int]
) -> tf.Tensor:
    """Ascending int32 indices [sum of ks] as int32 words [sum of index_words].

    counts, int32 [N], says how many of a tensor's entries count; None that all do. An index outside
    its tensor, or not above the one before, among those that count is an InvalidArgumentError
    natively and means nothing in the reference.
    """
    indices = arguments.tensor(indices, tf.int32, 1, "indices")
    total = _checked(lengths, ks)
    arguments.check_size(indices, sum(ks), "indices")
    if counts is not None:
        counts = arguments.tensor(counts, tf.int32, 1, "counts")
        arguments.check_size(counts, len(ks), "counts")
    if not dispatch.runs_here([indices]):
        return reference.pack_list(indices, counts, lengths, ks)
    words = native._ops().grace_pack_index_list(
        indices=indices, lengths=list(lengths), ks=list(ks), **counted(counts, [0])
    )
    return vector(words, total)


def unpack_list(words: tf.Tensor, lengths: Sequence[int], ks: Sequence[int]) -> tf.Tensor:
    """The indices int32 [W, sum of ks] in W workers' words [W, sum of index_words]."""
    words = arguments.tensor(words, tf.int32, 2, "words")
    arguments.check_size(words, _checked(lengths, ks), "words")
    if not dispatch.runs_here([words]):
        return reference.unpack_list(words, lengths, ks)
    indices = native._ops().grace_unpack_index_list(words=words, lengths=list(lengths), ks=list(ks))
    return shaped_like([indices], [[words.shape[0], sum(ks)]])[0]


def without_faults(decoded: tuple[list[tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
    """The totals of `scatter_list`, for callers that do not look at `finite`.

    Where there are GPUs, all totals are NaN if `finite` is false: that is how a wrong index shows
    there, as under XLA. Without a GPU a wrong index has been an error already.
    """
    totals, finite = decoded
    if not arguments.has_gpus():
        return totals
    return [tf.where(finite, total, float("nan")) for total in totals]


def scatter_list(
    values: tf.Tensor,
    words: tf.Tensor,
    counts: tf.Tensor | None,
    ks: Sequence[int],
    shapes: Sequence,
    factor: float | tf.Tensor,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """`ops.scatter_sum` of W workers' sets for each variable, times factor: (totals, finite).

    values is float32 [W, sum of ks] and words int32 [W, sum of index_words]; counts int32 [W, N]
    says how many of a worker's entries for a variable count, None that all do. Of those that count
    the indices must be inside and ascend; anything else is an InvalidArgumentError that says which
    variable's do not. Under XLA, which has no errors, all totals are NaN then. On a GPU an
    operation does not wait for what its kernel finds: `finite` is false, and such an entry is left
    out.
    """
    factor = arguments.factor_of(factor)
    shapes = arguments.shape_list(shapes)
    size = _checked([shape.num_elements() for shape in shapes], ks)
    values, words = arguments.rows(
        values=(values, tf.float32, sum(ks)), words=(words, tf.int32, size)
    )
    counts = arguments.workers_counts(counts, values.shape[0], len(shapes))
    if not dispatch.runs_here([values, words]):
        return reference.scatter_list(values, words, counts, ks, shapes, factor)
    outputs = native._ops().grace_scatter_set_list(
        values=values,
        words=words,
        factor=factor,
        ks=list(ks),
        **counted(counts, [0, 0]),
        **totals_of(shapes),
    )
    return decoded(outputs, shapes)


def _checked(lengths: Sequence[int], ks: Sequence[int]) -> int:
    """The number of words of a list."""
    arguments.check_counts(ks, [tf.TensorShape([n]) for n in lengths])
    return sum(index_words(n, k) for n, k in zip(lengths, ks))
