"""The envelope of a batch: what the broker must know of a BatchBody without decoding any row.

The envelope is read twice: when the half message arrives, so that an inconsistent body is refused before it is
acknowledged, and when the full data is materialised.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from venus.broker.machine.folding import ChangeSection
from venus.codec.packed import SIZE_BYTES, PackedBytes, total_of_sizes
from venus.errors import DigestMismatch, ProtocolError
from venus.model import ChangeKind
from venus.rpc import limits
from venus.wire import change_pb2

#: The kinds of sections that a producer may send.
_KINDS = frozenset(change_pb2.TableChanges.Kind.values()) - {change_pb2.TableChanges.LEFT_OUT}

#: A table's id, and one of its schema versions.
Version = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionFigures:
    """What a section (the changes of one table in a batch) adds to the statistics of its table."""

    table_id: int
    changes: int
    last_sequence: int
    truncates: bool
    inserted: int  # 0 if the source does not announce them
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The envelope of a batch: its number, Sequences, cut, tables and schemas, but no rows."""

    batch_no: int
    first_sequence: int
    count: int
    cut: int
    cut_end: bool
    captured_at_us: int
    changes: tuple[SectionFigures, ...]
    schemas: tuple[change_pb2.TableSchema, ...]
    versions: frozenset[Version]  # of its sections
    lost: int = 0  # offsets that it represents, without changes
    left_out: int = 0  # offsets that it represents because this set does not mirror their changes

    @property
    def described_versions(self) -> set[Version]:
        """The table versions whose schemas are in the batch."""
        return {(schema.table_id, schema.version) for schema in self.schemas}

    @property
    def tables(self) -> tuple[int, ...]:
        """The ids of the tables with changes or schemas in the batch."""
        return tuple(sorted({c.table_id for c in self.changes} | {s.table_id for s in self.schemas}))


def open_body(batch_no: int, body: bytes) -> Envelope:
    """Read and check the envelope of a half message. Raises ProtocolError."""
    message = parse_body(body)
    if message.batch_no != batch_no:
        # The body matches its digest, so the batch number sent with it was damaged on the way.
        raise DigestMismatch(f"half message {batch_no} carries batch {message.batch_no}")
    limits.check(message, f"batch {batch_no}: ")
    if message.lost or message.left_out:
        raise ProtocolError(f"batch {batch_no} declares lost offsets, which only the broker may do")
    _check_sections(message, mirrored=False)
    return build_envelope(message)


def open_mirrored_body(body: bytes) -> Envelope:
    """Read and check the envelope of a batch committed by the set above. Raises ProtocolError."""
    message = parse_body(body)
    limits.check(message, f"batch {message.batch_no}: ")
    if (message.lost or message.left_out) and (message.count or message.tables):
        raise ProtocolError(f"batch {message.batch_no} has changes, and offsets without changes")
    _check_sections(message, mirrored=True)
    return build_envelope(message)


def _check_sections(message: change_pb2.BatchBody, *, mirrored: bool) -> None:
    """Raise ProtocolError unless each section is consistent and all together have the declared number of changes."""
    for table in message.tables:
        if mirrored and table.kind == change_pb2.TableChanges.LEFT_OUT:
            _check_left_out(message.batch_no, table)
        else:
            _check_section(message.batch_no, table)
    if sum(table.count for table in message.tables) != message.count:
        raise ProtocolError(
            f"batch {message.batch_no} declares {message.count} changes, its sections have another number"
        )


def parse_body(body: bytes) -> change_pb2.BatchBody:
    """Decode the protobuf message of a batch. Raises ProtocolError."""
    try:
        return change_pb2.BatchBody.FromString(body)
    except DecodeError as error:
        raise ProtocolError(f"not a batch: {error}") from error


def read_change_count(body: bytes) -> int:
    """Return the number of changes that a batch declares, without checking it; 0 if the bytes are no batch.

    Adapters write fields 1 to 3 first, so these are read directly; any other order is parsed.
    """
    at = 0
    for number in (1, 2, 3):
        if at >= len(body) or body[at] != number << 3:
            break
        value, at = _decode_varint(body, at + 1)
        if number == 3:
            return value
    try:
        return change_pb2.BatchBody.FromString(body).count
    except DecodeError:
        return 0


