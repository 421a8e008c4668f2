"""Client of the full interface (VENUS 3.3): open a snapshot at a cut, read its key ranges from anywhere, close it.

A snapshot lives at the broker that made it. With several brokers its id is HOST:PORT/ID of that broker, so that every
process that receives the id asks the right one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from venus.codec.batch import digest
from venus.codec.stored_rows import Chunk, RowTotals, decode_chunk
from venus.errors import DigestMismatch, ProtocolError, SnapshotExpired, Unavailable, VenusError
from venus.model import is_address
from venus.rpc.address import BrokerAddress, lookup_of, proof_of
from venus.rpc.channel import KEEPALIVE_S
from venus.rpc.connection import BrokerConnection
from venus.rpc.errors import from_rpc_error
from venus.rpc.sealed import ask, read_split
from venus.wire import broker_pb2

M = TypeVar("M", bound=Message)

CALL_TIMEOUT_S = 120.0
#: Large enough that the fixed cost of a chunk does not matter.
CHUNK_BYTES = 1 << 20
#: How often a split is resumed without a single chunk in between.
RESUMES_MAX = 6
RESUME_FIRST_S = 0.1
RESUME_MAX_S = 5.0


@dataclass(slots=True)
class Resume:
    """Position of a reader in a key range, and the totals of the rows it has read."""

    after: bytes = b""
    totals: RowTotals = field(default_factory=RowTotals)

    def take(self, chunk: Chunk) -> None:
        """Count a chunk. Raises ProtocolError if the range ends with other totals than the broker's."""
        self.after = chunk.last or self.after
        self.totals.add(chunk.rows)
        if chunk.end and chunk.totals != self.totals:
            expected = chunk.totals.rows if chunk.totals else 0
            raise ProtocolError(f"a split of {expected} rows arrived with {self.totals.rows}, or with different ones")


class _ServerLost(Unavailable):
    """The broker of a snapshot cannot be reached, but another broker can."""


