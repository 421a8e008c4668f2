"""Requests that a replication session makes to the upstream set and to its own disk, one at a time.

`replication_plan.py` yields these requests and receives each answer or error from the same `yield`: the plan decides
and never waits. The driver of the plan waits: a thread with connections (`replicator.py`), or a simulation in virtual
time. The progress of a replicator, which status shows, is thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from venus.broker.status.history import MovingMoments
from venus.network.row_filters import RowFilter, RowsIdentity
from venus.rpc.snapshots import Resume
from venus.wire import broker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSnapshot:
    """Create a snapshot of the upstream set's full data. Answer: broker_pb2.Snapshot."""

    lease_s: int
    holder: str
    where: tuple[RowFilter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewSnapshot:
    """Extend the lease of a snapshot. Answer: broker_pb2.Snapshot; SnapshotExpired if it is gone."""

    snapshot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextChunk:
    """Read the next chunk of a split. Answer: codec.stored_rows.Chunk; the last has `end`.

    All requests for the rest of one split have the same object as `at`.
    """

    snapshot_id: str
    split: broker_pb2.Split
    at: Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSnapshot:
    """Release a snapshot. Answer: None."""

    snapshot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """Read the queue from `offset` on; the last increment applied here is of `epoch`. Answer: address and `Opened`.

    Raises Unavailable if the upstream set follows a home older than `home_term`, Refused if it does not evaluate
    `where`, OtherRows if it has other rows than this mirror.
    """

    offset: int
    epoch: int
    home_term: int = 0
    where: tuple[RowFilter, ...] = ()
    rows: RowsIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForIncrements:
    """Wait for increments. Answer: the increments received, and the offset below which no more will arrive."""

    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Acknowledge that everything below an offset is durable here. Answer: None."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForCommit:
    """Wait for the result of this broker's commit thread. Answer: the result."""

    future: Future[Any]


Call = (
    OpenSnapshot
    | RenewSnapshot
    | NextChunk
    | CloseSnapshot
    | OpenStream
    | WaitForIncrements
    | Acknowledge
    | WaitForCommit
)
T = TypeVar("T")
#: A generator that yields requests and returns a T.
Calls = Generator[Call, Any, T]


class MirrorState(StrEnum):
    """Activity of a mirror."""

    WAITING = "waiting"  # for the upstream set, or for disk space
    FILLING = "filling"  # it copies the full data
    FOLLOWING = "following"
    CUT_OFF = "cut off"  # no upstream broker answers; local data is served
    REFUSED = "refused"  # the configuration or the upstream does not allow the mirror
    ELSEWHERE = "elsewhere"  # another broker of this set pulls


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatorStatus:
    """State of a replicator with its reason, and counters of its traffic since the broker's start."""

    state: MirrorState = MirrorState.WAITING
    reason: str = ""
    since_us: int = 0
    address: str = ""
    nbytes: int = 0
    rows: int = 0  # of the current full copy
    fills: int = 0
    hop_ms: int = 0
    hop_mean_s: float = 0.0
    hop_variance: float = 0.0


class ReplicatorProgress:
    """Progress that the replicator updates and other threads read."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._current = ReplicatorStatus(since_us=clock_us())
        self._hops = MovingMoments()

    @property
    def status(self) -> ReplicatorStatus:
        """The newest progress."""
        return self._current

    def enter(self, state: MirrorState, reason: str = "", address: str = "") -> bool:
        """Enter a state. `since_us` stays while only the reason changes. Return True if the state is new."""
        with self._lock:
            before = self._current
            is_new = before.state is not state
            since_us = self._clock_us() if is_new else before.since_us
            self._current = replace(before, state=state, reason=reason, since_us=since_us, address=address)
            return is_new

    def record_fill(self) -> None:
        """Count the beginning of a full copy."""
        with self._lock:
            self._current = replace(self._current, fills=self._current.fills + 1, rows=0)

    def record_resume(self, rows: int) -> None:
        """Record that an interrupted full copy continues after `rows` rows."""
        with self._lock:
            self._current = replace(self._current, rows=rows)

    def record_pulled(self, nbytes: int, rows: int = 0) -> None:
        """Count received bytes and rows."""
        with self._lock:
            self._current = replace(self._current, nbytes=self._current.nbytes + nbytes, rows=self._current.rows + rows)

    def record_arrival(self, committed_at_us: int) -> None:
        """Record the delay since the home committed the newest batch that is visible here."""
        with self._lock:
            now_us = self._clock_us()
            hop_us = max(0, now_us - committed_at_us)
            self._hops.add(hop_us / 1e6, now_us / 1e6)
            self._current = replace(
                self._current, hop_ms=hop_us // 1000, hop_mean_s=self._hops.mean, hop_variance=self._hops.variance
            )
