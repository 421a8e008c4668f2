"""A table with every comparable type, random rows and random predicates, for property tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from venus.codec.columns import Value, from_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, LogicalType, TableSchema


@dataclass(frozen=True, slots=True)
class Sample:
    """A column: its PostgreSQL type, some values in canonical text, and a function that writes a value in SQL."""

    name: str
    type: LogicalType
    sql_type: str
    values: tuple[str, ...]
    sql: Callable[[str], str]
    ordered: bool = True


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


SAMPLES = (
    Sample(
        "region",
        LogicalType(kind=Kind.TEXT),
        'text collate "C"',
        ("", "EU", "eu", "E", "EU ", "EUR", "ÉU", "ZZ", "it's", "\ue000", "\U00010000", "a\tb"),
        _text,
    ),
    Sample(
        "code",
        LogicalType(kind=Kind.CHAR, length=4),
        'char(4) collate "C"',
        ("    ", "a   ", "ab  ", "A   ", "abcd", "é   "),
        _text,
    ),
    Sample(
        "amount",
        LogicalType(kind=Kind.DECIMAL, precision=10, scale=2),
        "numeric(10, 2)",
        ("0.00", "-0.01", "99.99", "100.00", "100.01", "12345678.90"),
        str,
    ),
    Sample(
        "free",
        LogicalType(kind=Kind.DECIMAL),
        "numeric",
        (
            "0",
            "100",
            "100.0000000000000000000000001",
            "99.9999999999999999999999999",
            "9007199254740993",
            "9007199254740992",
            "-1e200".replace("e200", "0" * 200),
            "1" + "0" * 120,
        ),
        str,
    ),
    Sample(
        "number",
        LogicalType(kind=Kind.INT, length=8),
        "bigint",
        ("0", "-1", "100", "9223372036854775807", "9223372036854775806", "-9223372036854775808"),
        str,
    ),
    Sample(
        "ratio",
        LogicalType(kind=Kind.FLOAT, length=8),
        "double precision",
        ("0", "0.1", "0.30000000000000004", "0.3", "-1e-30", "1e+200"),
        lambda v: f"{Decimal(v):f}",
    ),
    Sample(
        "day",
        LogicalType(kind=Kind.DATE),
        "date",
        ("2026-01-01", "2025-12-31", "0001-01-01", "9999-12-31", "2024-02-29"),
        _text,
    ),
    Sample(
        "clock",
        LogicalType(kind=Kind.TIME, precision=6),
        "time",
        ("00:00:00", "12:30:00", "12:30:00.5", "12:30:00.000001", "23:59:59.999999"),
        _text,
    ),
    Sample(
        "placed",
        LogicalType(kind=Kind.TIMESTAMP, precision=6),
        "timestamp",
        ("2026-01-01 00:00:00", "2026-01-01 00:00:00.5", "2025-12-31 23:59:59.999999", "0001-01-01 00:00:00"),
        _text,
    ),
    Sample(
        "seen",
        LogicalType(kind=Kind.TIMESTAMPTZ, precision=6),
        "timestamptz",
        ("2026-01-01 00:00:00+00", "2026-01-01 00:00:00.25+00", "2025-12-31 22:00:00+00"),
        _text,
    ),
    Sample("good", LogicalType(kind=Kind.BOOL), "boolean", ("t", "f"), {"t": "true", "f": "false"}.__getitem__, False),
    Sample(
        "mark",
        LogicalType(kind=Kind.UUID),
        "uuid",
        (
            "00000000-0000-0000-0000-000000000001",
            "a0000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
        ),
        _text,
    ),
)
#: Values that columns may have, but constants of a predicate may not.
STRANGE = {
    "free": ("NaN", "Infinity", "-Infinity"),
    "ratio": ("NaN", "Infinity", "-Infinity"),
    "day": ("infinity", "-infinity", "0044-03-15 BC", "10000-01-01"),
    "placed": ("infinity", "0044-03-15 12:00:00 BC", "12026-01-01 00:00:00.5"),
    "seen": ("-infinity", "0044-03-15 12:00:00+00 BC", "12026-01-01 00:00:00.5+00"),
}

SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="public",
    name="things",
    columns=(
        Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=8), nullable=False),
        *(Column(name=s.name, number=n, type=s.type) for n, s in enumerate(SAMPLES, 2)),
    ),
    key=("id",),
)
Row = tuple[Value, ...]


def random_row(number: int, rng: random.Random) -> Row:
    """Return a random row; about every sixth value is NULL."""
    found: list[Value] = [str(number)]
    for sample in SAMPLES:
        values = (*sample.values, *STRANGE.get(sample.name, ()))
        found.append(None if rng.random() < 0.16 else rng.choice(values))
    return tuple(found)


def random_term(rng: random.Random, samples: tuple[Sample, ...] = SAMPLES) -> str:
    """Return a range of one column, with constants near its values."""
    sample = rng.choice(samples)
    name = rng.choice((sample.name, sample.name.upper(), f'"{sample.name}"'))
    values = [sample.sql(rng.choice(sample.values)) for _ in range(3)]
    shape = rng.randrange(8 if sample.ordered else 4)
    match shape:
        case 0:
            return f"{name} IS NULL"
        case 1:
            return f"{name} is not null"
        case 2:
            return f"{name} = {values[0]}"
        case 3:
            return f"{name} in ({', '.join(values[: rng.randint(1, 3)])})"
        case 4:
            return f"{name} between {values[0]} and {values[1]}"
        case 5:
            return f"{values[0]} {rng.choice(('<', '<=', '>', '>=', '='))} {name}"
    return f"{name} {rng.choice(('<', '<=', '>', '>='))} {values[0]}"


def random_predicate(rng: random.Random, samples: tuple[Sample, ...] = SAMPLES) -> str:
    """Return a conjunction of one to three ranges; some cannot be satisfied by any value."""
    terms = [random_term(rng, samples) for _ in range(rng.choice((1, 1, 2, 3)))]
    return " and ".join(f"({term})" if rng.random() < 0.2 else term for term in terms)


def pack_rows(rows: list[Row], schema: TableSchema = SCHEMA) -> tuple[PackedBytes, PackedBytes]:
    """Return the rows in the form of a batch."""
    return from_columns(list(zip(*rows, strict=True)), Layout.of(schema))
