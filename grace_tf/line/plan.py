"""`Plan`: sorts variables into lanes, lane groups and buckets, once for each set of gradients."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.memory import Memory
from grace_tf.core.specs import spec_of
from grace_tf.core.version import __version__
from grace_tf.line import collective_keys, row_selection, two_hops, wire
from grace_tf.line.lanes import Lane, lane_of
from grace_tf.line.row_chunks import Chunks, index_dtype
from grace_tf.line.settings import Settings
from grace_tf.line.sparse_policy import PLAIN_ROWS, ROWS
from grace_tf.transports.base import CollectiveRecord
from grace_tf.transports.rows import MESSAGES, NAMES

_ROUNDS, _KINDS, _DTYPES = 32, tuple(wire.KINDS.values()), 32
# Where `bucket_bytes` is None: a bucket has at most _MOST bytes of gradient.  It ends when it has
# one of _PARTS equal parts of all payloads, and at least _LEAST bytes of them.
_MOST, _PARTS, _LEAST = 25 << 20, 4, 512 << 10
_KEYS_OF_A_BUCKET = (_ROUNDS + 1) * len(_KINDS) * _DTYPES  # one more for sums inside a host


@dataclasses.dataclass(frozen=True)
class LaneGroup:
    """The lanes of a bucket with equal compressor, memory and dtype; `merged`: one flat tensor.

    `by_rows`: lanes in no bucket, whose gradients are compressed rows.  They share chunks, so their
    rows have one shape, and their row numbers one dtype.  `exchange`: the keyword of `wrap`.
    """

    lanes: tuple[Lane, ...]
    merged: bool = False
    by_rows: bool = False
    exchange: str = "auto"

    @property
    def compressor(self) -> Compressor:
        return self.lanes[0].compressor

    @property
    def memory(self) -> Memory:
        return self.lanes[0].memory

    @property
    def dense(self) -> bool:
        return self.lanes[0].dense

    @property
    def claimed(self) -> bool:
        return self.lanes[0].claimed

    @property
    def specs(self) -> tuple[tf.TensorSpec, ...]:
        """The specs of the tensors that the compressor sees."""
        if not self.merged:
            return tuple(lane.spec for lane in self.lanes)
        total = sum(lane.spec.shape.num_elements() for lane in self.lanes)
        return (tf.TensorSpec([total], self.lanes[0].spec.dtype),)

    @functools.cached_property
    def chunks(self) -> Chunks:
        """Converts the rows of this group, which is `by_rows`, to 32-bit words and back."""
        rows = sum(lane.shape[0] for lane in self.lanes)
        first = self.lanes[0].shape
        coder = row_selection.coder(self.compressor)
        return Chunks(coder, (rows, *first[1:]), index_dtype(first[0]))

    def takes_two_hops(self, size: int) -> bool:
        """Whether two hops replace the group's gather between `size` workers: see two_hops.py."""
        return two_hops.taken(self.compressor, self.memory, self.specs, size, self.exchange)

    @property
    def ordinals(self) -> tuple[int, ...]:
        """The variables whose random streams and compressor states the group uses."""
        return tuple(lane.ordinal for lane in (self.lanes[:1] if self.merged else self.lanes))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Buckets of groups in backward order.

    `layout` is a digest of what is sent; `digest` covers the variables' `paths` too.  They are
    equal where the plans are.  `first_key`: the first key of its collectives, see `keyed`.
    """

    buckets: tuple[tuple[LaneGroup, ...], ...]
    seed: int
    digest: int
    layout: int = 0
    paths: tuple[str, ...] = ()
    first_key: int = collective_keys.FIRST
    check_every: int = 0
    hierarchical: bool | str = False
    sparse: tuple[Lane, ...] = ()  # dense lanes whose gradients are rows; in no bucket
    by_rows: tuple[LaneGroup, ...] = ()  # lanes whose gradients are compressed rows

    @property
    def groups(self) -> list[LaneGroup]:
        """The lane groups of all buckets."""
        return [group for bucket in self.buckets for group in bucket]

    @property
    def rows(self) -> tuple[Lane, ...]:
        """All lanes whose gradients stay rows."""
        return self.sparse + tuple(lane for group in self.by_rows for lane in group.lanes)

    @property
    def dense(self) -> bool:
        return not self.by_rows and all(lane.dense for group in self.groups for lane in group.lanes)

    def handed_dense(self, flagged: bool) -> list[CollectiveRecord]:
        """The collectives of one worker where nothing is compressed; without the flag
        (`flagged=False`) where Keras reduces by itself."""
        specs = [spec for group in self.groups for spec in group.specs]
        flags = [CollectiveRecord("sum", "float32", 1)] * len(self.buckets) if flagged else []
        return [
            CollectiveRecord("sum", s.dtype.name, s.shape.num_elements()) for s in specs
        ] + flags

    @property
    def keys(self) -> range:
        """All keys that the plan can use: those of its buckets, then those of its rows.

        The key of a collective follows from the plan, not from the order of tracing.
        """
        count = len(self.buckets) * _KEYS_OF_A_BUCKET + len(NAMES) * bool(self.sparse)
        count += len(MESSAGES) * bool(self.by_rows)
        return range(self.first_key, self.first_key + count)

    def key(self, bucket: int, round_: int, kind: str, dtype: str) -> int:
        """The key of one collective of a bucket's round: see `collective_keys`.

        Raises ValueError for a round, kind or dtype that has no key.
        """
        number = tf.as_dtype(dtype).as_datatype_enum
        if not (round_ < _ROUNDS and number < _DTYPES):
            raise ValueError(
                f"A collective of round {round_} and dtype {dtype} has no key: there are "
                f"{_ROUNDS} rounds, and dtypes whose number in TensorFlow is below {_DTYPES}."
            )
        return self._key(bucket, round_, kind, dtype)

    def _key(self, bucket: int, round_: int, kind: str, dtype: str) -> int:
        place = (bucket * (_ROUNDS + 1) + round_) * len(_KINDS) + _KINDS.index(kind)
        return self.keys[place * _DTYPES + tf.as_dtype(dtype).as_datatype_enum]

    def bucket_of(self, key: int) -> int:
        """The number of the bucket whose collectives have this key."""
        return (key - self.first_key) // _KEYS_OF_A_BUCKET

    def round_of(self, key: int) -> int:
        """The number of the round of a bucket whose collectives have this key."""
        return (key - self.first_key) % _KEYS_OF_A_BUCKET // (len(_KINDS) * _DTYPES)

    def inside_key(self, bucket: int, dtype: str) -> int:
        """The key of the sum of a bucket's gradients inside a host."""
        return self._key(bucket, _ROUNDS, "sum", dtype)

    def measuring_key(self, inside: bool = False) -> int:
        """The key of the sum that shows how far the aggregates are from the mean; `inside` a host.

        The plan must have a bucket.
        """
        return self._key(0, _ROUNDS, "max" if inside else "all_to_all", "float32")

    def row_key(self, name: str) -> int:
        """The key of the collective that `Transport.rows` calls by this name, one of `rows.NAMES`.

        The plan must have sparse lanes.  Raises ValueError for another name.
        """
        if name not in NAMES:
            raise ValueError(f"A collective for rows is called {', '.join(NAMES)}, not {name!r}.")
        return self.keys[len(self.buckets) * _KEYS_OF_A_BUCKET + NAMES.index(name)]

    def message_key(self, name: str) -> int:
        """The same for `Transport.messages`, one of `rows.MESSAGES`, and lanes in `by_rows`."""
        return self.keys[MESSAGES.index(name) - len(MESSAGES)]


