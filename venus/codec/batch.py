"""A batch in memory, and as the bytes that are hashed, stored and delivered unchanged (VENUS 3.2).

The upper adapter encodes it, the broker reads at most its envelope, the under adapter decodes it. Change i of a batch,
counted across its sections, has Sequence first_sequence + i.

A section has the changes of one table, between capture, transport and apply. Every consumer relies on the checks of
`changes_from_wire`: sizes add up, flags are 0 or 1, and a deleted row has no values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash
from google.protobuf.message import DecodeError

from venus.codec import schema as schemas_codec
from venus.codec.packed import SIZE_BYTES, PackedBytes, total_of_sizes
from venus.errors import ProtocolError
from venus.model import BatchNo, ChangeKind, Sequence, TableSchema
from venus.wire import change_pb2 as wire

_NEVER = Sequence(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChanges:
    """Changes of one table in one schema version, or a marker about the whole table, which has no rows.

    `rows` has the columns that are not in the key; `record_ids[i] + rows[i]` is the whole row message. A deleted
    row has size 0 in `rows`.
    """

    table_id: int
    schema_version: int
    kind: ChangeKind = ChangeKind.CHANGES
    record_ids: PackedBytes
    rows: PackedBytes
    is_deleted: npt.NDArray[np.bool_]
    inserts_only: bool = False
    first_read: bool = False  # rows of the table's first read: new, unless a change with the same key came before
    sweep_before: Sequence = _NEVER
    left_out: int = 0  # changes of other tables that a tier has left out here

    @property
    def count(self) -> int:
        """How many Sequences the section takes."""
        return len(self.record_ids) if self.kind is ChangeKind.CHANGES else self.left_out or 1

    @property
    def nbytes(self) -> int:
        """Its approximate size on the wire."""
        return len(self.record_ids.data) + len(self.rows.data) + 9 * len(self.record_ids) + 32


EMPTY = PackedBytes(b"", np.zeros(0, dtype=np.uint32))


def marker(table_id: int, schema_version: int, kind: ChangeKind, sweep_before: int = 0) -> TableChanges:
    """Return a section about the whole table, such as a truncation; it has no rows."""
    return TableChanges(
        table_id=table_id,
        schema_version=schema_version,
        kind=kind,
        record_ids=EMPTY,
        rows=EMPTY,
        is_deleted=np.zeros(0, dtype=np.bool_),
        sweep_before=Sequence(sweep_before),
    )


def changes_to_wire(changes: TableChanges) -> wire.TableChanges:
    """Return the message; the packed fields are used unchanged."""
    deleted = changes.is_deleted
    return wire.TableChanges(
        table_id=changes.table_id,
        schema_version=changes.schema_version,
        kind=wire.TableChanges.Kind.ValueType(int(changes.kind)),
        count=changes.count,
        record_ids=changes.record_ids.data,
        record_id_sizes=changes.record_ids.wire_sizes(),
        rows=changes.rows.data,
        row_sizes=changes.rows.wire_sizes(),
        is_deleted=deleted.tobytes() if deleted.any() else b"",
        inserts_only=changes.inserts_only,
        first_read=changes.first_read,
        sweep_before=changes.sweep_before,
    )


def changes_from_wire(message: wire.TableChanges) -> TableChanges:
    """Return the section, as views on the message's bytes. Raises ProtocolError if its parts do not match."""
    place = f"changes of table {message.table_id} version {message.schema_version}"
    try:
        kind = ChangeKind(message.kind)
    except ValueError as e:
        raise ProtocolError(
            f"{place}: kind {message.kind} is unknown to this version", hint="update the older side first"
        ) from e
    count = message.count if kind is ChangeKind.CHANGES else 0
    left_out = message.count if kind is ChangeKind.LEFT_OUT else 0
    if kind not in (ChangeKind.CHANGES, ChangeKind.LEFT_OUT) and message.count != 1:
        raise ProtocolError(f"{place}: a {kind.name} marker counts {message.count} Sequences")
    record_ids = _read_packed(message.record_ids, message.record_id_sizes, count, f"{place}: record ids")
    rows = _read_packed(message.rows, message.row_sizes, count, f"{place}: rows")
    is_deleted = _read_flags(message.is_deleted, count, place)
    if is_deleted.any() and rows.sizes[is_deleted].any():
        at = int(np.flatnonzero(is_deleted & (rows.sizes > 0))[0])
        raise ProtocolError(f"{place}: row {at + 1} is deleted and has values")
    return TableChanges(
        table_id=message.table_id,
        schema_version=message.schema_version,
        kind=kind,
        record_ids=record_ids,
        rows=rows,
        is_deleted=is_deleted,
        inserts_only=message.inserts_only,
        first_read=message.first_read,
        sweep_before=Sequence(message.sweep_before),
        left_out=left_out,
    )


def _read_packed(data: bytes, sizes: bytes, count: int, place: str) -> PackedBytes:
    """Return the byte strings of a packed field. Raises ProtocolError if their sizes do not add up."""
    if len(sizes) != SIZE_BYTES * count:
        raise ProtocolError(f"{place}: {len(sizes)} bytes of sizes for {count} changes")
    found = total_of_sizes(sizes)
    if found != len(data):
        raise ProtocolError(f"{place}: the sizes add up to {found} bytes, there are {len(data)}")
    return PackedBytes.from_wire(data, sizes) if count else EMPTY


def _read_flags(flags: bytes, count: int, place: str) -> npt.NDArray[np.bool_]:
    """Return the deletion flags of a section, all False if they are omitted. Raises ProtocolError."""
    if not flags:
        return np.zeros(count, dtype=np.bool_)
    if len(flags) != count:
        raise ProtocolError(f"{place}: {len(flags)} deletion flags for {count} changes")
    bits = np.frombuffer(flags, dtype=np.uint8)
    if bits.max(initial=0) > 1:
        raise ProtocolError(f"{place}: deletion flag {int(bits.max())} is neither 0 nor 1")
    return bits.view(np.bool_)


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
        """Number of queue offsets that the batch takes: one for each change, one if it has none."""
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
    """Raise ProtocolError unless the sections have as many changes as the batch declares."""
    total = sum(s.count for s in sections)
    if total != count:
        raise ProtocolError(f"batch {batch_no} declares {count} changes and has {total}")


def digest(body: bytes) -> int:
    """Return the digest that the producer sends and every receiver compares."""
    return xxhash.xxh3_64_intdigest(body)
