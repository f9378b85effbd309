"""`auto`: the methods from which a training chooses by timing its own steps."""

from __future__ import annotations

from grace_tf.core.auto import Auto
from grace_tf.core.hyperparameters import check_choice
from grace_tf.core.registry import choice, get_memory, resolve
from grace_tf.core.scheduled import Stage

BASELINES = ("none", "bf16")
# What a quality admits beyond the one before it.  The bound is that of the error of the mean,
# ‖mean of decoded − mean‖² / ‖mean‖².  It holds for gradients with a usual distribution; the
# training measures the error on its own (aggregation/choice/guard.py).
QUALITIES = {
    "safe": ("qsgd:bits=8", "eden:bits=4", "eden:bits=5"),  # at most 0.01, no state between steps
    "balanced": ("qsgd:bits=4", "powersgd"),  # at most 0.05, or made up for by a residual
    "aggressive": ("topk:ratio=0.01",),  # a hundredth of the gradient, the rest in a residual
}
# Of these a training uses one: four bits make an error of 0.0096, in two hops of 0.011 to 0.019.
SCOUTS = "eden:bits=4", "eden:bits=5"


@choice("auto")
def auto(quality: str = "safe") -> Auto:
    """Times the training's own steps with each method that the quality admits; keeps the fastest.

    Never what needs a learning rate or a threshold of its own.  The methods: without compression,
    `bf16`, and

        safe        qsgd:bits=8, eden:bits=4; in two hops eden:bits=5 instead of the latter
        balanced    qsgd:bits=8, eden:bits=4, qsgd:bits=4, powersgd
        aggressive  also topk:ratio=0.01

    Raises: ValueError for another quality.
    """
    check_choice("auto", "quality", quality, tuple(QUALITIES))
    admitted = list(QUALITIES)[: list(QUALITIES).index(quality) + 1]
    arms = [*BASELINES, *(spec for level in admitted for spec in QUALITIES[level])]
    stages = []
    for number, spec in enumerate(arms):
        compressor, memory = resolve(spec)
        stages.append(Stage(number, compressor, get_memory(memory)))
    return Auto(tuple(stages), quality, tuple(arms.index(spec) for spec in SCOUTS))
