"""The cache of terms equals a plain list of every entry's term."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from venus.replication.position import TermCache

#: The term of every entry, from index 1 on.
Plain = list[int]


@given(st.lists(st.tuples(st.sampled_from(["same", "raise", "truncate", "trim"]), st.integers(1, 30)), max_size=60))
def test_the_cache_answers_like_a_list(steps: list[tuple[str, int]]) -> None:
    plain: Plain = []
    start, cache = 1, TermCache()
    for what, n in steps:
        if what in ("same", "raise"):
            term = max(plain[-1] if plain else 0, cache.newest) + (n if what == "raise" else 0)
            plain.append(term)
            cache = cache.append(term, len(plain))
        elif what == "truncate" and plain:
            end = max(start, len(plain) + 1 - n)
            del plain[end - 1 :]
            cache = cache.truncate(end)
        elif what == "trim" and plain:
            start = max(start, min(len(plain), n))
            cache = cache.trim(start)
        for index in range(max(1, start - 1), len(plain) + 1):
            assert cache.term_at(index) == plain[index - 1]
        for term in set(plain[start - 1 :]):
            assert cache.end_of(term, len(plain) + 1) == max(i for i, t in enumerate(plain, 1) if t <= term) + 1
