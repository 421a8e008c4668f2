"""Options of `format("venus")`, and key bounds as ranges of record ids."""

from __future__ import annotations

import random

import pytest

from tests.support.brokers.feed import INT, TEXT, column, put, section, table
from venus.codec.packed import PackedBytes
from venus.errors import ConfigError
from venus.model import Kind, LogicalType, TableSchema
from venus.spark.datasource_options import DataSourceOptions
from venus.spark.datasource_read import KeyBounds
from venus.wire import broker_pb2


def test_options_are_converted_and_their_case_does_not_matter() -> None:
    found = DataSourceOptions.of(
        {"TABLE": "shop.items", "columns": " id, label ", "Max_Rows": "7", "starting": "12", "whole_cuts": "False"}
    )

    assert (found.table, found.columns, found.max_rows) == ("shop.items", ("id", "label"), 7)
    assert (found.starting, found.whole_cuts, found.address) == ("12", False, "127.0.0.1:7400")
    assert DataSourceOptions.of({"table": "t", "address": "a:1, [::1]:2 ,c:3"}).address == "a:1,[::1]:2,c:3"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "t", "lease": "5"}, "no option 'lease' .did you mean lease_s"),
        ({}, "option table is missing"),
        ({"table": "t", "splits": "many"}, "option splits: 'many' should be an integer"),
        ({"table": "t", "splits": "0"}, "must be 1 or more"),
        ({"table": "t", "starting": "soon"}, "none of earliest, latest, full or an offset"),
        ({"table": "t", "address": "somewhere"}, "should be HOST:PORT"),
        ({"table": "t", "address": "a:1,,b:2"}, "should be HOST:PORT, or several with commas between"),
        ({"table": "t", "starting": "full", "whole_cuts": "perhaps"}, "should be true or false"),
        ({"table": "t", "max_bytes": "1"}, "option max_bytes is for streams"),
        ({"table": "t", "starting": "full", "low": "1"}, "option low is for full data, and option starting"),
        ({"table": "t", "starting": "12", "max_rows": "-1"}, "option max_rows: '-1' should be an integer"),
        ({"table": "t", "starting": "-2"}, "none of earliest, latest, full or an offset"),
        ({"table": "t", "lease_s": "0"}, "must be 1 or more"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DataSourceOptions.of(options)


def keyed_table(kind: LogicalType) -> TableSchema:
    return table(1, "t", column(1, "id", kind), column(2, "v"))


def test_a_range_of_record_ids_never_leaves_a_row_out() -> None:
    schema, rng = keyed_table(INT), random.Random(6)
    numbers = sorted({rng.randrange(-2000, 100_000) for _ in range(500)} | {-1, 0, 1, 9, 10, 99, 100})
    rows = section(schema, [put(n, "x") for n in numbers])
    ids = rows.record_ids.split()
    around_zero = [(low, high) for low in (-1999, -11, -1, 0, 1) for high in (-10, -1, 0, 1, 12, 2000) if low <= high]
    some = [sorted(rng.sample(range(-100, 100_000), 2)) for _ in range(200)]
    for low, high in (*around_zero, *some):
        bounds = KeyBounds.of(schema, str(low), str(high))
        assert bounds is not None
        split = bounds.clip(broker_pb2.Split(table_id=1))
        wanted = {i for i, n in zip(ids, numbers, strict=True) if low <= n < high}

        assert split is not None or not wanted
        if split is not None:
            assert all(split.low <= i and (not split.high or i < split.high) for i in wanted)
            kept, _, _ = bounds.select_within(rows.record_ids, rows.rows, _numbers(len(ids)), schema)
            assert set(kept.split()) == wanted


def test_a_single_bound_leaves_no_row_out_either() -> None:
    schema, numbers = keyed_table(INT), (-120, -7, -1, 0, 1, 7, 10, 120)
    rows = section(schema, [put(n, "x") for n in numbers])
    for bound in (-120, -8, -1, 0, 1, 9, 10, 121):
        for low, high in ((str(bound), ""), ("", str(bound))):
            bounds = KeyBounds.of(schema, low, high)
            assert bounds is not None
            split = bounds.clip(broker_pb2.Split(table_id=1))
            wanted = {n for n in numbers if (n >= bound if low else n < bound)}
            ids = {i for i, n in zip(rows.record_ids.split(), numbers, strict=True) if n in wanted}

            assert split is not None
            assert all(split.low <= i and (not split.high or i < split.high) for i in ids)
            kept, _, _ = bounds.select_within(rows.record_ids, rows.rows, _numbers(len(numbers)), schema)
            assert set(kept.split()) == ids


@pytest.mark.parametrize(("kind", "low", "high"), [(INT, "10", "9"), (INT, "-9", "-10"), (TEXT, "b", "a")])
def test_bounds_that_contradict_each_other_are_refused(kind: LogicalType, low: str, high: str) -> None:
    with pytest.raises(ConfigError, match=f"low '{low}' is above high '{high}'"):
        KeyBounds.of(keyed_table(kind), low, high)
    assert KeyBounds.of(keyed_table(kind), low, low) is not None


def _numbers(count: int):  # type: ignore[no-untyped-def]
    import numpy as np

    return np.arange(count, dtype=np.int64)


def test_small_ranges_need_few_splits() -> None:
    bounds = KeyBounds.of(keyed_table(INT), "1000", "2000")
    assert bounds is not None
    splits = [broker_pb2.Split(table_id=1, low=_id(a), high=_id(b)) for a, b in [(0, 999), (999, 1500), (2500, 9000)]]

    assert [bounds.clip(s) is not None for s in splits] == [False, True, False]


def _id(number: int) -> bytes:
    return section(keyed_table(INT), [put(number, "")]).record_ids.data


@pytest.mark.parametrize("kind", [LogicalType(kind=Kind.DECIMAL), LogicalType(kind=Kind.BYTES)])
def test_a_key_without_an_order_has_no_bounds(kind: LogicalType) -> None:
    with pytest.raises(ConfigError, match="have no order here"):
        KeyBounds.of(keyed_table(kind), "1", "")


def test_text_is_ordered_by_its_bytes_and_read_in_every_split() -> None:
    schema = keyed_table(TEXT)
    rows = section(schema, [put(k, "") for k in ("a", "ab", "b", "zz", "é")])
    bounds = KeyBounds.of(schema, "ab", "é")
    assert bounds is not None

    kept, _, sequences = bounds.select_within(rows.record_ids, rows.rows, _numbers(5), schema)

    assert bounds.clip(broker_pb2.Split(table_id=1, low=b"x", high=b"y")) is not None
    assert sequences.tolist() == [1, 2, 3]
    assert isinstance(kept, PackedBytes)


def choose_keys(kind: LogicalType, keys: list[str], low: str, high: str) -> list[str]:
    """Return the keys within the bounds that a job gives."""
    options = DataSourceOptions.of({"table": "t", "low": low, "high": high})
    rows = section(keyed_table(kind), [put(k, "") for k in keys])
    bounds = KeyBounds.of(keyed_table(kind), options.low, options.high)
    assert bounds is not None
    return [
        keys[n] for n in bounds.select_within(rows.record_ids, rows.rows, _numbers(len(keys)), keyed_table(kind))[2]
    ]


def test_nan_is_above_every_number_as_in_databases() -> None:
    """Consecutive ranges read every row once."""
    real, keys = LogicalType(kind=Kind.FLOAT, length=8), ["-Infinity", "-0", "2.5", "Infinity", "NaN"]

    assert choose_keys(real, keys, "", "0") == ["-Infinity"]
    assert choose_keys(real, keys, "0", "NaN") == ["-0", "2.5", "Infinity"]
    assert choose_keys(real, keys, "Infinity", "") == ["Infinity", "NaN"]
    assert choose_keys(real, keys, "NaN", "") == ["NaN"]
    with pytest.raises(ConfigError, match="low 'NaN' is above high '1'"):
        KeyBounds.of(keyed_table(real), "NaN", "1")


def test_a_uuid_is_found_in_every_text_form() -> None:
    uuid, key = LogicalType(kind=Kind.UUID), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"

    assert choose_keys(uuid, [key], key.upper(), "") == [key]
    assert choose_keys(uuid, [key], " A0EEBC99-9C", "b") == [key]
    assert choose_keys(uuid, [key], "", key.upper()) == []
    for wrong in ("a0eebc999c0b4ef8bb6d6bb9bd380a11", "{a0eebc99}", f"{key}1", "-"):
        with pytest.raises(ConfigError, match="is no UUID, nor the beginning of one"):
            KeyBounds.of(keyed_table(uuid), wrong, "")


def test_blanks_matter_in_a_text_and_not_in_a_number() -> None:
    keys = [" a", "a", "a ", "b"]

    assert choose_keys(TEXT, keys, " a", "a") == [" a"]
    assert choose_keys(TEXT, keys, "a ", "") == ["a ", "b"]
    assert choose_keys(TEXT, keys, " ", "a") == [" a"]
    assert choose_keys(INT, ["4", "5"], " 5 ", " ") == ["5"]
