"""What both ends of the wire know, and what only the sender knows."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from grace_tf import ops

SHARED = 0xFFFFFFFF  # the worker number of random streams that all workers draw alike


@dataclasses.dataclass(frozen=True)
class Context:
    """The public knowledge of a lane group (specs, step, seed, size) and the sender's own number.

    `specs[i]` is the `tf.TensorSpec` of lane i, `variables[i]` the ordinal of its variable at first
    sight.  `step` is an int or an integer scalar tensor that counts committed steps.  `worker` is
    None in a public context: decoding may draw only from the shared stream.
    """

    specs: tuple[tf.TensorSpec, ...]
    variables: tuple[int, ...]
    step: Any
    seed: int
    size: int
    worker: Any = None
    draw: int = 0

    def __len__(self) -> int:
        return len(self.specs)

    def lane(self, i: int) -> Context:
        """The context of lane i alone."""
        return dataclasses.replace(self, specs=(self.specs[i],), variables=(self.variables[i],))

    @property
    def spec(self) -> tf.TensorSpec:
        """The spec of the only lane."""
        (spec,) = self.specs
        return spec

    @property
    def elements(self) -> int:
        """The number of elements of the only lane."""
        return self.spec.shape.num_elements()

    def public(self) -> Context:
        """The same without the sender's number."""
        return dataclasses.replace(self, worker=None)

    def stage(self, number: int, spec: tf.TensorSpec | None = None) -> Context:
        """The context of an inner stage, round or hop: other random draws, perhaps another spec.

        Draws form a tree with four children a node, so that nested stages never share a stream.
        """
        draw = 4 * self.draw + 1 + number
        if not 0 <= number < 4 or draw > 255:
            raise ValueError("Stages nest at most three deep, with at most four stages in each.")
        specs = self.specs if spec is None else (spec,)
        return dataclasses.replace(self, draw=draw, specs=specs)

    def key(self) -> ops.Key:
        """The sender's own random stream for the only lane."""
        if self.worker is None:
            raise ValueError(
                "A public context has no private random stream: decoding must not draw from it."
            )
        return self._key(self.worker)

    def shared_key(self) -> ops.Key:
        """The random stream of the only lane that every worker draws alike."""
        return self._key(SHARED)

    def _key(self, worker: Any) -> ops.Key:
        (variable,) = self.variables
        return ops.Key(self.seed, worker, self.step, variable, self.draw)
