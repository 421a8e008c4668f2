"""Values that are carried back to an application's Oracle database: bound by its types, or refused by name."""

from __future__ import annotations

from decimal import Decimal

import pytest

from venus.adapters.dialects.oracle.dictionary.overrides import find_mapping
from venus.adapters.dialects.oracle.dictionary.tables import CharacterSets, OracleReading
from venus.adapters.dialects.oracle.dictionary.types import OracleDeclaredType
from venus.adapters.targets.cutover_contract import ColumnLimits
from venus.adapters.targets.oracle.application_types import bind, compared_value, declare, find_loss
from venus.adapters.targets.oracle.cutover.limits import limit_column
from venus.adapters.targets.relational.place import UnfitValue
from venus.model import Column

YEARS, DAYS = "INTERVAL YEAR(2) TO MONTH", "INTERVAL DAY(2) TO SECOND(6)"


def reading(data_type: str, to: str = "usual", **more: object) -> OracleReading:
    declared = OracleDeclaredType(data_type=data_type, **more)  # type: ignore[arg-type]
    return OracleReading(declared=declared, mapping=find_mapping(declared, to, "APP.T.C"))


NUMBER = reading("NUMBER", precision=5, scale=2)
DATE, MOMENT = reading("DATE"), reading("TIMESTAMP(3)", scale=3)


@pytest.mark.parametrize(
    ("how", "sent", "bound"),
    [
        (NUMBER, "-123.40", Decimal("-123.40")),
        (reading("VARCHAR2", length=3), "größe"[:3], "grö"),
        (reading("CHAR", length=4, in_bytes=True), "ab  ", "ab  "),
        (reading("RAW", length=2), b"\x00\xff", b"\x00\xff"),
        (reading("RAW", "uuid", length=16), "00010203-0405-0607-0809-0a0b0c0d0e0f", bytes(range(16))),
        (reading("NUMBER", "boolean", precision=1, scale=0), "t", Decimal(1)),
        (reading("BINARY_DOUBLE"), "-Infinity", float("-inf")),
        (DATE, "2026-11-27 05:30:00", " 2026-11-27 05:30:00"),
        (DATE, "0044-03-15 00:00:00 BC", "-0044-03-15 00:00:00"),
        (MOMENT, "2026-11-27 05:30:00.5", " 2026-11-27 05:30:00.500"),
        (
            reading("TIMESTAMP(6) WITH LOCAL TIME ZONE", scale=6),
            "2026-11-27 05:30:00+00",
            " 2026-11-27 05:30:00.000000",
        ),
        (reading(YEARS), "-2 years -3 mons", "-2-3"),
        (reading(YEARS), "00:00:00", "+0-0"),
        (reading(DAYS, scale=6), "1 day 02:03:04.5", "+1 02:03:04.500000"),
        (reading(DAYS, scale=6), "-1 days -02:03:04", "-1 02:03:04.000000"),
    ],
)
def test_a_value_is_bound_by_the_type_of_its_column(how: OracleReading, sent: str | bytes, bound: object) -> None:
    assert bind(how).convert(sent) == bound


@pytest.mark.parametrize(
    ("how", "sent"),
    [
        (NUMBER, "1.234"),
        (NUMBER, "NaN"),
        (reading("VARCHAR2", length=3), ""),
        (reading("VARCHAR2", length=3), "long"),
        (reading("RAW", length=2), b""),
        (reading("BINARY_DOUBLE"), "-0"),
        (DATE, "infinity"),
        (DATE, "2026-11-27 05:30:00.5"),
        (DATE, "10000-01-01 00:00:00"),
        (DATE, "1582-10-10 00:00:00"),
        (DATE, "4713-01-01 00:00:00 BC"),
        (MOMENT, "2026-11-27 05:30:00.1234"),
        (reading(YEARS), "1 year 2 days"),
        (reading(DAYS, scale=6), "1 mon"),
        (reading(DAYS, scale=6), "1 day -02:00:00"),
        (reading(DAYS, scale=6), "30:00:00"),
    ],
)
def test_a_value_that_does_not_fit_the_column_is_refused(how: OracleReading, sent: str | bytes) -> None:
    with pytest.raises(UnfitValue):
        bind(how).convert(sent)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (reading("TIMESTAMP(6) WITH TIME ZONE", scale=6), "the name of the zone does not travel"),
        (reading("TIMESTAMP(9)", scale=9), "digits after the sixth"),
        (reading("XMLTYPE"), "keeps no text"),
        (reading("LONG"), "cannot be compared"),
        (reading("ROWID"), "means nothing"),
        (reading("VARCHAR2", "text:cp1252", length=3), "another character set"),
    ],
)
def test_a_narrower_type_is_refused_by_name(how: OracleReading, why: str) -> None:
    assert why in find_loss(how)
    with pytest.raises(UnfitValue):
        bind(how)


def test_own_tables_use_the_types_of_the_application() -> None:
    assert declare(reading("VARCHAR2", length=3, in_bytes=True).declared) == "VARCHAR2(3 BYTE)"
    assert declare(reading("NVARCHAR2", length=3).declared) == "NVARCHAR2(3)"
    assert declare(NUMBER.declared) == "NUMBER(5,2)"
    assert declare(MOMENT.declared) == "TIMESTAMP(3)"


def test_a_number_is_compared_without_trailing_zeros() -> None:
    free = reading("NUMBER")
    assert compared_value(free, "1.50") == compared_value(free, "1.5")
    assert compared_value(free, "100") == "100"
    assert compared_value(reading("VARCHAR2", length=4), "1.50") == "1.50"


def limits(how: OracleReading, charset: str = "AL32UTF8", *, nullable: bool = True) -> ColumnLimits:
    column = Column(name="C", number=1, type=how.mapping.logical(how.declared), nullable=nullable)
    return limit_column(column, how, CharacterSets(database=charset))


def test_limits_are_those_of_the_applications_columns() -> None:
    assert limits(NUMBER).highest == Decimal("999.99")
    assert limits(reading("NUMBER", precision=9, scale=0)).highest == Decimal(999_999_999)  # an integer holds more
    assert limits(DATE).latest.startswith("9999")
    assert limits(DATE).specials == {"BC"}
    assert limits(reading(DAYS, scale=6)).highest == 99
    text = limits(reading("VARCHAR2", length=5, in_bytes=True), "WE8ISO8859P1", nullable=False)
    assert (text.characters, text.bytes, text.charset) == (5, 5, "WE8ISO8859P1")
    assert text.empty_is_null
    assert text.required
    assert not limits(reading("CLOB")).empty_is_null
