"""Which gradient takes which road: variables → lanes → groups → buckets, decided once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

import grace_tf.compressors  # noqa: F401  (fills the registry)
import grace_tf.memories  # noqa: F401
from grace_tf import wire
from grace_tf.core import registry
from grace_tf.core.compressor import Compressor
from grace_tf.core.hyperparameters import check_choice, check_integer
from grace_tf.core.memory import Memory
from grace_tf.transports.base import PLAN_KEYS, Handed
from grace_tf.version import __version__


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keywords that all doors share, checked; `routes`: (pattern, compressor, memory)."""

    routes: tuple[tuple[str, Compressor, Memory], ...]
    granularity: str = "auto"
    exchange: str = "auto"
    min_elements: int = 1024
    exclude: tuple[str, ...] = ()
    bucket_bytes: int = 25 << 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("grace_tf", "granularity", self.granularity, ("auto", "variable", "model"))
        check_choice("grace_tf", "exchange", self.exchange, ("auto", "gather"))
        check_integer("grace_tf", "min_elements", self.min_elements, 0)
        check_integer("grace_tf", "bucket_bytes", self.bucket_bytes, 1)
        check_integer("grace_tf", "seed", self.seed, 0, 2**32 - 1)
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

    @property
    def dense(self) -> bool:
        """Whether no variable at all is compressed or remembered."""
        return all((c, m) == DENSE for _, c, m in self.routes)

    def config(self) -> dict[str, Any]:
        """JSON-able keywords that make equal settings: `settings(**config)`."""
        memories = {registry.spec_of(m) for _, _, m in self.routes}
        config = dataclasses.asdict(dataclasses.replace(self, routes=()))
        del config["routes"]
        config["exclude"] = list(self.exclude)
        if len(self.routes) == 1 and self.routes[0][0] == ANY:
            _, compressor, memory = self.routes[0]
            return {"compressor": str(compressor), "memory": registry.spec_of(memory), **config}
        memory = memories.pop() if len(memories) == 1 else "auto"
        return {"compressor": {p: str(c) for p, c, _ in self.routes}, "memory": memory, **config}


ANY = ".*"
DENSE = (registry.get("none"), registry.get_memory("none"))


def settings(
    compressor: str | Compressor | Mapping[str, Any] = "qsgd",
    *,
    memory: str | Memory = "auto",
    granularity: str = "auto",
    exchange: str = "auto",
    min_elements: int = 1024,
    exclude: str | Sequence[str] = (),
    bucket_bytes: int = 25 << 20,
    seed: int = 0,
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
    return Settings(routes, granularity, exchange, min_elements, exclude, bucket_bytes, seed)


def _pair(what: Any, memory: str | Memory, **hyperparameters: Any) -> tuple[Compressor, Memory]:
    compressor, own = registry.resolve(what, **hyperparameters)
    chosen = registry.get_memory(own if memory == "auto" else memory)
    if chosen.requires_nonexpansive and not compressor.nonexpansive:
        stages = [compressor, *(stage for _, stage in getattr(compressor, "inner", ()))]
        nearest = ' or rounding="nearest"' if any(hasattr(s, "rounding") for s in stages) else ""
        raise ValueError(
            f"The memory {chosen.name!r} needs a compressor that is nonexpansive and {compressor} "
            f'is not; use memory="none"{nearest}.'
        )
    return compressor, chosen


def _check_pattern(pattern: Any) -> None:
    if not isinstance(pattern, str):
        raise TypeError(f"A pattern is a regular expression in a string, not {pattern!r}.")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"The pattern {pattern!r} is no regular expression: {error}.") from None


@dataclasses.dataclass(frozen=True)
class Lane:
    """One gradient's road: `position` in the list of gradients, `ordinal` of its variable."""

    position: int
    ordinal: int
    shape: tuple[int, ...]
    dtype: str
    compressor: Compressor
    memory: Memory

    @property
    def dense(self) -> bool:
        return (self.compressor, self.memory) == DENSE

    @property
    def spec(self) -> tf.TensorSpec:
        # A dense lane keeps its dtype; everything else is compressed as float32.
        return tf.TensorSpec(self.shape, self.dtype if self.dense else tf.float32)

    @property
    def nbytes(self) -> int:
        return self.spec.shape.num_elements() * tf.as_dtype(self.dtype).size


