"""Which rows satisfy a predicate: whole batches compared with single values and with SQLite's own WHERE."""

from __future__ import annotations

import random
import sqlite3
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.predicates.generators import SAMPLES, SCHEMA, STRANGE, Row, pack_rows, random_predicate, random_row
from venus.adapters.under.row_changes import RowChanges, apply_predicate
from venus.codec.filtering import find_inside, select_full_rows
from venus.codec.packed import PackedBytes, join_items
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import HEAD_BYTES, FullRows, StoredRows, heads_of
from venus.model import Column, Kind, LogicalType, TableSchema
from venus.predicates.evaluation import evaluate_range
from venus.predicates.ranges import Predicate, compile_predicate
from venus.predicates.syntax import PredicateRefused, Term, parse

#: Types that SQLite compares as VENUS does: integers, and text by its bytes.
_ALIKE = tuple(s for s in SAMPLES if s.name in ("region", "number", "mark", "day", "clock"))


def some_predicate(rng: random.Random, samples: Any = SAMPLES) -> tuple[str, Predicate]:
    while True:
        text = random_predicate(rng, samples)
        try:
            return text, compile_predicate(text, SCHEMA)
        except PredicateRefused:
            continue


def comparable(name: str, value: Any) -> Any:
    """Return a value in a form that Python orders; independent of the product's code."""
    match name:
        case "amount" | "free" | "number":
            return Decimal(value)
        case "ratio":
            return float(value)
        case "code":
            return value.rstrip(" ")
        case "day" | "placed" | "seen":
            return datetime.fromisoformat(value.removesuffix("+00").replace("+00:00", ""))
        case "clock":
            return datetime.fromisoformat(f"2000-01-01 {value}")
        case "good":
            return {"t": True, "f": False}.get(value, value)
    return [ord(c) for c in value]


def term_holds(term: Term, row: dict[str, Any]) -> bool:
    name = term.column.lower()
    value = row[name]
    if term.sign in ("null", "not null"):
        return (value is None) == (term.sign == "null")
    if value is None:
        return False
    mine = comparable(name, value)
    others = [comparable(name, v.value) for v in term.values]
    match term.sign:
        case "=" | "in":
            return mine in others
        case "<":
            return bool(mine < others[0])
        case "<=":
            return bool(mine <= others[0])
        case ">":
            return bool(mine > others[0])
    return bool(mine >= others[0])


def ordinary_row(number: int, rng: random.Random) -> Row:
    """Return a row with only values that Python's types can hold."""
    row = random_row(number, rng)
    odd = {name: set(values) for name, values in STRANGE.items()}
    names = ["id", *(s.name for s in SAMPLES)]
    return tuple(None if value in odd.get(name, ()) else value for name, value in zip(names, row, strict=True))


def test_batches_are_judged_like_single_rows() -> None:
    rng = random.Random(3)
    rows = [ordinary_row(n, rng) for n in range(200)]
    record_ids, values = pack_rows(rows)
    names = ["id", *(s.name for s in SAMPLES)]
    as_dicts = [dict(zip(names, row, strict=True)) for row in rows]
    for _ in range(200):
        text, predicate = some_predicate(rng)
        found = find_inside(predicate, record_ids, values, SCHEMA).tolist()
        assert found == [all(term_holds(t, row) for t in parse(text)) for row in as_dicts], text


def test_sqlite_has_the_same_result() -> None:
    rng = random.Random(4)
    rows = [random_row(n, rng) for n in range(300)]
    record_ids, values = pack_rows(rows)
    connection = sqlite3.connect(":memory:")
    names = [s.name for s in SAMPLES]
    connection.execute(f"CREATE TABLE things (id, {', '.join(names)})")
    numbers = [
        [int(v) if n in ("id", "number") and v is not None else v for n, v in zip(["id", *names], row, strict=True)]
        for row in rows
    ]
    connection.executemany(f"INSERT INTO things VALUES (?{', ?' * len(names)})", numbers)
    # PostgreSQL's form of dates after the year 9999 is no date of SQLite
    connection.execute("DELETE FROM things WHERE day IN ('infinity', '-infinity', '0044-03-15 BC', '10000-01-01')")
    kept = {n for (n,) in connection.execute("SELECT id FROM things")}
    for _ in range(400):
        text, predicate = some_predicate(rng, _ALIKE)
        found = find_inside(predicate, record_ids, values, SCHEMA)
        wanted = {n for (n,) in connection.execute(f"SELECT id FROM things WHERE {text}")}
        assert set(np.flatnonzero(found).tolist()) & kept == wanted, text
    connection.close()


