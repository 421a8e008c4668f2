"""Values that could not be carried back to the old database: each rule by an example, and what forbids a way back."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from venus.adapters.targets.cutover_contract import ColumnLimits, NewSideObject, SchemaDifference
from venus.adapters.targets.way_back import (
    COUNTED_MAX,
    RULES,
    find_losses,
    find_obstacles,
    format_losses,
    travelling_limits,
)
from venus.model import Check, Column, Kind, LeftOut, LogicalType, OwnType, TableSchema

PLACE = ("s.t", "c")
SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="s",
    name="t",
    columns=(Column(name="c", number=1, type=LogicalType(kind=Kind.TEXT), source_type="text"),),
    key=("c",),
)

#: For each rule: the range of the old column, that of the new one, and the values between.
EXAMPLES = {
    "number": (
        ColumnLimits(lowest=Decimal(0), highest=Decimal(255)),
        ColumnLimits(lowest=Decimal(-32768), highest=Decimal(32767)),
        "numbers below 0 and above 255",
    ),
    "digits": (ColumnLimits(scale=2), ColumnLimits(scale=None), "more than 2 digits behind the point"),
    "width": (ColumnLimits(characters=12), ColumnLimits(characters=20), "more than 12 characters"),
    "characters": (ColumnLimits(charset="latin1"), ColumnLimits(), "characters that latin1 does not have"),
    "labels": (ColumnLimits(labels=("a",)), ColumnLimits(labels=("a", "b", "d")), "the values b, d"),
    "times": (
        ColumnLimits(earliest="1970-01-01 00:00:01", latest="2038-01-19 03:14:07"),
        ColumnLimits(),
        "times before 1970-01-01 00:00:01 and after 2038-01-19 03:14:07",
    ),
    "special values": (
        ColumnLimits(),
        ColumnLimits(specials=frozenset({"infinity", "BC"})),
        "the values BC, infinity",
    ),
    "required": (ColumnLimits(required=True), ColumnLimits(), "NULL"),
    "empty text": (ColumnLimits(empty_is_null=True), ColumnLimits(), "'', which becomes NULL"),
    "check": (ColumnLimits(checks=("VALUE > 0",)), ColumnLimits(), "values that violate VALUE > 0"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_wider_column_is_named_with_the_values(rule: str) -> None:
    old, new, what = EXAMPLES[rule]
    (found,) = find_losses([SCHEMA], {PLACE: old}, {PLACE: new})
    assert (found.kind, found.line, found.rows) == (rule, f"s.t.c: {what}", None)
    assert find_obstacles([found]) == []  # such a row waits in quarantine


@pytest.mark.parametrize("rule", RULES)
def test_an_equal_or_narrower_column_is_not_named(rule: str) -> None:
    old, new, _ = EXAMPLES[rule]
    assert find_losses([SCHEMA], {PLACE: old}, {PLACE: old}) == []
    assert find_losses([SCHEMA], {PLACE: new}, {PLACE: old}) == []


def test_different_types_are_named_with_the_reason() -> None:
    old, new = ColumnLimits(type="varchar(3)", characters=3), ColumnLimits(type="text")
    assert find_losses([SCHEMA], {PLACE: old}, {PLACE: new})[0].line == (
        "s.t.c: more than 3 characters (varchar(3) there, text here)"
    )
    hours = ColumnLimits(lowest=Decimal(-838), highest=Decimal(838), unit="hours")
    assert find_losses([SCHEMA], {PLACE: hours}, {PLACE: ColumnLimits()})[0].what == "hours below -838 and above 838"


def test_a_column_in_one_database_only_is_not_compared() -> None:
    assert find_losses([SCHEMA], {PLACE: ColumnLimits(characters=1)}, {}) == []


def test_an_excluded_column_forbids_the_way_back() -> None:
    left = LeftOut(what="column", name="photo", definition="bytea", reason="excluded")
    other = LeftOut(what="index", name="i", definition="", reason="")
    (found,) = find_losses([replace(SCHEMA, left_out=(left, other))], {}, {})
    assert [o.line for o in find_obstacles([found])] == [
        "s.t.photo: it is not captured, and rows that come back could lose it: capture it, or drop it"
    ]


def test_objects_of_the_new_database_alone_are_counted() -> None:
    only_new = (
        NewSideObject(table="s.u", rows=3),
        NewSideObject(table="s.t", column="empty"),
        NewSideObject(table="s.t", column="filled", rows=COUNTED_MAX),
    )
    found = find_losses([SCHEMA], {}, {}, only_new=only_new)
    assert [(loss.kind, loss.rows) for loss in found] == [("table", 3), ("column", 0), ("column", COUNTED_MAX)]
    assert [o.what.partition(":")[0] for o in find_obstacles(found)] == ["s.t.filled"]
    lines = format_losses([loss.document for loss in found])
    assert lines[0].endswith("then: 3")
    assert "(3 rows now)" in lines[1]
    assert lines[3].startswith("  ! s.t.filled")
    assert lines[3].endswith("(100,000 rows or more now)")


def test_constraints_of_one_database_are_named() -> None:
    missing = SchemaDifference(table="s.t", what="check c is missing", statement="", blocks=True)
    extra = SchemaDifference(
        table="s.t", what="check d is not at the source", statement="", blocks=False, is_extra=True
    )
    default = SchemaDifference(table="s.t", what="default of e differs", statement="", blocks=False)
    found = find_losses([SCHEMA], {}, {}, differences=(missing, extra, default))
    assert [loss.what for loss in found] == [
        "rows that violate it: check c is missing",
        "rows that the other database takes later could violate it: check d is not at the source",
    ]


def limits(
    kind: Kind, *types: OwnType, source_type: str = "", length: int = 0, precision: int = 0, scale: int = 0
) -> ColumnLimits:
    logical = LogicalType(kind=kind, length=length, precision=precision, scale=scale)
    column = Column(name="c", number=1, type=logical, source_type=source_type)
    return travelling_limits(column, types)


def test_the_limits_of_carried_types() -> None:
    assert limits(Kind.INT, length=2).highest == 32767
    assert limits(Kind.DECIMAL, precision=5, scale=2).highest == Decimal("999.99")
    assert limits(Kind.DECIMAL, precision=60, scale=0).highest == 10**60 - 1
    assert limits(Kind.DECIMAL).specials == {"infinity", "NaN"}
    assert limits(Kind.TEXT, length=7).characters == 7
    assert limits(Kind.BYTES, length=7).bytes == 7
    assert limits(Kind.TIMESTAMP).specials == {"infinity", "BC"}
    colour = OwnType(namespace="s", name="colour", sql_name="s.colour", labels=("red",))
    assert limits(Kind.NATIVE, colour, source_type="s.colour[]").labels == ("red",)
    domain = OwnType(
        namespace="s",
        name="age",
        sql_name="s.age",
        base=LogicalType(kind=Kind.INT, length=4),
        checks=(Check(name="a", sql="VALUE > 0"),),
    )
    assert limits(Kind.INT, domain, source_type="s.age", length=4).checks == ("VALUE > 0",)


def test_a_long_number_is_shortened() -> None:
    old, new = limits(Kind.DECIMAL, precision=60), ColumnLimits()
    found = find_losses([SCHEMA], {PLACE: old}, {PLACE: new})
    assert next(loss.what for loss in found if loss.kind == "number") == "numbers below -1.00E+60 and above 1.00E+60"
