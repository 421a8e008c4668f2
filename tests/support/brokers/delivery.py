"""The delivery side of a broker in memory, over real gRPC, for tests of consumers that must control what they receive.

The fake broker keeps increments and full data, honours credit roughly, and counts requests. It can trim its queue,
expire a snapshot, and hold back delivery.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from itertools import pairwise

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from xxhash import xxh3_64_intdigest

from tests.support.engines.stored import stored_rows
from venus.codec import schema as schemas_codec
from venus.codec.batch import Batch, TableChanges, digest, encode
from venus.codec.stored_rows import Chunk, RowTotals, StoredRows, encode_chunk
from venus.errors import OffsetDiverged, OffsetTrimmed, SnapshotExpired, VenusError
from venus.model import ChangeKind, TableSchema
from venus.rpc.errors import to_status
from venus.rpc.sealed import handlers
from venus.wire import broker_pb2, broker_pb2_grpc

Rows = dict[int, dict[bytes, tuple[int, int, bytes]]]  # table -> record_id -> sequence, version, row
CHUNK_ROWS = 500


@dataclass
class PinnedSnapshot:
    """Rows of all tables at one offset, as they were when a client opened the snapshot."""

    offset: int
    rows: Rows
    sequence: int


@dataclass
class FakeDelivery(broker_pb2_grpc.DeliveryServicer):
    """A broker in memory that offers the service `Delivery` on a free port."""

    epoch: int = 1
    increments: list[broker_pb2.Increment] = field(default_factory=list)
    schemas: dict[tuple[int, int], TableSchema] = field(default_factory=dict)
    rows: Rows = field(default_factory=dict)
    sequence: int = 0
    log_start: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    pinned: dict[str, PinnedSnapshot] = field(default_factory=dict)
    splits_read: int = 0
    #: Error of SumSnapshot: additional rows, and flipped bits of the digest.
    sums_off: tuple[int, int] = (0, 0)
    snapshots_opened: int = 0
    #: Called after each new snapshot.
    after_snapshot: Callable[[], None] = lambda: None
    #: Nothing at or after this offset is delivered.
    hold_from: int | None = None
    address: str = ""

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.stopping = False

    # -- the tests' interface ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.server = grpc.server(futures.ThreadPoolExecutor(32))
        self.server.add_generic_rpc_handlers((handlers("Delivery", self),))
        servicer = health.HealthServicer()
        servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        self.server.stop(0.1).wait()

    @property
    def next_offset(self) -> int:
        last = self.increments[-1] if self.increments else None
        return last.base_offset + last.count if last else self.log_start

    def commit(self, batch: Batch) -> None:
        """Append a batch to the queue, and fold it into the full data."""
        body = encode(batch)
        with self.changed:
            for schema in batch.schemas:
                self.schemas[schema.table_id, schema.version] = schema
            sequence = int(batch.first_sequence)
            for section in batch.sections:
                self._materialise(section, sequence)
                sequence += section.count
            self.increments.append(
                broker_pb2.Increment(
                    base_offset=self.next_offset,
                    count=max(batch.count, 1),
                    epoch=self.epoch,
                    body=body,
                    digest=digest(body),
                    committed_at_us=batch.captured_at_us + 1000,
                )
            )
            self.sequence = sequence - 1
            self.changed.notify_all()

    def _materialise(self, section: TableChanges, sequence: int) -> None:
        """Fold a section into the rows."""
        table = self.rows.setdefault(section.table_id, {})
        if section.kind is ChangeKind.TRUNCATE:
            table.clear()
        elif section.kind is ChangeKind.SWEEP_END:
            for record_id in [r for r, (at, _, _) in table.items() if at < section.sweep_before]:
                del table[record_id]
        elif section.kind is ChangeKind.CHANGES:
            changes = zip(section.record_ids.split(), section.rows.split(), section.is_deleted.tolist(), strict=True)
            for i, (record_id, row, is_deleted) in enumerate(changes):
                if is_deleted:
                    table.pop(record_id, None)
                else:
                    table[record_id] = (sequence + i, section.schema_version, row)

    def release(self) -> None:
        """Deliver the increments that `hold_from` held back."""
        with self.changed:
            self.hold_from = None
            self.changed.notify_all()

    # -- increments ----------------------------------------------------------------------------------------------------

    def Listen(  # noqa: N802
        self, requests: Iterator[broker_pb2.ListenerFrame], context: grpc.ServicerContext
    ) -> Iterator[broker_pb2.ChangesFrame]:
        raise NotImplementedError

    def Subscribe(  # noqa: N802
        self, requests: Iterator[broker_pb2.ConsumerFrame], context: grpc.ServicerContext
    ) -> Iterator[broker_pb2.DeliveryFrame]:
        opening = next(requests).open
        self._refuse(context, opening.offset, opening.epoch)
        left = threading.Event()
        threading.Thread(target=self._listen, args=(requests, opening.group, left), daemon=True).start()
        yield broker_pb2.DeliveryFrame(
            opened=broker_pb2.Opened(next_offset=self.next_offset, log_start=self.log_start, epoch=self.epoch)
        )
        at, tables = opening.offset, set(opening.table_ids)
        while context.is_active() and not left.is_set():
            with self.changed:
                ready = [i for i in self.increments if i.base_offset + i.count > at and self._is_free(i)]
                if not ready:
                    if self.stopping:
                        return
                    self.changed.wait(0.2)
                    continue
            at = ready[-1].base_offset + ready[-1].count
            for increment in ready:
                if not tables or tables & self._tables_of(increment):
                    yield broker_pb2.DeliveryFrame(increments=[increment])
            yield broker_pb2.DeliveryFrame(progress=at)

    def _is_free(self, increment: broker_pb2.Increment) -> bool:
        """Return whether `hold_from` does not hold this increment back."""
        return self.hold_from is None or increment.base_offset < self.hold_from

    def _tables_of(self, increment: broker_pb2.Increment) -> set[int]:
        from venus.codec.batch import decode

        return {s.table_id for s in decode(increment.body).sections}

    def _listen(self, requests: Iterator[broker_pb2.ConsumerFrame], group: str, left: threading.Event) -> None:
        """Record the acknowledgements of a consumer until it leaves."""
        try:
            for frame in requests:
                if frame.acknowledge:
                    with self.changed:
                        self.acknowledged[group] = max(frame.acknowledge, self.acknowledged.get(group, 0))
                        self.changed.notify_all()
        except Exception:
            pass
        with self.changed:
            left.set()
            self.changed.notify_all()

    def _refuse(self, context: grpc.ServicerContext, offset: int, epoch: int) -> None:
        """End the call if its offset is trimmed or belongs to another history."""
        if offset < self.log_start:
            _abort(context, OffsetTrimmed(f"offset {offset} is below {self.log_start}"))
        if offset > self.next_offset or epoch > self.epoch:
            _abort(context, OffsetDiverged(f"offset {offset} is above {self.next_offset}"))

    # -- full data -----------------------------------------------------------------------------------------------------

    def OpenSnapshot(  # noqa: N802
        self, request: broker_pb2.OpenSnapshotRequest, context: grpc.ServicerContext
    ) -> broker_pb2.Snapshot:
        with self.changed:
            self.snapshots_opened += 1
            wanted = set(request.table_ids)
            rows = {t: dict(r) for t, r in self.rows.items() if not wanted or t in wanted}
            name = f"s{self.snapshots_opened}"
            self.pinned[name] = PinnedSnapshot(offset=self.next_offset, rows=rows, sequence=self.sequence)
            snapshot = broker_pb2.Snapshot(
                snapshot_id=name, offset=self.next_offset, epoch=self.epoch, sequence=self.sequence, lease_s=60
            )
            for (table_id, _), schema in self.schemas.items():
                if not wanted or table_id in wanted:
                    snapshot.schemas.append(schemas_codec.to_wire(schema))
            for table_id in {t for t, _ in self.schemas} & (wanted or {t for t, _ in self.schemas}):
                snapshot.splits.extend(_splits(table_id, sorted(rows.get(table_id, {})), max(1, request.splits)))
        self.after_snapshot()
        return snapshot

    def ReadSplit(  # noqa: N802
        self, request: broker_pb2.ReadSplitRequest, context: grpc.ServicerContext
    ) -> Iterator[broker_pb2.SnapshotChunk]:
        pinned = self._find_pinned(request.snapshot_id, context)
        self.splits_read += 1
        split = request.split
        table = pinned.rows.get(split.table_id, {})
        whole = [k for k in sorted(table) if k >= split.low and (not split.high or k < split.high)]
        keys = [k for k in whole if k > request.after]
        parts = [keys[i : i + CHUNK_ROWS] for i in range(0, len(keys), CHUNK_ROWS)] or [[]]
        for number, part in enumerate(parts):
            body = _chunk(split.table_id, table, part, number, whole, end=number == len(parts) - 1)
            yield broker_pb2.SnapshotChunk(digest=xxh3_64_intdigest(body), body=body)

    def SumSnapshot(  # noqa: N802
        self, request: broker_pb2.SnapshotRef, context: grpc.ServicerContext
    ) -> broker_pb2.SnapshotTotals:
        found = broker_pb2.SnapshotTotals()
        for table_id, table in self._find_pinned(request.snapshot_id, context).rows.items():
            totals = RowTotals()
            totals.add(stored_rows((row[0], row[1], k, row[2]) for k, row in table.items()))
            rows, digest = totals.rows + self.sums_off[0], totals.digest ^ self.sums_off[1]
            found.tables.add(table_id=table_id, rows=rows, rows_digest=digest)
        return found

    def RenewSnapshot(  # noqa: N802
        self, request: broker_pb2.SnapshotRef, context: grpc.ServicerContext
    ) -> broker_pb2.Snapshot:
        self._find_pinned(request.snapshot_id, context)
        return broker_pb2.Snapshot(snapshot_id=request.snapshot_id, lease_s=60)

    def CloseSnapshot(  # noqa: N802
        self, request: broker_pb2.SnapshotRef, context: grpc.ServicerContext
    ) -> broker_pb2.Empty:
        self.pinned.pop(request.snapshot_id, None)
        return broker_pb2.Empty()

    def _find_pinned(self, name: str, context: grpc.ServicerContext) -> PinnedSnapshot:
        """Return an open snapshot, or end the call because it has expired."""
        if name not in self.pinned:
            _abort(context, SnapshotExpired(f"snapshot {name} has expired"))
        return self.pinned[name]


def _splits(table_id: int, keys: list[bytes], wanted: int) -> list[broker_pb2.Split]:
    """Cut sorted keys into this number of splits."""
    step = max(1, -(-len(keys) // wanted))
    bounds = [b"", *keys[step::step], b""]
    share = min(step, len(keys))  # 0 for an empty table, as in the real broker
    return [
        broker_pb2.Split(table_id=table_id, low=low, high=high, rows_estimate=share) for low, high in pairwise(bounds)
    ]


def _chunk(
    table_id: int,
    table: dict[bytes, tuple[int, int, bytes]],
    keys: list[bytes],
    number: int,
    all_keys: list[bytes],
    *,
    end: bool,
) -> bytes:
    """Return a chunk of a split; the last one has the totals of the whole split."""

    def rows(of: list[bytes]) -> StoredRows:
        return stored_rows((table[k][0], table[k][1], k, table[k][2]) for k in of)

    totals = RowTotals()
    totals.add(rows(all_keys))
    last = keys[-1] if keys else b""
    return encode_chunk(
        Chunk(chunk_no=number, table_id=table_id, rows=rows(keys), last=last, end=end, totals=totals if end else None)
    )


def _abort(context: grpc.ServicerContext, error: VenusError) -> None:
    """End a call with an error, in the form of a real broker."""
    status = to_status(error)
    context.set_trailing_metadata(status.metadata)
    context.abort(status.code, status.details)
