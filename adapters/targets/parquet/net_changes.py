"""Net changes of a lake's table: the effect of the files of changes on a state. Uses Arrow only (architecture 2).

Of several changes of a key only the last one counts. A marker removes every row whose newest sequence is below its
number. Keys and VENUS's own columns decide which changes count, so only these have to fit into memory. The rows
themselves are read a second time, piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from venus.adapters.targets.parquet.files import STATE_FIELDS, state_schema
from venus.adapters.targets.parquet.manifest import LakeManifest, LakeTable
from venus.codec.arrow_rows import CHANGE_FIELDS, DELETED, GONE_BEFORE, OFFSET, SEQUENCE, ArrowShape, default_values
from venus.codec.packed import Bools, Ints
from venus.model import Kind, TableSchema

_INDEX = "_index"
#: How much of a file is in memory at once: rows, or bytes if rows are large.
PIECE_ROWS, PIECE_BYTES = 262_144, 64 << 20
#: The columns that decide, together with the keys, which changes count.
_DECIDING = tuple(f for f in CHANGE_FIELDS if f.name in (OFFSET, SEQUENCE, DELETED, GONE_BEFORE))
#: Kinds between which a cast keeps every value, if Arrow supports the cast.
_NUMBERS = frozenset({Kind.INT, Kind.DECIMAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeNetChanges:
    """The effect of changes on a state."""

    keys: pa.Table  # of every changed row
    live: Bools  # marks the changes that are current rows, in the order of their files
    floor: int  # rows of the state with a lower sequence are deleted


def can_convert(old: ArrowShape, new: ArrowShape) -> bool:
    """Return whether rows of the old shape can be converted to the new one without reading them from the broker."""
    if [_column_number(old.schema, k) for k in old.schema.key] != [
        _column_number(new.schema, k) for k in new.schema.key
    ]:
        return False
    before = {c.number: (c, t) for c, t in zip(old.columns, old.types, strict=True)}
    for column, wanted in zip(new.columns, new.types, strict=True):
        if column.number not in before:
            continue  # older rows get its default
        was, had = before[column.number]
        if had != wanted and not ({was.type.kind, column.type.kind} <= _NUMBERS and _can_widen(had, wanted)):
            return False
    return True


def _can_widen(had: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_integer(had) and pa.types.is_integer(wanted):
        return bool(had.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(wanted):
        whole = {16: 5, 32: 10, 64: 19}[had.bit_width] if pa.types.is_integer(had) else had.precision - had.scale
        scale = 0 if pa.types.is_integer(had) else had.scale
        return bool(wanted.precision - wanted.scale >= whole and wanted.scale >= scale)
    return False


def _column_number(schema: TableSchema, name: str) -> int:
    return next(c.number for c in schema.columns if c.name == name)


def convert_rows(rows: pa.Table, old: ArrowShape, new: ArrowShape, own: Sequence[pa.Field]) -> pa.Table:
    """Return rows of the old shape in the columns of the new one, followed by VENUS's `own` columns."""
    names = {c.number: c.name for c in old.columns}
    columns = [
        rows.column(names[c.number]).cast(t) if c.number in names else default_values(c, t, rows.num_rows)
        for c, t in zip(new.columns, new.types, strict=True)
    ]
    values = pa.Table.from_arrays(columns, schema=pa.schema(new.fields))
    for field in own:
        values = values.append_column(field, rows.column(field.name))
    return values


def key_shape(shape: ArrowShape) -> ArrowShape:
    """Return the shape of the key columns."""
    chosen = [(c, t) for c, t in zip(shape.columns, shape.types, strict=True) if c.name in shape.schema.key]
    return replace(shape, columns=tuple(c for c, _ in chosen), types=tuple(t for _, t in chosen))


def deciding_columns(shape: ArrowShape) -> list[str]:
    """Return the columns of a file of changes that decide which changes count."""
    return [*shape.schema.key, *(field.name for field in _DECIDING)]


def read_net_changes(manifest: LakeManifest, table: LakeTable, shape: ArrowShape, root: Path) -> LakeNetChanges:
    """Find which of the changes behind the newest state count."""
    keys = key_shape(shape)
    parts = [pa.schema([*keys.fields, *_DECIDING]).empty_table()]
    for file in table.changes:
        was = manifest.shape(table, file.shape)
        rows = pq.read_table(root / file.path, columns=deciding_columns(was), partitioning=None)
        parts.append(convert_rows(rows, was, keys, _DECIDING))
    return compute_net_changes(pa.concat_tables(parts), keys.schema.key, base_offset=table.base.offset)


