"""Requests that a replication session makes to the upstream set and to its own disk, one at a time.

`replication_plan.py` yields these and receives the answer, or the error, at the same place: it decides and never waits.
Its driver waits: a thread with connections (`replicator.py`), or a simulation in virtual time.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from venus.network.row_filters import RowFilter
from venus.network.rows_identity import RowsIdentity
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
    """Read the next chunk of a split. Answer: codec.chunk.Chunk; the last has `end`. Each split has one `at`."""

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

    Raises Unavailable if the upstream follows an older home than that of `home_term`, Refused if it does not evaluate
    `where`, OtherRows if its rows are not those that this mirror has.
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
