"""The contract of a memory: what a worker keeps between steps so that nothing is lost."""

from __future__ import annotations

import tensorflow as tf

State = dict[str, tf.Tensor]


class Memory:
    """Pure functions over a state of named tensors that the caller owns; a frozen dataclass.

    All tensors are float32 and have the shape of the lane.  `requires_nonexpansive` memories are
    refused for compressors without that trait.  When the number of workers changes between save
    and load, every state keeps its mean over workers.
    """

    name: str = ""
    requires_nonexpansive: bool = False

    def init_state(self, spec: tf.TensorSpec) -> State:
        """The state before the first step."""
        return {}

    def compensate(self, x: tf.Tensor, state: State) -> tf.Tensor:
        """What is to be compressed instead of the gradient x."""
        return x

    def update(self, compensated: tf.Tensor, sent: tf.Tensor, state: State) -> State:
        """The next state, from what should have been sent and what was."""
        return state

    def restore(self, total: tf.Tensor, state: State) -> tf.Tensor:
        """The aggregate that the optimizer sees (methods that send differences add them here)."""
        return total

    def absorb(self, state: State, offset: int, error: tf.Tensor) -> State:
        """Takes in the error of a second hop over the flat elements from `offset` on."""
        return state
