"""Position of a replica's log, the terms of its entries, and where two logs diverge (KIP-101).

A term is one leadership of a business. Two logs that have the same term at the same index are equal up to it, so a
follower that diverged finds the common part by comparing the ends of terms (Kafka's leader-epoch cache). Unlike
KIP-101, the follower's own end of the term counts as well: without it logs can diverge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Starts = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TermCache:
    """Pairs of a term and the index of its first entry, both strictly increasing. Immutable."""

    starts: Starts = ()

    @property
    def newest(self) -> int:
        """The term of the newest entry; 0 before the first one."""
        return self.starts[-1][0] if self.starts else 0

    def append(self, term: int, index: int) -> TermCache:
        """Add an entry at `index` with this term. Raises ValueError if terms would decrease."""
        if term == self.newest and self.starts:
            return self
        if self.starts and (term < self.newest or index <= self.starts[-1][1]):
            raise ValueError(f"term {term} at {index} follows term {self.newest} at {self.starts[-1][1]}")
        return TermCache((*self.starts, (term, index)))

    def term_at(self, index: int) -> int:
        """Return the term of the entry at `index`; 0 = before the first one."""
        return next((term for term, first in reversed(self.starts) if first <= index), 0)

    def end_of(self, term: int, log_end: int) -> int:
        """Return the first index after the newest entry whose term is not above `term`."""
        return next((first for known, first in self.starts if known > term), log_end)

    def truncate(self, end: int) -> TermCache:
        """Remove entries from `end` on."""
        return TermCache(tuple((term, first) for term, first in self.starts if first < end))

    def trim(self, start: int) -> TermCache:
        """Remove terms that ended before `start`, except that of the entry right before it."""
        kept = [i for i in range(len(self.starts)) if i + 1 == len(self.starts) or self.starts[i + 1][1] >= start]
        return TermCache(tuple(self.starts[i] for i in kept))


def find_divergence(terms: TermCache, log_end: int, index: int, last_term: int) -> tuple[int, int] | None:
    """Compare a follower's log, which ends before `index` with an entry of `last_term`, with the leader's.

    None: it is a prefix of the leader's. Otherwise (known term, end): the leader's newest term that is not above
    `last_term`, and the end of its entries of that term.
    """
    if index <= log_end and terms.term_at(index - 1) == last_term:
        return None
    known_term = max((known for known, _ in terms.starts if known <= last_term), default=0)
    return known_term, terms.end_of(known_term, log_end)


def truncation_end(terms: TermCache, log_end: int, known_term: int, leader_end: int) -> int:
    """Return where a follower truncates its log, given the leader's end of a term."""
    return min(leader_end, terms.end_of(known_term, log_end), log_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChanged:
    """State of the log: entries from `start` to `end`, those below `durable_end` on disk.

    `done` is the `order` of the newest Append or Truncate that was executed or dropped; 0 = none.
    """

    start: int
    end: int
    durable_end: int
    terms: TermCache
    done: int = 0


@dataclass(slots=True, kw_only=True)
class Position:
    """Position of a log: `high` < `durable_end` <= `end`, except until a change of the log is reported here.

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
