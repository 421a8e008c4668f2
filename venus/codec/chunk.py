"""A piece of the full data between the broker's store and the wire (VENUS 3.3, the full interface)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from venus.codec.changes import TableChanges
from venus.codec.sections import changes_from_wire, changes_to_wire
from venus.errors import ProtocolError
from venus.model import ChangeKind
from venus.wire import broker_pb2 as wire

Sequences = npt.NDArray[np.uint64]

_MASK_64 = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Live rows of one split; `sequences[i]` belongs to the rows of `sections[i]`."""

    chunk_no: int
    sections: tuple[TableChanges, ...]
    sequences: tuple[Sequences, ...]
    last: bytes
    end: bool = False
    rows: int = 0
    rows_digest: int = 0


def encode_chunk(
    *,
    chunk_no: int,
    sections: Seq[TableChanges],
    sequences: Seq[Sequences],
    last: bytes,
    end: bool = False,
    rows: int = 0,
    rows_digest: int = 0,
) -> bytes:
    """Return the body of a chunk; `rows` and `rows_digest` are those of the whole request, at its end."""
    _check(chunk_no, sections, sequences)
    return wire.ChunkBody(
        chunk_no=chunk_no,
        tables=[changes_to_wire(s) for s in sections],
        last=last,
        end=end,
        rows=rows,
        rows_digest=rows_digest,
        sequences=[s.astype("<u8", copy=False).tobytes() for s in sequences],
    ).SerializeToString()


def decode_chunk(body: bytes) -> Chunk:
    """Return the chunk. Raises ProtocolError if it is damaged or contradicts itself."""
    try:
        message = wire.ChunkBody.FromString(body)
    except DecodeError as e:
        raise ProtocolError(f"{len(body)} bytes are no chunk: {e}") from e
    if any(len(s) % 8 for s in message.sequences):
        raise ProtocolError(f"chunk {message.chunk_no}: its Sequences are no array of fixed64")
    chunk = Chunk(
        chunk_no=message.chunk_no,
        sections=tuple(changes_from_wire(t) for t in message.tables),
        sequences=tuple(np.frombuffer(s, dtype="<u8") for s in message.sequences),
        last=message.last,
        end=message.end,
        rows=message.rows,
        rows_digest=message.rows_digest,
    )
    _check(chunk.chunk_no, chunk.sections, chunk.sequences)
    return chunk


def _check(chunk_no: int, sections: Seq[TableChanges], sequences: Seq[Sequences]) -> None:
    if len(sections) != len(sequences):
        raise ProtocolError(f"chunk {chunk_no}: {len(sections)} sections and {len(sequences)} arrays of Sequences")
    for section, numbers in zip(sections, sequences, strict=True):
        if section.kind is not ChangeKind.CHANGES or section.is_deleted.any():
            raise ProtocolError(f"chunk {chunk_no}: table {section.table_id} has something else than live rows")
        if section.count != len(numbers):
            raise ProtocolError(f"chunk {chunk_no}: {section.count} rows and {len(numbers)} Sequences")


def rows_digest(sequences: Sequences) -> int:
    """Return a digest of the row versions with these Sequences: the same in any order and in any split.

    A Sequence names one version of one row for ever, so the sum of the mixed Sequences (the finaliser of SplitMix64)
    modulo 2^64 tells which rows these are; that their bytes are right is the business of the chunk's own digest.
    """
    mixed = sequences.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return int(mixed.sum(dtype=np.uint64))


def add_digests(one: int, other: int) -> int:
    """Return the digest of the rows of both."""
    return (one + other) & _MASK_64
