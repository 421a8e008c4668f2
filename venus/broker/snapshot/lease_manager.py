"""Leases on cuts of the full data, stored so that they survive a restart, and the checkpoint files that they keep.

A checkpoint is removed with its last lease. The leases are in the store, so a loader continues after a restart of the
broker.
"""

from __future__ import annotations

import heapq
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from venus.broker.machine.business import Business
from venus.broker.store import files, keys
from venus.broker.store.rocks import Store, remove_store
from venus.errors import Refused, SnapshotExpired
from venus.network.row_filters import RowFilter, decode_filters
from venus.wire import broker_pb2

#: A planned split: table, low and high in hexadecimal.
Range = tuple[int, str, str]
#: Outdated ends of leases are dropped once there are this many and they are the majority.
_ENDS_MIN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLease:
    """A client's lease on a snapshot's checkpoint. Times are microseconds of this process's monotonic clock."""

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
    last_batch: int = 0
    plan: tuple[Range, ...] = ()
    where: tuple[RowFilter, ...] = ()  # which rows are read
    border: str = ""  # the rules by which its columns are masked, as a digest; empty = none
    is_planned: bool = True  # until it is, no client knows its id
    fill: int = 0  # full data of a mirror; not stored, because only fresh snapshots are shared


def decode_lease(stored: Mapping[str, Any]) -> SnapshotLease:
    """Decode a stored lease, a dictionary of its fields."""
    plan = tuple((table, low, high) for table, low, high in stored.get("plan", ()))
    return SnapshotLease(**{**stored, "plan": plan, "where": decode_filters(stored.get("where", ()))})


class LeaseTable:
    """All leases of a broker. Thread-safe. Finding expired leases does not visit the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pins: dict[str, SnapshotLease] = {}
        self._users: Counter[str] = Counter()  # by directory
        self._ends: list[tuple[int, str]] = []  # a heap; a lease that was renewed has its earlier end here

    def add(self, pin: SnapshotLease) -> None:
        """Add a new lease."""
        with self._lock:
            self._pins[pin.snapshot_id] = pin
            self._users[pin.directory] += 1
            heapq.heappush(self._ends, (pin.expires_at_us, pin.snapshot_id))

    def replace(self, pin: SnapshotLease) -> None:
        """Renew a lease or complete it. Raises SnapshotExpired if it has already ended."""
        with self._lock:
            if pin.snapshot_id not in self._pins:
                raise SnapshotExpired(f"snapshot {pin.snapshot_id} was closed")
            self._pins[pin.snapshot_id] = pin

    def find_live(self, snapshot_id: str, now_us: int) -> SnapshotLease:
        """Return the lease of a snapshot. Raises SnapshotExpired if it has ended."""
        with self._lock:
            pin = self._pins.get(snapshot_id)
        if pin is None or pin.expires_at_us <= now_us:
            raise SnapshotExpired(f"snapshot {snapshot_id} no longer exists", hint="open a new one and load again")
        return pin

    def find(self, snapshot_id: str) -> SnapshotLease | None:
        """Return a lease, even one whose time is over, or None."""
        with self._lock:
            return self._pins.get(snapshot_id)

    def end(self, snapshot_id: str) -> tuple[SnapshotLease, bool] | None:
        """End a lease; return it, and whether it was the last one on its checkpoint. None if it has ended already."""
        with self._lock:
            pin = self._pins.pop(snapshot_id, None)
            if pin is None:
                return None
            self._users[pin.directory] -= 1
            last = not self._users[pin.directory]
            if last:
                del self._users[pin.directory]
            if len(self._ends) > max(_ENDS_MIN, 2 * len(self._pins)):
                self._ends = [(pin.expires_at_us, pin.snapshot_id) for pin in self._pins.values()]
                heapq.heapify(self._ends)
            return pin, last

    def expired_snapshots(self, now_us: int) -> list[str]:
        """Return the ids of snapshots whose leases are over, each id once; the caller ends the leases."""
        found = []
        with self._lock:
            while self._ends and self._ends[0][0] <= now_us:
                _, snapshot_id = heapq.heappop(self._ends)
                pin = self._pins.get(snapshot_id)
                if pin is not None and pin.expires_at_us <= now_us:
                    found.append(snapshot_id)
                elif pin is not None:
                    heapq.heappush(self._ends, (pin.expires_at_us, snapshot_id))
        return found

    def all_leases(self, business: int | None = None) -> list[SnapshotLease]:
        """Return every lease, or those on the full data of one business."""
        with self._lock:
            return [pin for pin in self._pins.values() if business in (None, pin.business)]

    @property
    def remembered_ends(self) -> int:
        """How many end times of leases are in memory; some are outdated, because the lease was renewed or ended."""
        return len(self._ends)

    def directories(self) -> set[str]:
        """Return the names of the checkpoints that have a lease."""
        with self._lock:
            return set(self._users)


@dataclass(slots=True, eq=False)
class _OpenCheckpoint:
    """A checkpoint that is open for reading, and the number of its users."""

    store: Store
    users: int = 0


class Checkpoints:
    """The snapshots' checkpoints (copies of the store) in one directory, by name; thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._opened: dict[str, _OpenCheckpoint] = {}
        self._going: set[str] = set()  # dropped, but not removed yet

    def path(self, name: str) -> Path:
        """Return the path of a checkpoint, which need not exist yet."""
        return self._directory / name

    @contextmanager
    def open_reader(self, name: str) -> Iterator[Store]:
        """Open a checkpoint as a store; it stays open for later readers.

        Raises SnapshotExpired if it was dropped because its last lease has just ended.
        """
        with self._lock:
            opened = self._opened.get(name)
            if name in self._going or (opened is None and not self.path(name).is_dir()):
                raise SnapshotExpired("the snapshot was closed meanwhile", hint="open a new one and load again")
            if opened is None:
                opened = self._opened[name] = _OpenCheckpoint(Store(self.path(name), read_only=True))
            opened.users += 1
        try:
            yield opened.store
        finally:
            with self._lock:
                opened.users -= 1
                last = name in self._going and opened.users == 0
            if last:
                self._remove(name, opened)

    def drop(self, name: str) -> None:
        """Remove a checkpoint as soon as it has no users."""
        with self._lock:
            self._going.add(name)
            opened = self._opened.get(name)
            if opened is not None and opened.users:
                return  # its last user closes it
        self._remove(name, opened)

    def drop_others(self, names: Set[str]) -> None:
        """Remove all checkpoints except these."""
        if self._directory.is_dir():
            for found in self._directory.iterdir():
                if found.name not in names:
                    remove_store(found)

    def close_all(self) -> None:
        """Close the open checkpoints; the files stay."""
        with self._lock:
            checkpoints, self._opened = list(self._opened.values()), {}
        for opened in checkpoints:
            opened.store.close()

    def _remove(self, name: str, opened: _OpenCheckpoint | None) -> None:
        """Close a checkpoint and remove its files."""
        with self._lock:
            self._opened.pop(name, None)
        if opened is not None:
            opened.store.close()
        remove_store(self.path(name))
        with self._lock:
            self._going.discard(name)


