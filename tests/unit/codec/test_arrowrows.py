"""Rows as Arrow columns: every value exact, or as text, or refused by name; old versions in the newest columns."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.support.brokers.feed import INT, TEXT, column, put, section, table
from venus.codec.arrow_rows import ArrowShape, ValueMisfit, arrow_type
from venus.codec.columns import from_columns
from venus.codec.row_bytes import Layout
from venus.errors import ConfigError
from venus.model import Kind, LogicalType, TableSchema

D = Decimal
NANO = "2026-11-20 23:59:59.1234567"
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


def logical(kind: Kind, **more: Any) -> LogicalType:
    return LogicalType(kind=kind, **more)


#: Type, Arrow type, canonical texts, and their values.
CASES: list[tuple[LogicalType, pa.DataType, list[str | bytes | None], list[object]]] = [
    (logical(Kind.INT, length=2), pa.int16(), ["-32768", None, "7"], [-32768, None, 7]),
    (logical(Kind.INT, length=8), pa.int64(), ["-9223372036854775808"], [-(2**63)]),
    (logical(Kind.DECIMAL, precision=10, scale=2), pa.decimal128(10, 2), ["0.10", "-5"], [D("0.10"), D("-5.00")]),
    (logical(Kind.DECIMAL, precision=5, scale=-2), pa.decimal128(7, 0), ["1234600"], [D(1234600)]),
    (logical(Kind.DECIMAL), pa.string(), ["1.00", "NaN", "9" * 60], ["1.00", "NaN", "9" * 60]),
    (logical(Kind.DECIMAL, precision=40), pa.string(), ["1"], ["1"]),
    (logical(Kind.FLOAT, length=8), pa.float64(), ["5e-324", "-Infinity"], [5e-324, float("-inf")]),
    (logical(Kind.FLOAT, length=4), pa.float32(), ["1e+38"], [pa.scalar(1e38, pa.float32()).as_py()]),
    (logical(Kind.TEXT), pa.string(), ["", " ", "größe 🙂", "a\x00b", None], ["", " ", "größe 🙂", "a\x00b", None]),
    (logical(Kind.CHAR, length=4), pa.string(), ["ab  "], ["ab  "]),
    (logical(Kind.BYTES), pa.binary(), [b"", b"\x00\xff", None], [b"", b"\x00\xff", None]),
    (logical(Kind.BOOL), pa.bool_(), ["t", "f", None], [True, False, None]),
    (logical(Kind.DATE), pa.date32(), ["0001-01-01", "9999-12-31"], [dt.date.min, dt.date.max]),
    (
        logical(Kind.TIMESTAMP, precision=6),
        pa.timestamp("us"),
        ["2026-11-20 23:59:59.1", "0001-01-01 00:00:00"],
        [dt.datetime(2026, 11, 20, 23, 59, 59, 100000), dt.datetime.min],
    ),
    (logical(Kind.TIMESTAMP, precision=9), pa.string(), [NANO], [NANO]),
    (
        logical(Kind.TIMESTAMPTZ, precision=6),
        pa.timestamp("us", tz="UTC"),
        ["1899-12-31 23:06:32.000001+00"],
        [dt.datetime(1899, 12, 31, 23, 6, 32, 1, tzinfo=dt.UTC)],
    ),
    (logical(Kind.TIME), pa.string(), ["24:00:00"], ["24:00:00"]),
    (logical(Kind.JSON), pa.string(), ['{"b": 1.0}'], ['{"b": 1.0}']),
    (logical(Kind.UUID), pa.string(), [UUID], [UUID]),
]


def one_column_schema(kind: LogicalType) -> TableSchema:
    return table(1, "t", column(1, "id", INT), column(2, "v", kind))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].kind.name}{case[0].precision}.{case[0].scale}")
def test_values_are_exact_in_the_type_that_holds_them(
    case: tuple[LogicalType, pa.DataType, list[str | bytes | None], list[object]],
) -> None:
    kind, wanted, texts, values = case
    schema = one_column_schema(kind)
    packed = from_columns([[str(i) for i in range(len(texts))], texts], Layout.of(schema))

    keys, found = ArrowShape.of(schema).arrays(*packed, schema)

    assert arrow_type(kind) == wanted == found.type
    assert keys.to_pylist() == list(range(len(texts)))
    assert found.to_pylist() == values


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (logical(Kind.DATE), "0044-03-15 BC"),
        (logical(Kind.DATE), "infinity"),
        (logical(Kind.TIMESTAMP, precision=6), "294276-12-31 23:59:59.999999"),
        (logical(Kind.DECIMAL, precision=10, scale=2), "NaN"),
        (logical(Kind.BOOL), "maybe"),
    ],
)
def test_a_value_that_no_type_holds_is_refused_by_name_and_available_as_text(kind: LogicalType, text: str) -> None:
    schema = one_column_schema(kind)
    packed = from_columns([["1", "2"], [None, text]], Layout.of(schema))

    with pytest.raises(ValueMisfit, match=f"shop.t: column v has '{text}'") as refused:
        ArrowShape.of(schema).arrays(*packed, schema)
    as_text = ArrowShape.of(schema, text_columns=frozenset({"v"})).arrays(*packed, schema)

    assert refused.value.hint
    assert as_text[1].to_pylist() == [None, text]


def test_rows_of_an_older_version_have_defaults_in_missing_columns() -> None:
    old = table(1, "t", column(1, "id", INT), column(2, "gone"), column(3, "n", logical(Kind.INT, length=4)))
    new = replace(
        old,
        version=2,
        columns=(
            column(1, "id", INT),
            column(3, "m", logical(Kind.INT, length=8)),  # renamed and widened
            column(4, "note", TEXT, default_sql="'it''s new'"),
            column(5, "flag", logical(Kind.BOOL), default_sql="true"),
            column(6, "born", TEXT, default_sql="CURRENT_TIMESTAMP"),
        ),
    )
    packed = from_columns([["1", "2"], ["x", None], ["5", None]], Layout.of(old))

    found = pa.RecordBatch.from_arrays(
        ArrowShape.of(new).arrays(*packed, old), schema=pa.schema(ArrowShape.of(new).fields)
    )

    assert found.to_pylist() == [
        {"id": 1, "m": 5, "note": "it's new", "flag": True, "born": None},
        {"id": 2, "m": None, "note": "it's new", "flag": True, "born": None},
    ]


def test_columns_can_be_selected_and_a_wrong_name_is_refused_with_the_right_ones() -> None:
    schema = one_column_schema(TEXT)
    changes = section(schema, [put(1, "a"), put(2, "b")])

    found = ArrowShape.of(schema, ["v"]).arrays(changes.record_ids, changes.rows, schema)

    assert [a.to_pylist() for a in found] == [["a", "b"]]
    with pytest.raises(ConfigError, match="no column 'w'") as refused:
        ArrowShape.of(schema, ["w"])
    assert refused.value.hint == "it has: id, v"
