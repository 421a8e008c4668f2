"""Reads the rows of a snapshot in key ranges (splits), with totals for loaders.

`ChunkReader` keeps nothing open between two chunks. So a reader may take as long as it likes, stop without resuming, or
resume after any record_id it has seen. Rows are sent in stored form, without tombstones and rows outside the filters.

The metadata of a checkpoint is read from inside it: that of the live store could differ from its rows by a batch.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from venus.broker.machine import queue_index
from venus.broker.machine.business import Business, MaterialisedPosition
from venus.broker.machine.mirror import Mirror, decode_mirror, find_partial_tables, levels_to_wire
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.machine.records import decode_materialised_position, read_schemas
from venus.broker.queue.border_masks import BorderMasks
from venus.broker.queue.reader import incomplete_error
from venus.broker.snapshot.lease_manager import LeaseManager, Range, SnapshotLease
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.codec import schema as schemas_codec
from venus.codec.filtering import find_stored_inside
from venus.codec.packed import pack_items
from venus.codec.stored_rows import Chunk, RowTotals, SealedChunk, StoredRows, encode_chunk
from venus.errors import ProtocolError, SnapshotExpired
from venus.masking.border import Border
from venus.model import TableSchema
from venus.network.row_filters import FittedFilter, Levels, RowFilter, RowsIdentity, fit_filters, partial_tables
from venus.rpc import reports
from venus.wire import broker_pb2, change_pb2

Choose = Callable[[StoredRows], StoredRows]


def refused_tables(where: tuple[RowFilter, ...], schemas: Iterable[change_pb2.TableSchema]) -> set[int]:
    """Return the ids of tables that their filter does not fit; these tables are not read."""
    found = fit_filters(where, map(schemas_codec.from_wire, schemas)) if where else {}
    return {table_id for table_id, one in found.items() if one.refused}


def row_chooser(
    where: tuple[RowFilter, ...], table_id: int, schemas: Iterable[change_pb2.TableSchema]
) -> Choose | None:
    """Return a function that selects the wanted rows of a table, None if all are wanted.

    `schemas` has all versions below the cut. The function selects the same rows as the increments after the cut do.
    """
    known = {wire.version: schemas_codec.from_wire(wire) for wire in schemas if wire.table_id == table_id}
    found = fit_filters(where, known.values()).get(table_id)
    return partial(_choose_rows, found, known) if found is not None else None


def _choose_rows(found: FittedFilter, known: dict[int, TableSchema], rows: StoredRows) -> StoredRows:
    """Return the rows that match a filter; the predicate as of the cut applies to rows of every version."""
    predicate = found.predicate_at(max(known)) if not found.refused else None
    inside = np.zeros(len(rows), dtype=np.bool_)
    if predicate is None:
        return rows.select(inside)
    versions = rows.heads["version"]
    for version in np.unique(versions).tolist():
        if version not in known:
            raise ProtocolError(f"{found.name} has rows of version {version}, which nothing describes")
        of_it = versions == version
        inside[of_it] = find_stored_inside(predicate, rows.select(of_it), known[version])
    return rows.select(inside)


def _choose_masked(choose: Choose | None, masks: BorderMasks, table_id: int, rows: StoredRows) -> StoredRows:
    """Select the wanted rows by their plain values, then mask them."""
    chosen = rows if choose is None else choose(rows)
    return masks.mask_stored(table_id, chosen) if len(chosen) else chosen


def describe_rows(snapshot: broker_pb2.Snapshot, here: str, levels: Levels, where: tuple[RowFilter, ...]) -> None:
    """Add to a snapshot which rows it has: the filters of all sets from the home to here, and its reader's own."""
    every = (*levels, where) if where else levels
    ids = find_partial_tables(every, snapshot.schemas)
    rows = partial_tables(every, (schemas_codec.from_wire(one) for one in snapshot.schemas if one.table_id in ids))
    snapshot.levels.CopyFrom(levels_to_wire(levels))
    snapshot.rows.CopyFrom(reports.to_wire(RowsIdentity(set=here, tables=tuple(rows.values()))))


_ROWS_MAX = 50_000
_NONE = StoredRows(pack_items([]))


