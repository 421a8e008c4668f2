"""Types and canonical text of Oracle's values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from venus.adapters.dialects.oracle.dictionary.overrides import find_mapping, requested_types
from venus.adapters.dialects.oracle.dictionary.types import OracleDeclaredType, default_mapping
from venus.adapters.dialects.oracle.rows import canonical_texts
from venus.errors import ConfigError, SourceError, UnsupportedType
from venus.model import Kind, LogicalType


def number(precision: int | None, scale: int | None) -> LogicalType:
    declared = OracleDeclaredType(data_type="NUMBER", precision=precision, scale=scale)
    return default_mapping(declared).logical(declared)


def test_number_types_are_mapped() -> None:
    assert number(4, 0) == LogicalType(kind=Kind.INT, length=2)
    assert number(9, 0) == LogicalType(kind=Kind.INT, length=4)
    assert number(18, 0) == LogicalType(kind=Kind.INT, length=8)
    assert number(19, 0) == LogicalType(kind=Kind.DECIMAL, precision=19)
    assert number(None, None) == LogicalType(kind=Kind.DECIMAL)
    assert number(None, 0) == LogicalType(kind=Kind.DECIMAL, precision=38)
    assert number(None, 2) == LogicalType(kind=Kind.DECIMAL)
    assert number(None, -3) == LogicalType(kind=Kind.DECIMAL)
    assert number(5, -2) == LogicalType(kind=Kind.DECIMAL, precision=5, scale=-2)


@pytest.mark.parametrize(
    ("rule", "value", "text"),
    [
        ("number", Decimal("1E+3"), "1000"),
        ("number", Decimal("0.1") / 3 * 3 + Decimal("1e-38"), str(Decimal("0.1") / 3 * 3 + Decimal("1e-38"))),
        ("number", Decimal("12345678901234567890123456789012345678"), "12345678901234567890123456789012345678"),
        ("number", Decimal("2.50"), "2.5"),
        ("single", 0.1, "0.1"),
        ("double", float("nan"), "NaN"),
        ("double", float("-inf"), "-Infinity"),
        ("double", 2.0, "2"),
        ("double", 1e15, "1e+15"),
        ("double", -0.0, "-0"),
        ("single", 16777216.0, "1.6777216e+07"),
        ("moment", " 2026-11-20 08:30:00", "2026-11-20 08:30:00"),
        ("moment", "-0044-03-15 00:00:00", "0044-03-15 00:00:00 BC"),
        ("moment", " 2026-11-20 08:30:00.500000", "2026-11-20 08:30:00.5"),
        ("moment", " 2026-11-20 08:30:00.000000", "2026-11-20 08:30:00"),
        ("instant", " 2026-11-20 08:30:00.500000", "2026-11-20 08:30:00.5+00"),
        ("instant", "-0044-11-20 08:30:00.000000", "0044-11-20 08:30:00+00 BC"),
        ("months", "+02-03", "2 years 3 mons"),
        ("months", "-00-01", "-1 mons"),
        ("months", "+00-00", "00:00:00"),
        ("days", "+01 02:03:04.123456789", "1 day 02:03:04.123456"),
        ("days", "-01 02:03:04.000000", "-1 days -02:03:04"),
        ("days", "+00 00:00:00.000000", "00:00:00"),
        ("days", "+05 00:00:00.000000", "5 days"),
        ("truth", True, "t"),
        ("octets", b"\x00\xff", b"\x00\xff"),
        ("text", "a\nb", "a\nb"),
    ],
)
def test_values_have_canonical_text(rule: str, value: Any, text: Any) -> None:
    assert canonical_texts(rule, [None, value]) == [None, text]


def test_decimals_have_the_digits_of_their_scale() -> None:
    assert canonical_texts("number", [Decimal("12.5"), 7, None], 2) == ["12.50", "7.00", None]


def test_a_float_is_never_used_for_a_decimal() -> None:
    with pytest.raises(SourceError, match="not exact"):
        canonical_texts("number", [0.1])


@pytest.mark.parametrize("name", ["BFILE", "ANYDATA", "MYSTERY", "VECTOR"])
def test_a_value_without_an_exact_text_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedType, match=name):
        default_mapping(OracleDeclaredType(data_type=name))


def test_object_types_are_refused_but_xml_is_not() -> None:
    with pytest.raises(UnsupportedType, match="object types"):
        default_mapping(OracleDeclaredType(data_type="SDO_GEOMETRY", owner="MDSYS"))
    assert default_mapping(OracleDeclaredType(data_type="XMLTYPE", owner="SYS")).text == "text"


def test_zoned_timestamps_are_read_as_instants() -> None:
    declared = OracleDeclaredType(data_type="TIMESTAMP(9) WITH TIME ZONE", scale=9)
    assert default_mapping(declared).logical(declared) == LogicalType(kind=Kind.TIMESTAMPTZ, precision=6)
    assert "SYS_EXTRACT_UTC" in default_mapping(declared).select(declared)


@pytest.mark.parametrize(
    ("rule", "value", "text"),
    [
        ("flag", Decimal(1), "t"),
        ("flag", Decimal(0), "f"),
        ("whole", Decimal("-9223372036854775808"), "-9223372036854775808"),
        ("day", "-0044-03-15 00:00:00", "0044-03-15 BC"),
        ("uuid", bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    ],
)
def test_a_column_has_the_requested_type(rule: str, value: Any, text: str) -> None:
    assert canonical_texts(rule, [value, None]) == [text, None]


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("flag", Decimal(2)),
        ("whole", Decimal("1.5")),
        ("whole", Decimal(1 << 63)),
        ("day", "2026-11-21 10:00:00"),
        ("uuid", b"short"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(rule: str, value: Any) -> None:
    with pytest.raises(SourceError):
        canonical_texts(rule, [value])


def test_an_unsupported_conversion_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(ConfigError, match="DATE cannot be carried as 'boolean'") as raised:
        find_mapping(OracleDeclaredType(data_type="DATE"), "boolean")
    assert "date" in raised.value.hint
    assert requested_types({"app.t.A": "date", "T.B": "text", "OTHER.C": "x"}, "APP", "T") == {"A": "date", "B": "text"}
