"""A value stored in SQLite becomes its canonical text, or is refused."""

from __future__ import annotations

import sqlite3
from datetime import date, timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from venus.adapters.dialects.sqlite.dictionary.types import declared_type
from venus.adapters.dialects.sqlite.rows import SqliteValueError, SqliteValueRule, Stored, float_text, value_rule
from venus.model import Column

REFUSED = None


def rule(declared: str, *, in_key: bool = False) -> SqliteValueRule:
    logical = declared_type(declared)
    assert logical is not None
    return value_rule(Column(name="c", number=1, type=logical), in_key=in_key)


@pytest.mark.parametrize(
    ("declared", "stored", "text", "in_key"),
    [
        ("INTEGER", -(2**63), "-9223372036854775808", "-9223372036854775808"),
        ("INTEGER", 1.5, REFUSED, REFUSED),
        ("INTEGER", "one", REFUSED, REFUSED),
        ("SMALLINT", 32767, "32767", "32767"),
        ("SMALLINT", 32768, REFUSED, REFUSED),
        ("REAL", 0.1, "0.1", "0.1"),
        ("REAL", 1.0, "1", "1"),
        ("REAL", 1e15, "1e+15", "1e+15"),
        ("REAL", -123456789012345.6, "-123456789012345.6", "-123456789012345.6"),
        ("REAL", 1234567890123456.7, "1.2345678901234568e+15", "1.2345678901234568e+15"),
        ("REAL", 1e-5, "1e-05", "1e-05"),
        ("REAL", float("-inf"), "-Infinity", "-Infinity"),
        ("REAL", "1,5", REFUSED, REFUSED),
        ("DECIMAL(10, 2)", 12, "12.00", "12.00"),
        ("DECIMAL(10, 2)", -0.5, "-0.50", "-0.50"),
        ("DECIMAL(10, 2)", 0.1 + 0.2, "0.30", REFUSED),
        ("DECIMAL(10, 2)", 12.345, REFUSED, REFUSED),
        ("DECIMAL(4, 2)", 99.99, "99.99", "99.99"),
        ("DECIMAL(4, 2)", 100, REFUSED, REFUSED),
        ("DECIMAL(4, 2)", 99.999999999999999, REFUSED, REFUSED),
        ("DECIMAL(10, 2)", float("inf"), REFUSED, REFUSED),
        ("DECIMAL(10, 2)", "12,50", REFUSED, REFUSED),
        ("NUMERIC", 1e20, "100000000000000000000", "100000000000000000000"),
        ("NUMERIC", 0.30000000000000004, "0.30000000000000004", "0.30000000000000004"),
        ("TEXT", "a\0b", "a\0b", "a\0b"),
        ("TEXT", "", "", ""),
        ("TEXT", b"a", REFUSED, REFUSED),
        ("VARCHAR(3)", "äöü", "äöü", "äöü"),
        ("VARCHAR(3)", "abcd", REFUSED, REFUSED),
        ("CHAR(3)", "a", "a", "a"),
        ("BLOB", b"\0\xff", b"\0\xff", b"\0\xff"),
        ("BLOB", "text", REFUSED, REFUSED),
        ("BOOLEAN", 0, "f", "f"),
        ("BOOLEAN", 1, "t", "t"),
        ("BOOLEAN", "True", "t", REFUSED),
        ("BOOLEAN", 2, REFUSED, REFUSED),
        ("DATE", "0001-01-01", "0001-01-01", "0001-01-01"),
        ("DATE", "2025-02-29", REFUSED, REFUSED),
        ("DATE", "20250228", REFUSED, REFUSED),
        ("DATE", 20250228, REFUSED, REFUSED),
        ("TIME", "23:59", "23:59:00", REFUSED),
        ("TIME", "23:59:59.500", "23:59:59.5", REFUSED),
        ("TIME", "24:00:00", REFUSED, REFUSED),
        ("DATETIME", "2026-11-20 23:59:59", "2026-11-20 23:59:59", "2026-11-20 23:59:59"),
        ("DATETIME", "2026-11-20T23:59:59.120000", "2026-11-20 23:59:59.12", REFUSED),
        ("DATETIME", "2026-11-20", "2026-11-20 00:00:00", REFUSED),
        ("DATETIME", "2026-11-20T00:30+01:00", "2026-11-19 23:30:00", REFUSED),
        ("DATETIME", "2026-11-20 10:00:00.1234567", REFUSED, REFUSED),
        ("DATETIME", "2026-11-20 10:00:60", REFUSED, REFUSED),
        ("DATETIME", "9999-12-31 23:59:59-01:00", REFUSED, REFUSED),
        ("DATETIME", 1700000000, REFUSED, REFUSED),
        ("DATETIME", "٢٠٢٦-11-20 00:00:00", REFUSED, REFUSED),
        ("TIMESTAMPTZ", "2026-11-20T23:59:59Z", "2026-11-20 23:59:59+00", REFUSED),
        ("TIMESTAMPTZ", "2026-11-20 23:59:59+00", REFUSED, REFUSED),
        ("TIMESTAMPTZ", "2026-11-20 23:59:59", "2026-11-20 23:59:59+00", "2026-11-20 23:59:59+00"),
        ("TIMESTAMPTZ", "2026-11-20 23:59:59+00:00", "2026-11-20 23:59:59+00", REFUSED),
        ("UUID", "0D9C3E3E-1111-4222-8333-944444444444", "0d9c3e3e-1111-4222-8333-944444444444", REFUSED),
        ("UUID", bytes(16), "00000000-0000-0000-0000-000000000000", REFUSED),
        ("UUID", "not one", REFUSED, REFUSED),
        ("JSON", '{"a": 1}', '{"a": 1}', '{"a": 1}'),
        ("JSON", 5, "5", "5"),
        ("JSON", 1.5, "1.5", "1.5"),
        ("JSON", b"\x01", REFUSED, REFUSED),
    ],
)
def test_each_stored_value_has_its_text(
    declared: str, stored: Stored, text: str | bytes | None, in_key: str | bytes | None
) -> None:
    for expected, made in ((text, rule(declared)), (in_key, rule(declared, in_key=True))):
        if expected is REFUSED:
            with pytest.raises(SqliteValueError):
                made.canonical_text(stored)
            with pytest.raises(SqliteValueError):
                made.canonical_texts([None, stored])
        else:
            assert made.canonical_text(stored) == expected
            assert list(made.canonical_texts([stored, None, stored])) == [expected, None, expected]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_read_back_equal(value: float) -> None:
    assert float(float_text(value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_without_scale_is_read_back_equal_without_an_exponent(value: float) -> None:
    text = rule("NUMERIC").canonical_text(value)
    assert isinstance(text, str)
    assert "e" not in text
    assert float(text) == value


@given(st.decimals(min_value=-(10**10), max_value=10**10, places=2))
def test_a_decimal_that_an_application_passes_as_a_float_arrives_unchanged(value: Decimal) -> None:
    assert rule("DECIMAL(14, 2)").canonical_text(float(value)) in (f"{value:.2f}", f"{-value:.2f}" if not value else "")


@given(st.floats(allow_nan=False, min_value=-1e12, max_value=1e12))
@example(181217156356.6875)
def test_a_real_in_a_decimal_column_has_sqlites_text_or_is_refused(value: float) -> None:
    connection = sqlite3.connect(":memory:")
    (printed,) = connection.execute("SELECT CAST(? AS TEXT)", (value,)).fetchone()
    connection.close()
    fits = Decimal(printed) == round(Decimal(printed), 3) or Decimal(repr(value)) == round(Decimal(repr(value)), 3)
    try:
        text = rule("DECIMAL(18, 3)").canonical_text(value)
    except SqliteValueError:
        assert not fits
    else:
        assert isinstance(text, str)
        exact = Decimal(value).normalize().as_tuple().digits
        in_the_middle = len(exact) == 16 and exact[-1] == 5  # SQLite's own rounding is not exact there
        assert float(text) == value or Decimal(text) == Decimal(printed) or in_the_middle


@given(
    st.sampled_from(
        ["INTEGER", "NUMERIC", "DECIMAL(9,3)", "REAL", "TEXT", "BOOLEAN", "DATE", "DATETIME", "TIME", "UUID"]
    ),
    st.lists(
        st.one_of(
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
            st.text(),
            st.binary(),
            st.datetimes().map(str),
            st.dates().map(str),
            st.times().map(str),
            st.uuids().map(str),
            st.sampled_from(["t", "true", "T", "2026-01-01T00:00:00", "2026-01-01 00:00:00.0", "10:00", "10:00:00.10"]),
        ),
        max_size=8,
    ),
)
def test_no_two_stored_keys_have_the_same_text(declared: str, stored: list[Stored]) -> None:
    made = rule(declared, in_key=True)
    seen: dict[str | bytes | None, Stored] = {}
    for value in stored:
        try:
            text = made.canonical_text(value)
        except SqliteValueError:
            continue
        assert seen.setdefault(text, value) == value


def test_every_day_of_four_hundred_years_is_converted_correctly() -> None:
    made, day = rule("DATE"), date(1700, 1, 1)
    days = [(day + timedelta(n)).isoformat() for n in range(146_097 + 400)]
    assert made.canonical_texts(days) is days
    for year in (1700, 1900, 1999, 2100):
        with pytest.raises(SqliteValueError):
            made.canonical_texts([f"{year}-02-29"])


_TEMPORAL = {"DATE": st.dates().map(str), "TIME": st.times().map(str), "DATETIME": st.datetimes().map(str)}
_ODD = st.sampled_from(
    ["2026-02-29", "2024-02-29", "0000-01-01", "10:00:00.10", "10:00", "2026-01-01T00:00:00", "2026-01-01\n2026-01-01"]
)


@given(
    st.sampled_from(sorted(_TEMPORAL)).flatmap(lambda d: st.tuples(st.just(d), st.lists(st.one_of(_TEMPORAL[d], _ODD))))
)
def test_a_whole_column_has_the_texts_of_its_single_values(case: tuple[str, list[str]]) -> None:
    made, values = rule(case[0]), case[1]
    try:
        one_by_one = [made.canonical_text(v) for v in values]
    except SqliteValueError:
        with pytest.raises(SqliteValueError):
            made.canonical_texts(values)
    else:
        assert list(made.canonical_texts(values)) == one_by_one