class ChunkReader:
    """Reads one key range of a snapshot in chunks, ordered by record_id.

    `counted` has the totals of the rows up to `after`; `choose` selects the wanted rows.
    """

    def __init__(
        self,
        business: int,
        split: broker_pb2.Split,
        after: bytes,
        nbytes: int,
        floor: int,
        counted: RowTotals | None = None,
        choose: Callable[[StoredRows], StoredRows] | None = None,
    ) -> None:
        self._table_id = split.table_id
        self._prefix = keys.row_prefix(business, split.table_id)
        low = after + b"\x00" if after else split.low
        self._at = self._prefix + max(low, split.low)
        self._stop = self._prefix + split.high if split.high else keys.after_prefix(self._prefix)
        self._end: tuple[bytes, bytes] | None = None  # the last key and value of the split
        self._last = after
        self._nbytes = nbytes
        self._floor = floor
        self._choose = choose
        self._number = 0
        self.totals = counted or RowTotals()
        self.done = False

    def next(self, store: Store) -> SealedChunk:
        """Read the next chunk. The last one is marked and has the totals."""
        if self._end is None:
            self._find_end(store)
        rows = _NONE
        while not len(rows) and not self.done:
            rows = self._read(store)
        self.totals.add(rows)
        body = encode_chunk(
            Chunk(
                chunk_no=self._number,
                table_id=self._table_id,
                rows=rows,
                last=self._last,
                end=self.done,
                totals=self.totals if self.done else None,
            )
        )
        self._number += 1
        return SealedChunk.of(body)

    def _find_end(self, store: Store) -> None:
        """Find the last key of the range, or that the range is empty."""
        self._end = store.find_before(keys.ROW, self._stop)
        self.done = self._end is None or self._end[0] < self._at

    def _read(self, store: Store) -> StoredRows:
        """Read the rows that fit into a chunk, without tombstones and unwanted rows."""
        assert self._end is not None
        values, self.done = store.read_values(keys.ROW, self._at, self._end, rows_max=_ROWS_MAX, bytes_max=self._nbytes)
        stored = StoredRows(pack_items(values))
        self._last = stored.record_id(-1)
        self._at = self._prefix + self._last + b"\x00"
        alive = stored.select(stored.find_live(self._floor))
        return self._choose(alive) if self._choose is not None and len(alive) else alive


_CHUNK_BYTES = 1 << 20
_CHUNK_BYTES_MIN, _CHUNK_BYTES_MAX = 1 << 14, 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingProgress:
    """Progress of reading a snapshot: rows read, rows expected, and when reading began by the leases' clock."""

    rows: int = 0
    rows_expected: int = 0
    began_us: int = 0


