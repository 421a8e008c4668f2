"""Terms of log entries (Kafka's leader-epoch cache), and where two logs diverge (KIP-101).

A term is one leadership of a business. Two logs that have the same term at the same index are equal up to it, so a
follower that diverged finds the common part by comparing the ends of terms. Unlike KIP-101, the follower's own end of
the term counts as well: without it logs can diverge.
"""

from __future__ import annotations

from dataclasses import dataclass

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
