"""Values that are equal although their texts differ, and values that are not (scenario 38)."""

from __future__ import annotations

import pytest

from venus.adapters.verify.rows import differing_columns, is_equal_row, is_same_value
from venus.model import Column, Kind, LogicalType, TableSchema


def nested_json(inside: str) -> str:
    """Return JSON with the deepest nesting of a database, which is deeper than Python allows."""
    return "[" * 3000 + inside + "]" * 3000


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (LogicalType(kind=Kind.DECIMAL), "100", "100.00"),
        (LogicalType(kind=Kind.DECIMAL), ".71", "0.71"),
        (LogicalType(kind=Kind.DECIMAL), "NaN", "NaN"),
        (LogicalType(kind=Kind.DECIMAL), "-0", "0.000"),
        (LogicalType(kind=Kind.CHAR, length=5), "ab", "ab   "),
        (LogicalType(kind=Kind.FLOAT, length=8), "1e3", "1000"),
        (LogicalType(kind=Kind.FLOAT, length=4), "0.1", "0.10000000149011612"),
        (LogicalType(kind=Kind.FLOAT, length=8), "NaN", "NaN"),
        (LogicalType(kind=Kind.TIMESTAMPTZ), "2026-11-20 23:59:59.5+00", "2026-11-20T23:59:59.500Z"),
        (LogicalType(kind=Kind.TIMESTAMP), "2026-11-20 23:59:59", "2026-11-20 23:59:59.000000"),
        (LogicalType(kind=Kind.TIMESTAMP), "0044-03-15 12:00:00.10 BC", "0044-03-15 12:00:00.1 BC"),
        (LogicalType(kind=Kind.UUID), "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc999c0b4ef8bb6d6bb9bd380a11"),
        (LogicalType(kind=Kind.JSON), '{"a": 1, "b": [1, 2]}', '{"b":[1,2],"a":1.0}'),
        pytest.param(LogicalType(kind=Kind.JSON), f"[{'9' * 5000}]", f"[ {'9' * 5000}]", id="long number"),
        pytest.param(LogicalType(kind=Kind.JSON), nested_json('{"a b": 1}'), nested_json(' {"a b" :\t1}'), id="deep"),
    ],
)
def test_another_text_form_is_the_same_value(kind: LogicalType, one: str, other: str) -> None:
    assert is_same_value(kind, one, other)
    assert is_same_value(kind, other, one)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (LogicalType(kind=Kind.TEXT), "ab", "ab "),
        (LogicalType(kind=Kind.TEXT), "", None),
        (LogicalType(kind=Kind.DECIMAL), "100", "100.01"),
        (LogicalType(kind=Kind.DECIMAL), "0.1", "0.1000000000000000000000000001"),
        (LogicalType(kind=Kind.FLOAT, length=8), "0.1", "0.10000000149011612"),
        (LogicalType(kind=Kind.TIMESTAMP), "2026-11-20 23:59:59", "2026-11-20 23:59:59.000001"),
        (LogicalType(kind=Kind.TIMESTAMP), "0044-03-15 12:00:00 BC", "0044-03-15 12:00:00"),
        (LogicalType(kind=Kind.JSON), '{"a": true}', '{"a": 1}'),
        (LogicalType(kind=Kind.JSON), "[1, 2]", "[2, 1]"),
        (LogicalType(kind=Kind.JSON), '{"a": 1, "a": 1}', '{"a":1}'),
        (LogicalType(kind=Kind.JSON), '{"a": 0.1}', '{"a": 0.10000000000000001}'),
        pytest.param(LogicalType(kind=Kind.JSON), nested_json('"a b"'), nested_json('"ab"'), id="deep text"),
        pytest.param(LogicalType(kind=Kind.JSON), nested_json(r'"\" "'), nested_json(r'"\"  "'), id="deep quote"),
        (LogicalType(kind=Kind.BYTES), b"a", b"b"),
        (LogicalType(kind=Kind.DECIMAL), "100", "damaged"),
    ],
)
def test_other_values_are_different(kind: LogicalType, one: str, other: str) -> None:
    assert not is_same_value(kind, one, other)


def test_differing_columns_are_named_in_wire_order() -> None:
    schema = TableSchema(
        table_id=1,
        version=1,
        namespace="main",
        name="t",
        key=("id",),
        columns=(
            Column(name="a", number=1, type=LogicalType(kind=Kind.DECIMAL)),
            Column(name="id", number=2, type=LogicalType(kind=Kind.INT, length=8)),
            Column(name="b", number=3, type=LogicalType(kind=Kind.TEXT)),
        ),
    )

    assert differing_columns(schema, ("1", "2.0", "x"), ("1", "2", "y")) == [2]
    assert is_equal_row(schema, ("1", "2.0", "x"), ("1", "2", "x"))
    assert not is_equal_row(schema, ("1", "2.0", "x"), None)
    assert is_equal_row(schema, None, None)
