"""Lanes: the compressor and the memory of each gradient, and how its rows travel.

One stage of a schedule may compress a variable that another stage leaves dense, because its
compressor is `none`, does not want the variable, or does not compress rows.  The residual of the
first stage must then still be sent.  So the dense variable goes through the memory too where both
stages have an equal one: the first dense step sends the residual (of sparse gradients, for the rows
in the step).  Where no stage has a state for the variable, the lane has no memory.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from grace_tf.core.compressor import Compressor
from grace_tf.core.memory import Memory
from grace_tf.line.settings import DENSE, Settings
from grace_tf.line.sparse_policy import DENSE_LANE, PLAIN_ROWS, ROWS, rule, tell


@dataclasses.dataclass(frozen=True)
class Lane:
    """How one gradient travels: `position` in the list of gradients, `ordinal` of its variable."""

    position: int
    ordinal: int
    shape: tuple[int, ...]
    dtype: str
    compressor: Compressor
    memory: Memory
    claimed: bool = False  # uncompressed, but through a memory that claims dense lanes

    @property
    def dense(self) -> bool:
        return (self.compressor, self.memory) == DENSE

    @property
    def spec(self) -> tf.TensorSpec:
        # A dense lane keeps its dtype; everything else is compressed as float32.
        return tf.TensorSpec(self.shape, self.dtype if self.dense else tf.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of the gradient."""
        return self.spec.shape.num_elements() * tf.as_dtype(self.dtype).size

    @property
    def payload_nbytes(self) -> int:
        """Bytes of one worker's payload of this lane, where the lane is compressed alone."""
        return self.compressor.nbytes(self.spec)


def lane_of(
    settings: Settings,
    i: int,
    path: str,
    spec: tf.TensorSpec,
    ordinal: int,
    sparse: bool = False,
    static: str = "",
) -> tuple[Lane, str]:
    """The lane of one gradient, and how it travels: ROWS, PLAIN_ROWS or DENSE_LANE.

    Args:
      settings: of one stage.
      i: the position in the list of gradients.
      spec: of the gradient as if it were dense.
      sparse: whether it is rows.
      static: what needs a static number of rows; "" where nothing does.
    Raises: ValueError for a variable without a static shape.
    """

    def in_stage(stage: Settings) -> tuple[Lane, str, str]:
        lane = _lane(stage, i, path, spec, ordinal)
        if not sparse:
            return lane, DENSE_LANE, ""
        return lane, *_way_of_rows(stage, path, lane, static)

    lane, way, why = in_stage(settings)
    none, memory = DENSE
    if settings.stages_beside and not (lane.claimed or _compresses(lane, way)):
        wanted = settings.route(path)[1]
        stages = [in_stage(stage) for stage in settings.stages_beside]
        if wanted != memory and any(s[0].memory == wanted and _compresses(*s[:2]) for s in stages):
            lane = dataclasses.replace(lane, compressor=none, memory=wanted)
            if sparse:
                way, why = rule(none, wanted, False, static, bool(settings.hierarchical))
                way = ROWS if way == ROWS else DENSE_LANE
                tell(path, way, why)
            return lane, way
        lane = dataclasses.replace(lane, compressor=none, memory=memory)
        if sparse and way != PLAIN_ROWS:
            way, why = PLAIN_ROWS, ""
    elif way == PLAIN_ROWS:
        lane = dataclasses.replace(lane, compressor=none, memory=memory)
    tell(path, way, why)
    return lane, way


def _compresses(lane: Lane, way: str) -> bool:
    return way != PLAIN_ROWS and lane.compressor != DENSE[0]


def _way_of_rows(stage: Settings, path: str, lane: Lane, static: str) -> tuple[str, str]:
    """How the rows of a lane travel, and why: see sparse_policy.py."""
    if lane.compressor.row_share is not None and stage.chooses(path):
        return PLAIN_ROWS, f"auto takes {lane.compressor} for no rows, only quantisers"
    return rule(lane.compressor, lane.memory, lane.dense, static, bool(stage.hierarchical))


def _lane(settings: Settings, i: int, path: str, spec: tf.TensorSpec, ordinal: int) -> Lane:
    n = spec.shape.num_elements()
    if n is None:
        raise ValueError(
            f"The variable {path} has no static shape (its gradient's is {spec.shape}), and the "
            "exchange is planned from it: make the variable with the shape that it will have."
        )
    compressed = spec.dtype.is_floating and n >= max(settings.min_elements, 1)
    compressor, memory = settings.route(path) if compressed else DENSE
    if not compressor.wants(tf.TensorSpec(spec.shape, tf.float32)):
        compressor, memory = DENSE
    claimed = compressor == DENSE[0] and (memory == DENSE[1] or memory.claims_dense)
    claimed = claimed and spec.dtype.is_floating and n > 0
    if claimed:
        memory = settings.claiming(path)
        claimed = memory is not None
        memory = memory or DENSE[1]
    return Lane(i, ordinal, tuple(spec.shape), spec.dtype.name, compressor, memory, claimed)
