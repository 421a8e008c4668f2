"""The full interface in parts (VENUS 3.3): open a snapshot at a cut, read its key ranges from anywhere, let it go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from types import TracebackType

import grpc

from venus.codec.batch import digest
from venus.codec.chunk import Chunk, Totals, decode_chunk
from venus.errors import DigestMismatch, ProtocolError, Unavailable, VenusError
from venus.rpc.channel import KEEPALIVE_S, open_channel
from venus.rpc.errors import from_rpc_error
from venus.wire import broker_pb2, broker_pb2_grpc

CALL_TIMEOUT_S = 120.0
#: Enough for what is done once for each chunk not to count.
CHUNK_BYTES = 1 << 20
#: How often a split is resumed without a single chunk in between.
RESUMES_MAX = 6
RESUME_FIRST_S = 0.1
RESUME_MAX_S = 5.0


class Snapshots:
    """A connection for the full interface."""

    def __init__(self, address: str, *, keepalive_s: float = KEEPALIVE_S) -> None:
        self._channel = open_channel(address, keepalive_s=keepalive_s)
        self._stub = broker_pb2_grpc.DeliveryStub(self._channel)
        #: Chunks that arrived damaged, and streams that were resumed.
        self.digest_mismatches = self.resumes = 0

    def open(
        self, business: str, *, table_ids: Seq[int] = (), splits: int = 1, lease_s: int = 0, holder: str = ""
    ) -> broker_pb2.Snapshot:
        """Make a snapshot and pin it for its lease."""
        request = broker_pb2.OpenSnapshotRequest(
            business=business, table_ids=table_ids, splits=splits, lease_s=lease_s, holder=holder
        )
        try:
            return self._stub.OpenSnapshot(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def renew(self, snapshot_id: str) -> broker_pb2.Snapshot:
        """Start the lease anew; raise SnapshotExpired if it has ended."""
        try:
            return self._stub.RenewSnapshot(broker_pb2.SnapshotRef(snapshot_id=snapshot_id), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def read_split(
        self, snapshot_id: str, split: broker_pb2.Split, after: bytes = b"", *, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[Chunk]:
        """Yield the chunks of one key range; lost or damaged chunks are asked for again."""
        failures, ended = 0, False
        while True:
            try:
                # to the end of the stream, not only of the rows: a call that is cancelled while the broker ends it is
                # an error in the broker's log
                for chunk in self._stream(snapshot_id, split, after, chunk_bytes):
                    failures, ended = 0, chunk.end
                    after = chunk.last or after
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

    def _stream(self, snapshot_id: str, split: broker_pb2.Split, after: bytes, chunk_bytes: int) -> Iterator[Chunk]:
        request = broker_pb2.ReadSplitRequest(
            snapshot_id=snapshot_id, split=split, after=after, chunk_bytes=chunk_bytes
        )
        totals = Totals()
        call = self._stub.ReadSplit(request, wait_for_ready=False)
        try:
            for sent in call:
                body = sent.body  # a copy, each time it is asked for
                if digest(body) != sent.digest:
                    raise DigestMismatch("a chunk of the full data arrived damaged; nothing of it was used")
                chunk = decode_chunk(body)
                totals.add(chunk.rows)
                if chunk.end and chunk.totals != totals:
                    said = chunk.totals.rows if chunk.totals else 0
                    raise ProtocolError(f"a split of {said} rows arrived with {totals.rows}, or with other ones")
                yield chunk
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    def close(self, snapshot_id: str = "") -> None:
        """Let a snapshot go; without an id close the connection, and open snapshots live on until their lease ends."""
        if not snapshot_id:
            self._channel.close()
            return
        try:
            self._stub.CloseSnapshot(broker_pb2.SnapshotRef(snapshot_id=snapshot_id), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def __enter__(self) -> Snapshots:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
