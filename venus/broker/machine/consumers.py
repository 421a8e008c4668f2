"""Consumer positions, absence and expiry, and the trimming of the queue that follows, as pure functions.

A consumer has two positions: its applied position, and its kept position, from which on it may still request changes.
They differ while one of its tables is held. An acknowledgement that contains only one position moves both.

Trimming keeps everything that a known consumer, a snapshot or the full data still needs, and `retain_bytes` of older
data. For an absent consumer, the queue is kept until the consumer is forgotten, or absent for `consumer_ttl_s`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

#: One reading of the clock counts at most this much absence: time in which the process was stopped does not count.
AWAY_STEP_MAX_US = 60 * 10**6
#: An absence is stored after each hundredth of the time to live, and at least this often.
_AWAY_PARTS = 100
_AWAY_STORED_MAX_US = 600 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    """The state of one consumer group of a business, or of one transient reader.

    Every offset below `acknowledged` is applied; the queue is kept from `kept` on. `token` identifies the attached
    stream; 0 means that none is attached. `away_us` is how long no stream was attached while the broker ran.
    """

    group: str
    acknowledged: int
    kept: int
    transient: bool = False
    token: int = 0
    away_us: int = 0
    updated_at_us: int = 0

    @property
    def is_connected(self) -> bool:
        """Whether a stream is attached."""
        return self.token != 0


def attach(known: ConsumerState | None, wanted: ConsumerState, *, kept: int | None, log_start: int) -> ConsumerState:
    """Return the new record of a consumer whose stream begins at `wanted.acknowledged`.

    If `kept` is None, the group's kept position stays: only an acknowledgement moves it.
    """
    offset = wanted.acknowledged
    if kept is None:
        kept = offset if known is None else known.kept
    return replace(wanted, kept=min(offset, max(kept, log_start)))


def acknowledge(known: ConsumerState, *, applied: int, kept: int | None, end: int, now_us: int) -> ConsumerState:
    """Return the consumer's record after an acknowledgement: no position moves back, or beyond the queue's `end`.

    `applied` 0 means unknown; `kept` None means the same as `applied`.
    """
    reached = max(known.acknowledged, min(applied, end))
    needed = min(applied if kept is None else kept, reached)
    return replace(known, acknowledged=reached, kept=max(known.kept, needed), updated_at_us=now_us)


def detach(known: ConsumerState, *, now_us: int) -> ConsumerState:
    """Return the record of a consumer group after its stream has ended."""
    return replace(known, token=0, away_us=0, updated_at_us=now_us)


def count_absence(known: ConsumerState, passed_us: int) -> ConsumerState:
    """Return the record with `passed_us`, at most a minute, added to its absence, unless it is connected."""
    if known.is_connected:
        return known
    return replace(known, away_us=known.away_us + min(max(passed_us, 0), AWAY_STEP_MAX_US))


def should_store_absence(before: ConsumerState, after: ConsumerState, ttl_s: float) -> bool:
    """Whether an absence has grown enough to be stored; after a crash, time that was not stored is lost."""
    step_us = max(1, min(_AWAY_STORED_MAX_US, int(ttl_s * 1e6) // _AWAY_PARTS))
    return before.away_us // step_us != after.away_us // step_us


def has_expired(consumer: ConsumerState, ttl_s: float) -> bool:
    """Whether a group has been absent for longer than its time to live."""
    return not consumer.is_connected and consumer.away_us > ttl_s * 1e6


def kept_offsets(consumers: Iterable[ConsumerState]) -> list[int]:
    """Return the offsets from which consumers need the queue; a transient reader counts while it is attached."""
    return [c.kept for c in consumers if c.is_connected or not c.transient]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMark:
    """The end of the queue at a point in time: the age of a tombstone follows from such marks and its Sequence."""

    at_us: int
    sequence: int
    next_offset: int


def trim_point(materialised: int, kept: Iterable[int], pins: Iterable[int]) -> int:
    """Return the offset below which neither full data, consumers (`kept`) nor snapshots (`pins`) need the queue."""
    return min([materialised, *kept, *pins])


def tombstone_limit(marks: Iterable[QueueMark], trim: int, now_us: int, age_us: int = 24 * 3600 * 10**6) -> int:
    """Return the Sequence below which tombstones may be removed: applied by every consumer, and a day old."""
    return max((m.sequence for m in marks if m.next_offset <= trim and m.at_us <= now_us - age_us), default=0)


def add_mark(
    marks: list[QueueMark], mark: QueueMark, *, every_us: int = 600 * 10**6, keep: int = 300
) -> list[QueueMark]:
    """Add a mark unless the last one is less than ten minutes old; return the marks of the last two days.

    A mark far before the last one is added too: the clock was set back, and without newer marks no tombstone would be
    removed until the clock has caught up.
    """
    if marks and abs(mark.at_us - marks[-1].at_us) < every_us:
        return marks
    return [*marks[-keep + 1 :], mark]
