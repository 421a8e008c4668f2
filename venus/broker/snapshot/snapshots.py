"""The full interface (offset -1): a cut of the full data that is read in parts, while the queue moves on.

A snapshot is a checkpoint of the store (hard links). Where it stands - offset, epoch, Sequence, schemas - is read
*from inside it*: read outside, the rows and the offset could disagree by a batch. The queue is kept from its
offset on until its lease ends; leases and files survive a restart of the broker.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, replace
from pathlib import Path

from venus.broker.machine import filter_wire, mirror, queue_index
from venus.broker.machine.business import Business, Materialised
from venus.broker.machine.levels import stored_levels
from venus.broker.machine.records import decode_materialised, schemas_of
from venus.broker.queue.filled import check, unfilled
from venus.broker.snapshot import choosing, leases, splits
from venus.broker.snapshot.checkpoints import Checkpoints
from venus.broker.snapshot.chunks import Chunks
from venus.broker.snapshot.leases import Leases, Pin, Range
from venus.broker.store import keys, seal
from venus.broker.store.rocks import Store
from venus.broker.store.space import Space
from venus.codec import schema as schemas_codec
from venus.codec.chunk import Sealed, Totals
from venus.errors import Overloaded, ProtocolError, Refused, Unavailable
from venus.network.labels import is_wanted
from venus.network.row_filters import RowFilter, at_cut
from venus.wire import broker_pb2, change_pb2

logger = logging.getLogger(__name__)

#: A snapshot younger than this is shared rather than made again.
SHARED_S = 30.0
#: When a snapshot of an earlier process was made, as far as sharing goes.
_LONG_AGO_US = -(10**18)
#: A client may ask for a lease of this length, or of the broker's own if that is longer: reading renews it.
LEASE_S_MAX = 3600
#: When to ask again while there are as many checkpoints as there may be.
RETRY_S = 1.0
#: So many leases are in a status, and so many holders are named in a refusal.
LEASES_SHOWN_MAX = 100
_SHOWN_MAX = 8
_CHECKPOINT_WAIT_S = 120.0
_CHUNK_BYTES = 1 << 20
_CHUNK_BYTES_MIN, _CHUNK_BYTES_MAX = 1 << 14, 4 << 20


class Snapshots:
    """All snapshots of a broker; thread-safe. `checkpoint` and `record` are its owner's."""

    def __init__(
        self,
        directory: Path,
        space: Space,
        *,
        default_lease_s: float,
        checkpoints_max: int,
        clock_us: Callable[[], int],
        checkpoint: Callable[[Business, Path], Future[None]],
        record: Callable[[str, bytes | None], Future[None]],
    ) -> None:
        self._space = space
        self._default_lease_s = default_lease_s
        self._checkpoints_max = checkpoints_max
        self._lease_s_max = max(LEASE_S_MAX, int(default_lease_s))
        self._clock_us = clock_us
        self._checkpoint = checkpoint
        self._record = record
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._leases = Leases()
        self._checkpoints = Checkpoints(directory)
        #: The name of this broker set, once it is known.
        self.set_name = ""
        self._provisional: dict[int, int] = {}  # business: offset, while a checkpoint is being made
        #: Of splits that were read to their end, by directory, and by which rows were read.
        self._sums: dict[str, dict[tuple[tuple[RowFilter, ...], Range], Totals]] = {}

    def load(self, store: Store) -> None:
        """Take up the leases found in the store; remove checkpoints that nobody has a lease on."""
        for _, value in store.scan_prefix(keys.STATE, keys.PIN):
            record = json.loads(value)
            pin = leases.decode(record)
            broken = seal.broken(self._checkpoints.path(pin.directory))
            if broken:
                logger.warning("snapshot %s is dropped, its loader opens a new one: %s", pin.snapshot_id, broken)
                self._record(pin.snapshot_id, None)
            else:
                # its holder could not renew it while the broker was off: the lease starts over
                lease_s = min(pin.lease_s, self._lease_s_max)
                until = self._clock_us() + lease_s * 10**6
                self._leases.add(replace(pin, made_at_us=_LONG_AGO_US, expires_at_us=until, lease_s=lease_s))
        self._checkpoints.drop_others(self._leases.directories())

    def close_all(self) -> None:
        """Close what is open; leases and files stay."""
        self._checkpoints.close_all()

    def offsets(self, business: Business) -> list[int]:
        """Return the offsets from which the queue must be kept."""
        with self._lock:  # in this order: what is no longer provisional has its lease
            provisional = [self._provisional[business.number]] if business.number in self._provisional else []
        return provisional + [pin.offset for pin in self._leases.held(business.number)]

    def held(self, business: Business | None = None) -> list[Pin]:
        """Return every lease, or those on the full data of one business."""
        return self._leases.held(business.number if business is not None else None)

    @property
    def checkpoints(self) -> int:
        """How many there are; each keeps files from being deleted."""
        return len(self._leases.directories())

    def status(self, business: Business) -> list[broker_pb2.LeaseStatus]:
        """Describe the leases on the full data of a business, the first to end first."""
        now = self._clock_us()
        pins = sorted(self._leases.held(business.number), key=lambda pin: pin.expires_at_us)
        return [
            broker_pb2.LeaseStatus(
                holder=pin.holder,
                offset=pin.offset,
                lease_s=pin.lease_s,
                left_s=max(0, pin.expires_at_us - now) // 10**6,
            )
            for pin in pins[:LEASES_SHOWN_MAX]
        ]

    def business_of(self, snapshot_id: str) -> int:
        """Return the number of a snapshot's business, 0 if there is no such snapshot."""
        pin = self._leases.find(snapshot_id)
        return pin.business if pin is not None else 0

    # -- opening -----------------------------------------------------------------------------------------------

    def open(self, business: Business, request: broker_pb2.OpenSnapshotRequest) -> broker_pb2.Snapshot:
        """Make or share a checkpoint and take a lease on it. Waits for the full data to catch up.

        Raises Unavailable while a mirror has no full data.
        """
        check(business)
        lease_s = self._lease_s(request)
        with self._making:
            shared = self._shareable(business)
            pin = self._share(shared, lease_s, request.holder) if shared else self._make(business, lease_s, request)
        found = self._describe(pin, request)
        pin = replace(pin, plan=tuple(map(range_of, found.splits)), where=filter_wire.from_wire(found.where))
        self._leases.replace(pin)
        self._note(pin).result()
        return found

    def _lease_s(self, request: broker_pb2.OpenSnapshotRequest) -> int:
        if request.lease_s > self._lease_s_max:
            raise Refused(
                f"a lease of {request.lease_s} s is too long: this broker gives {self._lease_s_max} s at most",
                hint="reading and renewing start a lease over; [broker] snapshot_lease_s allows more",
            )
        return request.lease_s or int(self._default_lease_s)

    def _shareable(self, business: Business) -> Pin | None:
        youngest = self._clock_us() - int(SHARED_S * 1e6)
        held = self._leases.held(business.number)
        source = business.committed.mirror
        fill = source.begin if source is not None else 0
        fresh = [
            pin for pin in held if pin.made_at_us > youngest and pin.offset >= business.log_start and pin.fill == fill
        ]
        return max(fresh, key=lambda pin: pin.made_at_us, default=None)

    def _share(self, shared: Pin, lease_s: int, holder: str) -> Pin:
        pin = replace(
            shared,
            snapshot_id=uuid.uuid4().hex,
            lease_s=lease_s,
            expires_at_us=self._clock_us() + lease_s * 10**6,
            holder=holder,
            plan=(),
            where=(),
        )
        self._add(pin)
        return pin

    def _make(self, business: Business, lease_s: int, request: broker_pb2.OpenSnapshotRequest) -> Pin:
        self._space.check_data(0)
        if self.checkpoints >= self._checkpoints_max:
            holders = shown(self._leases.held(), self._clock_us())
            raise Overloaded(
                f"{self._checkpoints_max} snapshots are open already, for {holders}",
                hint="wait until one of these loads ends, or its lease does; [broker.limits] snapshots allows more",
                retry_after_s=RETRY_S,
            )
        with self._lock:
            self._provisional[business.number] = business.materialised.offset
        name = uuid.uuid4().hex
        path = self._checkpoints.path(name)
        try:
            self._checkpoint(business, path).result(_CHECKPOINT_WAIT_S)
            now = self._clock_us()
            pin = self._look_inside(business, name, now, lease_s, request.holder)
            self._add(pin)
        except FutureTimeout:
            raise Unavailable("the full data is too far behind to cut a snapshot", hint="try again later") from None
        finally:
            with self._lock:
                self._provisional.pop(business.number, None)
        return pin

    def _look_inside(self, business: Business, name: str, now: int, lease_s: int, holder: str) -> Pin:
        with self._checkpoints.reading(name) as store:
            reached = self._reached(store, business.number)
            last_batch = _last_batch(store, business.number, reached.offset)
            core = json.loads(store.get(keys.STATE, keys.core_key(business.number)) or b'{"epochs":[],"last_batch":0}')
        source = mirror.decode(core.get("mirror"))
        if source is not None and not source.filled(reached.filled):
            raise unfilled(business)  # it was begun again meanwhile
        # a mirror's begins at its cut
        epochs = [e for e, start in core["epochs"] if start < reached.offset or (source and start == source.offset)]
        return Pin(
            snapshot_id=uuid.uuid4().hex,
            directory=name,
            business=business.number,
            offset=reached.offset,
            epoch=epochs[-1] if epochs else 0,
            sequence=reached.sequence,
            last_batch=core["last_batch"] if last_batch is None else last_batch,
            made_at_us=now,
            expires_at_us=now + lease_s * 10**6,
            lease_s=lease_s,
            holder=holder,
            fill=source.begin if source is not None else 0,
        )

    def _reached(self, store: Store, business: int) -> Materialised:
        return decode_materialised(store.get(keys.STATE, keys.materialised_key(business)))

    def _add(self, pin: Pin) -> None:
        self._leases.add(pin)
        self._note(pin).result()

    def _note(self, pin: Pin) -> Future[None]:
        record = asdict(pin)
        del record["fill"]
        return self._record(pin.snapshot_id, json.dumps(record).encode())

    def _describe(self, pin: Pin, request: broker_pb2.OpenSnapshotRequest) -> broker_pb2.Snapshot:
        with self._checkpoints.reading(pin.directory) as store:
            schemas = self._schemas(store, pin, tuple(request.table_ids))
            if request.only:
                newest = {schema.table_id: schema for schema in schemas}  # in the order of their versions
                wanted = {n for n, s in newest.items() if is_wanted(request.only, s.namespace, s.name)}
                schemas = [schema for schema in schemas if schema.table_id in wanted]
            where = at_cut(filter_wire.from_wire(request.where), map(schemas_codec.from_wire, schemas))
            unfit = choosing.refused_tables(where, schemas)
            tables = sorted({schema.table_id for schema in schemas} - unfit)
            found = splits.plan(store, pin.business, tables, request.splits)
            levels = stored_levels(store, pin.business)
        snapshot = broker_pb2.Snapshot(
            snapshot_id=pin.snapshot_id,
            offset=pin.offset,
            epoch=pin.epoch,
            sequence=pin.sequence,
            last_batch=pin.last_batch,
            schemas=schemas,
            splits=found,
            lease_s=pin.lease_s,
            where=filter_wire.to_wire(where),
        )
        if levels is not None:
            choosing.say_rows(snapshot, self.set_name, levels, where)
        return snapshot

    def _schemas(self, store: Store, pin: Pin, table_ids: tuple[int, ...]) -> list[change_pb2.TableSchema]:
        return [
            schema
            for offset, schema in schemas_of(store, pin.business)
            if offset < pin.offset and (not table_ids or schema.table_id in table_ids)
        ]

    # -- reading -----------------------------------------------------------------------------------------------

    def read_split(self, request: broker_pb2.ReadSplitRequest) -> Iterator[Sealed]:
        """Read a key range; each chunk renews the lease. May be used from any thread, one at a time."""
        nbytes = min(max(request.chunk_bytes or _CHUNK_BYTES, _CHUNK_BYTES_MIN), _CHUNK_BYTES_MAX)
        pin = self._live(request.snapshot_id)
        self._check_range(pin, request)
        chunks = self._chunks(pin, request.split, nbytes)
        if request.after:  # the totals are those of the whole range, whatever the reader has of it
            chunks = self._chunks(pin, request.split, nbytes, request.after, self._count(pin, request))
        while not chunks.done:
            yield self._next(request.snapshot_id, chunks)
        if not request.own_range:
            self._remember(pin, range_of(request.split), chunks.totals)

    def sums(self, snapshot_id: str) -> broker_pb2.SnapshotTotals:
        """Sum up the planned splits by table; what was not read to its end by anyone is read now."""
        pin = self._live(snapshot_id)
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
        with self._checkpoints.reading(pin.directory) as store:
            floor = self._reached(store, pin.business).floors.get(split.table_id, 0)
            choose = None
            if pin.where:
                choose = choosing.choosing(pin.where, split.table_id, self._schemas(store, pin, (split.table_id,)))
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
        pin = self._renewed(snapshot_id)
        with self._checkpoints.reading(pin.directory) as store:
            return chunks.next(store)

    def _remember(self, pin: Pin, planned: Range, totals: Totals) -> None:
        with self._lock:
            if pin.directory in self._leases.directories():
                self._sums.setdefault(pin.directory, {})[pin.where, planned] = totals

    # -- leases ------------------------------------------------------------------------------------------------

    def renew(self, snapshot_id: str) -> broker_pb2.Snapshot:
        """Extend a lease by its length. Raises SnapshotExpired."""
        pin = self._renewed(snapshot_id, always=True)
        return broker_pb2.Snapshot(
            snapshot_id=pin.snapshot_id,
            offset=pin.offset,
            epoch=pin.epoch,
            sequence=pin.sequence,
            lease_s=pin.lease_s,
        )

    def close(self, snapshot_id: str) -> None:
        """End a lease; the files go with the last one. Closing twice is no error."""
        ended = self._leases.end(snapshot_id)
        if ended is None:
            return
        self._record(snapshot_id, None)
        pin, last = ended
        if last:
            with self._lock:
                self._sums.pop(pin.directory, None)
            self._checkpoints.drop(pin.directory)

    def forget(self, business: Business) -> None:
        """End every lease on the full data of a business."""
        for pin in self._leases.held(business.number):
            self.close(pin.snapshot_id)

    def expire(self) -> None:
        """End the leases whose time is over."""
        for snapshot_id in self._leases.over(self._clock_us()):
            logger.warning("the lease of snapshot %s has ended", snapshot_id)
            self.close(snapshot_id)

    def _live(self, snapshot_id: str) -> Pin:
        return self._leases.live(snapshot_id, self._clock_us())

    def _renewed(self, snapshot_id: str, *, always: bool = False) -> Pin:
        pin = self._live(snapshot_id)
        now = self._clock_us()
        if always or pin.expires_at_us - now < pin.lease_s * 750_000:
            pin = replace(pin, expires_at_us=now + pin.lease_s * 10**6)
            self._leases.replace(pin)
            self._note(pin)
        return pin


