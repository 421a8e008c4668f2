"""A piece of the full data between the broker's store and the wire (VENUS 3.3, the full interface)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xxhash
from google.protobuf.message import DecodeError

from venus.codec.changes import TableChanges
from venus.codec.layout import varint
from venus.codec.packed import PackedBytes
from venus.codec.stored_rows import TOMBSTONE, Sequences, StoredRows
from venus.errors import ProtocolError
from venus.wire import broker_pb2 as wire

_MASK_64 = 2**64 - 1


@dataclass(slots=True)
class RowTotals:
    """The number and the digest of the rows of a split so far."""

    rows: int = 0
    digest: int = 0

    def add(self, rows: StoredRows) -> None:
        """Count rows."""
        self.rows += len(rows)
        self.digest = (self.digest + rows_digest(rows.sequences)) & _MASK_64

    def include(self, other: RowTotals) -> None:
        """Add other totals."""
        self.rows += other.rows
        self.digest = (self.digest + other.digest) & _MASK_64


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedChunk:
    """A chunk's body with its digest."""

    digest: int
    body: bytes

    @classmethod
    def of(cls, body: bytes) -> SealedChunk:
        """Seal a body."""
        return cls(digest=xxhash.xxh3_64_intdigest(body), body=body)

    def to_message(self) -> wire.SnapshotChunk:
        """Return it as part of another message."""
        return wire.SnapshotChunk(digest=self.digest, body=self.body)

    def serialise(self) -> bytes:
        """Return the bytes of the message; this copies the body once, where protobuf copies it three times."""
        digest = wire.SnapshotChunk(digest=self.digest).SerializeToString()
        return b"".join((digest, _field_header(wire.SnapshotChunk.BODY_FIELD_NUMBER, self.body), self.body))


def _field_header(number: int, content: bytes) -> bytes:
    """Return the header of a protobuf field of bytes; fields laid end to end are a message."""
    return varint(number << 3 | 2) + varint(len(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRows:
    """Rows of one table in one schema version, none deleted."""

    table_id: int
    schema_version: int
    stored: StoredRows

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def changes(self) -> TableChanges:
        """The same as a section of a batch."""
        return TableChanges(
            table_id=self.table_id,
            schema_version=self.schema_version,
            record_ids=self.stored.record_ids,
            rows=self.stored.rows,
            is_deleted=np.zeros(len(self), dtype=np.bool_),
            inserts_only=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Live rows of one split; the last chunk has the totals of the whole request."""

    chunk_no: int
    table_id: int
    rows: StoredRows
    last: bytes
    end: bool = False
    totals: RowTotals | None = None

    @property
    def sections(self) -> Iterator[FullRows]:
        """The rows by schema version, mostly one."""
        if not len(self.rows):
            return
        versions = self.rows.heads["version"]
        for version in np.unique(versions).tolist():
            yield FullRows(table_id=self.table_id, schema_version=version, stored=self.rows.select(versions == version))


def encode_chunk(chunk: Chunk) -> bytes:
    """Return the body of a chunk. Raises ProtocolError if it has a row that is not live."""
    _check(chunk)
    totals = chunk.totals or RowTotals()
    head = wire.ChunkBody(
        chunk_no=chunk.chunk_no,
        table_id=chunk.table_id,
        last=chunk.last,
        end=chunk.end,
        rows=totals.rows,
        rows_digest=totals.digest,
    ).SerializeToString()
    stored, sizes = chunk.rows.packed.data, chunk.rows.packed.wire_sizes()
    stored_field = _field_header(wire.ChunkBody.STORED_FIELD_NUMBER, stored)
    sizes_field = _field_header(wire.ChunkBody.STORED_SIZES_FIELD_NUMBER, sizes)
    return b"".join((head, stored_field, stored, sizes_field, sizes))


def decode_chunk(body: bytes) -> Chunk:
    """Return the chunk. Raises ProtocolError if it is damaged or contradicts itself."""
    try:
        message = wire.ChunkBody.FromString(body)
    except DecodeError as e:
        raise ProtocolError(f"{len(body)} bytes are not a chunk: {e}") from e
    if len(message.stored_sizes) % 4:
        raise ProtocolError(f"chunk {message.chunk_no}: its sizes are not an array of fixed32")
    chunk = Chunk(
        chunk_no=message.chunk_no,
        table_id=message.table_id,
        rows=StoredRows(PackedBytes.from_wire(message.stored, message.stored_sizes)),
        last=message.last,
        end=message.end,
        totals=RowTotals(message.rows, message.rows_digest) if message.end else None,
    )
    _check(chunk)
    return chunk


def _check(chunk: Chunk) -> None:
    if (chunk.rows.heads["flags"] & TOMBSTONE).any():
        raise ProtocolError(f"chunk {chunk.chunk_no}: table {chunk.table_id} has rows that are not live")


def rows_digest(sequences: Sequences) -> int:
    """Return a digest of the row versions with these Sequences: the same in any order and in any split.

    A Sequence names one version of one row for ever, so the sum of the mixed Sequences (the finaliser of SplitMix64)
    modulo 2^64 identifies these rows. The digest of the chunk covers their bytes.
    """
    mixed = sequences.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return int(mixed.sum(dtype=np.uint64))
