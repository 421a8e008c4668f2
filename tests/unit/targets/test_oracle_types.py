"""Values at an Oracle target: each is bound exactly, or refused before Oracle would round it or store NULL."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.support.brokers.feed import INT, TEXT, column, table
from venus.adapters.targets.oracle.types import RULES, binding, declared_columns, declared_type
from venus.adapters.targets.relational.place import UnfitValue
from venus.model import Index, Kind, LogicalType

TIMESTAMP = LogicalType(kind=Kind.TIMESTAMP, precision=6)


def convert(kind: LogicalType, value: object, declared: str = "") -> object:
    return binding(kind, declared or declared_type(kind)).convert(value)


def decimal(precision: int = 0, scale: int = 0) -> LogicalType:
    return LogicalType(kind=Kind.DECIMAL, precision=precision, scale=scale)


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (INT, "NUMBER(19)"),
        (decimal(), "NUMBER"),
        (decimal(38, 10), "NUMBER(38,10)"),
        (decimal(39, 10), "CLOB"),
        (TEXT, "CLOB"),
        (LogicalType(kind=Kind.TEXT, length=1000), "VARCHAR2(1000 CHAR)"),
        (LogicalType(kind=Kind.TEXT, length=1001), "CLOB"),
        (LogicalType(kind=Kind.TIMESTAMPTZ, precision=3), "TIMESTAMP(3) WITH TIME ZONE"),
    ],
)
def test_every_kind_has_a_type_of_11_2(kind: LogicalType, declared: str) -> None:
    assert declared_type(kind) == declared
    assert set(RULES) == set(Kind)


def test_unlimited_values_of_a_key_share_the_size_of_their_index() -> None:
    columns = (column(1, "id", INT), column(2, "a"), column(3, "b"), column(4, "c"))
    indexes = (Index(name="both", columns=("a", "b"), unique=True),)
    found = declared_columns(table(1, "items", *columns, indexes=indexes))
    assert found == {"id": "NUMBER(19)", "a": "VARCHAR2(2999 BYTE)", "b": "VARCHAR2(2999 BYTE)", "c": "CLOB"}
    zoned = table(1, "items", column(1, "at", LogicalType(kind=Kind.TIMESTAMPTZ)), key=("at",))
    assert declared_columns(zoned) == {"at": "TIMESTAMP(6)"}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (INT, "-7", Decimal(-7)),
        (decimal(), "1" * 38, Decimal("1" * 38)),
        (decimal(), "1.50", Decimal("1.50")),
        (decimal(10, 2), "12345678.90", Decimal("12345678.90")),
        (decimal(5, -2), "1234500", Decimal(1234500)),
        (LogicalType(kind=Kind.BOOL), "t", Decimal(1)),
        (LogicalType(kind=Kind.FLOAT, length=8), "1e-320", 1e-320),
        (TIMESTAMP, "2026-11-20 01:02:03.5", "2026-11-20 01:02:03.500000"),
        (LogicalType(kind=Kind.TIMESTAMPTZ), "2026-11-20 01:02:03+00", "2026-11-20 01:02:03.000000"),
        (LogicalType(kind=Kind.DATE), "9999-12-31", "9999-12-31"),
        (TEXT, "", ""),
        (LogicalType(kind=Kind.BYTES), b"", b""),
        (LogicalType(kind=Kind.TEXT, length=3), "\U0001f600\u00e4 ", "\U0001f600\u00e4 "),
    ],
)
def test_a_value_is_bound_exactly(kind: LogicalType, text: object, value: object) -> None:
    assert convert(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (decimal(), "1" * 39, "38 digits"),
        (decimal(), "1e126", "38 digits"),
        (decimal(), "NaN", "neither infinite nor NaN"),
        (decimal(5, 2), "1.234", "does not fit NUMBER"),
        (decimal(5, 2), "1234", "does not fit NUMBER"),
        (LogicalType(kind=Kind.FLOAT, length=8), "-0", "-0"),
        (LogicalType(kind=Kind.FLOAT, length=8), "NaN", "NaN"),
        (LogicalType(kind=Kind.FLOAT, length=8), "Infinity", "infinite"),
        (LogicalType(kind=Kind.DATE), "0044-03-15 BC", "no DATE"),
        (LogicalType(kind=Kind.DATE), "1582-10-10", "calendar skips"),
        (LogicalType(kind=Kind.DATE), "infinity", "no DATE"),
        (TIMESTAMP, "12026-01-01 00:00:00", "no TIMESTAMP"),
        (LogicalType(kind=Kind.TIMESTAMP, precision=3), "2026-01-01 00:00:00.0001", "more than 3"),
        (LogicalType(kind=Kind.TEXT, length=3), "", "NULL for an empty text"),
        (LogicalType(kind=Kind.TEXT, length=3), "four", "longer than 3 characters"),
    ],
)
def test_a_value_that_oracle_would_change_is_refused(kind: LogicalType, text: str, says: str) -> None:
    with pytest.raises(UnfitValue, match=says):
        convert(kind, text)


def test_a_key_is_never_empty_and_limited_in_bytes() -> None:
    with pytest.raises(UnfitValue, match="longer than 3 bytes"):
        convert(TEXT, "\u00e4\u00e4", "VARCHAR2(3 BYTE)")
    with pytest.raises(UnfitValue, match="NULL for an empty RAW"):
        convert(LogicalType(kind=Kind.BYTES), b"", "RAW(3)")
