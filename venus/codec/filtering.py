"""Which rows of a batch, or of the full data, are in a predicate. Only the columns that it names are taken out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from venus.codec.arrowrows import ColumnValues, default_of
from venus.codec.chunk import FullRows
from venus.codec.layout import Layout
from venus.codec.packed import Packed
from venus.codec.pieces import Bools
from venus.codec.stored import StoredRows
from venus.model import Column, TableSchema
from venus.predicates.judging import inside
from venus.predicates.ranges import Predicate


def inside_of(predicate: Predicate, record_ids: Packed, rows: Packed, version: TableSchema) -> Bools:
    """Say which rows of `version`, none of them deleted, are in a predicate. Raises ProtocolError for other bytes."""
    return _inside(predicate, ColumnValues.of(record_ids, rows, Layout.of(version)))


def as_keys(
    predicate: Predicate, record_ids: Packed, rows: Packed, is_deleted: Bools, version: TableSchema
) -> tuple[Packed, Bools] | None:
    """Return rows and deletion marks of changes for somebody with a predicate: what is outside becomes a deletion.

    None = they stay as they are. `record_ids` are not touched: as many changes as there were, in order.
    """
    live = ~is_deleted
    if not live.any():
        return None
    kept = live.copy()
    if live.all():
        kept[:] = inside_of(predicate, record_ids, rows, version)
    else:
        kept[live] = inside_of(predicate, _chosen(record_ids, live), _chosen(rows, live), version)
    if (kept == live).all():
        return None
    data = np.frombuffer(rows.data, dtype=np.uint8)[np.repeat(kept, rows.sizes)].tobytes()
    return Packed(data, np.where(kept, rows.sizes, 0).astype(np.uint32)), ~kept


def stored_inside(predicate: Predicate, rows: StoredRows, version: TableSchema) -> Bools:
    """Say which stored rows, all of one version, are in a predicate."""
    return _inside(predicate, ColumnValues.of_stored(rows, Layout.of(version)))


def _chosen(packed: Packed, chosen: Bools) -> Packed:
    data = np.frombuffer(packed.data, dtype=np.uint8)[np.repeat(chosen, packed.sizes)].tobytes()
    return Packed(data, packed.sizes[chosen])


def full_inside(predicate: Predicate, rows: FullRows, version: TableSchema) -> FullRows:
    """Return those rows of the full data that are in a predicate."""
    stored = rows.stored.where(stored_inside(predicate, rows.stored, version))
    return FullRows(table_id=rows.table_id, schema_version=rows.schema_version, stored=stored)


def _inside(predicate: Predicate, values: ColumnValues) -> Bools:
    def column(wanted: Column) -> pa.Array:
        found = values.column(wanted.number)
        # what was written before the column was added has its default, at the source and at every target
        return default_of(wanted, pa.string(), values.rows) if found is None else found

    return inside(predicate, column, values.rows)
