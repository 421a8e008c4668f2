"""The full interface: snapshot plus increments equals the source, under load, across restarts, never cut short."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Clock, Producer
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.business import MaterialisedPosition
from venus.broker.snapshot import reading, snapshots
from venus.broker.store.rocks import Store
from venus.codec.stored_rows import RowTotals, decode_chunk
from venus.config.sections import LimitsSettings
from venus.errors import Corruption, Overloaded, Unavailable
from venus.model import ChangeKind
from venus.wire import broker_pb2, change_pb2

KEYS = 400


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> Iterator[Core]:
    opened = engines.make(tmp_path, clock, limits=LimitsSettings(slow_request_ms=0))  # the clock of this test jumps
    yield opened
    opened.stop()


def open_snapshot(engine: Core, **options: object) -> broker_pb2.Snapshot:
    return engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS, **options))  # type: ignore[arg-type]


class CutWriter(threading.Thread):
    """Writer that commits cuts of several batches each, and keeps the rows that it has written."""

    def __init__(self, engine: Core, seed: int) -> None:
        super().__init__(daemon=True)
        self.rows: dict[bytes, bytes] = {}
        self._producer = Producer(engine)
        self._random = random.Random(seed)
        self._stop_now = threading.Event()
        self.cuts = 0

    def run(self) -> None:
        while not self._stop_now.is_set():
            self.cut()

    def cut(self) -> None:
        first = self._producer.batch_no + 1
        batches = self._random.randrange(1, 4)
        halves = [
            self._producer.next_half(self._changes(), cut=first, cut_end=i == batches - 1) for i in range(batches)
        ]
        self._producer.send(*halves)
        self._producer.decide(halves[-1])
        self.cuts += 1

    def end(self) -> None:
        self._stop_now.set()
        self.join(engines.WAIT_S)

    def _changes(self) -> list[tuple[bytes, bytes | None]]:
        """Return changes of some keys, and of one that only this batch has: a reader that misses the batch lacks it."""
        chosen = self._random.sample(range(KEYS), 12)
        return [*(self._change(b"%05d" % n) for n in chosen), self._change(b"batch %d" % self._producer.batch_no)]

    def _change(self, record_id: bytes) -> tuple[bytes, bytes | None]:
        if record_id in self.rows and self._random.random() < 0.4:
            del self.rows[record_id]
            return record_id, None
        self.rows[record_id] = b"%d" % self._random.randrange(10**9)
        return record_id, self.rows[record_id]


def load_under_writes(engine: Core, clock: Clock, snapshots: int) -> tuple[int, int, int]:
    """Load under writes, repeatedly; return the mismatches, the deletions without a row, and the cuts seen in half."""
    load = CutWriter(engine, seed=snapshots)
    load.cut()
    load.start()
    taken = []
    for _ in range(snapshots):
        before = load.cuts
        eventually(lambda before=before: load.cuts > before + 3)  # type: ignore[misc]
        clock.now_s += 31  # so that the snapshot is not shared
        snapshot = open_snapshot(engine, splits=4)
        found: dict[bytes, bytes] = {}
        for split in snapshot.splits:
            for chunk in engines.chunks(engine, snapshot, split):
                found.update(engines.rows_of(chunk))
        engine.full_data.close(snapshot.snapshot_id)
        taken.append((snapshot, found))
    load.end()
    wrong = missing = halved = 0
    for snapshot, found in taken:
        increments = engines.queue(engine, snapshot.offset)
        halved += bool(increments) and increments[0].base_offset != snapshot.offset
        body = change_pb2.BatchBody.FromString(increments[0].body) if increments else None
        halved += body is not None and body.cut != body.batch_no
        missing += sum(engines.apply(found, increment) for increment in increments)
        wrong += found != load.rows
    return wrong, missing, halved


def test_snapshot_plus_increments_is_the_source_under_load(engine: Core, clock: Clock) -> None:
    assert load_under_writes(engine, clock, 12) == (0, 0, 0)


def test_an_offset_read_outside_the_checkpoint_is_noticed(
    engine: Core, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def position_after_checkpoint(_store: Store, number: int) -> MaterialisedPosition:
        (business,) = (found for found in engine.catalogue.list_all() if found.number == number)
        checkpointed = business.materialised
        eventually(lambda: business.materialised != checkpointed)
        return business.materialised

    monkeypatch.setattr(reading, "read_progress", position_after_checkpoint)

    assert load_under_writes(engine, clock, 6) != (0, 0, 0)


def test_splits_cover_every_row_once_and_chunks_are_sorted(engine: Core) -> None:
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3000, b"x" * 50))
    producer.commit([(b"%08d" % n, None) for n in range(0, 3000, 3)], table_id=1)
    producer.commit(engines.rows(0, 10), table_id=2)

    snapshot = open_snapshot(engine, splits=6)

    first = [split for split in snapshot.splits if split.table_id == 1]
    assert len(snapshot.splits) >= 6
    assert (first[0].low, first[-1].high) == (b"", b"")
    assert [split.high for split in first[:-1]] == [split.low for split in first[1:]]
    seen: list[bytes] = []
    for split in first:
        found = engines.chunks(engine, snapshot, split)
        assert [chunk.end for chunk in found] == [False] * (len(found) - 1) + [True]
        rows = [pair for chunk in found for pair in engines.rows_of(chunk).items()]
        totals = RowTotals()
        for chunk in found:
            totals.add(chunk.rows)
        assert found[-1].totals == totals
        assert totals.rows == len(rows)
        seen += [record_id for record_id, _ in rows]
    assert seen == [b"%08d" % n for n in range(3000) if n % 3]
    assert {schema.table_id for schema in snapshot.schemas} == {1, 2}


def test_reading_resumes_behind_any_row(engine: Core) -> None:
    Producer(engine).commit(engines.rows(0, 2000, b"x" * 50))
    snapshot = open_snapshot(engine)
    (split,) = snapshot.splits
    begun = engines.chunks(engine, snapshot, split)[0]

    request = broker_pb2.ReadSplitRequest(snapshot_id=snapshot.snapshot_id, split=split, after=begun.last)
    rest = [decode_chunk(sealed.body) for sealed in engine.full_data.read_split(request)]

    first = list(engines.rows_of(begun))
    then = [record_id for chunk in rest for record_id in engines.rows_of(chunk)]
    assert first + then == [b"%08d" % n for n in range(2000)]


def test_each_row_comes_with_its_schema_version_and_its_sequence(engine: Core) -> None:
    producer = Producer(engine)
    producer.commit(engines.rows(0, 4))
    producer.commit(engines.rows(2, 4), version=2)

    snapshot = open_snapshot(engine)
    (chunk,) = engines.chunks(engine, snapshot, snapshot.splits[0])

    found = {rows.schema_version: rows.stored.sequences.tolist() for rows in chunk.sections}
    assert found == {1: [1, 2], 2: [5, 6, 7, 8]}
    assert [schema.version for schema in snapshot.schemas] == [1, 2]
    assert (snapshot.offset, snapshot.sequence, snapshot.epoch) == (8, 8, producer.epoch)


def test_truncated_and_swept_rows_are_left_out(engine: Core) -> None:
    producer = Producer(engine)
    producer.commit(engines.rows(0, 10))
    producer.commit(engines.rows(20, 3), markers=[(ChangeKind.TRUNCATE, 0)])
    assert len(engines.full_data(engine)) == 3
    begin = producer.sequence + 1
    producer.commit([], markers=[(ChangeKind.SWEEP_BEGIN, 0)])
    producer.commit(engines.rows(21, 1, b"again"))
    producer.commit([], markers=[(ChangeKind.SWEEP_END, begin)])

    assert engines.full_data(engine) == {b"%08d" % 21: b"again"}


def test_young_snapshots_are_shared_and_closing_the_last_one_removes_the_files(
    engine: Core, clock: Clock, tmp_path: Path
) -> None:
    Producer(engine).commit(engines.rows(0, 10))
    first, second = open_snapshot(engine), open_snapshot(engine)

    assert first.snapshot_id != second.snapshot_id
    assert len(list((tmp_path / "snapshots").iterdir())) == 1
    engine.full_data.close(first.snapshot_id)
    assert len(engines.chunks(engine, second, second.splits[0])) == 1
    engine.full_data.close(second.snapshot_id)
    assert not list((tmp_path / "snapshots").iterdir())


def test_the_number_of_checkpoints_is_limited(engine: Core, clock: Clock) -> None:
    Producer(engine).commit(engines.rows(0, 10))
    for n in range(4):
        clock.now_s += 31
        open_snapshot(engine, lease_s=600 + 10 * n, holder=f"load of {n}" if n else "")
    clock.now_s += 31

    with pytest.raises(Overloaded) as caught:
        open_snapshot(engine)
    assert str(caught.value) == (
        "4 snapshots are open already, for an unnamed client (its lease: 476 s), load of 1 (its lease: 517 s), "
        "load of 2 (its lease: 558 s), load of 3 (its lease: 599 s)"
    )
    assert [(lease.holder, lease.offset, lease.lease_s, lease.left_s) for lease in engines.status(engine).leases] == [
        ("", 10, 600, 476),
        ("load of 1", 10, 610, 517),
        ("load of 2", 10, 620, 558),
        ("load of 3", 10, 630, 599),
    ]


def test_checkpoints_left_by_a_crash_are_removed(tmp_path: Path, clock: Clock) -> None:
    orphan = tmp_path / "snapshots" / "orphan"
    orphan.mkdir(parents=True)

    engines.make(tmp_path, clock).stop()

    assert not orphan.exists()


def test_a_damaged_file_aborts_the_read(engine: Core, tmp_path: Path) -> None:
    Producer(engine).commit(engines.rows(0, 3000, b"y" * 90))
    snapshot = open_snapshot(engine)
    (directory,) = (tmp_path / "snapshots").iterdir()
    for table in directory.glob("*.sst"):
        content = bytearray(table.read_bytes())
        for at in range(0, max(0, len(content) - 4096), 50):
            content[at] ^= 0x55
        table.write_bytes(content)

    with pytest.raises(Corruption):
        engines.chunks(engine, snapshot, snapshot.splits[0])


def test_an_unknown_business_has_no_snapshot(engine: Core) -> None:
    with pytest.raises(Unavailable, match="does not know business"):
        engine.full_data.open(broker_pb2.OpenSnapshotRequest(business="mian"))


def test_a_small_table_is_split_too_and_no_split_is_empty(engine: Core) -> None:
    Producer(engine).commit(engines.rows(0, 10))

    snapshot = open_snapshot(engine, splits=5)

    counts = [sum(len(engines.rows_of(c)) for c in engines.chunks(engine, snapshot, s)) for s in snapshot.splits]
    assert counts == [2] * 5


def test_a_large_table_is_split_by_its_files_and_by_seeking(engine: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "COUNTED_ROWS_MAX", 100)
    producer = Producer(engine)
    for n in range(4):
        producer.commit(engines.rows(n * 1000, 1000, b"z" * 40))
    producer.commit(engines.rows(0, 10), table_id=2)

    snapshot = open_snapshot(engine, splits=8)

    counts = [
        sum(len(engines.rows_of(c)) for c in engines.chunks(engine, snapshot, s))
        for s in snapshot.splits
        if s.table_id == 1
    ]
    assert len(counts) >= 4
    assert sum(counts) == 4000
    assert max(counts) < 2500


def test_a_large_table_that_shares_its_files_is_split_too(engine: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "COUNTED_ROWS_MAX", 600)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 10), table_id=1)
    producer.commit(engines.rows(0, 4000, b"z" * 40), table_id=2)
    producer.commit(engines.rows(0, 10), table_id=3)

    snapshot = open_snapshot(engine, splits=8)

    counts = [
        sum(len(engines.rows_of(c)) for c in engines.chunks(engine, snapshot, s))
        for s in snapshot.splits
        if s.table_id == 2
    ]
    assert len(counts) >= 4
    assert sum(counts) == 4000
    assert max(counts) < 2500


def test_splitting_a_table_takes_no_memory_for_each_row(engine: Core) -> None:
    producer = Producer(engine)
    for n in range(10):
        producer.commit(engines.rows(0, 1), table_id=1)  # so that no file holds table 2 alone
        producer.commit(engines.rows(n * 20_000, 20_000), table_id=2)
        producer.commit(engines.rows(0, 1), table_id=3)
    open_snapshot(engine, splits=4, holder="first")

    tracemalloc.start()
    snapshot = open_snapshot(engine, splits=4, holder="second")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert sum(s.rows_estimate for s in snapshot.splits) == pytest.approx(200_000, rel=0.01)
    assert peak < 4 << 20, "the keys of 200,000 rows take some 12 MiB"


def test_a_snapshot_requested_while_the_broker_stops_is_no_failure(tmp_path: Path) -> None:
    errors = engines.Errors()
    disk = engines.Disk()
    engine = engines.make(tmp_path, errors=errors, free_bytes=disk)
    disk.holds_full_data = True  # so that the snapshot waits
    Producer(engine).commit(engines.rows(0, 10))
    with ThreadPoolExecutor(1, "asks") as asks:
        asked = asks.submit(open_snapshot, engine)
        eventually(lambda: disk.looks["asks_0"] > 0)
        disk.wait_for_rounds(1)
        engine.stop()
        with pytest.raises(Unavailable):
            asked.result(engines.WAIT_S)
    assert errors.fatal == []
