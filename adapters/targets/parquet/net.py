"""Net changes of a lake's table: what the files of changes mean, on top of a state. Arrow only (architecture 2).

Of several changes of a key only the last one counts; a marker removes every row whose newest sequence is below its
number. The changes behind one state fit into memory: a state is rebuilt before they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from venus.adapters.targets.parquet.files import STATE_FIELDS, state_schema
from venus.adapters.targets.parquet.manifest import LakeTable, Manifest
from venus.codec.arrowchanges import CHANGE_FIELDS, DELETED, GONE_BEFORE, OFFSET, SEQUENCE
from venus.codec.arrowrows import Shape, default_of
from venus.model import Kind, TableSchema

_INDEX = "_index"
PIECE_ROWS = 262_144
#: Kinds between which a cast keeps every value, if Arrow makes it at all.
_NUMBERS = frozenset({Kind.INT, Kind.DECIMAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """What is to be done to a state."""

    keys: pa.Table  # of every row that was touched
    live: pa.Table  # rows as they are now
    floor: int  # rows of the state whose sequence is below this are gone


def evolves(old: Shape, new: Shape) -> bool:
    """Whether rows of the old shape can be put into the new one without asking the broker for them again."""
    if [_number(old.schema, k) for k in old.schema.key] != [_number(new.schema, k) for k in new.schema.key]:
        return False
    before = {c.number: (c, t) for c, t in zip(old.columns, old.types, strict=True)}
    for column, wanted in zip(new.columns, new.types, strict=True):
        if column.number not in before:
            continue  # rows from before have its default
        was, had = before[column.number]
        if had != wanted and not ({was.type.kind, column.type.kind} <= _NUMBERS and _widens(had, wanted)):
            return False
    return True


def _widens(had: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_integer(had) and pa.types.is_integer(wanted):
        return bool(had.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(wanted):
        whole = {16: 5, 32: 10, 64: 19}[had.bit_width] if pa.types.is_integer(had) else had.precision - had.scale
        scale = 0 if pa.types.is_integer(had) else had.scale
        return bool(wanted.precision - wanted.scale >= whole and wanted.scale >= scale)
    return False


def _number(schema: TableSchema, name: str) -> int:
    return next(c.number for c in schema.columns if c.name == name)


def reshaped(rows: pa.Table, old: Shape, new: Shape, own: Sequence[pa.Field]) -> pa.Table:
    """Return rows of the old shape in the columns of the new one, with VENUS's `own` columns kept."""
    names = {c.number: c.name for c in old.columns}
    columns = [
        rows.column(names[c.number]).cast(t) if c.number in names else default_of(c, t, rows.num_rows)
        for c, t in zip(new.columns, new.types, strict=True)
    ]
    values = pa.Table.from_arrays(columns, schema=pa.schema(new.fields))
    for field in own:
        values = values.append_column(field, rows.column(field.name))
    return values


def net(manifest: Manifest, table: LakeTable, shape: Shape, root: Path) -> Net:
    """Read the changes behind the newest state."""
    parts = [pa.schema([*shape.fields, *CHANGE_FIELDS]).empty_table()]
    for file in table.changes:
        rows = pq.read_table(root / file.path, partitioning=None)
        parts.append(reshaped(rows, manifest.shape(table, file.shape), shape, CHANGE_FIELDS))
    return net_of(pa.concat_tables(parts), shape, base_offset=table.base.offset)


def net_of(changes: pa.Table, shape: Shape, *, base_offset: int) -> Net:
    """Return what changes amount to; those that the state contains already do not count."""
    changes = changes.filter(pc.greater_equal(changes[OFFSET], base_offset))
    marks = pc.max(changes[GONE_BEFORE]).as_py()
    floor = -1 if marks is None else int(marks)
    rows = changes.filter(pc.is_null(changes[GONE_BEFORE]))
    keys = list(shape.schema.key)
    last = rows.group_by(keys).aggregate([(OFFSET, "max")])[f"{OFFSET}_max"]
    rows = rows.filter(pc.is_in(rows[OFFSET], value_set=last.combine_chunks()))
    is_live = pc.and_(pc.invert(rows[DELETED]), pc.greater_equal(rows[SEQUENCE], floor))
    live = rows.filter(is_live).select(state_schema(shape).names).cast(state_schema(shape))
    return Net(keys=rows.select(keys), live=live, floor=floor)


def untouched(rows: pa.Table, found: Net) -> pa.Table:
    """Return the rows of a state that the changes leave alone."""
    if found.floor >= 0:
        rows = rows.filter(pc.greater_equal(rows[SEQUENCE], found.floor))
    if not found.keys.num_rows or not rows.num_rows:
        return rows
    keys = found.keys.column_names
    numbered = rows.select(keys).append_column(_INDEX, pa.array(np.arange(rows.num_rows)))
    kept = numbered.join(found.keys, keys=keys, join_type="left anti")[_INDEX]
    return rows if len(kept) == rows.num_rows else rows.take(kept)


def state_rows(manifest: Manifest, table: LakeTable, shape: Shape, path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file of the newest state, piece by piece, in another shape if need be."""
    base = manifest.shape(table, table.base.shape)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=PIECE_ROWS):
            yield reshaped(pa.Table.from_batches([batch]), base, shape, STATE_FIELDS)
