"""Row by row: is the PostgreSQL database equal to the SQLite file? Written without any of VENUS's own code for values.

Both sides are read through their ordinary drivers in key order and brought to the same Python values by the column's
declared type. Every difference is kept with its table, key and both rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from venus.cli.demo.shop import TABLES

SHOWN_MAX = 10


@dataclass(slots=True, kw_only=True)
class Comparison:
    """How many rows were compared, and what differs."""

    rows: dict[str, int] = field(default_factory=dict)
    different: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Rows of the source."""
        return sum(self.rows.values())


def compare(source: Path, target: str, *, schema: str = "public") -> Comparison:
    """Compare every table of the shop."""
    result = Comparison()
    engine = sa.create_engine(target)
    try:
        with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as here, engine.connect() as there:
            here.execute("BEGIN")
            there = there.execution_options(stream_results=True)
            for table, key in TABLES.items():
                compare_table(here, there, schema, table, key, result)
    finally:
        engine.dispose()
    return result


def compare_table(
    here: sqlite3.Connection, there: sa.Connection, schema: str, table: str, key: tuple[str, ...], result: Comparison
) -> None:
    """Merge both sides in key order."""
    columns = [(row[1], row[2].upper()) for row in here.execute(f"PRAGMA table_info({table})")]
    read = [reader(declared) for _, declared in columns]
    places = [[name for name, _ in columns].index(name) for name in key]
    selected = ", ".join(f'"{name}"' for name, _ in columns)
    ours = canonical(here.execute(f"SELECT {selected} FROM {table} ORDER BY {', '.join(key)}"), read)
    ordered = ", ".join(f'"{name}"' + (' COLLATE "C"' if is_text(columns, name) else "") for name in key)
    theirs = canonical(there.execute(sa.text(f'SELECT {selected} FROM "{schema}"."{table}" ORDER BY {ordered}')), read)
    result.rows[table] = 0

    def differs(what: str) -> None:
        result.different += 1
        if len(result.examples) < SHOWN_MAX:
            result.examples.append(f"{table}: {what}")

    left, right = next(ours, None), next(theirs, None)
    while left is not None or right is not None:
        left_key = None if left is None else sort_key(left[p] for p in places)
        right_key = None if right is None else sort_key(right[p] for p in places)
        if right_key is None or (left_key is not None and left_key < right_key):
            differs(f"missing at the target: {left}")
            left, taken = next(ours, None), 1
        elif left_key is None or right_key < left_key:
            differs(f"only at the target: {right}")
            right, taken = next(theirs, None), 0
        else:
            if left != right:
                differs(f"source {left}, target {right}")
            left, right, taken = next(ours, None), next(theirs, None), 1
        result.rows[table] += taken


def sort_key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return a key that sorts as both databases do: text by its UTF-8 bytes, numbers by value."""
    return tuple(value.encode() if isinstance(value, str) else value for value in values)


def is_text(columns: list[tuple[str, str]], name: str) -> bool:
    """Say whether the column needs the collation by bytes."""
    return any(n == name and declared.startswith(("TEXT", "VARCHAR")) for n, declared in columns)


def canonical(rows: Iterable[Any], read: list[Callable[[Any], Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows with values that compare."""
    for row in rows:
        yield tuple(None if value is None else convert(value) for convert, value in zip(read, row, strict=True))


def reader(declared: str) -> Callable[[Any], Any]:
    """Return what brings a value of this declared type to one form, from either database."""
    readers: dict[str, Callable[[Any], Any]] = {
        "INTEGER": int,
        "REAL": float,
        "TEXT": str,
        "VARCHAR": str,
        "DECIMAL": lambda value: Decimal(str(value)).normalize(),
        "BOOLEAN": bool,
        "BLOB": bytes,
        "DATE": lambda value: value if isinstance(value, date) else date.fromisoformat(value),
        "TIMESTAMP": lambda value: value if isinstance(value, datetime) else datetime.fromisoformat(value),
    }
    return readers[declared.partition("(")[0]]
