"""Several workers in one process, for tests, research and examples.

workers = Workers(3, "topk:ratio=0.1")
means = workers([[gradient_of_worker_0], [gradient_of_worker_1], [gradient_of_worker_2]])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf.aggregation.schedule_stages import StagePlans, Stages
from grace_tf.aggregation.state.state import State
from grace_tf.core.compressor import Compressor
from grace_tf.core.context import Context
from grace_tf.core.rounds import Payload, Request
from grace_tf.line.plan import Plan, make_plan
from grace_tf.line.round_driver import communicate
from grace_tf.line.settings import settings
from grace_tf.transports.base import CollectiveRecord, Transport
from grace_tf.transports.loopback import Loopback


class Workers:
    """`size` workers that share a plan and differ in gradients, memories and random streams.

    All live in this process; a call is one step of all of them.

    Args:
      size: the number of workers.
      compressor, **keywords: as for `grace_tf.wrap`, but `min_elements` is 1 by default, so that
        small examples are compressed.
      paths: of the variables, for patterns to match; by default "0", "1", ….
      summed: the gradients were divided by `size` before, as with a scaled loss, and a step returns
        their sum instead of the mean.
      transport: carries buffers between the workers; by default a `Loopback`.

    Raises ValueError or TypeError as `wrap` does.
    """

    def __init__(
        self,
        size: int,
        compressor: Any = "qsgd",
        *,
        paths: Sequence[str] = (),
        summed: bool = False,
        transport: Transport | None = None,
        **keywords: Any,
    ) -> None:
        self.settings = settings(compressor, **{"min_elements": 1, **keywords})
        self.transport = transport or Loopback(size)
        self.state = State()
        self._stages = Stages(self.state, self.settings.choice)
        self._paths = list(paths)
        self._summed = summed
        self._step = tf.function(self.step, autograph=False)

    def __call__(self, grads: Sequence[Sequence[Any]]) -> list[list[tf.Tensor]]:
        """One traced step.

        Args:
          grads: `grads[w]` are the gradients of worker w, equally many of the same shapes.
        Returns: `[w][i]`, what worker w gets for gradient i: the mean over workers, or with
          `summed` the sum of gradients that were divided by `size`.
        """
        return self._step([[tf.convert_to_tensor(g) for g in mine] for mine in grads])

    @tf.autograph.experimental.do_not_convert
    def step(self, grads: Sequence[Sequence[tf.Tensor]]) -> list[list[tf.Tensor]]:
        """The same without a tf.function: eager, or part of the caller's graph."""
        stage_plans = self._place(grads[0])
        return self._stages.run(stage_plans, self.transport, [list(m) for m in grads], self._summed)

    @property
    def handed(self) -> list[CollectiveRecord]:
        """The collectives of one worker, in the stage that ran last, as last traced."""
        return self._stages.handed

    def prepare(self, grads: Sequence[tf.Tensor]) -> Plan:
        """Makes the plan for such gradients, in a schedule the first stage's, and the state."""
        return self._place(grads).plans[0]

    def _place(self, grads: Sequence[tf.Tensor]) -> StagePlans:
        paths = self._paths or [str(i) for i in range(len(grads))]
        specs = [tf.TensorSpec(g.shape, g.dtype) for g in grads]
        stages = self.settings.stages
        plans = [make_plan(stage, paths, specs, range(len(specs))) for _, stage in stages]
        transport = self.transport
        self.state.place(transport.size, transport.workers, [None] * len(transport.workers))
        return self._stages.place(self.settings, plans)

    @property
    def bytes_per_step(self) -> int:
        """Bytes that one worker handed to collectives in the last traced step."""
        return sum(handed.nbytes for handed in self.handed)


@dataclasses.dataclass
class RoundsResult:
    """The results of one lane group on all workers: `totals[w][lane]`, …, `requests[w][round]`."""

    totals: list[list[tf.Tensor]]
    sent: list[list[tf.Tensor]]
    states: list[list[dict[str, tf.Tensor]]]
    requests: list[list[Request]]

    def payload(self, worker: int, lane: int = 0) -> Payload:
        """The parts of all rounds of one lane."""
        parts: Payload = {}
        for request in self.requests[worker]:
            parts.update(request.payloads[lane])
        return parts


class Disagreement(AssertionError):
    """The requests of the workers do not match."""


def _asked(request: Request) -> str:
    """A request as text: Gather(values float32[8])."""
    if not isinstance(request, Request):
        raise Disagreement(
            f"rounds yields requests (Sum, Max, Gather, AllToAll), not {type(request).__name__}."
        )
    lanes = [
        ", ".join(f"{name} {p.dtype.name}{p.shape.as_list()}" for name, p in payload.items())
        for payload in request.payloads
    ]
    return f"{type(request).__name__}({'; '.join(lanes)})"


def run_rounds(
    compressor: Compressor,
    xs: Sequence[Sequence[tf.Tensor]],
    states: Sequence[Sequence[dict[str, tf.Tensor]]],
    contexts: Sequence[Context],
) -> RoundsResult:
    """Runs a lane group's rounds on all workers in lock-step, over the real wire, without memory.

    `xs[w]`, `states[w]` and `contexts[w]` are worker w's.
    """
    transport = Loopback(len(xs))
    generators = [compressor.rounds(*args) for args in zip(xs, states, contexts)]
    requests: list[list[Request]] = [[] for _ in xs]
    results: list[Any] = [None] * len(xs)
    replies: list[Any] = [None] * len(xs)
    while any(result is None for result in results):
        now = []
        for w, generator in enumerate(generators):
            try:
                now.append([generator.send(replies[w])])
            except StopIteration as stop:
                results[w] = stop.value
        if not now:
            break
        if len(now) < len(xs):
            raise Disagreement(
                f"{len(now)} of {len(xs)} workers ask for round {len(requests[0]) + 1}, "
                "the others have ended: all workers need the same number of requests."
            )
        asked = [_asked(request) for (request,) in now]
        for w, other in enumerate(asked):
            if other != asked[0]:
                raise Disagreement(
                    f"In round {len(requests[0]) + 1} worker 0 asks for {asked[0]}, "
                    f"worker {w} for {other}."
                )
        for mine, (request,) in zip(requests, now):
            mine.append(request)
        answered, _ = communicate(now, transport, lambda kind, dtype: 1, flagged=False)
        replies = [reply for (reply,) in answered]
    totals, sent, next_states = (list(column) for column in zip(*results))
    return RoundsResult(totals, sent, next_states, requests)
