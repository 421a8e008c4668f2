"""X1: 10,000 subscriptions to rows of one table (Electric with equality shapes: 6 ms flat, 4,000 to 6,000 changes/s).

Each change is matched with its old row, read from RocksDB as in the broker's full data, and with its new row: which
subscriptions keep it, gain it or lose it. Only columns that a subscription names are decoded. Writing the new row and
sending are not included, because the broker does both for any number of subscriptions.
"""

from __future__ import annotations

import random
import struct
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.figures.figure import Figure, FigureResult, at_least, at_most, percentile
from venus.broker.store.keys import ROW, row_prefix
from venus.broker.store.rocks import Store
from venus.codec.arrow_rows import ColumnValues
from venus.codec.columns import from_columns
from venus.codec.layout import Layout
from venus.codec.packed import PackedBytes
from venus.codec.stored_rows import StoredRows
from venus.model import Column, Kind, LogicalType, TableSchema
from venus.network.matching.indexes import TableIndex
from venus.network.matching.interests import Events, Interest, Matches

SUBSCRIPTIONS = 10_000
ROWS = 100_000
BATCH = 250
GOAL_RATE, GOAL_P99_MS = 50_000, 10.0
PAPER = "Electric: 4,000 to 6,000 changes/s, 6 ms"
ORDERS = TableSchema(
    table_id=1,
    version=1,
    namespace="shop",
    name="orders",
    key=("id",),
    columns=(
        Column(name="id", number=1, type=LogicalType(kind=Kind.INT, length=8), nullable=False),
        Column(name="tenant", number=2, type=LogicalType(kind=Kind.TEXT)),
        Column(name="amount", number=3, type=LogicalType(kind=Kind.INT, length=8)),
        Column(name="note", number=4, type=LogicalType(kind=Kind.TEXT)),
    ),
)
LAYOUT = Layout.of(ORDERS)
PREFIX = row_prefix(1, 1)
Rows = tuple[PackedBytes, PackedBytes]


@dataclass(frozen=True)
class JudgedChanges:
    """Pairs of a change and a subscription."""

    stay: int
    enter: int
    leave: int


class Judge:
    """Judges batches over the full data."""

    def __init__(self, store: Store, interests: Sequence[Interest], sample: Rows) -> None:
        self._store, self._count = store, len(interests)
        self._index = TableIndex(interests, events_of(ColumnValues.of(*sample, LAYOUT)))

    def judge(self, rows: Rows) -> JudgedChanges:
        """Return who is concerned by a batch."""
        names = [PREFIX + name for name in rows[0].split()]
        found = self._store.look_up(ROW, names)
        there = [n for n, name in enumerate(names) if name in found]
        stored = StoredRows(PackedBytes.of([found[names[n]] for n in there]))
        before = self._codes(events_of(ColumnValues.of_stored_rows(stored, LAYOUT)), np.array(there, np.int64))
        after = self._codes(events_of(ColumnValues.of(*rows, LAYOUT)), np.arange(len(names)))
        stay = len(np.intersect1d(before, after, assume_unique=True))
        return JudgedChanges(stay, len(after) - stay, len(before) - stay)

    def _codes(self, events: Events, numbers: np.ndarray) -> np.ndarray:
        found: Matches = self._index.match(events)
        return numbers[found.events] * self._count + found.interests


def events_of(values: ColumnValues) -> Events:
    """Take out what subscriptions name."""
    tenant, amount = values.column(2), values.column(3)
    assert tenant is not None
    assert amount is not None
    numbers = pc.cast(pc.cast(amount, pa.string()), pa.float64()).to_numpy(zero_copy_only=False)
    return Events(values.rows, {"amount": numbers}, {"tenant": tenant.to_pylist()})


def rows_of(ids: Sequence[int], tenants: Sequence[int], amounts: Sequence[int]) -> Rows:
    """Return rows of about 100 bytes."""
    texts = [[str(n) for n in ids], [f"tenant-{n}" for n in tenants], [str(n) for n in amounts], ["x" * 70] * len(ids)]
    return from_columns(texts, LAYOUT)


