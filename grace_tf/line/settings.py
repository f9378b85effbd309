"""`Settings`: the keywords of `wrap`, `Aggregator` and the like, checked; methods by variable."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import grace_tf.compressors  # noqa: F401  (fills the registry)
import grace_tf.memories  # noqa: F401
from grace_tf.core import registry
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_choice, check_integer
from grace_tf.core.memory import Memory
from grace_tf.core.schedule import Schedule
from grace_tf.core.scheduled import Scheduled
from grace_tf.core.specs import parse_firsts, spec_of, with_firsts
from grace_tf.line import two_hops


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keywords that all entry points share, checked; `routes`: (pattern, compressor, memory).

    A compressor may be a `Scheduled`, whose stages have their own memories; the memory of its route
    is that of the last stage which compresses.  `stages_beside`: the settings of all stages, where
    this is one stage of a schedule; `chosen`: the patterns whose method "auto" has chosen in it.
    """

    routes: tuple[tuple[str, Compressor | Scheduled, Memory], ...]
    granularity: str = "auto"
    min_elements: int = 1024
    exclude: tuple[str, ...] = ()
    bucket_bytes: int | None = None
    seed: int = 0
    check_every: int = 100
    exchange: str = "auto"
    hierarchical: bool | str = False
    average_logs: bool = True
    stages_beside: tuple[Settings, ...] = ()
    chosen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_choice("grace_tf", "granularity", self.granularity, ("auto", "variable", "model"))
        check_integer("grace_tf", "min_elements", self.min_elements, 0)
        if self.bucket_bytes is not None:
            check_integer("grace_tf", "bucket_bytes", self.bucket_bytes, 1)
        check_integer("grace_tf", "seed", self.seed, 0, 2**32 - 1)
        check_integer("grace_tf", "check_every", self.check_every, 0, 2**63 - 1)
        check_choice("grace_tf", "exchange", self.exchange, ("auto", "gather", "two_hop", "sum"))
        check_choice("grace_tf", "hierarchical", self.hierarchical, (False, True, "bf16"))
        check_choice("grace_tf", "average_logs", self.average_logs, (False, True))
        if len(self._scheduled) > 1 and any(each.chosen for each in self._scheduled):
            given = " and ".join(dict.fromkeys(map(str, self._scheduled)))
            if len(set(self._scheduled)) > 1:
                raise ValueError(
                    f"The mapping has {given}: beside auto there may be no schedule and no auto of "
                    "another quality, since all variables change their method together."
                )
        for pattern in (*self.exclude, *(pattern for pattern, _, _ in self.routes)):
            _check_pattern(pattern)

    @property
    def stages(self) -> tuple[tuple[int, Settings], ...]:
        """(first step, settings without a schedule) of every stage of any route."""
        return self._stages if self._scheduled else ((0, self),)

    @functools.cached_property
    def _stages(self) -> tuple[tuple[int, Settings], ...]:
        firsts = {0, *(first for c in self._scheduled for first in c.boundaries)}
        beside = tuple(self._at(first) for first in sorted(firsts))
        stages = [dataclasses.replace(stage, stages_beside=beside) for stage in beside]
        return tuple(zip(sorted(firsts), stages))

    def at(self, step: int) -> Settings:
        """The settings of this step, without a schedule."""
        return [settings for first, settings in self.stages if first <= step][-1]

    def _at(self, step: int) -> Settings:
        routes, chosen = [], []
        for pattern, compressor, memory in self.routes:
            if isinstance(compressor, Scheduled):
                chosen += [pattern] * compressor.chosen
                stage = compressor.stage(step)
                compressor, memory = stage.compressor, stage.memory
            routes.append((pattern, compressor, memory))
        return dataclasses.replace(self, routes=tuple(routes), chosen=tuple(chosen))

    @property
    def choice(self) -> Scheduled | None:
        """The stages among which the training chooses; None without "auto"."""
        return next((each for each in self._scheduled if each.chosen), None)

    @property
    def _scheduled(self) -> list[Scheduled]:
        return [c for _, c, _ in self.routes if isinstance(c, Scheduled)]

    @property
    def apart(self) -> frozenset[str]:
        """The kinds of state ("memory", "compressor") that stages do not share."""
        if not self._scheduled:
            return frozenset()
        memories = [{s.memory for s in c.stages} - {DENSE[1]} for c in self._scheduled]
        return frozenset(["compressor", *["memory"] * any(len(each) > 1 for each in memories)])

    def route(self, path: str) -> tuple[Compressor, Memory]:
        """The compressor and memory of the variable at this path (`:0` is ignored).

        Settings with a schedule have no route: use the settings of a stage.
        """
        path = path.removesuffix(":0")
        if not any(re.fullmatch(pattern, path) for pattern in self.exclude):
            for pattern, compressor, memory in self.routes:
                if re.fullmatch(pattern, path):
                    return compressor, memory
        return DENSE

    def claiming(self, path: str) -> Memory | None:
        """The memory of the variable at this path where it travels dense; None without one."""
        for pattern, _, memory in self.routes:
            if re.fullmatch(pattern, path.removesuffix(":0")):
                return memory if memory.claims_dense else None
        return None

    def of_micro_batches(self, count: int) -> Settings:
        """These settings for an optimizer whose gradients are means over `count` micro-batches.

        Raises ValueError where a memory was told another count.
        """
        routes = tuple(
            (p, _of_micro_batches(c, count), m.of_micro_batches(count)) for p, c, m in self.routes
        )
        return self if routes == self.routes else dataclasses.replace(self, routes=routes)

    def chooses(self, path: str) -> bool:
        """Whether "auto" has chosen the method of the variable at this path."""
        patterns = (pattern for pattern, _, _ in self.routes)
        first = next((p for p in patterns if re.fullmatch(p, path.removesuffix(":0"))), None)
        return first in self.chosen

    @property
    def dense(self) -> bool:
        """Whether no variable at all is compressed or remembered."""
        return all((c, m) == DENSE for _, c, m in self.routes)

    def config(self) -> dict[str, Any]:
        """JSON-able keywords, from which `from_config` makes equal settings."""
        config = dataclasses.asdict(dataclasses.replace(self, routes=(), stages_beside=()))
        del config["routes"], config["stages_beside"], config["chosen"]
        config["exclude"] = list(self.exclude)
        if len(self.routes) == 1 and self.routes[0][0] == ANY:
            _, compressor, memory = self.routes[0]
            return {
                "compressor": str(compressor),
                "memory": _memory_of(compressor, memory),
                **config,
            }
        compressors = {p: str(c) for p, c, _ in self.routes}
        return {"compressor": compressors, "memory": self._memories(), **config}

    def _memories(self) -> str | dict[str, str]:
        """The keyword `memory`: a spec for all patterns, "auto", or a spec for each pattern."""
        specs = {p: _memory_of(c, m) for p, c, m in self.routes}
        if len(set(specs.values())) == 1:
            return next(iter(specs.values()))
        automatic = all(_pair(str(c), "auto") == (c, m) for _, c, m in self.routes)
        return "auto" if automatic else specs


