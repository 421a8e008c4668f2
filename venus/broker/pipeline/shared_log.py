"""The interface of the commit thread to replication, and its form for a standalone broker (`StandaloneLog`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from venus.broker.machine.business import Business


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Entries from `needed_from` on are kept for other brokers, unless more than `bytes_max` lie behind them."""

    needed_from: int
    bytes_max: int

    def must_keep(self, index: int, behind_bytes: int) -> bool:
        """Return whether the entry at `index`, with so many bytes behind it, is kept."""
        return index >= self.needed_from and behind_bytes <= self.bytes_max


#: No other broker needs entries.
NO_BACKLOG = Backlog(needed_from=2**63, bytes_max=0)


class SharedLog(Protocol):
    """What the commit thread needs of replication. Its methods must not block.

    Only the commit thread calls them, except `knows_end`, `leads` and `term`.
    """

    @property
    def is_shared(self) -> bool:
        """Whether other brokers keep the same logs. They get entries before these are on disk here."""

    def watermark(self, business: Business) -> int:
        """Return the newest safe index."""

    def term(self, business: Business) -> int:
        """Return the term for new entries of this broker. Raises NotLeader, Unavailable."""

    def leads(self, business: Business) -> bool:
        """Return whether this broker leads the business, as far as it knows."""

    def knows_end(self, business: Business, now: float) -> bool:
        """Return whether no reader of any broker can have read more than is visible here. Works in any thread."""

    def on_halted(self, business: Business) -> None:
        """Record that this broker's replica has stopped for the reason in `business.halted`."""

    def backlog(self, business: Business) -> Backlog:
        """Return what other brokers still need of the log."""

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

    def knows_end(self, business: Business, now: float) -> bool:
        """Return True."""
        return True

    def on_halted(self, business: Business) -> None:
        """Do nothing: a standalone broker refuses what it cannot apply before it is logged."""

    def backlog(self, business: Business) -> Backlog:
        """Return an empty backlog."""
        return NO_BACKLOG

    def on_written(self, business: Business, first: int, stored: Sequence[bytes]) -> None:
        """Do nothing."""

    def on_changed(self, business: Business) -> None:
        """Do nothing."""