def shown(pins: Sequence[Pin], now_us: int) -> str:
    """Name who has leases, each with the time that it has at most, the first to end first."""
    ends: dict[str, int] = {}
    for pin in sorted(pins, key=lambda pin: pin.expires_at_us):
        ends[pin.holder or "somebody without a name"] = max(0, pin.expires_at_us - now_us) // 10**6
    words = [f"{holder} (its lease: {left_s} s)" for holder, left_s in ends.items()]
    more = f" and {len(words) - _SHOWN_MAX} more" if len(words) > _SHOWN_MAX else ""
    return ", ".join(words[:_SHOWN_MAX]) + more


def range_of(split: broker_pb2.Split) -> Range:
    """Return what a split is, without its estimates."""
    return split.table_id, split.low.hex(), split.high.hex()


def _last_batch(store: Store, business: int, offset: int) -> int | None:
    """Return the newest batch below an offset; None = the newest one there is."""
    prefix = keys.queue_key(business, 0)[:4]
    below = store.before(keys.QUEUE, keys.queue_key(business, offset))
    if below is not None and below[0][:4] == prefix:
        return queue_index.decode(keys.queue_offset(below[0]), below[1]).batch_no
    above = next(store.scan(keys.QUEUE, keys.queue_key(business, offset), keys.after_prefix(prefix), limit=1), None)
    return queue_index.decode(keys.queue_offset(above[0]), above[1]).batch_no - 1 if above is not None else None