ANY = ".*"
DENSE = (registry.get("none"), registry.get_memory("none"))
# An instance, a spec, a spec of memories that follow each other (`residual@0;none@100`), or a
# schedule of memories.
MemoryLike = str | Memory | Schedule


def settings(
    compressor: str | Compressor | Mapping[str, Any] = "qsgd",
    *,
    memory: MemoryLike | Mapping[str, MemoryLike] = "auto",
    granularity: str = "auto",
    min_elements: int = 1024,
    exclude: str | Sequence[str] = (),
    bucket_bytes: int | None = None,
    seed: int = 0,
    check_every: int = 100,
    exchange: str = "auto",
    hierarchical: bool | str = False,
    average_logs: bool = True,
    **hyperparameters: Any,
) -> Settings:
    """Settings from the keywords of `wrap` and the other entry points.

    Raises ValueError or TypeError, in one sentence that says what is wrong and what exists.
    """
    if isinstance(compressor, Mapping):
        if hyperparameters:
            raise TypeError(
                "Hyperparameters beside a mapping are ambiguous; write them into its specs."
            )
        if not compressor:
            raise ValueError("The mapping of patterns to compressors is empty.")
        memories = memory if isinstance(memory, Mapping) else dict.fromkeys(compressor, memory)
        _check_memories(memories, compressor)
        routes = tuple((p, *_pair(c, memories[p])) for p, c in compressor.items())
    else:
        _check_memories(memory, ())
        routes = ((ANY, *_pair(compressor, memory, **hyperparameters)),)
    if not isinstance(exclude, (str, list, tuple, set, frozenset)):
        raise TypeError(f"exclude is a pattern or a list of patterns, not {exclude!r}.")
    exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    made = Settings(
        *(routes, granularity, min_elements, exclude, bucket_bytes, seed, check_every),
        *(exchange, hierarchical, average_logs),
    )
    _check_exchange(made)
    return made


def from_config(config: Mapping[str, Any]) -> Settings:
    """Settings equal to those whose `config()` this is, written by this version or an earlier one.

    Raises ValueError or TypeError as `settings` does.
    """
    return settings(**config)


def _pair(
    what: Any, memory: MemoryLike, **hyperparameters: Any
) -> tuple[Compressor | Scheduled, Memory]:
    compressor, default = registry.resolve(what, **hyperparameters)
    if isinstance(compressor, Scheduled) and compressor.chosen:
        if memory != "auto":
            raise ValueError(
                f"{compressor} gives each of its methods the memory of its paper: leave memory "
                f"out, or name a method beside memory={memory!r}."
            )
        return compressor, compressor.stages[-1].memory
    memories = parse_firsts(memory) if isinstance(memory, str) else memory
    if isinstance(memories, Schedule) or isinstance(compressor, Scheduled):
        if not isinstance(compressor, Scheduled):
            compressor = Scheduled.of([(0, compressor, registry.get_memory(default))])
        if not isinstance(memories, Schedule):
            memories = Schedule((0,), (memory,))
        return _remembering(compressor, memories)
    chosen = registry.get_memory(default if memory == "auto" else memory)
    _check_pair(compressor, chosen)
    return compressor, chosen


