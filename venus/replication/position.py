"""Where the log of a replica stands, as its state machine knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from venus.replication.messages import LogChanged
from venus.replication.terms import TermCache


@dataclass(slots=True, kw_only=True)
class Position:
    """`high` < `durable_end` <= `end`, but for moments in which the log is ahead of what was said here.

    `whole` = no installation of the full data has begun without having ended.
    """

    start: int = 1
    end: int = 1
    durable_end: int = 1
    terms: TermCache = field(default_factory=TermCache)
    high: int = 0
    whole: bool = True
    ordered: int = 0  # the order of the newest Append or Truncate that was wanted of the log
    done: int = 0  # the newest that was carried out

    @property
    def settled(self) -> bool:
        """Whether what is known of the log is on disk, and nothing is about to change it."""
        return self.done == self.ordered and self.durable_end == self.end

    @property
    def last_term(self) -> int:
        """The term of the newest entry; 0 before the first one."""
        return self.terms.of(self.end - 1)

    def next_order(self) -> int:
        """Return the number of another order to the log."""
        self.ordered += 1
        return self.ordered

    def changed(self, event: LogChanged) -> None:
        """Take up what the log says of itself."""
        self.start, self.end, self.durable_end, self.terms = event.start, event.end, event.durable_end, event.terms
        self.done = max(self.done, event.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Safety depends on none of these."""

    lag_s: float = 10.0  # a follower that was not caught up for so long leaves the in-sync set
    idle_s: float = 0.5  # a fetch is answered after so long, even if there is nothing new
    ballot_s: float = 0.5  # how long an election waits for ballots
    election_every_s: float = 1.0  # before the next try
    turn_s: float = 0.3  # how much later each further broker begins an election
    hand_over_s: float = 3.0  # a hand-over that takes longer is given up
    silent_s: float = 4.0  # a write that waits for a follower which says nothing is refused
    silence_s: float = 5.0  # a follower that has made no progress for so long counts as unreachable
    fetch_s: float = 3.0  # a fetch without an answer is repeated
