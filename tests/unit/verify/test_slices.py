"""Every key has one slice, one bucket and one position in the full data, also at the limits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from venus.adapters.dialects.verify_contract import Slice, Subject, key_forms
from venus.adapters.verify.history import key_ranges
from venus.adapters.verify.rows import record_ids
from venus.adapters.verify.sides import places_of
from venus.adapters.verify.table_comparison import RANGE_BUCKETS, draw_sample, range_slices, whole_slice
from venus.codec.columns import Value, keys_from_columns
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, LogicalType, TableSchema


def table(*kinds: LogicalType) -> TableSchema:
    columns = tuple(Column(name=f"k{n}", number=n + 1, type=kind) for n, kind in enumerate(kinds))
    return TableSchema(
        table_id=1, version=1, namespace="main", name="t", columns=columns, key=tuple(c.name for c in columns)
    )


INT = LogicalType(kind=Kind.INT, length=8)
NUMBERS = table(INT)
KEYS = st.integers(-(2**63), 2**63 - 1)


def holds(part: Slice, key: int) -> bool:
    return (part.low is None or part.low <= key) and (part.high is None or key < part.high)


@given(st.lists(st.integers(-(2**60), 2**60), max_size=20), st.lists(KEYS, min_size=1, max_size=30))
def test_each_key_is_in_one_slice_and_is_read_by_its_bucket(cuts: list[int], keys: list[int]) -> None:
    slices = range_slices(cuts)
    for key in keys:
        (part,) = [p for p in slices if holds(p, key)]
        (place,) = places_of([[str(key)]], part, Subject(schema=NUMBERS)).tolist()
        assert 0 <= place < part.buckets <= RANGE_BUCKETS

        reading = [low_high for low_high in part.ranges({place}) if _is_inside(key, *low_high)]
        elsewhere = set(range(part.buckets)) - {place}
        assert len(reading) == 1
        assert not any(_is_inside(key, *r) for r in part.ranges(elsewhere))


def _is_inside(key: int, low: int | None, high: int | None) -> bool:
    return (low is None or low <= key) and (high is None or key < high)


def test_keys_beyond_the_integer_range_are_not_divided_by_range() -> None:
    assert range_slices([-(2**63), 2**63 - 1]) == []


@given(KEYS, st.integers(0, 2**62), st.lists(KEYS, min_size=1, max_size=20))
def test_a_range_of_integers_equals_its_ranges_of_record_ids(low: int, width: int, keys: list[int]) -> None:
    high = min(low + width, 2**63 - 1)  # no column holds more
    ranges = key_ranges(NUMBERS, low, high)
    for key in [*keys, low, high, high - 1, 0, -1, 9, 10, -9, -10]:
        (record_id,) = keys_from_columns([[str(key)]], Layout.of(NUMBERS)).split()
        assert sum(a <= record_id < b for a, b in ranges) == (low <= key < high), key


def test_a_range_of_the_leading_column_contains_composite_keys() -> None:
    schema = table(INT, LogicalType(kind=Kind.TEXT))
    (ranges,) = [key_ranges(schema, 10, 20)]
    for leading, second in (("10", ""), ("19", "zzz"), ("19", "\U0010ffff" * 50)):
        (record_id,) = keys_from_columns([[leading], [second]], Layout.of(schema)).split()
        assert any(a <= record_id < b for a, b in ranges)
    for leading in ("9", "20", "-15", "100"):
        (record_id,) = keys_from_columns([[leading], ["x"]], Layout.of(schema)).split()
        assert not any(a <= record_id < b for a, b in ranges)


@pytest.mark.parametrize("rows", [0, 1, 100, 1_000_000, 10**9])
def test_a_table_compared_as_a_whole_has_a_power_of_two_of_buckets(rows: int) -> None:
    buckets = whole_slice(rows).buckets
    assert buckets & (buckets - 1) == 0
    assert 64 <= buckets <= 1 << 16


def test_a_sample_is_a_reproducible_share() -> None:
    slices = range_slices(list(range(0, 1000, 10)))
    chosen = draw_sample(slices, 0.1, random.Random(7))

    assert len(chosen) == 10
    assert chosen == draw_sample(slices, 0.1, random.Random(7))
    assert draw_sample(slices, 1.0, random.Random(7)) == slices
    (whole,) = draw_sample([whole_slice(1000)], 0.25, random.Random(7))
    assert whole.sampled == whole.buckets // 4


def test_record_ids_are_computed_from_keys_with_a_known_spelling() -> None:
    schema = table(INT, LogicalType(kind=Kind.CHAR, length=4), LogicalType(kind=Kind.BYTES))
    columns: list[list[Value]] = [["7", "-1"], ["ab  ", "abcd"], [b"\x00", b""]]

    keys = key_forms(columns, schema)

    assert keys == [("7", "ab", "00"), ("-1", "abcd", "")]
    assert record_ids(keys, schema) == keys_from_columns(columns, Layout.of(schema)).split()
    assert record_ids([("1.5",)], table(LogicalType(kind=Kind.DECIMAL))) is None