logger = logging.getLogger(__name__)

#: Creation time of snapshots of an earlier process, so that they are not shared.
_LONG_AGO_US = -(10**18)
#: Longest lease that a client may request, unless the broker's default is longer. Reading renews a lease.
LEASE_S_MAX = 3600
#: A lease is renewed once less than three quarters of it are left: microseconds for each of its seconds.
_RENEWED_BELOW_US = 750_000
#: A lease lasts this long until its holder confirms it: as long as a client waits for the answer.
UNCONFIRMED_S = 120
UNNAMED = "an unnamed client"
#: Limits of leases in a status, and of holders named in a refusal.
LEASES_SHOWN_MAX = 100
_SHOWN_MAX = 8


class LeaseManager:
    """All leases of a broker and their checkpoints. Thread-safe. `record` stores a lease or its end."""

    def __init__(
        self,
        directory: Path,
        *,
        default_lease_s: float,
        clock_us: Callable[[], int],
        record: Callable[[str, bytes | None], Future[None]],
    ) -> None:
        self.checkpoints = Checkpoints(directory)
        self.clock_us = clock_us
        self._default_lease_s = default_lease_s
        self._lease_s_max = max(LEASE_S_MAX, int(default_lease_s))
        self._record = record
        self._leases = LeaseTable()

    def load(self, store: Store) -> None:
        """Load the leases from the store; remove checkpoints without a lease."""
        for _, value in store.scan_prefix(keys.STATE, keys.PIN):
            pin = decode_lease(json.loads(value))
            broken = files.find_broken_seal(self.checkpoints.path(pin.directory))
            if not pin.is_planned:
                self._record(pin.snapshot_id, None)
            elif broken:
                logger.warning("snapshot %s is dropped, its loader opens a new one: %s", pin.snapshot_id, broken)
                self._record(pin.snapshot_id, None)
            else:
                # the holder could not renew it while the broker was down: the lease starts over
                lease_s = min(pin.lease_s, self._lease_s_max)
                until = self.lease_end_us(lease_s)
                self._leases.add(replace(pin, made_at_us=_LONG_AGO_US, expires_at_us=until, lease_s=lease_s))
        self.checkpoints.drop_others(self._leases.directories())

    def all_leases(self, business: Business | None = None) -> list[SnapshotLease]:
        """Return every lease, or those on the full data of one business."""
        return self._leases.all_leases(business.number if business is not None else None)

    def directories(self) -> set[str]:
        """Return the names of the checkpoints that have a lease. Each keeps files from being deleted."""
        return self._leases.directories()

    def find(self, snapshot_id: str) -> SnapshotLease | None:
        """Return a lease, even one whose time is over, or None."""
        return self._leases.find(snapshot_id)

    def status(
        self, business: Business, add: Callable[[broker_pb2.LeaseStatus, str], None]
    ) -> list[broker_pb2.LeaseStatus]:
        """Describe the leases on the full data of a business, the first to end first.

        `add` completes each description, by the id of its snapshot.
        """
        now, found = self.clock_us(), []
        for pin in sorted(self.all_leases(business), key=lambda pin: pin.expires_at_us)[:LEASES_SHOWN_MAX]:
            left_s = max(0, pin.expires_at_us - now) // 10**6
            lease = broker_pb2.LeaseStatus(holder=pin.holder, offset=pin.offset, lease_s=pin.lease_s, left_s=left_s)
            add(lease, pin.snapshot_id)
            found.append(lease)
        return found

    def check_lease_s(self, asked_s: int) -> int:
        """Return the length of a requested lease, the default if 0 is requested. Raises Refused if it is too long."""
        if asked_s > self._lease_s_max:
            raise Refused(
                f"a lease of {asked_s} s is too long: this broker gives {self._lease_s_max} s at most",
                hint="reading and renewing start a lease over; [broker] snapshot_lease_s allows more",
            )
        return asked_s or int(self._default_lease_s)

    def lease_end_us(self, lease_s: int) -> int:
        """Return the end of a lease that begins now."""
        return self.clock_us() + lease_s * 10**6

    def first_lease_end_us(self, lease_s: int, *, confirms: bool) -> int:
        """Return the end of a new lease; it is near if the holder `confirms` the lease by renewing it at once.

        So a lease whose id never reached its holder ends soon.
        """
        return self.lease_end_us(min(lease_s, UNCONFIRMED_S) if confirms else lease_s)

    def add(self, pin: SnapshotLease) -> None:
        """Add a new lease, and wait until it is stored."""
        self._leases.add(pin)
        self._store_lease(pin).result()

    def complete(self, pin: SnapshotLease) -> None:
        """Store a lease whose plan is complete now, and wait until it is stored. Raises SnapshotExpired."""
        pin = replace(pin, is_planned=True)
        self._leases.replace(pin)
        self._store_lease(pin).result()

    def find_live(self, snapshot_id: str) -> SnapshotLease:
        """Return the lease of a snapshot. Raises SnapshotExpired if it has ended."""
        return self._leases.find_live(snapshot_id, self.clock_us())

    def renew(self, snapshot_id: str, *, always: bool = False) -> SnapshotLease:
        """Return a lease; extend it by its length if a quarter of it is over, or `always`. Raises SnapshotExpired."""
        pin = self.find_live(snapshot_id)
        if always or pin.expires_at_us - self.clock_us() < pin.lease_s * _RENEWED_BELOW_US:
            pin = replace(pin, expires_at_us=self.lease_end_us(pin.lease_s))
            self._leases.replace(pin)
            self._store_lease(pin)
        return pin

    def expired_snapshots(self) -> list[str]:
        """Return the ids of snapshots whose leases are over, each id once; the caller ends the leases."""
        return self._leases.expired_snapshots(self.clock_us())

    def end(self, snapshot_id: str) -> str:
        """End a lease; return the name of its checkpoint if that had no other lease and was dropped, else "".

        Ending a lease twice is no error.
        """
        ended = self._leases.end(snapshot_id)
        if ended is None:
            return ""
        self._record(snapshot_id, None)
        pin, last = ended
        if not last:
            return ""
        self.checkpoints.drop(pin.directory)
        return pin.directory

    def _store_lease(self, pin: SnapshotLease) -> Future[None]:
        record = asdict(pin)
        del record["fill"]
        if not pin.border:  # an older broker can read it
            del record["border"]
        if pin.is_planned:
            del record["is_planned"]
        return self._record(pin.snapshot_id, json.dumps(record).encode())


def describe_holders(pins: Sequence[SnapshotLease], now_us: int) -> str:
    """Return the holders of leases with the time left, the first to end first, as text."""
    ends: dict[str, int] = {}
    for pin in sorted(pins, key=lambda pin: pin.expires_at_us):
        ends[pin.holder or UNNAMED] = max(0, pin.expires_at_us - now_us) // 10**6
    words = [f"{holder} (its lease: {left_s} s)" for holder, left_s in ends.items()]
    more = f" and {len(words) - _SHOWN_MAX} more" if len(words) > _SHOWN_MAX else ""
    return ", ".join(words[:_SHOWN_MAX]) + more
