"""Snapshots (offset -1): cuts of the full data that are read in parts while the queue grows.

A snapshot is a checkpoint of the store (hard links). Its offset, epoch, Sequence and schemas are read from the
checkpoint itself (reading.py). The queue is kept from its offset on until its lease ends. Leases and files survive a
restart of the broker (lease_manager.py).

A snapshot is divided into key ranges that can be loaded in parallel. Small tables are divided by counting their keys.
Large tables are divided at the ends of their files, which the store knows without reading, and between those by
seeking; the row estimates are then rough, but the ranges are exact.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from venus.broker.machine.business import Business
from venus.broker.machine.mirror import filters_from_wire, filters_to_wire
from venus.broker.machine.records import load_levels_of_store
from venus.broker.queue.border_masks import BorderMasks, border_for
from venus.broker.queue.reader import check_full_data
from venus.broker.snapshot.lease_manager import UNNAMED, LeaseManager, SnapshotLease, describe_holders
from venus.broker.snapshot.reading import (
    SnapshotReader,
    describe_rows,
    new_lease,
    range_of,
    read_snapshot_schemas,
    refused_tables,
)
from venus.broker.store import keys
from venus.broker.store.files import FreeSpace
from venus.broker.store.rocks import FileRange, Store
from venus.codec import schema as schemas_codec
from venus.codec.stored_rows import SealedChunk
from venus.errors import Overloaded, Unavailable
from venus.masking.border import Border
from venus.model import count_phrase
from venus.network.row_filters import RowFilter, fit_filters, with_tables
from venus.network.topology import is_labelled
from venus.wire import broker_pb2, change_pb2

logger = logging.getLogger(__name__)

#: A snapshot younger than this is shared rather than made again.
SHARED_S = 30.0
#: Retry interval for clients while the limit of checkpoints or leases is reached.
RETRY_S = 1.0
_CHECKPOINT_WAIT_S = 120.0
#: Tables up to this size are counted exactly.
COUNTED_ROWS_MAX = 1_000_000
#: Approximate limit of a split, so that a reader that starts again loses little.
SPLIT_ROWS_MAX = 1_000_000
#: Limit of keys that are remembered of a counted table.
_MARKS_MAX = 16_384
_SAMPLED_ROWS = 200


class SnapshotManager:
    """All snapshots of a broker. Thread-safe. `checkpoint` makes a checkpoint, `record` stores a lease or its end."""

    def __init__(
        self,
        directory: Path,
        space: FreeSpace,
        *,
        default_lease_s: float,
        checkpoints_max: int,
        leases_max: int,
        clock_us: Callable[[], int],
        checkpoint: Callable[[Business, Path], Future[None]],
        record: Callable[[str, bytes | None], Future[None]],
    ) -> None:
        self._space = space
        self._checkpoints_max, self._leases_max = checkpoints_max, leases_max
        self._clock_us = clock_us
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._holding = LeaseManager(directory, default_lease_s=default_lease_s, clock_us=clock_us, record=record)
        self._reading = SnapshotReader(self._holding)
        #: The name of this broker set, once it is known.
        self.set_name = ""
        self._provisional: dict[int, int] = {}  # business: offset, while a checkpoint is being made

    @property
    def borders(self) -> Mapping[str, Border]:
        """The rules at the border to the sets below, by business."""
        return self._reading.borders

    @borders.setter
    def borders(self, borders: Mapping[str, Border]) -> None:
        self._reading.borders = borders

    def load(self, store: Store) -> None:
        """Load the leases from the store; remove checkpoints without a lease."""
        self._holding.load(store)

    def close_all(self) -> None:
        """Close the open checkpoints; leases and files stay."""
        self._holding.checkpoints.close_all()

    def offsets(self, business: Business) -> list[int]:
        """Return the offsets from which snapshots of a business need the queue."""
        with self._lock:  # first, because a cut that is no longer provisional has its lease
            provisional = [self._provisional[business.number]] if business.number in self._provisional else []
        return provisional + [pin.offset for pin in self._holding.all_leases(business)]

    def all_leases(self, business: Business | None = None) -> list[SnapshotLease]:
        """Return every lease, or those on the full data of one business."""
        return self._holding.all_leases(business)

    @property
    def checkpoints(self) -> int:
        """How many checkpoints there are. Each keeps files from being deleted."""
        return len(self._holding.directories())

    def status(self, business: Business) -> list[broker_pb2.LeaseStatus]:
        """Describe the leases on the full data of a business, the first to end first."""
        return self._holding.status(business, self._describe_reading)

    def _describe_reading(self, lease: broker_pb2.LeaseStatus, snapshot_id: str) -> None:
        """Add to the description of a lease how far its holder has read."""
        found = self._reading.progress(snapshot_id)
        if found is not None:
            lease.rows_read, lease.rows_expected = found.rows, found.rows_expected
            lease.reading_s = max(0, self._clock_us() - found.began_us) // 10**6 if found.began_us else 0

    def business_of(self, snapshot_id: str) -> int:
        """Return the number of a snapshot's business, 0 if the snapshot does not exist."""
        pin = self._holding.find(snapshot_id)
        return pin.business if pin is not None else 0

    # -- opening -----------------------------------------------------------------------------------------------

    def open(self, business: Business, request: broker_pb2.OpenSnapshotRequest) -> broker_pb2.Snapshot:
        """Open a snapshot: take a lease on a new or shared checkpoint. Waits for the full data to catch up.

        Raises Unavailable while a mirror has no full data, Overloaded while there are too many leases.
        """
        check_full_data(business)
        lease_s = self._holding.check_lease_s(request.lease_s)
        with self._making:
            self._check_leases(business, request.holder)
            shared = self._find_shareable(business)
            pin = (
                self._lease_shared(shared, lease_s, request) if shared else self._lease_new(business, lease_s, request)
            )
        border = border_for(self.borders, business.name, request.holder)
        try:
            found = self._describe(pin, request, border)
            self._reading.expect(pin.snapshot_id, sum(split.rows_estimate for split in found.splits))
            self._holding.complete(
                replace(
                    pin,
                    plan=tuple(map(range_of, found.splits)),
                    where=filters_from_wire(found.where),
                    border=border.digest if border is not None else "",
                    expires_at_us=self._holding.first_lease_end_us(lease_s, confirms=request.confirms),
                )
            )
        except BaseException:
            self.close(pin.snapshot_id)  # no client knows its id
            raise
        return found

    def _check_leases(self, business: Business, holder: str) -> None:
        """Raise Overloaded if no leases are left, or if this consumer has as many as are left for all others.

        So one consumer gets at most half of the leases, and later ones still get some.
        """
        held = self._holding.all_leases()
        own = [pin for pin in held if (pin.business, pin.holder) == (business.number, holder)]
        left = self._leases_max - len(held)
        if left <= 0:
            raise Overloaded(
                f"{len(held)} leases on snapshots are held already, by {self._describe_holders(held, business)}",
                hint="wait until one of these loads ends, or its lease does; [broker.limits] leases allows more",
                retry_after_s=RETRY_S,
            )
        if len(own) >= left:
            raise Overloaded(
                f"{holder or UNNAMED} has {count_phrase(len(own), 'lease')} on snapshots of {business.name} "
                "already, and "
                f"{left:,} are left for all others",
                hint="close snapshots that are not read any more; [broker.limits] leases allows more",
                retry_after_s=RETRY_S,
            )

    def _describe_holders(self, held: Sequence[SnapshotLease], business: Business) -> str:
        """Return the holders of leases on one business as text; of other businesses only their number."""
        own = [pin for pin in held if pin.business == business.number]
        said = [describe_holders(own, self._clock_us())] if own else []
        if others := len(held) - len(own):
            said.append(f"{count_phrase(others, 'load')} of other businesses")
        return " and ".join(said)

    def _find_shareable(self, business: Business) -> SnapshotLease | None:
        """Return the newest lease whose checkpoint a new snapshot may share, or None."""
        youngest = self._clock_us() - int(SHARED_S * 1e6)
        held = self._holding.all_leases(business)
        source = business.committed.mirror
        fill = source.begin if source is not None else 0
        fresh = [
            pin for pin in held if pin.made_at_us > youngest and pin.offset >= business.log_start and pin.fill == fill
        ]
        return max(fresh, key=lambda pin: pin.made_at_us, default=None)

    def _lease_shared(
        self, shared: SnapshotLease, lease_s: int, request: broker_pb2.OpenSnapshotRequest
    ) -> SnapshotLease:
        """Return a new lease on the checkpoint of an existing lease."""
        pin = replace(
            shared,
            snapshot_id=uuid.uuid4().hex,
            lease_s=lease_s,
            expires_at_us=self._holding.first_lease_end_us(lease_s, confirms=request.confirms),
            holder=request.holder,
            plan=(),
            where=(),
            border="",
            is_planned=False,
        )
        self._holding.add(pin)
        return pin

    def _lease_new(self, business: Business, lease_s: int, request: broker_pb2.OpenSnapshotRequest) -> SnapshotLease:
        """Return a lease on a new checkpoint. Raises Overloaded if there are too many checkpoints."""
        self._space.check_data(0)
        if self.checkpoints >= self._checkpoints_max:
            holders = self._describe_holders(self._holding.all_leases(), business)
            raise Overloaded(
                f"{self._checkpoints_max} snapshots are open already, for {holders}",
                hint="wait until one of these loads ends, or its lease does; [broker.limits] snapshots allows more",
                retry_after_s=RETRY_S,
            )
        with self._lock:
            self._provisional[business.number] = business.materialised.offset
        try:
            pin = self._make_checkpoint(business, lease_s, request)
            self._holding.add(pin)
        except FutureTimeout:
            raise Unavailable("the full data is too far behind to cut a snapshot", hint="try again later") from None
        finally:
            with self._lock:
                self._provisional.pop(business.number, None)
        return pin

    def _make_checkpoint(
        self, business: Business, lease_s: int, request: broker_pb2.OpenSnapshotRequest
    ) -> SnapshotLease:
        """Make a checkpoint and return a lease on it. Remove a checkpoint that is unusable or comes too late."""
        checkpoints, name = self._holding.checkpoints, uuid.uuid4().hex
        made = self._checkpoint(business, checkpoints.path(name))
        try:
            made.result(_CHECKPOINT_WAIT_S)
            now, until = self._clock_us(), self._holding.first_lease_end_us(lease_s, confirms=request.confirms)
            with checkpoints.open_reader(name) as store:
                return new_lease(store, business, name, now=now, until=until, lease_s=lease_s, holder=request.holder)
        except BaseException:
            made.add_done_callback(lambda _: checkpoints.drop(name))
            raise

    def _describe(
        self, pin: SnapshotLease, request: broker_pb2.OpenSnapshotRequest, border: Border | None
    ) -> broker_pb2.Snapshot:
        """Return what a client must know of its snapshot: position, schemas, splits and filters."""
        with self._holding.checkpoints.open_reader(pin.directory) as store:
            schemas = read_snapshot_schemas(store, pin, tuple(request.table_ids))
            if request.only:
                newest = {schema.table_id: schema for schema in schemas}  # in the order of their versions
                wanted = {n for n, s in newest.items() if is_labelled(request.only, s.namespace, s.name)}
                schemas = [schema for schema in schemas if schema.table_id in wanted]
            where = with_tables(filters_from_wire(request.where), map(schemas_codec.from_wire, schemas))
            unfit = refused_tables(where, schemas)
            if border is not None:
                schemas = _mask_schemas(border, read_snapshot_schemas(store, pin), schemas, where)
            tables = sorted({schema.table_id for schema in schemas} - unfit)
            found = plan_splits(store, pin.business, tables, request.splits)
            levels = load_levels_of_store(store, pin.business)
        snapshot = broker_pb2.Snapshot(
            snapshot_id=pin.snapshot_id,
            offset=pin.offset,
            epoch=pin.epoch,
            sequence=pin.sequence,
            last_batch=pin.last_batch,
            schemas=schemas,
            splits=found,
            lease_s=pin.lease_s,
            where=filters_to_wire(where),
        )
        if levels is not None:
            describe_rows(snapshot, self.set_name, levels, where)
        return snapshot

    # -- reading -----------------------------------------------------------------------------------------------

    def read_split(self, request: broker_pb2.ReadSplitRequest) -> Iterator[SealedChunk]:
        """Read a key range; each chunk renews the lease. Any thread may use the iterator, one thread at a time."""
        return self._reading.read_split(request)

    def totals(self, snapshot_id: str) -> broker_pb2.SnapshotTotals:
        """Return rows and digest of each table in a snapshot's plan. Splits not read to their end are read now."""
        return self._reading.totals(snapshot_id)

    # -- leases ------------------------------------------------------------------------------------------------

    def renew(self, snapshot_id: str) -> broker_pb2.Snapshot:
        """Extend a lease by its length. Raises SnapshotExpired."""
        pin = self._holding.renew(snapshot_id, always=True)
        return broker_pb2.Snapshot(
            snapshot_id=pin.snapshot_id,
            offset=pin.offset,
            epoch=pin.epoch,
            sequence=pin.sequence,
            lease_s=pin.lease_s,
        )

    def close(self, snapshot_id: str) -> None:
        """End a lease; remove the files with the last one. Closing twice is no error."""
        self._reading.forget_progress(snapshot_id)
        if gone := self._holding.end(snapshot_id):
            self._reading.forget(gone)

    def forget(self, business: Business) -> None:
        """End every lease on the full data of a business."""
        for pin in self._holding.all_leases(business):
            self.close(pin.snapshot_id)

    def expire(self) -> None:
        """End the leases whose time is over."""
        for snapshot_id in self._holding.expired_snapshots():
            logger.warning("the lease of snapshot %s has ended", snapshot_id)
            self.close(snapshot_id)


