"""Rows of the broker as a target gets them: columns masked and dropped, whole batches at once. Pure.

The bytes of neighbouring columns that do not change are copied in one piece. No object is made per row; only hmac
handles values one by one.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from venus.codec.arrow_rows import ColumnValues
from venus.codec.batch import TableChanges
from venus.codec.filtering import as_keys, select_full_rows
from venus.codec.packed import Bools, Bytes, Ints, PackedBytes, Pieces
from venus.codec.row_bytes import Layout, LocatedCells, bounds_of, locate_cells, varint
from venus.codec.stored_rows import HEAD_BYTES, FullRows, StoredRows
from venus.errors import ConfigError
from venus.masking.functions import ColumnFunction, MaskingKey, column_function
from venus.masking.projection import ProjectedSchema, source_of
from venus.masking.syntax import DROP, ColumnRule
from venus.model import TableSchema
from venus.predicates.ranges import Predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Neighbouring columns up to `last` that stay or are dropped, or one column whose values are replaced."""

    last: int
    stays: bool
    function: ColumnFunction | None = None


class RowMasker:
    """Converter of the rows of one version, from the broker's form to a target's."""

    def __init__(self, schema: ProjectedSchema, key: MaskingKey | None) -> None:
        self.schema = schema
        self._layout = Layout.make(schema.source)
        first, rules = self._layout.key_count, schema.rules.by_number
        self._key = _segments(self._layout, range(first), rules, key)
        self._others = _segments(self._layout, range(first, len(self._layout.tags)), rules, key)

    def mask_record_ids(self, record_ids: PackedBytes) -> PackedBytes:
        """Return the keys of rows, masked."""
        return self._mask(record_ids, self._key, 0, None)

    def mask_rows(self, rows: PackedBytes, is_deleted: Bools | None = None) -> PackedBytes:
        """Return the columns that are not in the key, masked; a deleted row has none."""
        return self._mask(rows, self._others, self._layout.key_count, is_deleted)

    def mask_changes(self, changes: TableChanges) -> TableChanges:
        """Return a section of a batch, masked."""
        return replace(
            changes,
            record_ids=self.mask_record_ids(changes.record_ids),
            rows=self.mask_rows(changes.rows, changes.is_deleted),
        )

    def mask_full_rows(self, full: FullRows) -> FullRows:
        """Return rows of the full data, masked."""
        stored, count = full.stored, len(full)
        if not count:
            return full
        ids, rows = self.mask_record_ids(stored.record_ids), self.mask_rows(stored.rows)
        heads = stored.heads.copy()
        heads["id_bytes"] = ids.sizes
        pieces = Pieces()
        pieces.add(heads.tobytes(), np.arange(count + 1, dtype=np.int64) * HEAD_BYTES)
        pieces.add(ids.data, bounds_of(ids.sizes))
        pieces.add(rows.data, bounds_of(rows.sizes))
        choice = np.arange(3 * count, dtype=np.int64).reshape(3, count).T
        packed = PackedBytes(pieces.gatherer().gather(choice), (ids.sizes + rows.sizes + HEAD_BYTES).astype(np.uint32))
        return replace(full, stored=StoredRows(packed))

    def _mask(
        self, messages: PackedBytes, segments: Seq[_Segment], first: int, is_deleted: Bools | None
    ) -> PackedBytes:
        """Return the messages of one part of the rows, masked segment by segment."""
        if not len(messages) or all(segment.stays for segment in segments):
            return messages
        stop = segments[-1].last + 1
        numbers, tags = self._layout.numbers[first : first + stop], self._layout.tags[first : first + stop]
        found = locate_cells(messages, tags, self._layout.place)
        values = ColumnValues(len(messages), [(found, numbers)])
        parts = _RowParts(len(messages))
        piece = parts.add_messages(messages, found, [segment.last for segment in segments])
        for n, segment in enumerate(segments):
            if segment.stays:
                parts.keep(piece + n, n)
            elif segment.function is not None:
                masked = segment.function(values.column(numbers[segment.last]))
                parts.add_field(masked, tags[segment.last], is_deleted)
        return parts.join()


def _segments(
    layout: Layout, columns: range, rules: dict[int, ColumnRule], key: MaskingKey | None
) -> tuple[_Segment, ...]:
    """Return the columns of one part of a row, those that stay joined with their neighbours."""
    found: list[_Segment] = []
    for place, index in enumerate(columns):
        column = layout.columns[index]
        rule = rules.get(column.number, ColumnRule())
        if rule.is_masked:
            found.append(_Segment(last=place, stays=False, function=column_function(rule, column, key)))
        elif rule.mask == DROP:
            found.append(_Segment(last=place, stays=False))
        elif found and found[-1].stays:
            found[-1] = replace(found[-1], last=place)
        else:
            found.append(_Segment(last=place, stays=True))
    return tuple(found)


