"""`none`: the memory without state."""

from grace_tf.core.memory import Memory
from grace_tf.core.registry import register


@register("none", family="none")
class NoMemory(Memory):
    """Has no state: what a payload does not carry is lost (right where C is unbiased or votes)."""

    needs_sent = False
    by_rows = True
    in_encode = True