def _mask_schemas(
    border: Border,
    every: Sequence[change_pb2.TableSchema],
    chosen: Sequence[change_pb2.TableSchema],
    where: Sequence[RowFilter],
) -> list[change_pb2.TableSchema]:
    """Return the chosen table versions as the sets below get them. Raises Refused for a filter by a masked column."""
    known = [schemas_codec.from_wire(wire) for wire in every]
    masks = BorderMasks(border, known)
    masks.refuse_filters(fit_filters(where, known))
    found = [schemas_codec.from_wire(wire) for wire in chosen if masks.has_table(wire.table_id)]
    return [schemas_codec.to_wire(masks.flatten(schema)) for schema in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SurveyedTable:
    """The size of a table, exact or estimated, and keys at which it can be divided."""

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
        found += _divide(store, table, max(1, -(-table.rows // rows_max)))
    return found


def _survey(store: Store, files: Sequence[FileRange], business: int, table_id: int) -> _SurveyedTable:
    """Return the estimated size of a table, and keys that are evenly spread over it."""
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


def _divide(store: Store, table: _SurveyedTable, parts: int) -> list[broker_pb2.Split]:
    """Divide a table into about `parts` key ranges, each with an estimate of its rows and bytes."""
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
    """Return the known keys and keys of the table between them, `wanted` in all if there are as many."""
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
