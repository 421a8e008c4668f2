"""Division of a snapshot into key ranges that can be loaded in parallel.

Small tables are divided by counting their keys. Large ones are divided at the ends of their files, which the store
knows without reading, and between those by seeking. Then the estimates are rough but the ranges are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from venus.broker.store import keys
from venus.broker.store.rocks import FileRange, Store
from venus.wire import broker_pb2

#: Tables up to this size are counted exactly.
COUNTED_ROWS_MAX = 1_000_000
#: Approximate limit of a split, so that a reader that starts again loses little.
SPLIT_ROWS_MAX = 1_000_000
#: Limit of keys that are remembered of a counted table.
_MARKS_MAX = 16_384
_SAMPLED_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _SurveyedTable:
    table_id: int
    prefix: bytes
    rows: int
    row_bytes: int
    marks: tuple[bytes, ...]  # keys within it, evenly spread
    exact: bool


def plan_splits(store: Store, business: int, table_ids: Sequence[int], splits: int) -> list[broker_pb2.Split]:
    """Return key ranges that cover the tables, at least `splits` of them where the data allows it."""
    files = store.list_files()
    tables = [_survey(store, files, business, table_id) for table_id in table_ids]
    total = sum(table.rows for table in tables)
    rows_max = min(SPLIT_ROWS_MAX, max(1, total // splits)) if splits else SPLIT_ROWS_MAX
    found: list[broker_pb2.Split] = []
    for table in tables:
        found += _cut(store, table, max(1, -(-table.rows // rows_max)))
    return found


def _survey(store: Store, files: Sequence[FileRange], business: int, table_id: int) -> _SurveyedTable:
    prefix = keys.row_prefix(business, table_id)
    stop = keys.after_prefix(prefix)
    touching = [f for f in files if f.end >= prefix and f.start < stop]
    entries = sum(f.entries for f in touching if f.start >= prefix and f.end < stop)
    sample, values, _ = store.read_range(keys.ROW, prefix, stop, rows_max=_SAMPLED_ROWS, bytes_max=1 << 20)
    row_bytes = sum(map(len, sample + values)) // max(1, len(sample))
    if entries <= COUNTED_ROWS_MAX:
        # Files shared with other tables give no count for this one, and with many tables nearly all are shared.
        found = store.count_keys(keys.ROW, prefix, stop, entries_max=COUNTED_ROWS_MAX, marks_max=_MARKS_MAX)
        if found.ended:
            marks = tuple(found.marks)
            return _SurveyedTable(
                table_id=table_id, prefix=prefix, rows=found.entries, row_bytes=row_bytes, marks=marks, exact=True
            )
        entries = max(entries, found.entries, sum(f.entries for f in touching) // 2)
    apart = [f for f in touching if f.level]  # unmerged files overlap, so their ends do not help
    bounds = sorted({key for f in apart for key in (f.start, f.end) if prefix < key < stop})
    return _SurveyedTable(
        table_id=table_id, prefix=prefix, rows=entries, row_bytes=row_bytes, marks=tuple(bounds), exact=False
    )


def _cut(store: Store, table: _SurveyedTable, parts: int) -> list[broker_pb2.Split]:
    marks = list(table.marks)
    if not table.exact:
        marks = _densify(store, table, marks, 4 * parts)
    chosen = sorted({marks[i * len(marks) // parts] for i in range(1, parts)} - set(marks[:1]))
    bounds = [b"", *(mark[len(table.prefix) :] for mark in chosen), b""]
    share = table.rows // (len(bounds) - 1)
    return [
        broker_pb2.Split(
            table_id=table.table_id, low=low, high=high, rows_estimate=share, bytes_estimate=share * table.row_bytes
        )
        for low, high in pairwise(bounds)
    ]


def _densify(store: Store, table: _SurveyedTable, marks: list[bytes], wanted: int) -> list[bytes]:
    """Add keys between the known ones until there are enough or no more."""
    last = store.find_before(keys.ROW, keys.after_prefix(table.prefix))
    if last is None or not last[0].startswith(table.prefix):
        return marks
    first, _, _ = store.read_range(keys.ROW, table.prefix, last[0], rows_max=1, bytes_max=1)
    while len(marks) < wanted:
        edges = sorted({*first, *marks, last[0]})
        between = (_seek_middle(store, low, high) for low, high in pairwise(edges))
        more = sorted({*marks, *(key for key in between if key)})
        if len(more) == len(marks):
            break
        marks = more
    return marks


def _seek_middle(store: Store, low: bytes, high: bytes) -> bytes | None:
    """Return a key between two others, near the middle; None if there is none."""
    width = max(len(low), len(high)) + 2
    first, last = (int.from_bytes(key.ljust(width, b"\0"), "big") for key in (low, high))
    middle = ((first + last) // 2).to_bytes(width, "big")
    found = next(store.scan(keys.ROW, middle, high, limit=1), None) or store.find_before(keys.ROW, middle)
    return found[0] if found is not None and low < found[0] < high else None
