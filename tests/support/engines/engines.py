"""Engines for tests: a real store, a clock that only the test advances, and batches built by hand."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xxhash

from tests.support.engines.stored import plain_rows
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.business import Business, MaterialisedPosition
from venus.broker.machine.records import decode_materialised_position, encode_materialised_position
from venus.broker.pipeline.shared_log import SharedLog, StandaloneLog
from venus.broker.snapshot import materialiser, step
from venus.broker.store import files, keys
from venus.broker.store.files import FreeBytes
from venus.broker.store.rocks import Store
from venus.codec.packed import PackedBytes
from venus.codec.stored_rows import Chunk, decode_chunk
from venus.config import BrokerSettings
from venus.model import Verdict
from venus.wire import broker_pb2, change_pb2

BUSINESS = "main"
WAIT_S = 60.0
#: Start of an engine's clock, and the epoch of the first producer at that time.
STARTS_AT_S = 1_800_000_000.0
FIRST_EPOCH = int(STARTS_AT_S * 1000) + 1
MATERIALISE = "venus-materialise"
Changes = Sequence[tuple[bytes, bytes | None]]


class Clock:
    """Wall and monotonic time of an engine."""

    def __init__(self) -> None:
        self.now_s = STARTS_AT_S
        self.wall_ahead_s = 0.0

    def clock_us(self) -> int:
        return int((self.now_s + self.wall_ahead_s) * 1e6)

    def monotonic(self) -> float:
        return self.now_s


class Disk:
    """The free disk space that an engine sees: plenty, until a test reduces it."""

    def __init__(self) -> None:
        self.free = 1 << 40
        #: Whether only the materialising thread finds no space, so that the full data lags and everything else
        #: continues.
        self.holds_full_data = False
        #: How often each thread has checked the space, by its name.
        self.looks: Counter[str] = Counter()

    def __call__(self, _path: Path) -> int:
        self.looks[threading.current_thread().name] += 1
        return 0 if self.holds_full_data and threading.current_thread().name == MATERIALISE else self.free

    def wait_for_rounds(self, count: int = 3) -> None:
        """Wait until the materialising thread, which checks once a round, has completed this many more rounds."""
        seen = self.looks[MATERIALISE]
        eventually(lambda: self.looks[MATERIALISE] > seen + count)


class Gate:
    """A write hook that blocks the materialising thread before its next write."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.held = threading.Event()

    def __call__(self, moment: str) -> None:
        if moment == "before" and threading.current_thread().name == MATERIALISE and not self._open.is_set():
            self.held.set()
            assert self._open.wait(WAIT_S)

    def open(self) -> None:
        """Let the thread continue permanently."""
        self._open.set()


class Errors:
    """Recorder of the errors that an engine reports before it stops."""

    def __init__(self) -> None:
        self.fatal: list[BaseException] = []

    def __call__(self, error: BaseException) -> None:
        self.fatal.append(error)


def make(
    path: Path, clock: Clock | None = None, errors: Callable[[BaseException], None] | None = None, **options: Any
) -> Core:
    """Start an engine with small limits. `on_write`, `watermark`, `shared`, `free_bytes` are hooks, others settings."""
    on_write: Callable[[str], None] | None = options.pop("on_write", None)
    watermark: Callable[[Business], int] | None = options.pop("watermark", None)
    shared: SharedLog = options.pop("shared", None) or StandaloneLog(watermark)
    free_bytes: FreeBytes = options.pop("free_bytes", files.read_free_bytes)
    clock = clock or Clock()
    settings = BrokerSettings(**{"free_bytes_min": 1 << 20, "cache_bytes": 16 << 20, **options})
    engine = Core(
        path,
        settings,
        clock_us=clock.clock_us,
        monotonic=clock.monotonic,
        on_fatal=errors or Errors(),
        on_write=on_write,
        shared=shared,
        free_bytes=free_bytes,
    )
    engine.start()
    return engine


def make_full_data_from_start(path: Path, *, met_before: bool) -> None:
    """Let the next engine here rebuild the full data of its first business; with `met_before` it knows the rows."""
    store = Store(path / "db")
    key = keys.materialised_key(1)
    reached = decode_materialised_position(store.get(keys.STATE, key))
    start = (
        MaterialisedPosition(sequence=reached.sequence, floors=reached.floors) if met_before else MaterialisedPosition()
    )
    batch = store.batch()
    batch.put(keys.STATE, key, encode_materialised_position(start))
    store.write(batch, durable=True)
    store.close()


def begin_fill(engine: Core) -> None:
    """Report that the producer reads its tables; until the process ends, write even few rows directly to files."""
    step.FILES_BYTES_MIN, materialiser.FILL_LINGER_S = 1, 0.005
    engine.producers.record_fill(BUSINESS, is_filling=True)


def has_files(engine: Core) -> bool:
    """Return whether rows were written to files directly, without memtable and write-ahead log."""
    return engine.store._file_number > 0


def rows(first: int, count: int, payload: bytes = b"x") -> list[tuple[bytes, bytes | None]]:
    """Return `count` rows with consecutive keys from `first`."""
    return [(b"%08d" % (first + i), payload) for i in range(count)]


