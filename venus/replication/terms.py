"""Which term an entry was appended in (Kafka's leader-epoch cache).

A term is one leadership of a business. Two logs that have the same term at the same index are equal up to it, so a
follower that diverged finds the common part by comparing the ends of terms.
"""

from __future__ import annotations

from dataclasses import dataclass

Starts = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TermCache:
    """(term, index of its first entry), both strictly increasing. Immutable."""

    starts: Starts = ()

    @property
    def newest(self) -> int:
        """The term of the newest entry; 0 before the first one."""
        return self.starts[-1][0] if self.starts else 0

    def append(self, term: int, index: int) -> TermCache:
        """Note that the entry at `index` has this term. Raises ValueError if terms would go back."""
        if term == self.newest and self.starts:
            return self
        if self.starts and (term < self.newest or index <= self.starts[-1][1]):
            raise ValueError(f"term {term} at {index} follows term {self.newest} at {self.starts[-1][1]}")
        return TermCache((*self.starts, (term, index)))

    def of(self, index: int) -> int:
        """Return the term of the entry at `index`; 0 = before the first one."""
        return next((term for term, first in reversed(self.starts) if first <= index), 0)

    def end_of(self, term: int, log_end: int) -> int:
        """Return the first index behind the newest entry whose term is not above `term`."""
        return next((first for known, first in self.starts if known > term), log_end)

    def truncate(self, end: int) -> TermCache:
        """Forget entries from `end` on."""
        return TermCache(tuple((term, first) for term, first in self.starts if first < end))

    def trim(self, start: int) -> TermCache:
        """Forget terms that ended before `start`, but for that of the entry right before it."""
        kept = [i for i in range(len(self.starts)) if i + 1 == len(self.starts) or self.starts[i + 1][1] >= start]
        return TermCache(tuple(self.starts[i] for i in kept))


def known_end(terms: TermCache, log_end: int, index: int, last_term: int) -> tuple[int, int] | None:
    """Judge a follower whose log ends before `index` with an entry of `last_term`.

    None: its log is a prefix of ours. Otherwise (known term, end): the newest term that we know and that is not above
    its own, and where our entries of that term end.
    """
    if index <= log_end and terms.of(index - 1) == last_term:
        return None
    known_term = max((known for known, _ in terms.starts if known <= last_term), default=0)
    return known_term, terms.end_of(known_term, log_end)


def truncation(terms: TermCache, log_end: int, known_term: int, leader_end: int) -> int:
    """Return where the follower cuts its log, from the leader's word about a term."""
    return min(leader_end, terms.end_of(known_term, log_end), log_end)
