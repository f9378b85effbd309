"""The contract of a memory: what a worker keeps between steps so that nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf.core.context import Context

State = dict[str, tf.Tensor]


class Memory:
    """Two pure functions around the exchange, over a state that the caller owns.

    A memory is a frozen dataclass that holds hyperparameters.  `compensate` runs before the
    compressor and says what it compresses; `settle` runs after the exchange and says what the
    optimizer gets.  Both see one variable of one worker.  A memory never communicates.

    All leaves of the state are float32 and have the shape of the variable.  `store` may keep them
    between steps in another form, which `load` undoes.  When the number of workers changes between
    save and load, every leaf keeps its mean over workers.

    Attributes:
      name: what it is registered as.
      family: what the table of memories says of it, from its registration, as are the next two.
      paper: where it comes from.
      examples: specs with other hyperparameters.
      requires_nonexpansive: True where the state stays bounded only for compressors with the trait
        `nonexpansive`; all others are refused.
      requires_unbiased: True where it serves only compressors with the trait `unbiased`; all others
        are refused.
      alike: the names of leaves that are the same on every worker, as they belong to all workers'
        own ones.  Where a worker starts without its state and others have theirs, all start anew.
      needs_sent: False where `settle` never looks at `sent`, so that nobody computes it.
      claims_dense: True where variables that travel uncompressed (too small, or excluded) go
        through this memory too.  Its functions tell them by `ctx.dense`: there, what was sent is
        what was to be sent, and the state begins as `init_dense_state` says.
      by_rows: True where rows that a sparse gradient does not touch may stay as they are, so that a
        step costs no more than those it touches.  `compensate` and `settle` then also get `[rows,
        columns]` of the gradient and of the leaves, and `settle` returns `total` as it is.  Its
        `store` and `load` change nothing.
      in_encode: True where `grace_tf.core.list_compressor` does all that the memory does in the
        method's own pass: it keeps nothing, or adds the leaf `residual` and leaves there what was
        not sent.  A class that derives from it acts by itself.
      needs_every_row: True where a row gets something also in steps that do not touch it, as of a
        momentum.  Sparse gradients are then made dense.
      takes_back: True where the memory has `take_back`.  Without it a memory that looks at what was
        sent never goes with two hops.
      has_momentum: True where the aggregate is a momentum already.  Optimizers that have one of
        their own, which would be a momentum of the momentum, are refused.

    Example, error feedback:

        class Residual(Memory):
            requires_nonexpansive = True

            def init_state(self, spec):
                return {"residual": tf.zeros(spec.shape)}

            def compensate(self, x, state, ctx):
                compensated = x + state["residual"]
                return compensated, compensated

            def settle(self, carry, sent, total, state, ctx):
                return total, {"residual": carry - sent}
    """

    name: str = ""
    family: str = "other"
    paper: str = "-"
    examples: tuple[str, ...] = ()
    requires_nonexpansive: bool = False
    requires_unbiased: bool = False
    alike: tuple[str, ...] = ()
    needs_sent: bool = True
    in_encode: bool = False
    claims_dense: bool = False
    by_rows: bool = False
    needs_every_row: bool = False
    takes_back: bool = False
    has_momentum: bool = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Where a class defines an action on one variable, it does not inherit that on lists, and
        where it settles in its own way, it does not inherit how another takes back."""
        super().__init_subclass__(**keywords)
        for action in ("compensate", "settle"):
            if action in vars(cls) and f"{action}_list" not in vars(cls):
                setattr(cls, f"{action}_list", getattr(Memory, f"{action}_list"))
        if "settle" in vars(cls) and "take_back" not in vars(cls):
            cls.takes_back = False

    def init_state(self, spec: tf.TensorSpec) -> State:
        """The state before the first step.

        Args:
          spec: the float32 `tf.TensorSpec` of the variable.
        Returns: `{leaf name: tensor}`, each float32 with the shape of `spec`.
        """
        return {}

    def init_dense_state(self, spec: tf.TensorSpec) -> State:
        """The same for a variable that travels uncompressed and that this memory claims.

        A memory overrides it where some leaves of `init_state` serve compressed variables alone.
        """
        return self.init_state(spec)

    def compensate(self, x: tf.Tensor, state: State, ctx: Context) -> tuple[tf.Tensor, Any]:
        """What is to be compressed instead of the gradient.

        Args:
          x: the worker's own gradient, float32, as if the mean over workers were wanted.
          state: from `init_state` or the last `settle`.
          ctx: the sender's `Context` of the variable.
        Returns: (compensated, carry): a float32 tensor of the shape of x, and whatever `settle`
          wants to have: a tensor, a nest of tensors or None.
        """
        return x, None

    def settle(
        self, carry: Any, sent: tf.Tensor | None, total: tf.Tensor, state: State, ctx: Context
    ) -> tuple[tf.Tensor, State]:
        """The aggregate for the optimizer, and the next state.

        Args:
          carry: what `compensate` gave.
          sent: what this worker's payload stands for, float32 of the shape of x.  It may be
            None without `needs_sent`.
          total: the mean over workers of what they sent, or their consensus; float32.
          state: as in `compensate`.
          ctx: as in `compensate`.
        Returns: (aggregate, state): float32 of the shape of x, and the next state with the leaves
          of the first.  The aggregate is the same on every worker if it is computed from
          `total` and leaves that are the same on every worker.
        """
        return total, state

    def compensate_list(
        self, xs: Sequence[tf.Tensor], states: Sequence[State], ctx: Context
    ) -> tuple[list[tf.Tensor], list[Any]]:
        """`compensate` of a lane group: (compensated, carries), one of each for each variable.

        Overriding it, and `settle_list`, is for speed: so that a memory needs no operation for
        each variable.  Both must give the same bits as those for one variable.
        """
        lanes = [ctx.lane(i) for i in range(len(ctx))]
        pairs = [self.compensate(*each) for each in zip(xs, states, lanes)]
        return [x for x, _ in pairs], [carry for _, carry in pairs]

    def settle_list(
        self,
        carries: Sequence[Any],
        sent: Sequence[tf.Tensor | None],
        totals: Sequence[tf.Tensor],
        states: Sequence[State],
        ctx: Context,
    ) -> tuple[list[tf.Tensor], list[State]]:
        """`settle` of a lane group: (aggregates, states), one of each for each variable."""
        lanes = [ctx.lane(i) for i in range(len(ctx))]
        pairs = [self.settle(*each) for each in zip(carries, sent, totals, states, lanes)]
        return [aggregate for aggregate, _ in pairs], [state for _, state in pairs]

    def take_back(self, state: State, lost: tf.Tensor) -> State:
        """The state, as if this worker had sent less than `settle` was told.

        Args:
          state: the next state, from `settle`.
          lost: by how much: what the second of two hops has lost, of the sum over all workers;
            float32 of the variable's shape.
        """
        raise NotImplementedError(f"{type(self).__name__} takes nothing back.")

    def store(self, states: Sequence[State], ctx: Context) -> Sequence[State]:
        """What is kept until the next step and in files: the states, unless overridden.

        A memory overrides it, and `load`, to keep its leaves in fewer bits.

        Args:
          states: the next states of a lane group, from `settle` or `init_state`.
          ctx: the sender's `Context` of the group, one lane for each variable; `ctx.key()` and
            `ctx.list_key()` are for this alone.
        Returns: a list with the same leaf names, of any dtypes and static shapes.  What is stored
          of a leaf depends on that leaf alone.
        """
        return states

    def load(self, stored: Sequence[State], specs: Sequence[tf.TensorSpec]) -> Sequence[State]:
        """The states that `compensate` and `settle` see, from what `store` gave.

        Args:
          stored: as `store` returned it; of an older file also in another form, such as float32.
          specs: the float32 `tf.TensorSpec` of each variable.
        Returns: a list of states, the leaves float32 with the shapes of `specs`.
        Raises: ValueError for what cannot be the state of such a variable.
        """
        return stored
