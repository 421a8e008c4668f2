"""Which rows of a batch, or of the full data, are in a predicate. Only the columns that it names are taken out."""

from __future__ import annotations

import pyarrow as pa

from venus.codec.arrowrows import ColumnValues, default_of
from venus.codec.chunk import FullRows
from venus.codec.layout import Layout
from venus.codec.packed import Packed
from venus.codec.pieces import Bools
from venus.model import Column, TableSchema
from venus.predicates.judging import inside
from venus.predicates.ranges import Predicate


def inside_of(predicate: Predicate, record_ids: Packed, rows: Packed, version: TableSchema) -> Bools:
    """Say which rows of `version`, none of them deleted, are in a predicate. Raises ProtocolError for other bytes."""
    return _inside(predicate, ColumnValues.of(record_ids, rows, Layout.of(version)))


def full_inside(predicate: Predicate, rows: FullRows, version: TableSchema) -> FullRows:
    """Return those rows of the full data that are in a predicate."""
    chosen = _inside(predicate, ColumnValues.of_stored(rows.stored, Layout.of(version)))
    return FullRows(table_id=rows.table_id, schema_version=rows.schema_version, stored=rows.stored.where(chosen))


def _inside(predicate: Predicate, values: ColumnValues) -> Bools:
    def column(wanted: Column) -> pa.Array:
        found = values.column(wanted.number)
        # what was written before the column was added has its default, at the source and at every target
        return default_of(wanted, pa.string(), values.rows) if found is None else found

    return inside(predicate, column, values.rows)