def _decode_varint(body: bytes, at: int) -> tuple[int, int]:
    """Decode a protobuf varint; return it and the position after it. A truncated one ends with the body."""
    value = shift = 0
    while at < len(body):
        value |= (body[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not body[at - 1] & 0x80:
            break
    return value, at


def build_envelope(message: change_pb2.BatchBody) -> Envelope:
    """Return the envelope of a parsed batch."""
    sequence = message.first_sequence
    changes = []
    for table in message.tables:
        sequence += table.count
        if table.kind == change_pb2.TableChanges.LEFT_OUT:
            continue
        changes.append(
            SectionFigures(
                table_id=table.table_id,
                changes=table.count,
                last_sequence=sequence - 1,
                truncates=table.kind == change_pb2.TableChanges.TRUNCATE,
                inserted=table.count if table.inserts_only else 0,
                deleted=table.is_deleted.count(1),
            )
        )
    return Envelope(
        batch_no=message.batch_no,
        first_sequence=message.first_sequence,
        count=message.count,
        cut=message.cut,
        cut_end=message.cut_end,
        captured_at_us=message.captured_at_us,
        changes=tuple(changes),
        schemas=tuple(_copy_schema(schema) for schema in message.schemas),
        versions=frozenset(
            [
                (table.table_id, table.schema_version)
                for table in message.tables
                if table.kind != change_pb2.TableChanges.LEFT_OUT
            ]
        ),
        lost=message.lost,
        left_out=message.left_out,
    )


def build_sections(message: change_pb2.BatchBody) -> list[ChangeSection]:
    """Return the sections of a parsed batch, each with its first Sequence; their bytes are not copied."""
    sequence = message.first_sequence
    found = []
    for table in message.tables:
        if table.kind == change_pb2.TableChanges.LEFT_OUT:
            sequence += table.count
            continue
        found.append(
            ChangeSection(
                table_id=table.table_id,
                schema_version=table.schema_version,
                kind=ChangeKind(table.kind),
                first_sequence=sequence,
                count=table.count,
                record_ids=PackedBytes.from_wire(table.record_ids, table.record_id_sizes),
                rows=PackedBytes.from_wire(table.rows, table.row_sizes),
                is_deleted=table.is_deleted,
                sweep_before=table.sweep_before,
            )
        )
        sequence += table.count
    return found


def _copy_schema(schema: change_pb2.TableSchema) -> change_pb2.TableSchema:
    copy = change_pb2.TableSchema()  # a reference into a message would keep the whole batch in memory
    copy.CopyFrom(schema)
    return copy


def _check_left_out(batch_no: int, table: change_pb2.TableChanges) -> None:
    """Raise ProtocolError if a section that only counts left-out changes has rows."""
    if table.record_ids or table.record_id_sizes or table.rows or table.row_sizes or table.is_deleted:
        raise ProtocolError(f"batch {batch_no}: a LEFT_OUT section has rows")


def _check_section(batch_no: int, table: change_pb2.TableChanges) -> None:
    """Raise ProtocolError unless the kind, the sizes and the deletion marks of a section are consistent."""
    where = f"batch {batch_no}, table {table.table_id}"
    if table.kind not in _KINDS:
        raise ProtocolError(f"{where}: unknown kind of section {table.kind}")
    if table.kind != change_pb2.TableChanges.CHANGES:
        if table.count != 1 or table.record_ids:
            raise ProtocolError(f"{where}: a marker takes one Sequence and has no rows")
        return
    for name, data, sizes in (
        ("record_ids", table.record_ids, table.record_id_sizes),
        ("rows", table.rows, table.row_sizes),
    ):
        if len(sizes) != SIZE_BYTES * table.count:
            raise ProtocolError(f"{where}: {len(sizes) // SIZE_BYTES} sizes of {name} for {table.count} changes")
        if total_of_sizes(sizes) != len(data):
            raise ProtocolError(f"{where}: the sizes of {name} do not add up to their {len(data)} bytes")
    if table.is_deleted.translate(None, b"\0\1"):
        raise ProtocolError(f"{where}: a deletion mark is neither 0 nor 1")
    if len(table.is_deleted) not in (0, table.count):
        raise ProtocolError(f"{where}: {len(table.is_deleted)} deletion marks for {table.count} changes")
