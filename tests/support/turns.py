"""Which members of a family run in a turn."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

COUNT = 8


def chosen(members: Iterable[str], turn: int) -> set[str]:
    """An eighth of a family's members, and at least one; `COUNT` turns choose all.

    Their order is mixed, so that what runs together differs in every parameter.
    """
    mixed = sorted(members, key=lambda member: (zlib.crc32(member.encode()), member))
    first = turn % COUNT % min(COUNT, len(mixed))
    return {member for i, member in enumerate(mixed) if i % COUNT == first}