def keyed(plan: Plan) -> Plan:
    """The plan with newly reserved keys, for collectives between processes.

    All workers must compare such a plan before they make another: see collective_keys.py.

    Raises RuntimeError where no keys are left.
    """
    return dataclasses.replace(plan, first_key=collective_keys.deal(len(plan.keys)).start)


def make_plan(
    settings: Settings,
    paths: Sequence[str],
    specs: Sequence[tf.TensorSpec],
    ordinals: Sequence[int],
    rows: Sequence[int] = (),
    static: str = "",
) -> Plan:
    """The plan for gradients of these specs, in the order of the variables.

    Gradients travel dense where they are no floats, have fewer than `min_elements` elements, match
    no route, or are not wanted by their compressor.  Gradients at the positions `rows` are sparse
    and follow the rules of sparse_policy.py, where `static` says what needs a static number of
    rows.  For memories that stages of a schedule share see lanes.py.  Buckets are filled in
    backward order: see `_fill`.
    """
    lanes, sparse, by_rows = [], (), []
    for i, (path, spec, ordinal) in enumerate(zip(paths, specs, ordinals)):
        lane, way = lane_of(settings, i, path, spec, ordinal, i in rows, static)
        if way == ROWS:
            by_rows.append(lane)
        elif way == PLAIN_ROWS:
            sparse += (lane,)
        else:
            lanes.append(lane)
    merged = settings.granularity == "model"
    buckets = []
    for bucket in _fill(lanes, math.inf if merged else settings.bucket_bytes):
        groups: dict[Any, list[Lane]] = {}
        for lane in bucket:
            kind = (lane.compressor, lane.memory, lane.spec.dtype, lane.claimed)
            groups.setdefault(kind, []).append(lane)
        buckets.append(
            tuple(
                LaneGroup(tuple(g), merged and not g[0].dense, exchange=settings.exchange)
                for g in groups.values()
            )
        )
    row_groups = _row_groups(by_rows)
    apart = [row_groups] * bool(row_groups) + [(LaneGroup(sparse),)] * bool(sparse)
    layout = _digest([*buckets, *apart], len(sparse), settings)
    digest = _hash(json.dumps([layout, *paths]))
    return Plan(
        *(tuple(buckets), settings.seed, digest, layout, tuple(paths)),
        check_every=settings.check_every,
        hierarchical=settings.hierarchical,
        sparse=sparse,
        by_rows=row_groups,
    )