def _remembering(scheduled: Scheduled, memories: Schedule) -> tuple[Scheduled, Memory]:
    """(the stages with these memories, the memory of the last stage that compresses).

    "auto" is the memory that a stage has already.  An uncompressed stage takes a memory that claims
    dense variables, or the memory of the stage before it, whose residual it then sends.
    """
    chosen = []
    for first in sorted({*scheduled.boundaries, *memories.boundaries}):
        stage, memory = scheduled.stage(first), memories.at(first)
        memory = registry.get_memory(stage.memory if memory == "auto" else memory)
        _check_pair(stage.compressor, memory)
        chosen.append((first, stage.compressor, memory))
    claiming = [memory for _, _, memory in chosen if memory.claims_dense]
    stages, last = [], DENSE[1]
    for first, compressor, memory in chosen:
        if compressor == DENSE[0]:
            memory = claiming[0] if claiming else last
        stages.append((first, compressor, memory))
        last = memory
    compressing = [memory for _, compressor, memory in chosen if compressor != DENSE[0]]
    return Scheduled.of(stages), compressing[-1]


def _of_micro_batches(compressor: Compressor | Scheduled, count: int) -> Compressor | Scheduled:
    """The stages of a schedule with memories of so many micro-batches."""
    if not isinstance(compressor, Scheduled):
        return compressor
    stages = tuple(
        dataclasses.replace(stage, memory=stage.memory.of_micro_batches(count))
        for stage in compressor.stages
    )
    return dataclasses.replace(compressor, stages=stages)


def _memory_of(compressor: Compressor | Scheduled, memory: Memory) -> str:
    """The keyword `memory` for this memory, or for the memories of a schedule's stages."""
    if not isinstance(compressor, Scheduled) or len(compressor.stages) == 1:
        return spec_of(memory)
    if compressor.chosen:
        return "auto"
    for keyword in ("auto", spec_of(memory)):
        with contextlib.suppress(ValueError):  # the memory does not suit all stages
            if _pair(str(compressor), keyword)[0] == compressor:
                return keyword
    firsts = [compressor.stages[0]]
    firsts += [
        s for last, s in zip(compressor.stages, compressor.stages[1:]) if s.memory != last.memory
    ]
    return with_firsts((spec_of(stage.memory), stage.first) for stage in firsts)


def _check_pair(compressor: Compressor, chosen: Memory) -> None:
    if chosen.requires_nonexpansive and not compressor.nonexpansive:
        _refuse(compressor, chosen, "nonexpansive", "none", "nearest")
    if chosen.requires_unbiased and not compressor.unbiased:
        served = "ef21" if compressor.nonexpansive else "none"
        _refuse(compressor, chosen, "unbiased", served, "stochastic")
    chosen.check(compressor)


def _check_exchange(wanted: Settings) -> None:
    """Raises ValueError for an exchange that none of the compressors can use."""
    pairs = [(c, m) for _, stage in wanted.stages for _, c, m in stage.routes if c != DENSE[0]]
    if wanted.exchange == "two_hop" and not any(two_hops.possible(*pair) for pair in pairs):
        given = " and ".join(dict.fromkeys(f"{c} with the memory {m.name}" for c, m in pairs))
        raise ValueError(
            'exchange="two_hop" serves compressors of one round that have blocks, such as qsgd, '
            f'and memories such as none and residual, not {given or "none"}: use exchange="auto".'
        )
    others = [c for c, _ in pairs if not c.commutes_with_sum]
    if wanted.exchange == "sum" and others:
        raise ValueError(
            f'exchange="sum" serves methods whose payloads are summed as they are, such as fp16, '
            f'and {others[0]} is none: use exchange="auto".'
        )


def _check_memories(memory: Any, patterns: Collection[str]) -> None:
    if isinstance(memory, Mapping) and set(memory) != set(patterns):
        raise ValueError("memory is a mapping only with the patterns of the compressors' mapping.")


def _refuse(compressor: Compressor, memory: Memory, trait: str, served: str, rounding: str) -> None:
    """Raises ValueError, which names a memory that can be used, and a rounding that would help."""
    outer = getattr(compressor, "outer", compressor)
    stages = [outer, *(stage for _, stage in getattr(compressor, "inner", ()))]
    rounded = any(getattr(s, "rounding", rounding) != rounding for s in stages)
    helps = all(getattr(s, trait) or hasattr(s, "rounding") for s in stages)
    way = f' or rounding="{rounding}"' if rounded and helps else ""
    raise ValueError(
        f"The memory {memory.name!r} needs a compressor that is {trait} and {compressor} is not; "
        f'use memory="{served}"{way}.'
    )


def _check_pattern(pattern: Any) -> None:
    if not isinstance(pattern, str):
        raise TypeError(f"A pattern is a regular expression in a string, not {pattern!r}.")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"The pattern {pattern!r} is no regular expression: {error}.") from None