@pytest.mark.parametrize(
    ("kind", "text", "inside", "outside"),
    [
        (Kind.DECIMAL, "x > 100", ["100.0000000000000000000000001", "NaN", "Infinity"], ["100", "100.00", "-Infinity"]),
        (Kind.DECIMAL, "x = 9007199254740993", ["9007199254740993", "9007199254740993.0"], ["9007199254740992"]),
        (Kind.DECIMAL, "x < 1", ["-Infinity", "0.99", "-" + "9" * 400], ["NaN", "Infinity", "1", "9" * 400]),
        (Kind.INT, "x >= 99.5", ["100"], ["99"]),
        (Kind.INT, "x <= 9223372036854775806", ["9223372036854775806"], ["9223372036854775807"]),
        (Kind.FLOAT, "x >= 0.3", ["0.3", "0.30000000000000004", "NaN", "Infinity"], ["0.29999999999999993"]),
        (Kind.TEXT, "x > '\ue000'", ["\U00010000"], ["\ue000", "z", ""]),
        (Kind.TEXT, "x = 'EU'", ["EU"], ["eu", "EU ", ""]),
        (Kind.CHAR, "x = 'a'", ["a", "a   "], ["A", " a"]),
        (Kind.BYTES, "x >= x'00ff'", [b"\x00\xff", b"\x01"], [b"", b"\x00\xfe\xff"]),
        (
            Kind.DATE,
            "x < '2026-01-01'",
            ["2025-12-31", "0044-03-15 BC", "-infinity"],
            ["2026-01-01", "10000-01-01", "infinity"],
        ),
        (
            Kind.TIMESTAMP,
            "x <= '2026-01-01'",
            ["2026-01-01 00:00:00", "2026-01-01", "0044-03-15 12:00:00 BC"],
            ["2026-01-01 00:00:00.000001", "12026-01-01 00:00:00"],
        ),
        (
            Kind.TIMESTAMPTZ,
            "x = '2026-01-01 01:00+01'",
            ["2026-01-01 00:00:00+00", "2026-01-01 00:00:00.000+00"],
            ["2026-01-01 01:00:00+00"],
        ),
        (Kind.TIME, "x > '12:00'", ["12:00:00.1", "24:00:00"], ["12:00:00", "12:00:00.000"]),
        (Kind.BOOL, "x = true", ["t"], ["f"]),
    ],
)
def test_the_limits_of_each_type_are_judged_correctly(
    kind: Kind, text: str, inside: list[Any], outside: list[Any]
) -> None:
    logical = LogicalType(kind=kind, length=8)
    column = Column(name="x", number=2, type=logical)
    schema = TableSchema(table_id=1, version=1, namespace="public", name="t", columns=(column,), key=("x",))
    values = [v.encode() if isinstance(v, str) else v for v in (*inside, *outside, None)]

    found = evaluate_range(compile_predicate(text, schema).ranges[0], pa.array(values, pa.large_binary()))

    assert found.tolist() == [True] * len(inside) + [False] * (len(outside) + 1)


def test_a_row_outside_is_sent_as_a_deletion_of_its_key() -> None:
    rng = random.Random(5)
    rows = [random_row(n, rng) for n in range(50)]
    record_ids, values = pack_rows(rows)
    deleted = np.array([n % 7 == 0 for n in range(50)])
    parts = [b"" if gone else row for row, gone in zip(values.split(), deleted.tolist(), strict=True)]
    changes = RowChanges(
        record_ids=record_ids, rows=PackedBytes.of(parts), is_deleted=deleted, offsets=np.arange(50, dtype=np.int64)
    )
    predicate = compile_predicate("number >= 0", SCHEMA)
    wanted = find_inside(predicate, record_ids, values, SCHEMA) & ~deleted

    found = apply_predicate(changes, predicate, SCHEMA)

    assert found.is_deleted.tolist() == (~wanted).tolist()
    assert found.record_ids.split() == record_ids.split()
    assert found.rows.split() == [row if inside else b"" for row, inside in zip(parts, wanted.tolist(), strict=True)]
    assert found.offsets.tolist() == list(range(50))
    assert apply_predicate(changes, None, SCHEMA) is changes


def full_rows(rows: list[Row], schema: TableSchema) -> FullRows:
    record_ids, values = pack_rows(rows, schema)
    heads = heads_of(1, schema.version, np.zeros(len(rows), dtype=np.bool_), record_ids.sizes.astype(np.int64))
    octets = heads.view(np.uint8).reshape(len(rows), HEAD_BYTES)
    whole = join_items(octets, record_ids, values)
    return FullRows(table_id=1, schema_version=schema.version, stored=StoredRows(PackedBytes.of(whole)))


def test_full_data_is_judged_in_the_same_way() -> None:
    rng = random.Random(6)
    rows = [random_row(n, rng) for n in range(100)]
    full = full_rows(rows, SCHEMA)
    for _ in range(50):
        _, predicate = some_predicate(rng)
        found = select_full_rows(predicate, full, SCHEMA)
        wanted = find_inside(predicate, *pack_rows(rows), SCHEMA)
        assert found.stored.packed.split() == [r for r, w in zip(full.stored.packed.split(), wanted, strict=True) if w]


def test_a_row_from_before_the_column_is_judged_by_the_default() -> None:
    id_, old = (
        SCHEMA.columns[0],
        TableSchema(table_id=1, version=1, namespace="public", name="t", columns=(SCHEMA.columns[0],), key=("id",)),
    )
    new = TableSchema(
        table_id=1,
        version=2,
        namespace="public",
        name="t",
        key=("id",),
        columns=(
            id_,
            Column(name="level", number=9, type=LogicalType(kind=Kind.INT, length=4), default_sql="5"),
            Column(name="note", number=10, type=LogicalType(kind=Kind.TEXT)),
        ),
    )
    rows: list[Row] = [("1",), ("2",)]

    assert len(select_full_rows(compile_predicate("level = 5", new), full_rows(rows, old), old)) == 2
    assert len(select_full_rows(compile_predicate("level > 5", new), full_rows(rows, old), old)) == 0
    assert len(select_full_rows(compile_predicate("note is null", new), full_rows(rows, old), old)) == 2
    assert Layout.of(old).key_count == 1
