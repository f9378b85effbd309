"""Says which composites lose what their outer method leaves out, since no residual suits them."""

from __future__ import annotations

import logging

from grace_tf.core.compressor import Compressor
from grace_tf.core.memory import Memory
from grace_tf.core.then import Then
from grace_tf.line.settings import Settings

_LOG = logging.getLogger("grace_tf")


def tell_losses(settings: Settings) -> None:
    """One log line for each such composite of the settings, in any stage of a schedule."""
    pairs = [(c, m) for _, stage in settings.stages for _, c, m in stage.routes]
    for compressor in dict.fromkeys(c for c, m in pairs if _loses(c, m)):
        _LOG.warning(
            "%s: what %s does not send is lost, since %s and so no residual is allowed; %s.",
            *(compressor, compressor.outer, *_why_and_way_out(compressor)),
        )


def _loses(compressor: Compressor, memory: Memory) -> bool:
    """Whether it is a composite without a residual, for which a residual would be refused.

    The memory "none" beside a composite that allows a residual is the user's own choice.
    """
    refused = isinstance(compressor, Then) and not compressor.nonexpansive
    return refused and compressor.relies_on_residual and not memory.needs_sent


def _why_and_way_out(compressor: Then) -> tuple[str, str]:
    for part, stage in compressor.inner:
        if not stage.nonexpansive:
            why = f"{part}={stage} may enlarge an error"
            if getattr(stage, "rounding", "nearest") != "nearest":
                return why, 'rounding="nearest", for norms other than minmax, keeps the residual'
            return why, f"another stage, such as {part}=qsgd or {part}=fp16, keeps the residual"
    part = next(p for p, s in compressor.inner if p not in compressor.outer.element_parts)
    why = f"an error in {part} is an error in all elements that it stands for"
    return why, f"{compressor.outer} without this stage keeps the residual"