def compute_net_changes(changes: pa.Table, key: Sequence[str], *, base_offset: int) -> LakeNetChanges:
    """Return the net effect of changes, without those that the state already contains."""
    counts = pc.greater_equal(changes[OFFSET], base_offset)
    marks = pc.max(changes[GONE_BEFORE].filter(counts)).as_py()
    floor = -1 if marks is None else int(marks)
    is_row = pc.and_(counts, pc.is_null(changes[GONE_BEFORE]))
    at = np.flatnonzero(is_row.to_numpy())
    keys = changes.select(list(key)).filter(is_row)
    last = _last_positions(keys)
    live = np.zeros(changes.num_rows, dtype=np.bool_)
    live[at[last]] = True
    live &= pc.and_(pc.invert(changes[DELETED]), pc.greater_equal(changes[SEQUENCE], floor)).to_numpy()
    return LakeNetChanges(keys=keys.take(last), live=live, floor=floor)


def _last_positions(keys: pa.Table) -> Ints:
    """Return the last position of each key. Sorting takes a third of the memory that grouping takes."""
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])  # stable
    ends = np.ones(keys.num_rows, dtype=np.bool_)
    if keys.num_rows > 1:
        differs = [_differs_from_next(column.take(order)) for column in keys.columns]
        ends[:-1] = np.logical_or.reduce(differs)
    found: Ints = order.to_numpy()[ends].astype(np.int64)
    return found


def _differs_from_next(values: pa.ChunkedArray) -> Bools:
    one = values.combine_chunks()
    differs = pc.not_equal(one[1:], one[:-1])
    if pa.types.is_floating(one.type):  # all NaN are one key, although IEEE 754 compares them as different
        differs = pc.and_not(differs, pc.and_(pc.is_nan(one[1:]), pc.is_nan(one[:-1])))
    found: Bools = differs.to_numpy(zero_copy_only=False)
    return found


def live_rows(changes: Iterable[pa.Table], found: LakeNetChanges, shape: ArrowShape) -> Iterator[pa.Table]:
    """Yield the current rows among all changes, in the columns of a state. `changes` follow the order of the files."""
    schema, at = state_schema(shape), 0
    for part in changes:
        chosen = found.live[at : at + part.num_rows]
        at += part.num_rows
        if chosen.any():
            yield part.filter(pa.array(chosen)).select(schema.names).cast(schema)


def change_rows(manifest: LakeManifest, table: LakeTable, shape: ArrowShape, root: Path) -> Iterator[pa.Table]:
    """Yield the changes behind the newest state, piece by piece."""
    for file in table.changes:
        was = manifest.shape(table, file.shape)
        for rows in read_pieces(root / file.path):
            yield convert_rows(rows, was, shape, CHANGE_FIELDS)


def untouched_rows(rows: pa.Table, found: LakeNetChanges) -> pa.Table:
    """Return the rows of a state that no change affects."""
    if found.floor >= 0:
        rows = rows.filter(pc.greater_equal(rows[SEQUENCE], found.floor))
    if not found.keys.num_rows or not rows.num_rows:
        return rows
    keys = found.keys.column_names
    numbered = rows.select(keys).append_column(_INDEX, pa.array(np.arange(rows.num_rows)))
    kept = numbered.join(found.keys, keys=keys, join_type="left anti")[_INDEX]
    return rows if len(kept) == rows.num_rows else rows.take(kept)


def state_rows(manifest: LakeManifest, table: LakeTable, shape: ArrowShape, path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file of the newest state in `shape`, piece by piece."""
    base = manifest.shape(table, table.base.shape)
    for rows in read_pieces(path):
        yield convert_rows(rows, base, shape, STATE_FIELDS)


def read_pieces(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file, as many row groups at once as fit into a piece."""
    with pq.ParquetFile(path) as file:
        groups: list[int] = []
        rows = nbytes = 0
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            if groups and (rows + group.num_rows > PIECE_ROWS or nbytes + group.total_byte_size > PIECE_BYTES):
                yield file.read_row_groups(groups)
                groups, rows, nbytes = [], 0, 0
            groups.append(number)
            rows, nbytes = rows + group.num_rows, nbytes + group.total_byte_size
        if groups:
            yield file.read_row_groups(groups)
