"""Replication in the commit thread: its interface (`SharedLog`), and the commands that append a leader's entries.

`StandaloneLog` implements it for a standalone broker. Two more functions begin and end a leadership.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from venus.broker.log.entry import EntryKind, decode, record_entry
from venus.broker.machine import records
from venus.broker.machine.business import Business
from venus.broker.pipeline.group import CommandGroup, halt
from venus.broker.store.rocks import Store
from venus.errors import Corruption, StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Entries from `needed_from` on are kept for other brokers, unless more than `bytes_max` bytes follow them."""

    needed_from: int
    bytes_max: int

    def must_keep(self, index: int, behind_bytes: int) -> bool:
        """Return whether the entry at `index` is kept, given the number of bytes after it."""
        return index >= self.needed_from and behind_bytes <= self.bytes_max


#: No other broker needs entries.
NO_BACKLOG = Backlog(needed_from=2**63, bytes_max=0)


class SharedLog(Protocol):
    """Interface of replication to the commit thread. Its methods must not block.

    Only the commit thread calls them, except `catches_up`, `knows_end`, `leads` and `term`.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other brokers keep the same logs. They get entries before these are on disk here."""

    def watermark(self, business: Business) -> int:
        """Return the newest safe index."""

    def term(self, business: Business) -> int:
        """Return the term for new entries of this broker. Raises NotLeader, Unavailable."""

    def leads(self, business: Business) -> bool:
        """Return whether this broker believes that it leads the business."""

    def catches_up(self, business: Business) -> bool:
        """Return whether this broker's replica follows and is not in sync. Works in any thread."""

    def knows_end(self, business: Business, now: float) -> bool:
        """Return whether no broker can have served changes that are not visible here yet. Works in any thread."""

    def on_halted(self, business: Business) -> None:
        """Record that this broker's replica has stopped for the reason in `business.halted`."""

    def backlog(self, business: Business) -> Backlog:
        """Return which entries of the log other brokers still need."""

    def on_written(self, business: Business, first: int, stored: Sequence[bytes]) -> None:
        """Record that the log ends with these entries, the first at `first`. They are not on disk yet."""

    def on_changed(self, business: Business) -> None:
        """Record that the log is on disk up to `durable_end`, or was trimmed."""


@dataclass(frozen=True, slots=True)
class StandaloneLog:
    """Replication of a standalone broker: every entry on its disk is safe."""

    watermark_of: Callable[[Business], int] | None = None  # tests hold it back

    @property
    def is_shared(self) -> bool:
        """Always false."""
        return False

    def watermark(self, business: Business) -> int:
        """Return the last index. It is on disk when this is used."""
        return business.log.end - 1 if self.watermark_of is None else self.watermark_of(business)

    def term(self, business: Business) -> int:
        """Return the term of the newest entry: 0 unless the business was replicated once."""
        return business.log.terms.newest

    def leads(self, business: Business) -> bool:
        """Return True."""
        return True

    def catches_up(self, business: Business) -> bool:
        """Return False."""
        return False

    def knows_end(self, business: Business, now: float) -> bool:
        """Return True."""
        return True

    def on_halted(self, business: Business) -> None:
        """Do nothing: a standalone broker refuses an entry that cannot be applied before it logs the entry."""

    def backlog(self, business: Business) -> Backlog:
        """Return an empty backlog."""
        return NO_BACKLOG

    def on_written(self, business: Business, first: int, stored: Sequence[bytes]) -> None:
        """Do nothing."""

    def on_changed(self, business: Business) -> None:
        """Do nothing."""


logger = logging.getLogger(__name__)


def append_stored(group: CommandGroup, business: Business, first: int, values: Sequence[bytes], sender: str) -> None:
    """Append entries of a leader in their stored form. All of them are checked before any is appended.

    If the log ends elsewhere or an entry is damaged, only the log's position is reported again. An entry that cannot
    be applied here halts the business.
    """
    group.log_changed.add(business)
    if first != business.log.end or business.halted:
        return
    try:
        entries = [decode(value, first + i, where=f"what {sender} sent") for i, value in enumerate(values)]
    except Corruption as error:
        business.add_to_counter("damaged_entries")
        logger.warning("%s: %s; it is fetched again", business.name, error)
        return
    mark = group.savepoint()
    try:
        for entry, value in zip(entries, values, strict=True):
            group.follow(business, entry, value)
    except StorageError:
        raise
    except Exception as error:
        index = business.log.end
        group.take_back(mark)
        halt(business, index, error)


def begin_term(
    group: CommandGroup, business: Business, term: int, leader: str, at_us: int, *, doubted: Sequence[int] = ()
) -> None:
    """Append the entry that begins a leadership. Committing it commits everything before it.

    `doubted` are terms of unclean elections with unknown losses. The entry records those that the log does not have,
    so that the producer is asked.
    """
    group.log_changed.add(business)
    if business.log.terms.newest >= term:
        return
    group.allow(business, term)
    known = {loss.term for loss in business.proposed.losses}
    unclean = [doubt for doubt in doubted if doubt not in known]
    record = {"term": term, "leader": leader, **({"unclean": unclean} if unclean else {})}
    group.append(business, record_entry(EntryKind.TERM, epoch=business.proposed.epoch, at_us=at_us, record=record))


def end_term(store: Store, business: Business) -> None:
    """Set the consumer groups back to their logged state. Consumers repeat newer positions to the next leader.

    Otherwise a group that the next leader forgets would stay here and reappear when this broker leads again. A group
    that is attached now came in a newer term of this broker, so it stays.
    """
    business.pending = deque(replace(pending, is_new=False) for pending in business.pending)
    logged = records.load_consumers(store, business.number)
    with business.lock:
        attached = {group: found for group, found in business.consumers.items() if found.is_connected}
        business.consumers = logged | attached
