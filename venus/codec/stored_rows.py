"""Rows as the full data stores and delivers them: a head, the record_id, the row; and chunks of them (VENUS 3.3).

The stored value repeats the record_id of the stored key: reading values alone costs half as much as reading keys and
values. A broker delivers stored rows unchanged, end to end, and the reader steps through the heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import xxhash
from google.protobuf.message import DecodeError

from venus.codec.batch import TableChanges
from venus.codec.packed import Bools, Gatherer, Ints, PackedBytes
from venus.codec.row_bytes import varint
from venus.errors import ProtocolError
from venus.wire import broker_pb2 as wire

HEAD = np.dtype([("sequence", ">u8"), ("version", ">u4"), ("flags", "u1"), ("id_bytes", ">u4")])
HEAD_BYTES = HEAD.itemsize
TOMBSTONE = 1

Heads = npt.NDArray[np.void]
Sequences = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class StoredRows:
    """Many stored rows of one table. Raises ProtocolError for bytes that are no stored rows."""

    packed: PackedBytes

    def __post_init__(self) -> None:
        sizes = self.packed.sizes
        if int(sizes.sum(dtype=np.int64)) != len(self.packed.data):
            raise ProtocolError(f"the sizes of {len(sizes)} stored rows do not add up to {len(self.packed.data)} bytes")
        if len(sizes) and int(sizes.min()) < HEAD_BYTES:
            raise ProtocolError(f"stored row {int(sizes.argmin()) + 1} is shorter than its head")
        if (self.heads["id_bytes"].astype(np.int64) + HEAD_BYTES > sizes).any():
            raise ProtocolError("a stored row is shorter than its record_id")

    def __len__(self) -> int:
        return len(self.packed)

    @cached_property
    def bounds(self) -> Ints:
        """The position at which each row begins, and the end of the last one."""
        return self.packed.bounds

    @cached_property
    def heads(self) -> Heads:
        """The heads, a record each."""
        if not len(self):
            return np.zeros(0, dtype=HEAD)
        data = self.packed.data
        anywhere = np.ndarray((len(data) - HEAD_BYTES + 1,), dtype=f"V{HEAD_BYTES}", buffer=data, strides=(1,))
        return anywhere[self.bounds[:-1]].view(HEAD)

    @property
    def sequences(self) -> Sequences:
        """The Sequence of each row's last change."""
        return self.heads["sequence"].astype(np.uint64)

    @property
    def record_ids(self) -> PackedBytes:
        """The record_ids alone."""
        return self._part(1)

    @property
    def rows(self) -> PackedBytes:
        """The columns that are not in the key."""
        return self._part(2)

    def record_id(self, index: int) -> bytes:
        """Return one record_id."""
        start = int(self.bounds[:-1][index]) + HEAD_BYTES
        return self.packed.data[start : start + int(self.heads["id_bytes"][index])]

    def _part(self, part: int) -> PackedBytes:
        """Return the heads, the record_ids or the other columns (part 0, 1 or 2) of all rows."""
        count = len(self)
        bounds = np.empty(3 * count + 1, dtype=self.bounds.dtype)
        bounds[::3] = self.bounds
        bounds[1::3] = self.bounds[:-1] + HEAD_BYTES
        bounds[2::3] = bounds[1::3] + self.heads["id_bytes"]
        sizes = np.diff(bounds)[part::3].astype(np.uint32)
        return PackedBytes(Gatherer(self.packed.data, bounds).gather(np.arange(part, 3 * count, 3)), sizes)

    def find_live(self, floor: int) -> Bools:
        """Return which are live rows: neither tombstones nor at or below the floor of the table."""
        heads = self.heads
        found: Bools = ((heads["flags"] & TOMBSTONE) == 0) & (heads["sequence"] > floor)
        return found

    def select(self, chosen: Bools) -> StoredRows:
        """Return the chosen rows."""
        if chosen.all():
            return self
        data = Gatherer(self.packed.data, self.bounds).gather(np.flatnonzero(chosen))
        return StoredRows(PackedBytes(data, self.packed.sizes[chosen]))


def heads_of(first_sequence: int, version: int, is_deleted: Bools, id_sizes: Ints) -> Heads:
    """Return the heads of changes whose Sequences follow each other."""
    count = len(id_sizes)
    heads = np.empty(count, dtype=HEAD)
    heads["sequence"] = np.arange(first_sequence, first_sequence + count, dtype=np.uint64)
    heads["version"] = version
    heads["flags"] = np.where(is_deleted, TOMBSTONE, 0)
    heads["id_bytes"] = id_sizes
    return heads


_MASK_64 = 2**64 - 1


@dataclass(slots=True)
class RowTotals:
    """The number and the digest of the rows of a split so far."""

    rows: int = 0
    digest: int = 0

    def add(self, rows: StoredRows) -> None:
        """Add the number and the digest of these rows."""
        self.rows += len(rows)
        self.digest = (self.digest + rows_digest(rows.sequences)) & _MASK_64

    def include(self, other: RowTotals) -> None:
        """Add the totals of other rows."""
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
        """Return the chunk as part of another message."""
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
        """The rows as a section of a batch."""
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
        """The rows by schema version; mostly there is only one."""
        if not len(self.rows):
            return
        versions = self.rows.heads["version"]
        for version in np.unique(versions).tolist():
            yield FullRows(table_id=self.table_id, schema_version=version, stored=self.rows.select(versions == version))


def encode_chunk(chunk: Chunk) -> bytes:
    """Return the body of a chunk. Raises ProtocolError if the chunk has a deleted row."""
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
    """Raise ProtocolError if a chunk has a tombstone."""
    if (chunk.rows.heads["flags"] & TOMBSTONE).any():
        raise ProtocolError(f"chunk {chunk.chunk_no}: table {chunk.table_id} has rows that are not live")


def rows_digest(sequences: Sequences) -> int:
    """Return a digest of the row versions with these Sequences: the same in any order and in any split.

    A Sequence always names the same version of one row, so the sum of the mixed Sequences (the finaliser of SplitMix64)
    modulo 2^64 identifies these rows. The digest of the chunk covers their bytes.
    """
    mixed = sequences.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return int(mixed.sum(dtype=np.uint64))