class SnapshotReader:
    """Reads splits of leased snapshots. Thread-safe."""

    def __init__(self, holding: LeaseManager) -> None:
        #: The rules at the border to the sets below, by business.
        self.borders: Mapping[str, Border] = {}
        self._holding = holding
        self._lock = threading.Lock()
        #: Totals of splits that were read to their end, by directory, row filters and range.
        self._sums: dict[str, dict[tuple[tuple[RowFilter, ...], Range], RowTotals]] = {}
        #: Progress of the loads, by snapshot.
        self._progress: dict[str, ReadingProgress] = {}

    def expect(self, snapshot_id: str, rows: int) -> None:
        """Record the estimated number of rows of a snapshot."""
        with self._lock:
            self._progress[snapshot_id] = ReadingProgress(rows_expected=rows)

    def progress(self, snapshot_id: str) -> ReadingProgress | None:
        """Return how far a snapshot has been read, None if this process has read nothing of it."""
        with self._lock:
            return self._progress.get(snapshot_id)

    def forget_progress(self, snapshot_id: str) -> None:
        """Forget how far a snapshot has been read."""
        with self._lock:
            self._progress.pop(snapshot_id, None)

    def _count_read(self, snapshot_id: str, rows: int) -> None:
        """Add rows to the progress of reading a snapshot."""
        with self._lock:
            known = self._progress.get(snapshot_id) or ReadingProgress()
            began_us = known.began_us or self._holding.clock_us()
            self._progress[snapshot_id] = replace(known, rows=known.rows + rows, began_us=began_us)

    def forget(self, directory: str) -> None:
        """Drop the totals of a removed checkpoint."""
        with self._lock:
            self._sums.pop(directory, None)

    def read_split(self, request: broker_pb2.ReadSplitRequest) -> Iterator[SealedChunk]:
        """Read a key range; each chunk renews the lease. Any thread may use the iterator, one thread at a time."""
        nbytes = min(max(request.chunk_bytes or _CHUNK_BYTES, _CHUNK_BYTES_MIN), _CHUNK_BYTES_MAX)
        pin = self._holding.find_live(request.snapshot_id)
        self._check_range(pin, request)
        chunks = self._open_chunks(pin, request.split, nbytes)
        if request.after:  # the totals are of the whole range, including the rows that the reader has
            chunks = self._open_chunks(pin, request.split, nbytes, request.after, self._count_before(pin, request))
        while not chunks.done:
            before, found = chunks.totals.rows, self._read_next_chunk(request.snapshot_id, chunks)
            self._count_read(request.snapshot_id, chunks.totals.rows - before)
            yield found
        if not request.own_range:
            self._remember(pin, range_of(request.split), chunks.totals)

    def totals(self, snapshot_id: str) -> broker_pb2.SnapshotTotals:
        """Return rows and digest of each table in a snapshot's plan. Splits not read to their end are read now."""
        pin = self._holding.find_live(snapshot_id)
        tables: dict[int, RowTotals] = {}
        for planned in pin.plan:
            with self._lock:
                totals = self._sums.get(pin.directory, {}).get((pin.where, planned))
            if totals is None:
                table_id, low, high = planned
                split = broker_pb2.Split(table_id=table_id, low=bytes.fromhex(low), high=bytes.fromhex(high))
                totals = self._read_whole(pin, split)
                self._remember(pin, planned, totals)
            tables.setdefault(planned[0], RowTotals()).include(totals)
        return broker_pb2.SnapshotTotals(
            tables=[
                broker_pb2.TableTotals(table_id=table_id, rows=totals.rows, rows_digest=totals.digest)
                for table_id, totals in sorted(tables.items())
            ]
        )

    def _check_range(self, pin: SnapshotLease, request: broker_pb2.ReadSplitRequest) -> None:
        """Raise ProtocolError for a range that is not in the plan, or a resume from outside the range."""
        split = request.split
        if not request.own_range and range_of(split) not in pin.plan:
            raise ProtocolError(
                f"snapshot {pin.snapshot_id} has no such split of table {split.table_id} in its plan",
                hint="load again; a range outside the plan needs own_range",
            )
        if request.after and (request.after < split.low or (split.high and request.after >= split.high)):
            raise ProtocolError(f"a split of table {split.table_id} cannot be resumed from outside it")

    def _open_chunks(
        self,
        pin: SnapshotLease,
        split: broker_pb2.Split,
        nbytes: int,
        after: bytes = b"",
        counted: RowTotals | None = None,
    ) -> ChunkReader:
        """Return a reader of one split of a snapshot."""
        with self._holding.checkpoints.open_reader(pin.directory) as store:
            floor = read_progress(store, pin.business).floors.get(split.table_id, 0)
            choose = None
            if pin.where:
                choose = row_chooser(pin.where, split.table_id, read_snapshot_schemas(store, pin, (split.table_id,)))
            if pin.border:
                choose = partial(_choose_masked, choose, self._border_masks(store, pin), split.table_id)
        return ChunkReader(pin.business, split, after, nbytes, floor, counted, choose)

    def _border_masks(self, store: Store, pin: SnapshotLease) -> BorderMasks:
        """Return a snapshot's column masks. Raises SnapshotExpired if the rules changed after the snapshot opened."""
        border = next((one for one in self.borders.values() if one.digest == pin.border), None)
        if border is None:
            raise SnapshotExpired(
                f"snapshot {pin.snapshot_id} was opened with other rules for columns", hint="open a new one"
            )
        return BorderMasks(border, map(schemas_codec.from_wire, read_snapshot_schemas(store, pin)))

    def _count_before(self, pin: SnapshotLease, request: broker_pb2.ReadSplitRequest) -> RowTotals:
        """Return the totals of the rows before the point from which a split is resumed."""
        split = request.split
        passed = broker_pb2.Split(table_id=split.table_id, low=split.low, high=request.after + b"\x00")
        return self._read_whole(pin, passed)

    def _read_whole(self, pin: SnapshotLease, split: broker_pb2.Split) -> RowTotals:
        """Read a split to its end, and return its totals."""
        chunks = self._open_chunks(pin, split, _CHUNK_BYTES_MAX)
        while not chunks.done:
            self._read_next_chunk(pin.snapshot_id, chunks)
        return chunks.totals

    def _read_next_chunk(self, snapshot_id: str, chunks: ChunkReader) -> SealedChunk:
        """Read the next chunk, and renew the lease."""
        pin = self._holding.renew(snapshot_id)
        with self._holding.checkpoints.open_reader(pin.directory) as store:
            return chunks.next(store)

    def _remember(self, pin: SnapshotLease, planned: Range, totals: RowTotals) -> None:
        """Keep the totals of a split as long as its checkpoint has a lease."""
        with self._lock:
            if pin.directory in self._holding.directories():
                self._sums.setdefault(pin.directory, {})[pin.where, planned] = totals


