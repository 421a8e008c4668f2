"""How far back the queue goes (broker.md 2.9): what may be trimmed, as pure functions.

Nothing is trimmed that a known consumer, a snapshot or the full data still needs, and `retain_bytes` are kept below
that. A consumer that is merely absent keeps what it may ask for until it is forgotten, or away for `consumer_ttl_s`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where the queue stood at a time: lets tombstones be dated without storing a time in each."""

    at_us: int
    sequence: int
    next_offset: int


def trim_point(materialised: int, kept: Iterable[int], pins: Iterable[int]) -> int:
    """Return the offset below which nobody needs anything; `kept` are the consumers'."""
    return min([materialised, *kept, *pins])


def forget_tombstones_below(marks: Iterable[Mark], trim: int, now_us: int, age_us: int = 24 * 3600 * 10**6) -> int:
    """Return the Sequence below which tombstones may go: applied by everyone, and a day old."""
    return max((m.sequence for m in marks if m.next_offset <= trim and m.at_us <= now_us - age_us), default=0)


def thin(marks: list[Mark], mark: Mark, *, every_us: int = 600 * 10**6, keep: int = 300) -> list[Mark]:
    """Add a mark, at most one each ten minutes, for two days.

    One that is far before the last one too: the clock has been set back, and without newer marks no tombstone would go
    until it is as late as it was once.
    """
    if marks and abs(mark.at_us - marks[-1].at_us) < every_us:
        return marks
    return [*marks[-keep + 1 :], mark]
