"""Lists of names with wildcards give the same result as one pattern at a time, whatever their length."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from venus.adapters.dialects.column_choice import Patterns, find_useless_patterns

NAMES = st.text("ab.*?[]!-\n\\|", max_size=6)


@given(st.lists(NAMES, max_size=6), NAMES)
def test_a_list_matches_what_any_of_its_patterns_matches(patterns: list[str], name: str) -> None:
    assert Patterns(patterns).match(name) == any(fnmatchcase(name, p) for p in patterns)


@given(st.lists(NAMES, max_size=4), st.lists(NAMES, max_size=4))
def test_a_pattern_that_matches_nothing_is_found(patterns: list[str], names: list[str]) -> None:
    wanted = [p for p in patterns if not any(fnmatchcase(n, p) for n in names)]
    assert find_useless_patterns(patterns, [(n,) for n in names]) == wanted


def test_a_table_may_have_several_names_and_a_pattern_another_spelling() -> None:
    names = [("ITEM", "APP.ITEM"), ("ORDERS", "APP.ORDERS")]
    assert find_useless_patterns(["item", "app.o*", "x*", "app.x"], names, normalise=str.upper) == ["x*", "app.x"]