def fill_store(path: Path, tenants: Sequence[int], amounts: Sequence[int]) -> Store:
    """Return a store with the full data of the table."""
    store = Store(path)
    record_ids, rows = rows_of(range(ROWS), tenants, amounts)
    batch = store.batch()
    for n, (record_id, row) in enumerate(zip(record_ids.split(), rows.split(), strict=True)):
        batch.put(ROW, PREFIX + record_id, struct.pack(">QIBI", n + 1, 1, 0, len(record_id)) + record_id + row)
    store.write(batch, durable=True)
    store.compact(ROW, PREFIX, PREFIX + b"\xff" * 8)  # as a broker has it after a while, not all in memory
    return store


def make_changes(chance: random.Random, tenants: list[int], count: int) -> tuple[list[Rows], int]:
    """Return batches of updates, no row twice, and how many of them change the tenant (one of twenty)."""
    ids, batches, moved = chance.sample(range(ROWS), count), list[Rows](), 0
    for at in range(0, count, BATCH):
        part = ids[at : at + BATCH]
        goes = [chance.random() < 0.05 for _ in part]
        new = [(tenants[n] + 1) % SUBSCRIPTIONS if go else tenants[n] for n, go in zip(part, goes, strict=True)]
        moved += sum(goes)
        batches.append(rows_of(part, new, [chance.randrange(1_000_000) for _ in part]))
    return batches, moved


def judge_paced(judge: Judge, batches: Sequence[Rows]) -> list[float]:
    """Judge at the goal's rate; return the milliseconds of each batch, from when it was due."""
    start, found = time.monotonic(), []
    for n, rows in enumerate(batches):
        due = start + n * BATCH / GOAL_RATE
        time.sleep(max(0.0, due - time.monotonic()))
        judge.judge(rows)
        found.append((time.monotonic() - due) * 1000)
    return found


def shape(words: str, interests: list[Interest], store: Store, tenants: list[int], count: int) -> list[FigureResult]:
    """Measure one kind of subscriptions."""
    batches, moved = make_changes(random.Random(4), tenants, count)
    judge = Judge(store, interests, batches[0])
    for rows in batches[:20]:
        judge.judge(rows)
    began = time.monotonic()
    found = [judge.judge(rows) for rows in batches]
    rate = count / (time.monotonic() - began)
    if not any(one.between for one in interests):
        assert sum(one.leave for one in found) == sum(one.enter for one in found) == moved
        assert sum(one.stay for one in found) == count - moved
    pairs = sum(one.stay + one.enter + one.leave for one in found) / count
    late = percentile(judge_paced(judge, batches), 99)
    what = f"{SUBSCRIPTIONS:,} subscriptions, {words}, {pairs:.1f} concerned by a change"
    return [
        at_least(what, rate, GOAL_RATE, "changes/s", paper=PAPER),
        at_most(f"the same at {GOAL_RATE:,} changes/s, batches of {BATCH}, p99", late, GOAL_P99_MS, "ms"),
    ]


def run(quick: bool) -> Sequence[FigureResult]:
    """Measure."""
    chance, count = random.Random(1), 10_000 if quick else 50_000
    tenants = [chance.randrange(SUBSCRIPTIONS) for _ in range(ROWS)]
    equal = [Interest(equal={"tenant": frozenset({f"tenant-{n}".encode()})}) for n in range(SUBSCRIPTIONS)]
    lows = [chance.randrange(1_000_000) for _ in range(SUBSCRIPTIONS // 2)]
    mixed = equal[::2] + [Interest(between={"amount": (float(low), low + 200.0)}) for low in lows]
    with tempfile.TemporaryDirectory() as folder:
        store = fill_store(Path(folder) / "store", tenants, [chance.randrange(1_000_000) for _ in range(ROWS)])
        try:
            return [
                *shape("tenant = N", equal, store, tenants, count),
                *shape("half tenant = N, half ranges", mixed, store, tenants, count),
            ]
        finally:
            store.close()


FIGURE = Figure(id="X1", title="many subscriptions", measure=run)