def body(
    batch_no: int,
    first: int,
    changes: Changes,
    *,
    table_id: int = 1,
    version: int = 1,
    cut: int = 0,
    cut_end: bool = True,
    markers: Sequence[tuple[int, int]] = (),
    described: bool = True,
) -> bytes:
    """Return a BatchBody: markers (kind, sweep_before), then the changes; with `described`, the table's columns too."""
    message = change_pb2.BatchBody(
        batch_no=batch_no,
        first_sequence=first,
        count=len(changes) + len(markers),
        cut=cut or batch_no,
        cut_end=cut_end,
        captured_at_us=1_700_000_000_000_000 + batch_no,
    )
    if described:
        message.schemas.add(table_id=table_id, version=version, namespace="shop", name=f"t{table_id}")
    for kind, sweep_before in markers:
        message.tables.add(
            table_id=table_id,
            schema_version=version,
            kind=change_pb2.TableChanges.Kind.ValueType(kind),
            count=1,
            sweep_before=sweep_before,
        )
    if changes:
        ids = PackedBytes.of(record_id for record_id, _ in changes)
        packed = PackedBytes.of(row or b"" for _, row in changes)
        message.tables.add(
            table_id=table_id,
            schema_version=version,
            count=len(changes),
            record_ids=ids.data,
            record_id_sizes=ids.wire_sizes(),
            rows=packed.data,
            row_sizes=packed.wire_sizes(),
            is_deleted=bytes(row is None for _, row in changes),
        )
    return message.SerializeToString()


def half(batch_no: int, first: int, changes: Changes, **options: Any) -> broker_pb2.Half:
    """Return a half message."""
    content = body(batch_no, first, changes, **options)
    return broker_pb2.Half(batch_no=batch_no, digest=xxhash.xxh3_64_intdigest(content), body=content)


class Producer:
    """Sends batches as an upper adapter would, one call at a time."""

    def __init__(self, engine: Core, business: str = BUSINESS, *, source_last_batch: int = 0) -> None:
        self.engine = engine
        self.business = business
        self.ack = engine.producers.init(business, "test", 0, source_last_batch).result(WAIT_S)
        self.epoch = self.ack.epoch
        self.batch_no = self.ack.last_batch
        self.sequence = self.ack.last_sequence
        self.last_digest = 0

    def next_half(self, changes: Changes, **options: Any) -> broker_pb2.Half:
        """Build the next half message."""
        self.batch_no += 1
        message = half(self.batch_no, self.sequence + 1, changes, **options)
        self.sequence += len(changes) + len(options.get("markers", ()))
        return message

    def send(self, *messages: broker_pb2.Half) -> None:
        """Persist half messages."""
        result = self.engine.producers.take_halves(self.business, self.epoch, list(messages)).result(WAIT_S)
        assert result.resend_from is None, result.reason
        self.last_digest = messages[-1].digest

    def decide(self, message: broker_pb2.Half, verdict: Verdict = Verdict.COMMIT) -> broker_pb2.Decided:
        """Decide a half message."""
        return self.engine.producers.decide(
            self.business, self.epoch, message.batch_no, message.digest, verdict
        ).result(WAIT_S)

    def commit(self, changes: Changes, **options: Any) -> broker_pb2.Decided:
        """Send one batch and commit it."""
        message = self.next_half(changes, **options)
        self.send(message)
        return self.decide(message)


def chunks(engine: Core, snapshot: broker_pb2.Snapshot, split: broker_pb2.Split) -> list[Chunk]:
    """Read one split, and check the digests."""
    request = broker_pb2.ReadSplitRequest(snapshot_id=snapshot.snapshot_id, split=split, chunk_bytes=1 << 14)
    found = []
    for chunk in engine.full_data.read_split(request):
        assert xxhash.xxh3_64_intdigest(chunk.body) == chunk.digest
        found.append(decode_chunk(chunk.body))
    return found


def rows_of(chunk: Chunk) -> dict[bytes, bytes]:
    """Return the rows of a chunk."""
    return {record_id: row for _, _, record_id, row in plain_rows(chunk.rows)}


def full_data(engine: Core, table_id: int = 1, business: str = BUSINESS) -> dict[bytes, bytes]:
    """Open a snapshot and return the rows that a loader would load."""
    snapshot = engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=business, table_ids=[table_id], splits=3))
    found: dict[bytes, bytes] = {}
    try:
        for split in snapshot.splits:
            for chunk in chunks(engine, snapshot, split):
                found.update(rows_of(chunk))
    finally:
        engine.full_data.close(snapshot.snapshot_id)
    return found


def apply(found: dict[bytes, bytes], increment: broker_pb2.Increment) -> int:
    """Apply an increment to rows; return the number of deletions without a row."""
    missing = 0
    for table in change_pb2.BatchBody.FromString(increment.body).tables:
        ids = PackedBytes.from_wire(table.record_ids, table.record_id_sizes).split()
        packed = PackedBytes.from_wire(table.rows, table.row_sizes).split()
        for i, record_id in enumerate(ids):
            if table.is_deleted and table.is_deleted[i]:
                missing += found.pop(record_id, None) is None
            else:
                found[record_id] = packed[i]
    return missing


def queue(engine: Core, offset: int = 0, business: str = BUSINESS) -> list[broker_pb2.Increment]:
    """Return every increment from an offset on."""
    found: list[broker_pb2.Increment] = []
    while True:
        result = engine.subscriptions.read(business, offset, 1 << 20)
        if result.next_offset == offset:
            return found
        found += result.increments
        offset = result.next_offset


def the_business(engine: Core) -> Business:
    """Return the only business of an engine."""
    (business,) = engine.catalogue.list_all()
    return business


def wait_until_caught_up(engine: Core) -> None:
    """Wait until the full data has everything that is visible."""
    business = the_business(engine)
    eventually(lambda: business.materialised.offset == business.visible_offset)


def status(engine: Core) -> broker_pb2.BusinessStatus:
    """Return the engine's status of its only business."""
    return engine.status(BUSINESS).businesses[0]
