"""What the commit thread asks and tells of replication; a broker on its own is its own answer (`Alone`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from venus.broker.machine.business import Business


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Entries from `needed_from` on are kept for other brokers, unless `bytes_max` of the queue lie behind them."""

    needed_from: int
    bytes_max: int

    def keeps(self, index: int, behind_bytes: int) -> bool:
        """Whether the entry at `index`, with so many bytes behind it, is kept."""
        return index >= self.needed_from and behind_bytes <= self.bytes_max


#: Nobody needs anything.
NO_BACKLOG = Backlog(needed_from=2**63, bytes_max=0)


class SharedLog(Protocol):
    """Called by the commit thread alone, but for `knows_end`, `leads` and `term`; must not block."""

    @property
    def is_shared(self) -> bool:
        """Whether other brokers keep the same logs: entries are then told before they are on disk, and after."""

    def watermark(self, business: Business) -> int:
        """Return the newest index that is safe."""

    def term(self, business: Business) -> int:
        """Return the term in which entries are proposed here now. Raises NotLeader, Unavailable."""

    def leads(self, business: Business) -> bool:
        """Whether this broker leads the business, as far as it knows."""

    def knows_end(self, business: Business, now: float) -> bool:
        """Whether no reader of any broker has seen more than is visible here; from any thread."""

    def halted(self, business: Business) -> None:
        """Note that this broker's replica has stopped, for the reason that the business has."""

    def backlog(self, business: Business) -> Backlog:
        """Return what other brokers still need of the log."""

    def written(self, business: Business, first: int, stored: Sequence[bytes]) -> None:
        """Note that the log has these entries from `first` on and ends behind them; they are not on disk yet."""

    def changed(self, business: Business) -> None:
        """Note that the log is on disk up to `durable_end`, or was trimmed."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A broker on its own: what its disk has is safe."""

    watermark_of: Callable[[Business], int] | None = None  # tests hold it back

    @property
    def is_shared(self) -> bool:
        """No."""
        return False

    def watermark(self, business: Business) -> int:
        """Return the last index: it is on disk when this is used."""
        return business.log.end - 1 if self.watermark_of is None else self.watermark_of(business)

    def term(self, business: Business) -> int:
        """Return the term of the newest entry: 0 unless the business was replicated once."""
        return business.log.terms.newest

    def leads(self, business: Business) -> bool:
        """Yes."""
        return True

    def knows_end(self, business: Business, now: float) -> bool:
        """Yes."""
        return True

    def halted(self, business: Business) -> None:
        """Do nothing: what a broker on its own cannot apply is refused before it is logged."""

    def backlog(self, business: Business) -> Backlog:
        """Return that of nobody."""
        return NO_BACKLOG

    def written(self, business: Business, first: int, stored: Sequence[bytes]) -> None:
        """Do nothing."""

    def changed(self, business: Business) -> None:
        """Do nothing."""
