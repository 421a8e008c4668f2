"""Reads the rows of a cut in key ranges, and sums them up for whoever loads them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from venus.broker.snapshot import choosing, inside
from venus.broker.snapshot.chunks import Chunks
from venus.broker.snapshot.holding import Holding
from venus.broker.snapshot.leases import Pin, Range
from venus.codec.chunk import Sealed, Totals
from venus.errors import ProtocolError
from venus.network.row_filters import RowFilter
from venus.wire import broker_pb2

_CHUNK_BYTES = 1 << 20
_CHUNK_BYTES_MIN, _CHUNK_BYTES_MAX = 1 << 14, 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingProgress:
    """How many rows of a snapshot its holder has read, of about how many, and since when by the leases' clock."""

    rows: int = 0
    rows_expected: int = 0
    began_us: int = 0


class Reading:
    """Reads splits of what is held; thread-safe."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._lock = threading.Lock()
        #: Of splits that were read to their end, by directory, and by which rows were read.
        self._sums: dict[str, dict[tuple[tuple[RowFilter, ...], Range], Totals]] = {}
        #: How far the loads are, by snapshot.
        self._progress: dict[str, ReadingProgress] = {}

    def expect(self, snapshot_id: str, rows: int) -> None:
        """Note about how many rows a snapshot has."""
        with self._lock:
            self._progress[snapshot_id] = ReadingProgress(rows_expected=rows)

    def progress(self, snapshot_id: str) -> ReadingProgress | None:
        """Return how far the reader of a snapshot is, None if nothing was read by this process."""
        with self._lock:
            return self._progress.get(snapshot_id)

    def end(self, snapshot_id: str) -> None:
        """Forget how far a reader was."""
        with self._lock:
            self._progress.pop(snapshot_id, None)

    def _count_read(self, snapshot_id: str, rows: int) -> None:
        with self._lock:
            known = self._progress.get(snapshot_id) or ReadingProgress()
            began_us = known.began_us or self._holding.clock_us()
            self._progress[snapshot_id] = replace(known, rows=known.rows + rows, began_us=began_us)

    def forget(self, directory: str) -> None:
        """Forget the sums of a checkpoint that is gone."""
        with self._lock:
            self._sums.pop(directory, None)

    def read_split(self, request: broker_pb2.ReadSplitRequest) -> Iterator[Sealed]:
        """Read a key range; each chunk renews the lease. May be used from any thread, one at a time."""
        nbytes = min(max(request.chunk_bytes or _CHUNK_BYTES, _CHUNK_BYTES_MIN), _CHUNK_BYTES_MAX)
        pin = self._holding.live(request.snapshot_id)
        self._check_range(pin, request)
        chunks = self._chunks(pin, request.split, nbytes)
        if request.after:  # the totals are those of the whole range, whatever the reader has of it
            chunks = self._chunks(pin, request.split, nbytes, request.after, self._count(pin, request))
        while not chunks.done:
            before, found = chunks.totals.rows, self._next(request.snapshot_id, chunks)
            self._count_read(request.snapshot_id, chunks.totals.rows - before)
            yield found
        if not request.own_range:
            self._remember(pin, range_of(request.split), chunks.totals)

    def totals(self, snapshot_id: str) -> broker_pb2.SnapshotTotals:
        """Sum up the planned splits by table; what was not read to its end by anyone is read now."""
        pin = self._holding.live(snapshot_id)
        tables: dict[int, Totals] = {}
        for planned in pin.plan:
            with self._lock:
                totals = self._sums.get(pin.directory, {}).get((pin.where, planned))
            if totals is None:
                table_id, low, high = planned
                split = broker_pb2.Split(table_id=table_id, low=bytes.fromhex(low), high=bytes.fromhex(high))
                totals = self._whole(pin, split)
                self._remember(pin, planned, totals)
            tables.setdefault(planned[0], Totals()).include(totals)
        return broker_pb2.SnapshotTotals(
            tables=[
                broker_pb2.TableTotals(table_id=table_id, rows=totals.rows, rows_digest=totals.digest)
                for table_id, totals in sorted(tables.items())
            ]
        )

    def _check_range(self, pin: Pin, request: broker_pb2.ReadSplitRequest) -> None:
        """Refuse a range that the plan does not have, and a resume from outside it."""
        split = request.split
        if not request.own_range and range_of(split) not in pin.plan:
            raise ProtocolError(
                f"snapshot {pin.snapshot_id} has no such split of table {split.table_id} in its plan",
                hint="load again; a range of one's own is asked for with own_range",
            )
        if request.after and (request.after < split.low or (split.high and request.after >= split.high)):
            raise ProtocolError(f"a split of table {split.table_id} cannot be resumed from outside it")

    def _chunks(
        self, pin: Pin, split: broker_pb2.Split, nbytes: int, after: bytes = b"", counted: Totals | None = None
    ) -> Chunks:
        with self._holding.checkpoints.reading(pin.directory) as store:
            floor = inside.reached(store, pin.business).floors.get(split.table_id, 0)
            choose = None
            if pin.where:
                choose = choosing.choosing(pin.where, split.table_id, inside.schemas(store, pin, (split.table_id,)))
        return Chunks(pin.business, split, after, nbytes, floor, counted, choose)

    def _count(self, pin: Pin, request: broker_pb2.ReadSplitRequest) -> Totals:
        """Count what comes before the place from which a split is resumed."""
        split = request.split
        passed = broker_pb2.Split(table_id=split.table_id, low=split.low, high=request.after + b"\x00")
        return self._whole(pin, passed)

    def _whole(self, pin: Pin, split: broker_pb2.Split) -> Totals:
        chunks = self._chunks(pin, split, _CHUNK_BYTES_MAX)
        while not chunks.done:
            self._next(pin.snapshot_id, chunks)
        return chunks.totals

    def _next(self, snapshot_id: str, chunks: Chunks) -> Sealed:
        pin = self._holding.renewed(snapshot_id)
        with self._holding.checkpoints.reading(pin.directory) as store:
            return chunks.next(store)

    def _remember(self, pin: Pin, planned: Range, totals: Totals) -> None:
        with self._lock:
            if pin.directory in self._holding.directories():
                self._sums.setdefault(pin.directory, {})[pin.where, planned] = totals


def range_of(split: broker_pb2.Split) -> Range:
    """Return what a split is, without its estimates."""
    return split.table_id, split.low.hex(), split.high.hex()