def _row_groups(lanes: Sequence[Lane]) -> tuple[LaneGroup, ...]:
    """Puts lanes into one group if their rows can share chunks.

    A step of many tables then has few nodes.  A block at the border of two tables has one scale for
    rows of both, as it has for any two rows of one table.  A compressor without blocks would have
    one scale for a whole chunk, so there each table is a group of its own.
    """
    groups: dict[Any, list[Lane]] = {}
    for lane in lanes:
        shared = row_selection.coder(lane.compressor).block is not None
        alike = lane.spec.dtype, lane.shape[1:], index_dtype(lane.shape[0])
        kind = lane.compressor, lane.memory, *(alike if shared else [lane.ordinal])
        groups.setdefault(kind, []).append(lane)
    return tuple(LaneGroup(tuple(group), by_rows=True) for group in groups.values())


def _fill(lanes: Sequence[Lane], limit: float | None) -> list[list[Lane]]:
    """Divides the lanes into buckets, in backward order.

    A bucket takes lanes until `limit` bytes of gradient are reached.  A lane that is larger is a
    bucket by itself.  If `limit` is None, `_MOST` is the limit, and a bucket ends earlier when its
    payloads have `_LEAST` bytes and one of `_PARTS` equal parts of all payloads.  So the exchange
    of a small model also begins while the backward pass still runs.
    """
    if limit is None:
        payloads = [lane.payload_nbytes for lane in lanes]
        limit, enough = _MOST, max(sum(payloads) / _PARTS, _LEAST)
    else:
        payloads, enough = [0] * len(lanes), 1
    buckets: list[list[Lane]] = []
    room, held = 0.0, 0
    for lane, payload in zip(reversed(lanes), reversed(payloads)):
        if not buckets or lane.nbytes > room or held >= enough:
            buckets.append([])
            room, held = limit, 0
        buckets[-1].append(lane)
        room -= lane.nbytes
        held += payload
    return buckets


def _digest(buckets: Sequence[Sequence[LaneGroup]], sparse: int, settings: Settings) -> int:
    groups = [
        [
            [
                str(g.compressor),
                spec_of(g.memory),
                g.merged,
                *["rows"] * g.by_rows,
                [[*lane.shape, lane.dtype, lane.ordinal] for lane in g.lanes],
            ]
            for g in bucket
        ]
        for bucket in buckets
    ]
    return _hash(
        json.dumps(
            [
                *(__version__, wire.VERSION, settings.seed, settings.check_every),
                *(settings.exchange, settings.hierarchical, settings.average_logs),
                *(groups, sparse),
            ]
        )
    )


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