@dataclasses.dataclass(frozen=True)
class Group:
    """The lanes of a bucket with equal compressor, memory and dtype; `merged`: one flat tensor."""

    lanes: tuple[Lane, ...]
    merged: bool = False

    @property
    def compressor(self) -> Compressor:
        return self.lanes[0].compressor

    @property
    def memory(self) -> Memory:
        return self.lanes[0].memory

    @property
    def specs(self) -> tuple[tf.TensorSpec, ...]:
        """What the compressor sees."""
        if not self.merged:
            return tuple(lane.spec for lane in self.lanes)
        total = sum(lane.spec.shape.num_elements() for lane in self.lanes)
        return (tf.TensorSpec([total], self.lanes[0].spec.dtype),)

    @property
    def ordinals(self) -> tuple[int, ...]:
        """The variables whose random streams and compressor states the group uses."""
        return tuple(lane.ordinal for lane in (self.lanes[:1] if self.merged else self.lanes))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Buckets of groups in backward order.

    `layout` is a digest of what is sent, `digest` of that and of the variables' `paths`: equal
    where the plans are.
    """

    buckets: tuple[tuple[Group, ...], ...]
    seed: int
    digest: int
    layout: int = 0
    paths: tuple[str, ...] = ()
    ordinal: int = 0  # among equal digests of this process
    sparse: tuple[Lane, ...] = ()  # dense lanes whose gradients are rows; in no bucket

    @property
    def groups(self) -> list[Group]:
        return [group for bucket in self.buckets for group in bucket]

    @property
    def dense(self) -> bool:
        return all(lane.dense for group in self.groups for lane in group.lanes)

    def handed_dense(self, flagged: bool) -> list[Handed]:
        """What one worker hands over where nothing is compressed; not `flagged` where the host
        reduces, which knows no flag of ours."""
        specs = [spec for group in self.groups for spec in group.specs]
        flags = [Handed("sum", "float32", 1)] * len(self.buckets) if flagged else []
        return [Handed("sum", s.dtype.name, s.shape.num_elements()) for s in specs] + flags

    def key(self, bucket: int, round_: int, kind: str, dtype: str) -> int:
        """The 31-bit name of a collective: from the digest, so the order of tracing is free."""
        return collective_key(self.digest, self.ordinal, bucket, round_, kind, dtype)


def collective_key(*names: Any) -> int:
    """The 31-bit key of the collective of these names, beyond those that the group keeps."""
    return PLAN_KEYS + _hash("/".join(map(str, names))) % (2**31 - PLAN_KEYS)


def make_plan(
    settings: Settings,
    paths: Sequence[str],
    specs: Sequence[tf.TensorSpec],
    ordinals: Sequence[int],
    rows: Sequence[int] = (),
) -> Plan:
    """The plan for gradients of these specs, in the order of the variables.

    Non-float gradients, those of fewer than `min_elements` elements and those that no route wants
    travel dense, and apart as rows at the positions `rows`.  Buckets are filled in backward order
    up to `bucket_bytes` of gradient.
    """
    lanes = [
        _lane(settings, i, path, spec, ordinal)
        for i, (path, spec, ordinal) in enumerate(zip(paths, specs, ordinals))
    ]
    sparse = tuple(lane for lane in lanes if lane.dense and lane.position in rows)
    lanes = [lane for lane in lanes if lane not in sparse]
    merged = settings.granularity == "model"
    buckets = []
    for bucket in _fill(lanes, None if merged else settings.bucket_bytes):
        groups: dict[Any, list[Lane]] = {}
        for lane in bucket:
            groups.setdefault((lane.compressor, lane.memory, lane.spec.dtype), []).append(lane)
        buckets.append(tuple(Group(tuple(g), merged and not g[0].dense) for g in groups.values()))
    layout = _digest([*buckets, (Group(sparse),)] if sparse else buckets, len(sparse), settings)
    digest = _hash(json.dumps([layout, *paths]))
    return Plan(tuple(buckets), settings.seed, digest, layout, tuple(paths), sparse=sparse)


def _lane(settings: Settings, i: int, path: str, spec: tf.TensorSpec, ordinal: int) -> Lane:
    n = spec.shape.num_elements()
    if n is None:
        raise ValueError(
            f"The variable {path} has no static shape (its gradient's is {spec.shape}), and the "
            "exchange is planned from it: make the variable with the shape that it will have."
        )
    compressed = spec.dtype.is_floating and n >= max(settings.min_elements, 1)
    compressor, memory = settings.route(path) if compressed else DENSE
    return Lane(i, ordinal, tuple(spec.shape), spec.dtype.name, compressor, memory)


def _fill(lanes: Sequence[Lane], limit: int | None) -> list[list[Lane]]:
    buckets: list[list[Lane]] = []
    room = 0
    for lane in reversed(lanes):
        if not buckets or (limit is not None and lane.nbytes > room):
            buckets.append([])
            room = limit or 0
        buckets[-1].append(lane)
        room -= lane.nbytes
    return buckets


def _digest(buckets: Sequence[Sequence[Group]], sparse: int, settings: Settings) -> int:
    told = [
        [
            [
                str(g.compressor),
                registry.spec_of(g.memory),
                g.merged,
                [[*lane.shape, lane.dtype, lane.ordinal] for lane in g.lanes],
            ]
            for g in bucket
        ]
        for bucket in buckets
    ]
    return _hash(json.dumps([__version__, wire.VERSION, settings.seed, told, sparse]))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
