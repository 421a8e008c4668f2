"""Conditions in another dialect: those that certainly mean the same are translated, others refused with the reason."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.mysql.dictionary.structure import GRAMMAR as MYSQL
from venus.adapters.dialects.oracle.dictionary.structure import GRAMMAR as ORACLE
from venus.adapters.dialects.portable_sql import (
    ColumnFact,
    Grammar,
    ImpliedError,
    NotPortableError,
    add_check,
    to_postgresql,
    to_postgresql_term,
)
from venus.adapters.dialects.sqlite.dictionary.structure import GRAMMAR as SQLITE
from venus.model import Check, Kind, LogicalType


def fact(name: str, kind: Kind, *, exact: bool = True) -> ColumnFact:
    return ColumnFact(name=name, type=LogicalType(kind=kind), exact=exact)


FACTS = {
    f.name.lower(): f
    for f in (
        fact("Price", Kind.DECIMAL),
        fact("n", Kind.INT),
        fact("state", Kind.TEXT),
        fact("loose", Kind.TEXT, exact=False),
        fact("ok", Kind.BOOL),
        fact("day", Kind.DATE),
        fact("doc", Kind.JSON),
        fact('q"', Kind.INT),
    )
}


@pytest.mark.parametrize(
    ("grammar", "text", "expected"),
    [
        (
            SQLITE,
            "price>0 and (state in ('a','it''s') or ok=1)",
            "\"Price\" > 0 AND (\"state\" IN ('a', 'it''s') OR \"ok\" = true)",
        ),
        (SQLITE, "[day] >= '2020-01-01'", "\"day\" >= '2020-01-01'"),
        (SQLITE, "n % 2 = 0 and not n between 3 and 4", '"n" % 2 = 0 AND NOT "n" BETWEEN 3 AND 4'),
        (SQLITE, "lower(state) = state", 'lower("state" COLLATE "C") = "state"'),
        (SQLITE, "ok", '"ok"'),
        (
            MYSQL,
            "length(`state`) > 3 and char_length(`state`) > 1",
            'octet_length("state") > 3 AND length("state") > 1',
        ),
        (MYSQL, "`state` <=> _utf8mb4'a'", "\"state\" IS NOT DISTINCT FROM 'a'"),
        (MYSQL, '`q"` > -1', '"q""" > -1'),
        (ORACLE, 'NVL(PRICE, 0) >= 1 AND "STATE" IS NOT NULL', 'coalesce("Price", 0) >= 1 AND NOT ("state" IS NULL)'),
        (ORACLE, "STATE LIKE 'a%'", "\"state\" LIKE 'a%'"),
    ],
)
def test_a_condition_with_the_same_meaning_is_translated(grammar: Grammar, text: str, expected: str) -> None:
    assert to_postgresql(text, grammar, FACTS) == expected


@pytest.mark.parametrize(
    ("grammar", "text", "why"),
    [
        (MYSQL, "`loose` = 'a'", "treats different texts"),
        (SQLITE, "state > 'a'", "orders texts"),
        (SQLITE, "state like 'a%'", "ignores the case"),
        (ORACLE, "STATE <> ''", "'' is NULL"),
        (SQLITE, "n / 2 = 1", "something else"),
        (SQLITE, "n in (select 1)", "another table"),
        (SQLITE, "missing = 1", "not a column"),
        (SQLITE, "((", "parsed"),
        (SQLITE, "n", "no truth value"),
        (SQLITE, "n and ok", "requires a boolean"),
        (SQLITE, "n = '1'", "compared with"),
        (SQLITE, "day > 'soon'", "compared with"),
        (SQLITE, "ok = 2", "compared with 2"),
        (SQLITE, "own(n)", "no function own"),
        (ORACLE, "OK is true", "something other than NULL"),
        (MYSQL, "`state` like 'a\\\\_b'", "plain pattern"),
        (SQLITE, "abs(state) > 1", "not a number"),
    ],
)
def test_a_condition_that_may_have_another_meaning_is_refused_with_the_reason(
    grammar: Grammar, text: str, why: str
) -> None:
    with pytest.raises(NotPortableError, match=why):
        to_postgresql(text, grammar, FACTS)


def test_a_check_that_the_type_guarantees_is_dropped() -> None:
    with pytest.raises(ImpliedError):
        to_postgresql("json_valid(`doc`)", MYSQL, FACTS)
    checks: list[Check] = []
    assert add_check("c", "json_valid(`doc`)", MYSQL, FACTS, checks) is None
    assert checks == []


def test_a_check_on_loosely_compared_texts_is_only_suggested() -> None:
    checks: list[Check] = []
    left = add_check("c", "`loose` in ('a','b')", MYSQL, FACTS, checks)
    assert checks == []
    assert left is not None
    assert left.reason.endswith("if exact spelling is meant: CHECK (\"loose\" IN ('a', 'b'))")


def test_an_index_expression_needs_no_truth_value() -> None:
    assert to_postgresql_term("upper(state)", ORACLE, FACTS) == 'upper("state")'
