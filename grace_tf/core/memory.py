"""The contract of a memory: what a worker keeps between steps so that nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf.core.context import Context

State = dict[str, tf.Tensor]


class Memory:
    """Two pure functions around the exchange; the caller owns the state.

    A memory is a frozen dataclass that holds hyperparameters.  `compensate` runs before the
    compressor and returns what it compresses; `settle` runs after the exchange and returns what
    the optimizer gets.  Both see one variable of one worker.  A memory never communicates.

    All leaves of the state are float32 and have the shape of the variable.  `store` may keep them
    between steps in another form, which `load` undoes.  When the number of workers changes between
    save and load, every leaf keeps its mean over workers.

    Attributes:
      name: the name under which it is registered.
      family: its family in the table of memories; from the registration, as the next two.
      paper: its source.
      examples: specs with other hyperparameters.
      requires_nonexpansive: True where the state stays bounded only for compressors with the trait
        `nonexpansive`; all others are refused.
      requires_unbiased: True where it serves only compressors with the trait `unbiased`; all others
        are refused.
      alike: the names of leaves that are the same on every worker, such as the mean of all workers'
        estimates.  Where one worker has lost its state, the states of all workers start anew.
      needs_sent: False where `settle` ignores `sent`; the line then does not compute it.
      claims_dense: True where variables that travel uncompressed (too small, or excluded) go
        through this memory too.  For them `ctx.dense` is True, `sent` is all of what `compensate`
        returned, and the state begins as `init_dense_state` says.
      by_rows: True where rows that a sparse gradient does not touch may stay unchanged, so that the
        cost of a step depends on the touched rows only.  `compensate` and `settle` then also get
        `[rows, columns]` of the gradient and of the leaves, and `settle` must return `total`
        unchanged.  `store` and `load` must change nothing.
      in_encode: True where `encode` of a `grace_tf.core.list_compressor.ListCompressor` does all
        the work of the memory: it has no state, or one leaf `residual`, which is added before,
        times `keeps`, and holds afterwards what was not sent.  Subclasses do not inherit this.
      keeps: the factor of the residual in what `compensate` returns.
      needs_every_row: True where a row changes also in steps that do not touch it, as with a
        momentum.  Sparse gradients are then made dense.
      takes_back: True where the memory has `take_back`.  Two hops are used only with memories that
        have it or ignore `sent`.
      forgets: True where a part of what was not sent is not sent in the next steps either, or waits
        in another form, as the hyperparameters say: the conformance suite does not look for it.
      has_momentum: True where the aggregate is a momentum already.  Optimizers with a momentum are
        then refused, since they would form the momentum of a momentum.
      momentum_field: the name of the hyperparameter that is this momentum.
      micro_batches: how many micro-batches `observe` sees before each step; 1 where it sees none.

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
    keeps: float = 1.0
    claims_dense: bool = False
    by_rows: bool = False
    needs_every_row: bool = False
    takes_back: bool = False
    forgets: bool = False
    has_momentum: bool = False
    momentum_field: str = "momentum"
    micro_batches: int = 1

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A class that defines an action on one variable does not inherit that action on lists, and
        a class that defines `settle` does not inherit `take_back`."""
        super().__init_subclass__(**keywords)
        for action in ("compensate", "settle"):
            if action in vars(cls) and f"{action}_list" not in vars(cls):
                setattr(cls, f"{action}_list", getattr(Memory, f"{action}_list"))
        if "settle" in vars(cls) and "take_back" not in vars(cls):
            cls.takes_back = False

    def check(self, compressor: Any) -> None:
        """Raises ValueError for a compressor that this memory's hyperparameters do not suit.

        It is asked at construction of the door, after the traits that the memory requires.
        """

    @property
    def remembers(self) -> bool:
        """Whether it keeps a state between steps."""
        return type(self).init_state is not Memory.init_state

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
        """The tensor to compress instead of the gradient.

        Args:
          x: this worker's gradient, float32, scaled as for a mean over workers.
          state: from `init_state` or the last `settle`.
          ctx: the sender's `Context` of the variable.
        Returns: (compensated, carry): a float32 tensor of the shape of x, and what `settle` gets as
          `carry`: a tensor, a nest of tensors or None.
        """
        return x, None

    def settle(
        self, carry: Any, sent: tf.Tensor | None, total: tf.Tensor, state: State, ctx: Context
    ) -> tuple[tf.Tensor, State]:
        """The aggregate for the optimizer, and the next state.

        Args:
          carry: from `compensate`.
          sent: this worker's payload, decoded: float32 of the shape of x.  It may be None without
            `needs_sent`.
          total: the mean over workers of `sent`, or their consensus; float32.
          state: as in `compensate`.
          ctx: as in `compensate`.
        Returns: (aggregate, state): float32 of the shape of x, and the next state with the same
          leaves.  The aggregate is the same on every worker if it is computed from `total` and
          leaves that are the same on every worker.
        """
        return total, state

    def of_micro_batches(self, count: int) -> Memory:
        """This memory where x is the mean of the gradients of `count` micro-batches.

        A memory overrides it to see each of these gradients: it returns itself with
        `micro_batches=count`, and `observe` is then called `count` times before each step.

        Raises: ValueError where its hyperparameters say another count.
        """
        return self

    def observe(self, x: tf.Tensor, state: State, first: tf.Tensor) -> State:
        """Sees the gradient of one micro-batch, which no other worker sees.

        Args:
          x: the gradient divided by `micro_batches`, so that the sum over micro-batches is the x
            of `compensate`.  float32.
          state: as `store` left it.
          first: bool[]: whether it is the first micro-batch since a step.  What was observed before
            a step that was skipped must then be replaced, since only `settle` resets it.
        Returns: the leaves that change, in the form of `store`.  `compensate` finds them in its
          state.
        """
        raise NotImplementedError(f"{type(self).__name__} observes no micro-batches.")

    def compensate_list(
        self, xs: Sequence[tf.Tensor], states: Sequence[State], ctx: Context
    ) -> tuple[list[tf.Tensor], list[Any]]:
        """`compensate` of a lane group: (compensated, carries), one of each for each variable.

        A memory overrides it and `settle_list` for speed: it then needs no operation for each
        variable.  Both must give the same bits as `compensate` and `settle`.
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
        """The state as if `settle` had got `sent - lost` instead of `sent`.

        Args:
          state: the next state, from `settle`.
          lost: the error of the second of two hops, in the sum over all workers; float32 of the
            variable's shape.
        """
        raise NotImplementedError(f"{type(self).__name__} takes nothing back.")

    def store(self, states: Sequence[State], ctx: Context) -> Sequence[State]:
        """The form of the states between steps and in files: unchanged, unless overridden.

        A memory overrides it and `load` to store its leaves in fewer bits.

        Args:
          states: the next states of a lane group, from `settle` or `init_state`.
          ctx: the sender's `Context` of the group, one lane for each variable.  Nothing else draws
            from its `ctx.key()` and `ctx.list_key()`.
        Returns: a list with the same leaf names, of any dtypes and static shapes.  The stored form
          of a leaf depends on that leaf alone.
        """
        return states

    def load(self, stored: Sequence[State], specs: Sequence[tf.TensorSpec]) -> Sequence[State]:
        """The states for `compensate` and `settle`, from what `store` returned.

        Args:
          stored: as `store` returned it; from an older file also in another form, such as float32.
          specs: the float32 `tf.TensorSpec` of each variable.
        Returns: a list of states, the leaves float32 with the shapes of `specs`.
        Raises: ValueError where `stored` cannot be the state of these variables.
        """
        return stored
