"""`from_params`: turns GRACE's parameter dictionary into keywords of `wrap` and `Aggregator`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grace_tf.core import registry
from grace_tf.line.settings import settings

# GRACE's key -> ours, for hyperparameters.
_HYPERPARAMETERS = {
    "compress_ratio": "ratio",
    "threshold": "threshold",
    "quantum_num": "levels",
    "bucket_size": "block",
    "compress_rank": "rank",
    "momentum": "momentum",
    "error_bound": "error_bound",
    "quantiles": "quantiles",
}
_IGNORED = {
    "communicator": "the collective follows from the method",
    "world_size": "the size follows from the surroundings",
    "kernel": "there is one kernel an operation",
    "lr": "the learning rate is the optimizer's",
}
# Keys without a counterpart here, and why.  A false value (None, 0, False) is accepted.
_REFUSED = {
    "gradient_clipping": "GRACE clamps elements at the norm of their whole gradient, which clips "
    'nothing; DGC\'s clipping by norm is memory="dgc:clip=..."',
    "momentum_factor": "GRACE adds a momentum to what PowerSGD decodes, beside the optimizer's; "
    "give the optimizer a momentum instead",
}


def from_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of `wrap` or `Aggregator` for a dictionary of GRACE's `grace_from_params`.

        params = {"compressor": "topk", "compress_ratio": 0.01, "memory": "residual"}
        optimizer = grace_tf.wrap(optimizer, **grace_tf.from_params(params))

    Args:
      params: GRACE's dictionary.  `communicator`, `world_size`, `kernel` and `lr` are dropped:
        here they follow from the method, the environment and the optimizer.  The ratio of sketch is
        dropped too, since GRACE ignores it.  Without `memory` GRACE's default holds, none; signum
        still has its momentum.  Absent hyperparameters have our defaults; only qsgd without
        `bucket_size` is as in GRACE: norm l2, one block, 127 levels unless `quantum_num` is given.
    Returns: a new dictionary: "compressor", "memory" and the method's hyperparameters.
    Raises: ValueError for unknown methods and memories, and values out of range; TypeError, with
      the reason, for keys that GRACE or the method does not have or that have no counterpart.
    """
    params = dict(params)
    name = params.pop("compressor", "none")
    memory = params.pop("memory", "none")
    if name == memory and name in ("powersgd", "efsignsgd"):
        # GRACE's memories of these names are residuals; PowerSGD's Q is the compressor's own state.
        memory = "residual"
    if name == "signum" and memory == "none":
        memory = "auto"  # GRACE's compressor keeps the momentum itself
    for key in _IGNORED:
        params.pop(key, None)
    for key, reason in _REFUSED.items():
        if params.pop(key, None):
            raise TypeError(f"GRACE's parameter {key!r} cannot be taken over: {reason}.")
    if name == "sketch":
        params.pop("compress_ratio", None)  # GRACE's sketch sends every element
    if memory == "dgc" and "momentum" in params:
        memory = f"dgc:momentum={params.pop('momentum')}"
    keywords: dict[str, Any] = {}
    for key, value in params.items():
        if key not in _HYPERPARAMETERS:
            known = ["compressor", "memory", *_IGNORED, *_HYPERPARAMETERS, *_REFUSED]
            raise TypeError(
                f"GRACE's parameter {key!r} has no counterpart; known: {', '.join(known)}."
            )
        keywords[_HYPERPARAMETERS[key]] = value
    if name == "qsgd" and "block" not in keywords:
        keywords.update(norm="l2", block=None, levels=keywords.get("levels", 127))
    settings(registry.get(name, **keywords), memory=memory)  # raises what wrap() would
    return {"compressor": name, "memory": memory, **keywords}
