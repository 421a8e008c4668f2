"""What pulling asks of the set above and of its own disk, one call at a time.

`pulling.py` yields these and gets each answer, or the error, where it yielded: it decides and never waits. Whoever
drives it does the waiting: a thread with connections (`puller.py`), or a simulation in virtual time.
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
    """Make a snapshot of the full data above. Answer: broker_pb2.Snapshot."""

    lease_s: int
    holder: str
    where: tuple[RowFilter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewSnapshot:
    """Ask whether a snapshot is still there, and keep it. Answer: broker_pb2.Snapshot; SnapshotExpired = it is not."""

    snapshot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NextChunk:
    """Read on in a split. Answer: codec.chunk.Chunk; the last one says so. `at` is one object for each split."""

    snapshot_id: str
    split: broker_pb2.Split
    at: Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSnapshot:
    """Let a snapshot go. Answer: None."""

    snapshot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """Read the queue from an offset on, having taken an increment of `epoch` last. Answer: address, and what was said.

    Unavailable where an older home than that of `home_term` is followed; Refused where nobody judges by `where`;
    OtherRows where the rows are others than those that are here by now.
    """

    offset: int
    epoch: int
    home_term: int = 0
    where: tuple[RowFilter, ...] = ()
    rows: RowsIdentity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Increments:
    """Wait for increments. Answer: those that have come, and the offset below which nothing else will come."""

    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """Say that everything below an offset is safe here. Answer: None."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Wait until the commit thread of this broker has answered. Answer: the result."""

    future: Future[Any]


Call = OpenSnapshot | RenewSnapshot | NextChunk | CloseSnapshot | OpenStream | Increments | Acknowledge | Settle
T = TypeVar("T")
#: Code that asks by yielding, and returns a T.
Calls = Generator[Call, Any, T]
