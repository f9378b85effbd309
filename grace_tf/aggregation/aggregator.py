"""`Aggregator`: the entry point for custom training loops, which the other entry points use too.

It takes gradients with their variables and returns the aggregated gradients; aggregation/step.py
computes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.trackable.base import Trackable

from grace_tf.aggregation.already_aggregated import mark
from grace_tf.aggregation.consistency.plan_handshake import OptimizerInfo
from grace_tf.aggregation.measure.probe import Probe
from grace_tf.aggregation.measured import metrics_of
from grace_tf.aggregation.micro_batches import observed
from grace_tf.aggregation.step import Reduction
from grace_tf.core.hyperparameters import check_choice, check_integer
from grace_tf.line.inputs import gradient_of, is_gradient, plain
from grace_tf.line.settings import Settings, settings
from grace_tf.transports.base import CollectiveRecord, Transport


class Aggregator(Reduction, Trackable):
    """Aggregates gradients over all workers, compressed: `grads = aggregate(grads, variables)`.

    Works eagerly and inside tf.function, under MirroredStrategy and MultiWorkerMirroredStrategy (in
    the replica context), between processes after `grace_tf.init()`, and alone, where the codec and
    its memory run on one worker's gradients.  `tf.train.Checkpoint(aggregator=…)` saves its state.

    Eager calls of several threads take turns; between processes they are refused.  A tf.function
    that calls it must be run by one thread at a time: where two threads run it at once, the later
    step raises tf.errors.InvalidArgumentError and stores nothing.

    Args:
      compressor: an instance, a name, a spec such as "topk:ratio=0.01", a schedule of these, which
        follows the committed steps, or a mapping from patterns of variable paths to any.
      variables: those whose gradients will come, if known; others may join later.
      reduce: "mean" or "sum" over workers, the same on all; "auto" is "sum" under a strategy, where
        losses are divided by the number of replicas, and "mean" everywhere else.
      memory, granularity, exchange, hierarchical, min_elements, exclude, bucket_bytes, seed,
        check_every, average_logs, **hyperparameters: as for `grace_tf.wrap`.

    Raises ValueError or TypeError for unknown names and bad values, RuntimeError where the
    environment names more workers than can be reached.
    """

    told_of_settings = False  # whether the optimizer's rate and momentum were judged

    def __init__(
        self,
        compressor: Any = "qsgd",
        variables: Sequence[Any] | None = None,
        *,
        reduce: str = "auto",
        **keywords: Any,
    ) -> None:
        check_choice("grace_tf", "reduce", reduce, ("auto", "sum", "mean"))
        if not isinstance(compressor, Settings):
            compressor = settings(compressor, **keywords).of_micro_batches(1)
        super().__init__(compressor, reduce)
        self._track_trackable(self.state, "state")
        self.join(variables or ())

    def __reduce__(self):
        # A copy has the state, and finds the variables of it by their names as they join.
        return Aggregator, (self.settings,), (self.reduce, self.state.arrays())

    def __setstate__(self, copied):
        self.reduce, arrays = copied
        self.state.restore(arrays)

    def join(self, variables: Sequence[Any]) -> None:
        """Registers variables, in this order; those that have joined already stay as they are.

        They get their ordinals in the order of joining.  No reference to them is held: when a
        variable is deleted, its state and its plans are deleted too.

        Args:
          variables: TensorFlow or Keras variables, in the same order on all workers.
        """
        self._registry.add(variables)

    def follow(self, clock: Callable[[], tf.Tensor]) -> None:
        """Lets schedules follow this count of steps, not the state's; the same on all workers.

        Args:
          clock: called in every step, eagerly or traced, in any context of a strategy.
        """
        self._stages.clock = clock

    @property
    def handed(self) -> list[CollectiveRecord]:
        """What one worker hands to collectives in a step, as last traced (eagerly: as last run).

        The list has one `CollectiveRecord` (kind, dtype, elements, nbytes) a collective, in the
        order of use.

        A single worker lists what it would hand over as one of several.  Where TensorFlow reduces
        by itself, the list holds the gradients.  Rows of sparse gradients are listed between
        processes only, as many as the last step had.  With a schedule, the last stage counts.
        """
        return self._stages.handed

    @property
    def bytes_per_step(self) -> int:
        """Bytes that one worker hands to collectives in a step: the sum of `handed`."""
        return sum(handed.nbytes for handed in self.handed)

    def measure(self, every: int = 100, exact: bool = False) -> bool:
        """Measures every `every`-th committed step from inside it, for `metrics`.

        Call it on all workers alike, and before the tf.function is traced that calls this
        Aggregator: a step that was traced before measures nothing.  Aggregates, state and random
        draws stay the same bits.  Between processes a measured step sums one more buffer over all
        workers, with as many bytes as a step sends, but 64 KiB at least and 1 MiB at most: all
        gradients where they fit in, else a sketch of them, whose squared norms have a relative
        standard deviation of √(2/k), for k sums of four bytes.

        Args:
          every: the steps whose number, from 0 on, is a multiple of it.
          exact: whether whole gradients are summed instead, uncompressed.
        Returns: whether steps must be traced anew; False where it measures so already.
        Raises: ValueError or TypeError for what is no integer of at least 1 and no bool.
        """
        check_integer("measure", "every", every, 1)
        check_choice("measure", "exact", exact, (False, True))
        if self.probe is not None and (self.probe.every, self.probe.exact) == (every, exact):
            return False
        self.probe = Probe(every, exact)
        return True

    def metrics(self) -> dict[str, float | None]:
        """What a step sends, and what the last measured step has shown: see `measure`.

        Eager; it waits for the steps before it, but communicates nothing.

        Returns: a dict; None stands for what was not measured:
          step: the number of steps committed before the measured one.
          bytes, sent, ratio: of a step, as in `grace_tf.explain`.
          vnmse: ‖mean of decoded − mean of gradients‖² / ‖mean of gradients‖² over all dense
            gradients.  "Decoded" is what the optimizer gets.  Where that has another scale, as with
            a consensus or a momentum, both are compared at the best scale.
          residual: ‖residual‖ / ‖gradient‖ of this process's first worker, after that step.
          skipped: the share of steps that were not finite.
          encoding, exchange, decoding, exposed: seconds of a traced step on a CPU, which include
            waiting for other workers; `exposed` is from the last gradient to the last aggregate.
        """
        return dataclasses.asdict(metrics_of(self))

    @tf.autograph.experimental.do_not_convert
    def __call__(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The aggregates of one step, eagerly or in tf.function; all workers must call it alike.

        Args:
          grads: a tensor, IndexedSlices or None for each variable, of the variable's shape.
            IndexedSlices come back as IndexedSlices, unless line/sparse_policy.py makes them dense.
          variables: those that the gradients belong to, in the same order, none twice.
        Returns: a list in the order of `grads`, of their dtypes; None stays None.  Where a
          value of any worker is not finite, all workers get non-finite values and keep their state.
        Raises: ValueError for lists of other lengths or a variable that comes twice; RuntimeError
          outside the replica context of a strategy, and where workers differ or one is lost.
        """
        mark(variables, self)
        return self.aggregate(grads, variables, own_way=None)

    @tf.autograph.experimental.do_not_convert
    def aggregate(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        own_way: Callable[[list], list] | None,
        optimizer_info: Callable[[], OptimizerInfo] = OptimizerInfo,
    ) -> list[Any]:
        """Like `__call__`; `own_way` is Keras' reduction, used where every lane is dense.

        `optimizer_info` describes the calling optimizer, for the comparison in the first step.
        """
        grads = list(grads)
        present, given, present_variables = self._present(grads, variables)
        reduced = self._reduce(given, present_variables, own_way, optimizer_info)
        out = list(grads)
        for i, total in zip(present, reduced):
            out[i] = total
        return out

    def _present(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> tuple[list[int], list[Any], list[Any]]:
        """(positions, gradients, variables) of those that have a gradient; all variables join."""
        grads, variables = list(grads), list(variables)
        if len(grads) != len(variables):
            raise ValueError(f"{len(grads)} gradients came with {len(variables)} variables.")
        self.join(variables)
        if len({id(plain(v)) for v in variables}) < len(variables):
            raise ValueError("A variable comes twice; add up its gradients before.")
        present = [i for i, v in enumerate(variables) if is_gradient(grads[i], v)]
        given = [gradient_of(grads[i], variables[i]) for i in present]
        return present, given, [plain(variables[i]) for i in present]

    @tf.autograph.experimental.do_not_convert
    def observe(self, grads: Sequence[Any], variables: Sequence[Any], first: tf.Tensor) -> None:
        """Shows memories the gradients of one micro-batch; the mean of them comes to `aggregate`.

        It does not communicate.  It has no effect unless a memory observes micro-batches.

        Args:
          grads, variables: as for `__call__`.
          first: bool[]: whether it is the first micro-batch since the last step.
        """
        if observed(self.settings) > 1:
            _, given, present_variables = self._present(grads, variables)
            # As Keras accumulates them: rows become dense.
            given = [tf.convert_to_tensor(grad) for grad in given]
            self._observe(given, present_variables, first)

    def aggregate_replicas(
        self,
        transport: Transport,
        grads: Sequence[list[tf.Tensor]],
        variables: Sequence[Any],
        devices: Sequence[str | None],
    ) -> list[list[tf.Tensor]] | None:
        """One summed step of all workers of one process, seen from outside them.

        `grads[i]` are worker i's.  Returns each worker's aggregates, or None where every lane is
        dense and the caller can reduce by itself.
        """
        self.join(variables)
        plans = self._plan_stages(grads[0], [plain(v) for v in variables])
        if self._stages.dense(plans, flagged=False):
            return None
        with self._turns.one(meets=False):
            stage_plans = self._place(plans, transport.size, transport.workers, devices)
            return self._stages.run(stage_plans, transport, list(grads), summed=True)

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        # An exported model does not train: its SavedModel holds no compression state.
        return super()._trackable_children(save_type, **kwargs) if save_type == "checkpoint" else {}
