"""`Context`: what the encoder and the decoder both know, and what only the encoder knows."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from grace_tf import ops
from grace_tf.ops.backend.arguments import ListKey

SHARED = 0xFFFFFFFF  # the worker number of random streams that all workers draw alike
_DEEPEST = 84  # the last draw of a stage at depth three
_HOP = 85  # is added to the draws of the second of two hops
_STORED = 255  # the draw with which memories round the state that they store


@dataclasses.dataclass(frozen=True)
class Context:
    """What a compressor may know beside the gradient: public facts, and the sender's number.

    `compress`, `decompress` and `aggregate` get the context of one lane (one variable, or several
    merged to one vector); `rounds` gets the context of the whole lane group, and `lane(i)` of it is
    the context of lane i.  The line makes contexts; compressors read them, and never keep them.

    Attributes:
      specs: `specs[i]` is the `tf.TensorSpec` of lane i: float32 and a static shape.
      variables: `variables[i]` is the ordinal of lane i's variable: variables are numbered in the
        order in which they first come.
      step: an int or an integer scalar tensor (int64 in training), the number of steps committed
        so far.  Inside a `tf.function` it is symbolic: a Python `if` cannot test it.
      seed: the int that the run was given, the same on every worker.
      size: the number of workers, an int.
      worker: the sender's number, 0 to size - 1; None in a public context, which decoding gets.
      draw: which of a variable's random draws this is; see `stage`.
      multiplier: the factor of the gradients: `size` where Keras has divided the loss by it, 1 / L
        for the sum of a host's L workers, else 1.  Fused forms apply it; others get the product.
      needs_sent: False where the memory ignores `sent`: `rounds` may return None for it.
      dense: True where the variable travels uncompressed and a memory has claimed it.

    Example, a stochastic rounding to whole numbers:

        def compress(self, x, ctx):
            u = grace_tf.ops.uniform(ctx.elements, ctx.key())
            return {"values": tf.floor(tf.reshape(x, [-1]) + u)}

        def decompress(self, payload, ctx):
            return tf.reshape(payload["values"], ctx.spec.shape)
    """

    specs: tuple[tf.TensorSpec, ...]
    variables: tuple[int, ...]
    step: Any
    seed: int
    size: int
    worker: Any = None
    draw: int = 0
    multiplier: float = 1.0
    needs_sent: bool = True
    dense: bool = False

    def __len__(self) -> int:
        return len(self.specs)

    @property
    def shapes(self) -> list[tf.TensorShape]:
        """The shapes of the lanes."""
        return [spec.shape for spec in self.specs]

    @property
    def lengths(self) -> list[int]:
        """The lanes' numbers of elements."""
        return [shape.num_elements() for shape in self.shapes]

    def lane(self, i: int) -> Context:
        """The context of lane i alone, from 0 to `len(ctx) - 1`."""
        return dataclasses.replace(self, specs=(self.specs[i],), variables=(self.variables[i],))

    @property
    def spec(self) -> tf.TensorSpec:
        """The `tf.TensorSpec` of the only lane: its static shape, float32."""
        (spec,) = self.specs
        return spec

    @property
    def elements(self) -> int:
        """The number of elements of the only lane, an int of at least 1."""
        return self.spec.shape.num_elements()

    def public(self) -> Context:
        """The same without the sender's number: what decoding gets."""
        return dataclasses.replace(self, worker=None)

    def stage(self, number: int, spec: tf.TensorSpec | None = None) -> Context:
        """The context of an inner stage, round or hop: other random draws, perhaps another spec.

        Draws form a tree with four children a node, so that nested stages never share a stream.

        Args:
          number: 0 to 3, different for each inner stage of one context.  A method that draws twice
            in one step takes `ctx.stage(0).key()` and `ctx.stage(1).key()`.
          spec: the `tf.TensorSpec` of what the inner stage compresses; without it, the specs stay.
        Raises: ValueError for another number, or where stages nest more than three deep.
        """
        hop = _HOP if self.draw >= _HOP else 0
        draw = 4 * (self.draw - hop) + 1 + number
        if not 0 <= number < 4 or draw > _DEEPEST:
            raise ValueError("Stages nest at most three deep, with at most four stages in each.")
        specs = self.specs if spec is None else (spec,)
        return dataclasses.replace(self, draw=hop + draw, specs=specs)

    def hop(self) -> Context:
        """The context of the second of two hops: random draws that no stage of the first shares."""
        return dataclasses.replace(self, draw=self.draw + _HOP)

    def either_hop(self) -> Context:
        """The context whose random draws serve both of two hops: for shared draws, with which
        payloads of the first and of the second hop are decoded alike."""
        return dataclasses.replace(self, draw=self.draw % _HOP)

    def stored(self) -> Context:
        """The context in which a memory stores its state: random draws that no stage shares."""
        return dataclasses.replace(self, draw=_STORED)

    def key(self) -> ops.Key:
        """The name of the sender's random stream, for draws that only encoding needs.

        Each worker, step, variable and seed has a stream of its own.  Equal keys give equal
        numbers, so use a key for one draw only; contexts from `stage` give further keys.

        Returns: a `grace_tf.ops.Key`, for `ops.uniform(n, key)`, `ops.random_normal(n, key)` (both
          float32 `[n]`), `ops.random_words(n, key)` (int32 `[n]`) and `ops.quantize(..., key)`.
        Raises: ValueError in a public context.  Decoding gets one, since other workers cannot
          repeat the sender's draws; `init_state` gets one, since all workers share its result.
        """
        if self.worker is None:
            raise ValueError(
                "A public context has no private random stream: decoding and init_state draw from "
                "ctx.shared_key()."
            )
        return self._key(self.worker)

    def shared_key(self) -> ops.Key:
        """The name of the random stream that every worker draws alike, for encoder and decoder.

        It differs by step, variable and seed, not by worker: indices drawn from it need not travel.

        Returns: a `grace_tf.ops.Key`, used as that of `key`.
        """
        return self._key(SHARED)

    def list_key(self) -> ListKey:
        """The names of the sender's random streams of all lanes: `key` of each."""
        return self._list_key(self.lane(0).key().worker)

    def shared_list_key(self) -> ListKey:
        """The names of the random streams of all lanes that every worker draws alike."""
        return self._list_key(self.lane(0).shared_key().worker)

    def _list_key(self, worker: Any) -> ListKey:
        return ListKey(self.seed, worker, self.step, self.variables, self.draw)

    def _key(self, worker: Any) -> ops.Key:
        (variable,) = self.variables
        return ops.Key(self.seed, worker, self.step, variable, self.draw)
