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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from venus.broker.machine.state import Business, Materialised, decode_materialised, decode_schema
from venus.broker.snapshot import splits
from venus.broker.snapshot.chunks import Chunks
from venus.broker.store import keys
from venus.broker.store import rocks as stores
from venus.broker.store.rocks import Store
from venus.broker.store.space import Space
from venus.codec.chunk import Sealed
from venus.errors import Overloaded, SnapshotExpired, Unavailable
from venus.wire import broker_pb2, change_pb2

logger = logging.getLogger(__name__)

#: A snapshot younger than this is shared rather than made again.
SHARED_S = 30.0
#: So many different checkpoints may exist: each keeps files from being deleted.
CHECKPOINTS_MAX = 4
_CHECKPOINT_WAIT_S = 120.0
_CHUNK_BYTES = 1 << 20
_CHUNK_BYTES_MIN, _CHUNK_BYTES_MAX = 1 << 14, 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A lease on a checkpoint."""

    snapshot_id: str
    directory: str
    business: int
    offset: int
    epoch: int
    sequence: int
    made_at_us: int
    expires_at_us: int
    lease_s: int
    holder: str = ""


@dataclass(slots=True, eq=False)
class _Reader:
    store: Store
    users: int = 0
    closing: bool = False


class Snapshots:
    """All snapshots of a broker; thread-safe. `checkpoint` and `record` are the engine's."""

    def __init__(
        self,
        directory: Path,
        space: Space,
        *,
        default_lease_s: float,
        clock_us: Callable[[], int],
        checkpoint: Callable[[Business, Path], Future[None]],
        record: Callable[[str, bytes | None], Future[None]],
    ) -> None:
        self._directory = directory
        self._space = space
        self._default_lease_s = default_lease_s
        self._clock_us = clock_us
        self._checkpoint = checkpoint
        self._record = record
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._pins: dict[str, Pin] = {}
        self._provisional: dict[int, int] = {}  # business: offset, while a checkpoint is being made
        self._readers: dict[str, _Reader] = {}

    def load(self, store: Store) -> None:
        """Take up the leases found in the store; remove checkpoints that nobody has a lease on."""
        for _, value in store.scan_prefix(keys.STATE, keys.PIN):
            pin = Pin(**json.loads(value))
            if (self._directory / pin.directory).is_dir():
                self._pins[pin.snapshot_id] = pin
        held = {pin.directory for pin in self._pins.values()}
        if self._directory.is_dir():
            for found in self._directory.iterdir():
                if found.name not in held:
                    stores.remove(found)

    def close_all(self) -> None:
        """Close what is open; leases and files stay."""
        with self._lock:
            readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            reader.store.close()

    def offsets(self, business: Business) -> list[int]:
        """Return the offsets from which the queue must be kept."""
        with self._lock:
            held = [pin.offset for pin in self._pins.values() if pin.business == business.number]
            if business.number in self._provisional:
                held.append(self._provisional[business.number])
            return held

    def held(self) -> list[Pin]:
        """Return every lease."""
        with self._lock:
            return list(self._pins.values())

    # -- opening -----------------------------------------------------------------------------------------------

    def open(self, business: Business, request: broker_pb2.OpenSnapshotRequest) -> broker_pb2.Snapshot:
        """Make or share a checkpoint and take a lease on it. Waits for the full data to catch up."""
        lease_s = request.lease_s or int(self._default_lease_s)
        with self._making:
            shared = self._shareable(business)
            pin = self._share(shared, lease_s, request.holder) if shared else self._make(business, lease_s, request)
        return self._describe(pin, tuple(request.table_ids), request.splits)

    def _shareable(self, business: Business) -> Pin | None:
        youngest = self._clock_us() - int(SHARED_S * 1e6)
        with self._lock:
            fresh = [p for p in self._pins.values() if p.business == business.number and p.made_at_us > youngest]
        return max(fresh, key=lambda pin: pin.made_at_us, default=None)

    def _share(self, shared: Pin, lease_s: int, holder: str) -> Pin:
        pin = replace(
            shared,
            snapshot_id=uuid.uuid4().hex,
            lease_s=lease_s,
            expires_at_us=self._clock_us() + lease_s * 10**6,
            holder=holder,
        )
        self._keep(pin)
        return pin

    def _make(self, business: Business, lease_s: int, request: broker_pb2.OpenSnapshotRequest) -> Pin:
        self._space.check_data(0)
        with self._lock:
            if len({pin.directory for pin in self._pins.values()}) >= CHECKPOINTS_MAX:
                raise Overloaded(
                    f"{CHECKPOINTS_MAX} snapshots are open already", hint="wait until a load ends, or its lease does"
                )
            self._provisional[business.number] = business.materialised.offset
        name = uuid.uuid4().hex
        path = self._directory / name
        try:
            self._checkpoint(business, path).result(_CHECKPOINT_WAIT_S)
            now = self._clock_us()
            pin = self._look_inside(business, name, now, lease_s, request.holder)
            self._keep(pin)
        except FutureTimeout:
            raise Unavailable("the full data is too far behind to cut a snapshot", hint="try again later") from None
        finally:
            with self._lock:
                self._provisional.pop(business.number, None)
        return pin

    def _look_inside(self, business: Business, name: str, now: int, lease_s: int, holder: str) -> Pin:
        with self._reading(name) as store:
            reached = self._reached(store, business.number)
            core = json.loads(store.get(keys.STATE, keys.core_key(business.number)) or b'{"epochs":[]}')
        epochs = [epoch for epoch, start in core["epochs"] if start < reached.offset]
        return Pin(
            snapshot_id=uuid.uuid4().hex,
            directory=name,
            business=business.number,
            offset=reached.offset,
            epoch=epochs[-1] if epochs else 0,
            sequence=reached.sequence,
            made_at_us=now,
            expires_at_us=now + lease_s * 10**6,
            lease_s=lease_s,
            holder=holder,
        )

    def _reached(self, store: Store, business: int) -> Materialised:
        return decode_materialised(store.get(keys.STATE, keys.materialised_key(business)))

    def _keep(self, pin: Pin) -> None:
        with self._lock:
            self._pins[pin.snapshot_id] = pin
        self._record(pin.snapshot_id, json.dumps(asdict(pin)).encode()).result()

    def _describe(self, pin: Pin, table_ids: tuple[int, ...], wanted_splits: int) -> broker_pb2.Snapshot:
        with self._reading(pin.directory) as store:
            schemas = self._schemas(store, pin, table_ids)
            tables = sorted({schema.table_id for schema in schemas})
            found = splits.plan(store, pin.business, tables, wanted_splits)
        return broker_pb2.Snapshot(
            snapshot_id=pin.snapshot_id,
            offset=pin.offset,
            epoch=pin.epoch,
            sequence=pin.sequence,
            schemas=schemas,
            splits=found,
            lease_s=pin.lease_s,
        )

    def _schemas(self, store: Store, pin: Pin, table_ids: tuple[int, ...]) -> list[change_pb2.TableSchema]:
        found = []
        for _, value in store.scan_prefix(keys.STATE, keys.schema_prefix(pin.business)):
            offset, content = decode_schema(value)
            schema = change_pb2.TableSchema.FromString(content)
            if offset < pin.offset and (not table_ids or schema.table_id in table_ids):
                found.append(schema)
        return found

    # -- reading -----------------------------------------------------------------------------------------------

    def read_split(self, request: broker_pb2.ReadSplitRequest) -> Iterator[Sealed]:
        """Read a key range; each chunk renews the lease. May be used from any thread, one at a time."""
        nbytes = min(max(request.chunk_bytes or _CHUNK_BYTES, _CHUNK_BYTES_MIN), _CHUNK_BYTES_MAX)
        pin = self._live(request.snapshot_id)
        with self._reading(pin.directory) as store:
            floor = self._reached(store, pin.business).floors.get(request.split.table_id, 0)
        chunks = Chunks(pin.business, request.split, request.after, nbytes, floor)
        while not chunks.done:
            pin = self._renewed(request.snapshot_id)
            with self._reading(pin.directory) as store:
                chunk = chunks.next(store)
            yield chunk

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
        with self._lock:
            pin = self._pins.pop(snapshot_id, None)
            if pin is None:
                return
            last = all(other.directory != pin.directory for other in self._pins.values())
        self._record(snapshot_id, None)
        if last:
            self._drop(pin.directory)

    def expire(self) -> None:
        """End the leases whose time is over."""
        now = self._clock_us()
        with self._lock:
            over = [pin.snapshot_id for pin in self._pins.values() if pin.expires_at_us <= now]
        for snapshot_id in over:
            logger.warning("the lease of snapshot %s has ended", snapshot_id)
            self.close(snapshot_id)

    def _live(self, snapshot_id: str) -> Pin:
        with self._lock:
            pin = self._pins.get(snapshot_id)
        if pin is None or pin.expires_at_us <= self._clock_us():
            raise SnapshotExpired(f"snapshot {snapshot_id} is not there any more", hint="open a new one and load again")
        return pin

    def _renewed(self, snapshot_id: str, *, always: bool = False) -> Pin:
        pin = self._live(snapshot_id)
        now = self._clock_us()
        if always or pin.expires_at_us - now < pin.lease_s * 750_000:
            pin = replace(pin, expires_at_us=now + pin.lease_s * 10**6)
            with self._lock:
                if snapshot_id not in self._pins:
                    raise SnapshotExpired(f"snapshot {snapshot_id} was closed")
                self._pins[snapshot_id] = pin
            self._record(snapshot_id, json.dumps(asdict(pin)).encode())
        return pin

    # -- files -------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, directory: str) -> Iterator[Store]:
        with self._lock:
            reader = self._readers.get(directory)
            if reader is None:
                reader = self._readers[directory] = _Reader(Store(self._directory / directory, read_only=True))
            reader.users += 1
        try:
            yield reader.store
        finally:
            with self._lock:
                reader.users -= 1
                last = reader.closing and reader.users == 0
            if last:
                self._remove(directory, reader)

    def _drop(self, directory: str) -> None:
        with self._lock:
            reader: Any = self._readers.get(directory)
            if reader is not None:
                reader.closing = True
                if reader.users:
                    return  # the one who reads closes it
        self._remove(directory, reader)

    def _remove(self, directory: str, reader: _Reader | None) -> None:
        with self._lock:
            self._readers.pop(directory, None)
        if reader is not None:
            reader.store.close()
        stores.remove(self._directory / directory)
