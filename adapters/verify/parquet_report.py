"""Findings of a comparison as Parquet files, for large results: one line for each differing column."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from venus.adapters.verify.findings import VerifyResult, value_text
from venus.adapters.verify.slice_tasks import ComparisonSide
from venus.errors import VenusError

DIFFERENCES, UNDECIDED, TABLES = "differences.parquet", "undecided.parquet", "tables.parquet"
_PLACES = {place.value: place.name.lower() for place in ComparisonSide}


def write_parquet(result: VerifyResult, folder: Path) -> list[Path]:
    """Write the three files into a folder, replacing existing ones; return them."""
    tables = {DIFFERENCES: _differences(result), UNDECIDED: _undecided_table(result), TABLES: _tables(result)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in tables.items():
            pq.write_table(content, folder / name)
    except OSError as error:
        raise VenusError(f"--parquet {folder}: {error.strerror or error}") from error
    return [folder / name for name in tables]


def _differences(result: VerifyResult) -> pa.Table:
    names = ("table", "key", "kind", "fault", "note", "column", *_PLACES.values(), "present")
    lines = []
    for d in result.differences:
        head = (d.table, json.dumps(d.key, ensure_ascii=False), d.kind.value, d.fault.value, d.note)
        for c in d.columns or (None,):  # a row that is nothing but its key
            values = tuple(value_text(c.values.get(place)) if c else None for place in _PLACES)
            lines.append((*head, c.column if c else None, *values, ", ".join(d.present)))
    return _table(names, lines)


def _undecided_table(result: VerifyResult) -> pa.Table:
    lines: list[tuple[str | None, ...]] = [
        (u.table, json.dumps(u.key, ensure_ascii=False) if u.key else None, u.reason) for u in result.undecided
    ]
    return _table(("table", "key", "reason"), lines)


def _tables(result: VerifyResult) -> pa.Table:
    columns: dict[str, pa.Array] = {
        "table": pa.array([t.table for t in result.tables], pa.string()),
        "leg": pa.array([t.leg for t in result.tables], pa.string()),
        "rows": pa.array([t.rows for t in result.tables], pa.int64()),
        "moved": pa.array([t.moved for t in result.tables], pa.int64()),
        "differences": pa.array([len(t.differences) for t in result.tables], pa.int64()),
        "undecided": pa.array([len(t.undecided) for t in result.tables], pa.int64()),
        "verdict": pa.array([t.verdict.name.lower() for t in result.tables], pa.string()),
    }
    return pa.table(columns)


def _table(names: tuple[str, ...], lines: list[tuple[str | None, ...]]) -> pa.Table:
    columns = list(zip(*lines, strict=True)) if lines else [()] * len(names)
    return pa.table({name: pa.array(list(column), pa.string()) for name, column in zip(names, columns, strict=True)})
