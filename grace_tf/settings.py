"""The keywords that all doors share, checked once: which variable takes which method."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import grace_tf.compressors  # noqa: F401  (fills the registry)
import grace_tf.memories  # noqa: F401
from grace_tf.core import registry
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_choice, check_integer
from grace_tf.core.memory import Memory
from grace_tf.core.specs import spec_of


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keywords that all doors share, checked; `routes`: (pattern, compressor, memory)."""

    routes: tuple[tuple[str, Compressor, Memory], ...]
    granularity: str = "auto"
    min_elements: int = 1024
    exclude: tuple[str, ...] = ()
    bucket_bytes: int = 25 << 20
    seed: int = 0
    check_every: int = 100

    def __post_init__(self) -> None:
        check_choice("grace_tf", "granularity", self.granularity, ("auto", "variable", "model"))
        check_integer("grace_tf", "min_elements", self.min_elements, 0)
        check_integer("grace_tf", "bucket_bytes", self.bucket_bytes, 1)
        check_integer("grace_tf", "seed", self.seed, 0, 2**32 - 1)
        check_integer("grace_tf", "check_every", self.check_every, 0)
        for pattern in (*self.exclude, *(pattern for pattern, _, _ in self.routes)):
            _check_pattern(pattern)

    def route(self, path: str) -> tuple[Compressor, Memory]:
        """The compressor and memory of the variable at this path (`:0` is ignored)."""
        path = path.removesuffix(":0")
        if not any(re.fullmatch(pattern, path) for pattern in self.exclude):
            for pattern, compressor, memory in self.routes:
                if re.fullmatch(pattern, path):
                    return compressor, memory
        return DENSE

    def claiming(self, path: str) -> Memory | None:
        """The memory through which the variable at this path goes though it is not compressed."""
        for pattern, _, memory in self.routes:
            if re.fullmatch(pattern, path.removesuffix(":0")):
                return memory if memory.claims_dense else None
        return None

    @property
    def dense(self) -> bool:
        """Whether no variable at all is compressed or remembered."""
        return all((c, m) == DENSE for _, c, m in self.routes)

    def config(self) -> dict[str, Any]:
        """JSON-able keywords that make equal settings: `from_config(config)`."""
        memories = {spec_of(m) for _, _, m in self.routes}
        config = dataclasses.asdict(dataclasses.replace(self, routes=()))
        del config["routes"]
        config["exclude"] = list(self.exclude)
        if len(self.routes) == 1 and self.routes[0][0] == ANY:
            _, compressor, memory = self.routes[0]
            return {"compressor": str(compressor), "memory": spec_of(memory), **config}
        memory = memories.pop() if len(memories) == 1 else "auto"
        return {"compressor": {p: str(c) for p, c, _ in self.routes}, "memory": memory, **config}


ANY = ".*"
DENSE = (registry.get("none"), registry.get_memory("none"))


def settings(
    compressor: str | Compressor | Mapping[str, Any] = "qsgd",
    *,
    memory: str | Memory = "auto",
    granularity: str = "auto",
    min_elements: int = 1024,
    exclude: str | Sequence[str] = (),
    bucket_bytes: int = 25 << 20,
    seed: int = 0,
    check_every: int = 100,
    **hyperparameters: Any,
) -> Settings:
    """Settings from the doors' keywords.

    Raises ValueError or TypeError, in one sentence that says what is wrong and what exists.
    """
    if isinstance(compressor, Mapping):
        if hyperparameters:
            raise TypeError(
                "Hyperparameters beside a mapping are ambiguous; write them into its specs."
            )
        if not compressor:
            raise ValueError("The mapping of patterns to compressors is empty.")
        routes = tuple((p, *_pair(c, memory)) for p, c in compressor.items())
    else:
        routes = ((ANY, *_pair(compressor, memory, **hyperparameters)),)
    if not isinstance(exclude, (str, list, tuple, set, frozenset)):
        raise TypeError(f"exclude is a pattern or a list of patterns, not {exclude!r}.")
    exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    return Settings(routes, granularity, min_elements, exclude, bucket_bytes, seed, check_every)


def from_config(config: Mapping[str, Any]) -> Settings:
    """Settings equal to those that gave this `config()`, in this version or an earlier one.

    Configurations of earlier versions may hold `exchange`, "auto" or "gather".  Both meant the
    same, so it is ignored.

    Raises ValueError or TypeError as `settings` does.
    """
    config = dict(config)
    if config.get("exchange") in ("auto", "gather"):
        del config["exchange"]
    return settings(**config)


def _pair(what: Any, memory: str | Memory, **hyperparameters: Any) -> tuple[Compressor, Memory]:
    compressor, own = registry.resolve(what, **hyperparameters)
    chosen = registry.get_memory(own if memory == "auto" else memory)
    if chosen.requires_nonexpansive and not compressor.nonexpansive:
        _refuse(compressor, chosen, "nonexpansive", "none", "nearest")
    if chosen.requires_unbiased and not compressor.unbiased:
        served = "ef21" if compressor.nonexpansive else "none"
        _refuse(compressor, chosen, "unbiased", served, "stochastic")
    return compressor, chosen


def _refuse(compressor: Compressor, memory: Memory, trait: str, served: str, rounding: str) -> None:
    """Raises ValueError, naming a memory that serves, and a rounding where that would help."""
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
