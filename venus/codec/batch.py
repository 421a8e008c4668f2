"""A batch in memory, and as the bytes that are hashed, stored and delivered unchanged (VENUS 3.2).

The upper adapter encodes it, the broker reads at most its envelope, the under adapter decodes it. Change i of a batch,
counted across its sections, has Sequence first_sequence + i.
"""

from __future__ import annotations

from dataclasses import dataclass

import xxhash
from google.protobuf.message import DecodeError

from venus.codec import schema as schemas_codec
from venus.codec.changes import TableChanges, changes_from_wire, changes_to_wire
from venus.errors import ProtocolError
from venus.model import BatchNo, Sequence, TableSchema
from venus.wire import change_pb2 as wire

__all__ = [
    "Batch",
    "changes_from_wire",
    "changes_to_wire",
    "decode",
    "digest",
    "encode",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The content of one half message."""

    batch_no: BatchNo
    first_sequence: Sequence
    count: int
    cut: BatchNo
    cut_end: bool
    captured_at_us: int
    schemas: tuple[TableSchema, ...]
    sections: tuple[TableChanges, ...]
    #: Offsets that it represents instead of changes: an unclean election has lost them, or a tier has left them out.
    lost: int = 0

    @property
    def offsets(self) -> int:
        """How many offsets it takes: one for each change, one without any."""
        return self.lost or max(self.count, 1)


def encode(batch: Batch) -> bytes:
    """Return the body. Raises ProtocolError if the sections do not add up to the count."""
    _check_count(batch.batch_no, batch.count, batch.sections)
    return wire.BatchBody(
        batch_no=batch.batch_no,
        first_sequence=batch.first_sequence,
        count=batch.count,
        cut=batch.cut,
        cut_end=batch.cut_end,
        captured_at_us=batch.captured_at_us,
        schemas=[schemas_codec.to_wire(s) for s in batch.schemas],
        tables=[changes_to_wire(s) for s in batch.sections],
    ).SerializeToString()


def decode(body: bytes) -> Batch:
    """Return the batch. Raises ProtocolError if it is damaged or contradicts itself."""
    try:
        message = wire.BatchBody.FromString(body)
    except DecodeError as e:
        raise ProtocolError(f"{len(body)} bytes are not a batch: {e}") from e
    sections = tuple(changes_from_wire(t) for t in message.tables)
    _check_count(message.batch_no, message.count, sections)
    lost = message.lost or message.left_out
    if lost and message.count:
        raise ProtocolError(f"batch {message.batch_no} has changes, and {lost} offsets without changes")
    return Batch(
        batch_no=BatchNo(message.batch_no),
        first_sequence=Sequence(message.first_sequence),
        count=message.count,
        cut=BatchNo(message.cut),
        cut_end=message.cut_end,
        captured_at_us=message.captured_at_us,
        schemas=tuple(schemas_codec.from_wire(s) for s in message.schemas),
        sections=sections,
        lost=lost,
    )


def _check_count(batch_no: int, count: int, sections: tuple[TableChanges, ...]) -> None:
    total = sum(s.count for s in sections)
    if total != count:
        raise ProtocolError(f"batch {batch_no} declares {count} changes and has {total}")


def digest(body: bytes) -> int:
    """Return the digest that the producer sends and every receiver compares."""
    return xxhash.xxh3_64_intdigest(body)
