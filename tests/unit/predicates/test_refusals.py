"""Texts that are no conjunction of ranges, or do not fit the table, are refused in one line with the position."""

from __future__ import annotations

import pytest

from tests.support.predicates.generators import SCHEMA
from venus.model import Column, Kind, LogicalType, OwnType, TableSchema
from venus.predicates.ranges import compile_predicate
from venus.predicates.syntax import TEXT_CHARS_MAX, VALUES_MAX, PredicateRefused

STRANGE = TableSchema(
    table_id=2,
    version=1,
    namespace="public",
    name="odd",
    source_dialect="oracle",
    key=("ID",),
    columns=(
        Column(name="ID", number=1, type=LogicalType(kind=Kind.INT, length=8)),
        Column(name="Name", number=2, type=LogicalType(kind=Kind.TEXT)),
        Column(name="NAME", number=3, type=LogicalType(kind=Kind.TEXT)),
        Column(name="DOC", number=4, type=LogicalType(kind=Kind.JSON)),
        Column(name="SMALL", number=5, type=LogicalType(kind=Kind.FLOAT, length=4)),
        Column(name="MOOD", number=6, type=LogicalType(kind=Kind.NATIVE, name="mood"), source_type="mood"),
    ),
    types=(OwnType(namespace="public", name="mood", sql_name="mood", labels=("glad", "sad")),),
)


def refusal(text: str, schema: TableSchema = SCHEMA) -> PredicateRefused:
    with pytest.raises(PredicateRefused) as caught:
        compile_predicate(text, schema)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("upper(region) = 'EU'", "character 1: upper() is a function"),
        ("amount >= 1 or region = 'EU'", "character 13: OR joins two ranges"),
        ("(amount >= 1 or region = 'EU')", "character 14: OR joins two ranges"),
        ("not good = true", "character 1: NOT turns"),
        ("region not in ('EU')", "character 8: NOT leaves two ranges"),
        ("region <> 'EU'", "character 8: <> leaves two ranges"),
        ("region like 'E%'", "character 8: LIKE is a pattern"),
        ("things.region = 'EU'", "character 1: things is not a column"),
        ("amount = free", "character 10: free is a column"),
        ('region = "EU"', 'character 10: "EU" is a column'),
        ("amount = abs(5)", "character 10: abs() is a function"),
        ("amount + 1 = 5", "character 8: '+' is not a comparison"),
        ("amount = 5 + 1", "character 12: '+' computes"),
        ("amount = 5 -1", "character 12: '-1' computes"),
        ("region = 'a' || 'b'", "character 14: '||' computes"),
        ("seen > '2026-01-01 00:00:00+00'::timestamptz", "character 32: '::' computes"),
        ("region = null", "character 10: nothing is equal to NULL"),
        ("region is 'EU'", "character 11: IS can be followed"),
        ("good", "character 1: good stands alone"),
        ("good and amount = 1", "character 1: good stands alone"),
        ("", "character 1: the text ends where a column was expected"),
        ("region =", "character 9: the text ends where a constant was expected"),
        ("region = 'EU' and", "character 18: the text ends where a column was expected"),
        ("region = 'EU", 'character 10: "\'" is an unclosed quotation mark'),
        ("(region = 'EU'", "character 1: an unclosed parenthesis"),
        ("region = 'EU')", "character 14: ')' where AND or the end"),
        ("amount between 1 or 2", "character 18: BETWEEN needs AND"),
        ("region in 'EU'", "character 11: IN needs its values in parentheses"),
        ("region in ()", "character 12: ')' where a constant was expected"),
        ("region in ('a' 'b')", "character 16: IN takes constants"),
        ("region = :region", "character 10: ':' where a constant"),
        ("region = 'EU'; drop table x", "character 14: ';' where AND or the end"),
        ("region = 'EU' -- and", "character 15: '-' computes"),
        ("amount = 1e999", "character 10: a number of more than"),
        ("rgion = 'EU'", "character 1: public.things has no column rgion (did you mean region?)"),
        ("\"Region\" = 'EU'", "character 1: public.things has no column Region (did you mean region?)"),
        ("amount >= '100'", "character 11: amount is compared as number: write a number"),
        ("region = 100", "character 10: region is compared as text: write text in single quotes"),
        ("good = 't'", "character 8: good is compared as boolean: write true or false"),
        ("good > false", "character 1: good is a boolean, which has no order"),
        ("day = '2026-02-30'", "character 7: '2026-02-30' is not an existing date or time"),
        ("day = '2026-02-01 00:00:00'", "character 7: '2026-02-01 00:00:00' has a time of day"),
        ("day = '44-03-15'", "character 7: '44-03-15' is not a date of the years 0001 to 9999"),
        ("placed = '2026-01-01 00:00:00+00'", "character 10: '2026-01-01 00:00:00+00' has a time zone"),
        ("seen = '2026-01-01'", "character 8: '2026-01-01' has no time zone"),
        ("clock = '25:00'", "character 9: '25:00' is not an existing date or time"),
        ("mark = 'x'", "character 8: 'x' is not a UUID"),
        ("amount > 5 and amount < 5", "character 16: no value of amount meets this"),
        ("region is null and region = 'EU'", "character 20: no value of region meets this"),
        ("region in ('a', 'b') and region > 'b'", "character 26: no value of region meets this"),
        ("region = 'a\0b'", "character 10: no text has a zero character"),
    ],
)
def test_a_wrong_predicate_is_refused_with_its_position(text: str, said: str) -> None:
    assert str(refusal(text)).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 'x'", "character 1: public.odd has more than one column name"),
        ("doc = '{}'", "character 1: DOC is json, which databases do not compare alike"),
        ("small > 1", "character 1: SMALL is float, which databases do not compare alike"),
        ("\"Name\" = ''", "character 10: the source has no empty text"),
        ("mood = 'bad'", "character 8: 'bad' is not a label of mood (did you mean sad?)"),
        ("mood > 'glad'", "character 1: MOOD is a label of an enum, which has no order"),
    ],
)
def test_a_comparison_that_cannot_be_exact_is_refused(text: str, said: str) -> None:
    assert str(refusal(text, STRANGE)).startswith(said)


def test_a_predicate_that_is_too_large_is_refused() -> None:
    assert "too many" in str(refusal("region = '" + "x" * TEXT_CHARS_MAX + "'"))
    assert "too many" in str(refusal(f"number in ({', '.join('1' for _ in range(VALUES_MAX + 1))})"))


def test_a_refusal_lists_the_possibilities() -> None:
    assert "BETWEEN, IN" in refusal("region like 'E%'").hint
    assert "column IN (a, b)" in refusal("region = 'a' or region = 'b'").hint
    assert "id, region" in refusal("rgion = 'EU'").hint


def test_null_tests_are_allowed_for_every_column() -> None:
    assert (
        compile_predicate("doc is not null and small is null", STRANGE).canonical
        == '"DOC" is not null and "SMALL" is null'
    )
    assert compile_predicate("mood in ('sad', 'glad')", STRANGE).canonical == "\"MOOD\" in ('glad', 'sad')"
    assert compile_predicate("\"Name\" = 'x'", STRANGE).canonical == "\"Name\" = 'x'"