class _RowParts:
    """The pieces of `rows` messages in the order in which they are joined."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._pieces = Pieces()
        self._empty = self._pieces.add(b"", np.zeros(2, dtype=np.int64))
        self._choice: list[Ints] = []
        self._sizes = np.zeros(rows, dtype=np.int64)

    def add_messages(self, messages: PackedBytes, found: LocatedCells, lasts: Seq[int]) -> int:
        """Add the messages, each cut after the columns `lasts`; return the number of the first piece."""
        bounds = np.zeros(self._rows * len(lasts) + 1, dtype=np.int64)
        bounds[1:] = found.cuts[:, list(lasts), 1].reshape(-1)
        self._cuts = np.diff(bounds).reshape(self._rows, len(lasts))
        return self._pieces.add(messages.data, bounds)

    def keep(self, piece: int, segment: int) -> None:
        """Keep one segment of each message; `piece` is the segment of the first message."""
        self._choice.append(piece + self._cuts.shape[1] * np.arange(self._rows, dtype=np.int64))
        self._sizes += self._cuts[:, segment]

    def add_field(self, values: pa.Array, tag: bytes, is_deleted: Bools | None) -> None:
        """Add a field with a new value in each message that has one."""
        is_everywhere = not values.null_count and (is_deleted is None or not is_deleted.any())
        _, offsets, data = pc.cast(values, pa.large_binary()).buffers()
        bounds = np.frombuffer(offsets, dtype=np.int64)[values.offset : values.offset + self._rows + 1]
        content = b"" if data is None else np.frombuffer(data, dtype=np.uint8)[bounds[0] : bounds[-1]]
        bounds = bounds - bounds[0]
        if is_everywhere and (sizes := np.diff(bounds)).min() == sizes.max():
            self._add_field_of_equal_size(content, int(sizes[0]), tag)
            return
        present = values.is_valid().to_numpy(zero_copy_only=False)
        if is_deleted is not None:
            present = present & ~is_deleted
        lengths, which = np.unique(np.diff(bounds), return_inverse=True)
        heads = [tag + varint(length) for length in lengths.tolist()]
        head = self._pieces.add(b"".join(heads), bounds_of(np.array([*map(len, heads)])))
        value = self._pieces.add(content, bounds)
        rows = np.arange(self._rows, dtype=np.int64)
        self._choice.append(np.where(present, head + which, self._empty))
        self._choice.append(np.where(present, value + rows, self._empty))
        head_sizes = np.array([*map(len, heads)])[which]
        self._sizes += np.where(present, head_sizes + np.diff(bounds), 0)

    def _add_field_of_equal_size(self, content: bytes | Bytes, size: int, tag: bytes) -> None:
        """Append a protobuf field to every message; each value has the same size."""
        head = tag + varint(size)
        # items of raw bytes: numpy copies each item at once, but the bytes of a row of an array one by one
        fields = np.empty(self._rows, dtype=[("head", f"V{len(head)}"), ("value", f"V{size}")])
        fields["head"] = np.void(head)
        if size:
            fields["value"] = np.frombuffer(content, dtype=f"V{size}")
        rows = np.arange(self._rows + 1, dtype=np.int64)
        width = fields.dtype.itemsize
        self._choice.append(self._pieces.add(fields.view(np.uint8), rows * width) + rows[:-1])
        self._sizes += width

    def join(self) -> PackedBytes:
        """Return the messages."""
        if not self._choice:
            return PackedBytes(b"", np.zeros(self._rows, dtype=np.uint32))
        data = self._pieces.gatherer().gather(np.stack(self._choice, axis=1))
        return PackedBytes(data, self._sizes.astype(np.uint32))


class Maskers:
    """The maskers of the versions of a target's tables, made when they are first needed."""

    def __init__(self, key: MaskingKey | None) -> None:
        self._key = key
        self._made: dict[tuple[int, int], RowMasker] = {}

    def find(self, schema: TableSchema) -> RowMasker | None:
        """Return the masker of a version; None = its rows stay as they are. Raises ConfigError for a misfit."""
        if not isinstance(schema, ProjectedSchema):
            return None
        if schema.rules.misfit:
            raise ConfigError(f"{schema.qualified_name}: {schema.rules.misfit}")
        at = (schema.table_id, schema.version)
        known = self._made.get(at)
        if known is None or known.schema != schema:
            known = self._made[at] = RowMasker(schema, self._key)
        return known


def project_section(
    section: TableChanges, predicate: Predicate | None, version: TableSchema, maskers: Maskers
) -> TableChanges:
    """Return changes of a batch as a target gets them: rows outside its predicate as deletions, columns masked."""
    found = None
    if predicate is not None:
        found = as_keys(predicate, section.record_ids, section.rows, section.is_deleted, source_of(version))
    if found is not None:
        section = replace(section, rows=found[0], is_deleted=found[1])
    masker = maskers.find(version)
    return section if masker is None else masker.mask_changes(section)


def project_full_rows(rows: FullRows, predicate: Predicate | None, version: TableSchema, maskers: Maskers) -> FullRows:
    """Return rows of the full data as a target gets them: those inside its predicate, with their columns masked."""
    if predicate is not None:
        rows = select_full_rows(predicate, rows, source_of(version))
    masker = maskers.find(version)
    return rows if masker is None else masker.mask_full_rows(rows)
