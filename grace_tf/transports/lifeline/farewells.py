"""Words for how a worker has ended, which follow its name: "worker 1 left after 40 steps: it …".

A worker that ends sends these words to the others, which put them into their error message.
"""

from __future__ import annotations

GONE = "is gone without a word: it was killed, crashed or lost its machine"
RUBBISH = "sends what no worker of this version sends"
_ENDED = "has ended its program before the others"


def failed(cause: str, steps: int | None) -> str:
    """Says that a worker was ended by an exception, as the end of a sentence."""
    return f"failed{_after(steps)}: {cause}"


def left(steps: int | None) -> str:
    """Says that a worker's program reached its end or called sys.exit(), likewise."""
    return _ENDED if steps is None else f"left{_after(steps)}: it {_ENDED}"


def _after(steps: int | None) -> str:
    """ " after 40 steps"; "" where the number of committed steps is not known."""
    return "" if steps is None else f" after {counted(steps)}"


def counted(steps: int) -> str:
    """A number of steps in words: "1 step", "40 steps"."""
    return f"{steps} step{'s' * (steps != 1)}"
