"""The terms of an index are found in its statement, whatever is written between them."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.sqlite.dictionary.structure import find_names, parse_index_condition, parse_index_terms


@pytest.mark.parametrize(
    ("sql", "terms", "where"),
    [
        ("CREATE UNIQUE INDEX i ON t (a, b)", ("a", "b"), ""),
        ("CREATE UNIQUE INDEX i ON t(lower(a) DESC,b COLLATE NOCASE ASC)", ("lower(a)", "b COLLATE NOCASE"), ""),
        ("CREATE UNIQUE INDEX [i(] ON 't(,' (a) WHERE a > ')' AND b", ("a",), "a > ')' AND b"),
        ("CREATE UNIQUE INDEX i ON t (f(a, (b)), 'x,''y') where(c)", ("f(a, (b))", "'x,''y'"), "(c)"),
        ("CREATE INDEX i ON t (a /* , ( */ -- )\n , b) -- WHERE x", ("a", "b"), ""),
        ('CREATE INDEX i ON t ("DESC", `as``c`)', ('"DESC"', "`as``c`"), ""),
    ],
)
def test_terms_and_condition_are_found(sql: str, terms: tuple[str, ...], where: str) -> None:
    assert parse_index_terms(sql) == terms
    assert parse_index_condition(sql) == where


def test_names_are_found() -> None:
    assert find_names('lower("A b")', "[c]] = `d``e` + ñ + 'f' + 12") >= {"lower", "a b", "d`e", "ñ"}
    assert "f" not in find_names("'f'")