class SnapshotClient:
    """Client for snapshots of the full data; thread-safe."""

    def __init__(self, address: str, *, keepalive_s: float = KEEPALIVE_S) -> None:
        self._reach, self._keepalive_s = address, keepalive_s
        self._connection = BrokerConnection(address, keepalive_s=keepalive_s)
        self._lock = threading.Lock()
        self._elsewhere: dict[str, BrokerConnection] = {}  # to other brokers, for snapshots opened elsewhere
        #: Chunks that arrived damaged, and streams that were resumed.
        self.digest_mismatches = self.resumes = 0

    def open(
        self,
        business: str,
        *,
        table_ids: Seq[int] = (),
        splits: int = 1,
        lease_s: int = 0,
        holder: str = "",
        only: Seq[str] = (),
        where: Seq[broker_pb2.RowFilter] = (),
    ) -> broker_pb2.Snapshot:
        """Make a snapshot and pin it for its lease.

        The lease begins when the client confirms the snapshot, so a lost answer leaves no snapshot at the broker.
        """
        request = broker_pb2.OpenSnapshotRequest(
            business=business,
            table_ids=table_ids,
            splits=splits,
            lease_s=lease_s,
            holder=holder,
            only=only,
            where=where,
            confirms=True,
        )
        snapshot = self._connection.call(
            business, lambda channel: _ask(channel, "OpenSnapshot", request, broker_pb2.Snapshot)
        )
        if self._connection.address != self._reach or lookup_of(self._reach) is not None:
            snapshot.snapshot_id = f"{self._connection.address}/{snapshot.snapshot_id}"
        try:
            self.renew(snapshot.snapshot_id)
        except VenusError as error:
            if not error.retryable:  # otherwise continue: reading renews the lease too
                raise
        return snapshot

    def renew(self, snapshot_id: str) -> broker_pb2.Snapshot:
        """Renew the lease; raise SnapshotExpired if it has ended."""
        try:
            snapshot = self._ask("RenewSnapshot", snapshot_id, broker_pb2.Snapshot)
        except _ServerLost as error:
            raise SnapshotExpired(f"the snapshot is gone with its broker: {error}", hint=error.hint) from error
        snapshot.snapshot_id = snapshot_id
        return snapshot

    def confirm(self, snapshot_id: str, loaded: Mapping[int, RowTotals], names: Mapping[int, str]) -> None:
        """Compare the loaded totals of each table with the broker's. A digest of 0 is not compared.

        Raises ProtocolError, which names the first table that differs.
        """
        counted = self.totals(snapshot_id)
        for table_id, name in names.items():
            found, wanted = loaded.get(table_id, RowTotals()), counted.get(table_id, RowTotals())
            if found.rows != wanted.rows or (found.digest and found.digest != wanted.digest):
                what = f"{found.rows} rows" if found.rows != wanted.rows else "other rows"
                raise ProtocolError(
                    f"{name}: {what} were loaded of the {wanted.rows} that the broker's snapshot has",
                    hint="load it again; nothing was marked as loaded",
                )

    def totals(self, snapshot_id: str) -> dict[int, RowTotals]:
        """Return the broker's own totals of the planned splits by table, to compare them after a load."""
        answer = self._ask("SumSnapshot", snapshot_id, broker_pb2.SnapshotTotals)
        return {table.table_id: RowTotals(table.rows, table.rows_digest) for table in answer.tables}

    def _ask(self, method: str, snapshot_id: str, kind: type[M]) -> M:
        """Call a method about a snapshot at the broker that has it."""
        connection, own_id = self._at(snapshot_id)
        return _ask(connection.channel, method, broker_pb2.SnapshotRef(snapshot_id=own_id), kind)

    def _at(self, snapshot_id: str) -> tuple[BrokerConnection, str]:
        """Return the connection to the broker of a snapshot, and the snapshot's id there."""
        address, _, own_id = snapshot_id.rpartition("/")
        if not address or address == self._connection.address:
            return self._connection, own_id
        if not is_address(address):
            raise ProtocolError(f"{snapshot_id!r} is no id of a snapshot")
        with self._lock:
            if address not in self._elsewhere:
                try:
                    there = BrokerAddress(address, proof_of(self._reach))
                    self._elsewhere[address] = BrokerConnection(there, keepalive_s=self._keepalive_s)
                except Unavailable as error:
                    raise _ServerLost(str(error), hint=error.hint) from error
            return self._elsewhere[address], own_id

    def read_split(
        self,
        snapshot_id: str,
        split: broker_pb2.Split,
        resume: Resume | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        own_range: bool = False,
    ) -> Iterator[Chunk]:
        """Yield the chunks of one split of the plan; lost or damaged chunks are requested again.

        `resume` continues where another call stopped. `own_range`: the range is the caller's, not one of the plan.
        Raises ProtocolError if the rows of the whole range are not those that the broker counts in it.
        """
        failures, ended = 0, False
        at = resume or Resume()
        while True:
            try:
                # Read to the end of the stream, not only of the rows: cancelling a call while the broker ends it would
                # leave an error in the broker's log.
                connection, own_id = self._at(snapshot_id)
                request = broker_pb2.ReadSplitRequest(
                    snapshot_id=own_id, split=split, after=at.after, chunk_bytes=chunk_bytes, own_range=own_range
                )
                for chunk in self._stream(connection.channel, request, at):
                    failures, ended = 0, chunk.end
                    yield chunk
                if ended:
                    return
                raise Unavailable("the broker ended the stream before the end of the split")
            except VenusError as error:
                failures += 1
                if not error.retryable or failures > RESUMES_MAX:
                    raise
                self.resumes += 1
                self.digest_mismatches += isinstance(error, DigestMismatch)
                time.sleep(min(RESUME_MAX_S, RESUME_FIRST_S * 2 ** (failures - 1)))

    def _stream(self, channel: grpc.Channel, request: broker_pb2.ReadSplitRequest, at: Resume) -> Iterator[Chunk]:
        """Yield the chunks of one stream, and check their digests. Raises DigestMismatch."""
        call = read_split(channel, request)
        try:
            for sent in call:
                body = sent.body  # each access makes a copy
                if digest(body) != sent.digest:
                    raise DigestMismatch("a chunk of the full data arrived damaged; nothing of it was used")
                chunk = decode_chunk(body)
                at.take(chunk)
                yield chunk
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    def close(self, snapshot_id: str = "") -> None:
        """Close a snapshot, or without an id the connection; open snapshots then live until their lease ends."""
        if not snapshot_id:
            for connection in (self._connection, *self._elsewhere.values()):
                connection.close()
            return
        self._ask("CloseSnapshot", snapshot_id, broker_pb2.Empty)

    def __enter__(self) -> SnapshotClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ask(channel: grpc.Channel, method: str, request: Message, kind: type[M]) -> M:
    """Call a method of the Delivery service, and return its answer."""
    return ask(channel, f"Delivery/{method}", request, kind, timeout_s=CALL_TIMEOUT_S)