def range_of(split: broker_pb2.Split) -> Range:
    """Return the key range of a split, without its estimates."""
    return split.table_id, split.low.hex(), split.high.hex()


def new_lease(
    store: Store, business: Business, directory: str, *, now: int, until: int, lease_s: int, holder: str
) -> SnapshotLease:
    """Return a lease on a new checkpoint. Raises Unavailable if a mirror began its full data again meanwhile.

    `now` and `until` are microseconds.
    """
    at = read_progress(store, business.number)
    below = _batch_below(store, business.number, at.offset)
    last = below.batch_no if below is not None else _batch_before(store, business.number, at.offset)
    core = json.loads(store.get(keys.STATE, keys.core_key(business.number)) or b'{"epochs":[],"last_batch":0}')
    source = decode_mirror(core.get("mirror"))
    if source is not None and not source.is_complete(at.filled):
        raise incomplete_error(business)
    return SnapshotLease(
        snapshot_id=uuid.uuid4().hex,
        directory=directory,
        business=business.number,
        offset=at.offset,
        # the epochs that began long ago are known only from the batches
        epoch=max(_epoch_below(at.offset, core["epochs"], source), below.epoch if below is not None else 0),
        sequence=at.sequence,
        last_batch=core["last_batch"] if last is None else last,
        made_at_us=now,
        expires_at_us=until,
        lease_s=lease_s,
        holder=holder,
        is_planned=False,
        fill=source.begin if source is not None else 0,
    )


def _epoch_below(offset: int, epochs: list[tuple[int, int]], source: Mirror | None) -> int:
    """Return the epoch of the last change below a cut, 0 if there is none.

    At a mirror that an older version filled, the first epoch begins at the mirror's own cut and counts. Any other
    epoch that begins at the cut has no change below the cut; if such an epoch counted, consumers at the cut would be
    refused as diverged.
    """
    found = [e for i, (e, start) in enumerate(epochs) if start < offset or _is_of_cut(i, start, source)]
    return found[-1] if found else 0


def _is_of_cut(i: int, start: int, source: Mirror | None) -> bool:
    """Return whether epoch `i` is the first one and begins at the cut of the mirror's own full data."""
    return i == 0 and source is not None and start == source.offset


def read_progress(store: Store, business: int) -> MaterialisedPosition:
    """Read from the store how far the full data of a business has followed the queue."""
    return decode_materialised_position(store.get(keys.STATE, keys.materialised_key(business)))


def read_snapshot_schemas(
    store: Store, pin: SnapshotLease, table_ids: tuple[int, ...] = ()
) -> list[change_pb2.TableSchema]:
    """Return the schemas in a cut, only of these tables if any are named."""
    return [
        schema
        for offset, schema in read_schemas(store, pin.business)
        if offset < pin.offset and (not table_ids or schema.table_id in table_ids)
    ]


def _batch_below(store: Store, business: int, offset: int) -> QueuedBatch | None:
    """Return the newest batch below an offset, None if it was trimmed."""
    below = store.find_before(keys.QUEUE, keys.queue_key(business, offset))
    if below is None or below[0][:4] != keys.queue_key(business, 0)[:4]:
        return None
    return queue_index.decode(keys.queue_offset(below[0]), below[1])


def _batch_before(store: Store, business: int, offset: int) -> int | None:
    """Return the number of the batch before the oldest one from an offset on; None if there is none."""
    prefix = keys.queue_key(business, 0)[:4]
    above = next(store.scan(keys.QUEUE, keys.queue_key(business, offset), keys.after_prefix(prefix), limit=1), None)
    return queue_index.decode(keys.queue_offset(above[0]), above[1]).batch_no - 1 if above is not None else None
