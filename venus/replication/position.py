"""Position of a replica's log, as its state machine knows it, and the time limits of replicas."""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.replication.messages import LogChanged
from venus.replication.terms import TermCache


@dataclass(slots=True, kw_only=True)
class Position:
    """Position of a log: `high` < `durable_end` <= `end`, except while the log is ahead of this copy.

    `whole` = no installation of the full data is unfinished.
    """

    start: int = 1
    end: int = 1
    durable_end: int = 1
    terms: TermCache = field(default_factory=TermCache)
    high: int = 0
    whole: bool = True
    ordered: int = 0  # the order of the newest Append or Truncate sent to the log
    done: int = 0  # the newest executed order

    @property
    def is_settled(self) -> bool:
        """Whether the known log is on disk, and no order is about to change it."""
        return self.done == self.ordered and self.durable_end == self.end

    @property
    def last_term(self) -> int:
        """The term of the newest entry; 0 before the first one."""
        return self.terms.term_at(self.end - 1)

    def next_order(self) -> int:
        """Return the number of the next order to the log."""
        self.ordered += 1
        return self.ordered

    def update(self, event: LogChanged) -> None:
        """Update the position from the log."""
        self.start, self.end, self.durable_end, self.terms = event.start, event.end, event.durable_end, event.terms
        self.done = max(self.done, event.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationTimes:
    """Time limits in seconds, for a local network. Safety depends on none of them."""

    lag_s: float = 10.0  # a follower that was not caught up for this long leaves the in-sync set
    idle_s: float = 0.5  # a fetch gets a reply after this time, even without anything new
    ballot_s: float = 0.5  # how long an election waits for ballots
    election_every_s: float = 1.0  # interval between attempts
    turn_s: float = 0.3  # delay between the brokers' attempts to begin an election
    hand_over_s: float = 3.0  # a hand-over that takes longer is cancelled
    silent_s: float = 4.0  # a write that waits longer for a silent follower is refused
    silence_s: float = 5.0  # a follower without progress for this long counts as unreachable
    fetch_s: float = 3.0  # a fetch without a reply is repeated
