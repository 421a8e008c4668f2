"""Leases on checkpoints, in memory."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from venus.errors import SnapshotExpired
from venus.network import row_filters
from venus.network.row_filters import RowFilter

#: A planned split: table, low and high in hexadecimal.
Range = tuple[int, str, str]
#: Outdated ends of leases are dropped once there are this many and they are the majority.
_ENDS_MIN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLease:
    """A lease on a checkpoint. Its times are microseconds of the monotonic clock of this process."""

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
    fill: int = 0  # full data of a mirror; not stored, because only fresh snapshots are shared


def decode_lease(stored: Mapping[str, Any]) -> SnapshotLease:
    """Decode a stored lease, a dictionary of its fields."""
    plan = tuple((table, low, high) for table, low, high in stored.get("plan", ()))
    return SnapshotLease(**{**stored, "plan": plan, "where": row_filters.decode_filters(stored.get("where", ()))})


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
        """Renew a lease or complete it. Raises SnapshotExpired if it has ended meanwhile."""
        with self._lock:
            if pin.snapshot_id not in self._pins:
                raise SnapshotExpired(f"snapshot {pin.snapshot_id} was closed")
            self._pins[pin.snapshot_id] = pin

    def find_live(self, snapshot_id: str, now_us: int) -> SnapshotLease:
        """Return a lease. Raises SnapshotExpired."""
        with self._lock:
            pin = self._pins.get(snapshot_id)
        if pin is None or pin.expires_at_us <= now_us:
            raise SnapshotExpired(f"snapshot {snapshot_id} is not there any more", hint="open a new one and load again")
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
        """Return the snapshots whose leases are over. Each is returned once; the caller ends it."""
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
    def remembered(self) -> int:
        """How many ends are in memory: those of all leases, and outdated ones."""
        return len(self._ends)

    def directories(self) -> set[str]:
        """Return the checkpoints with leases."""
        with self._lock:
            return set(self._users)
