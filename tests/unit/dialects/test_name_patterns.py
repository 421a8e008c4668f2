"""Lists of names with wildcards: the same answer as one pattern at a time, whatever the list's length."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from venus.adapters.dialects.column_choice import Patterns, find_useless_patterns

NAMES = st.text("ab.*?[]!-\n\\|", max_size=6)


@given(st.lists(NAMES, max_size=6), NAMES)
def test_a_list_chooses_what_one_of_its_patterns_chooses(patterns: list[str], name: str) -> None:
    assert Patterns(patterns).match(name) == any(fnmatchcase(name, p) for p in patterns)


@given(st.lists(NAMES, max_size=4), st.lists(NAMES, max_size=4))
def test_a_pattern_that_chooses_nothing_is_found(patterns: list[str], names: list[str]) -> None:
    wanted = [p for p in patterns if not any(fnmatchcase(n, p) for n in names)]
    assert find_useless_patterns(patterns, [(n,) for n in names]) == wanted


def test_a_table_may_have_several_names_and_a_pattern_another_spelling() -> None:
    names = [("ITEM", "APP.ITEM"), ("ORDERS", "APP.ORDERS")]
    assert find_useless_patterns(["item", "app.o*", "x*", "app.x"], names, normalise=str.upper) == ["x*", "app.x"]
