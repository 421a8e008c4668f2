"""The rows of a batch, or of the full data, inside a predicate. Only the columns that it names are extracted."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from venus.codec.arrow_rows import ColumnValues, default_values
from venus.codec.packed import Bools, PackedBytes
from venus.codec.row_bytes import Layout
from venus.codec.stored_rows import FullRows, StoredRows
from venus.model import Column, TableSchema
from venus.predicates.evaluation import Values, evaluate_predicate
from venus.predicates.ranges import Predicate

#: Rows are copied one by one if fewer than one in this many is kept.
_FEW = 8


def find_inside(predicate: Predicate, record_ids: PackedBytes, rows: PackedBytes, version: TableSchema) -> Bools:
    """Return which rows of `version`, none of them deleted, are inside a predicate. Raises ProtocolError for damage."""
    return _find_inside(predicate, ColumnValues.of(record_ids, rows, Layout.of(version)))


def as_keys(
    predicate: Predicate, record_ids: PackedBytes, rows: PackedBytes, is_deleted: Bools, version: TableSchema
) -> tuple[PackedBytes, Bools] | None:
    """Return rows and deletion marks of changes for a reader with a predicate: changes outside it become deletions.

    None = all stay as they are. `record_ids` are unchanged: the same number of changes in the same order.
    """
    opened = OpenRows(record_ids, rows, is_deleted, version)
    kept = opened.find_kept(predicate)
    return opened.as_keys(kept) if kept is not None else None


class OpenRows:
    """Changes of one version that several predicates judge: each column that they need is extracted once.

    Threads may share it: two that extract a column at the same time get the same result.
    """

    def __init__(self, record_ids: PackedBytes, rows: PackedBytes, is_deleted: Bools, version: TableSchema) -> None:
        self._record_ids, self._rows, self.is_deleted, self._version = record_ids, rows, is_deleted, version
        self._live: Bools = ~is_deleted
        self._count = int(self._live.sum())
        self._columns: dict[int, Values] = {}

    @cached_property
    def _values(self) -> ColumnValues:
        """The values of the rows that are not deleted."""
        ids, rows = self._record_ids, self._rows
        if self._count < len(self._live):
            ids, rows = _select(ids, self._live), _select(rows, self._live)
        return ColumnValues.of(ids, rows, Layout.of(self._version))

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        """The position in the packed bytes at which each row ends."""
        return np.cumsum(self._rows.sizes, dtype=np.int64)

    def find_kept(self, predicate: Predicate) -> Bools | None:
        """Return which changes a reader with a predicate gets unchanged; None = all. The rest is reduced to keys."""
        if not self._count:
            return None
        found = _find_inside(predicate, self._values, self._column)
        if found.all():
            return None
        kept = self._live.copy()
        kept[self._live] = found
        return kept

    def as_keys(self, kept: Bools) -> tuple[PackedBytes, Bools]:
        """Return rows and deletion marks, with all changes but those in `kept` reduced to their keys."""
        sizes = np.where(kept, self._rows.sizes, 0).astype(np.uint32)
        return PackedBytes(self._bytes(kept), sizes), ~kept

    def _column(self, wanted: Column) -> Values:
        """Return the values of a column, extracted at the first use."""
        found = self._columns.get(wanted.number)
        if found is None:
            found = self._columns[wanted.number] = Values(_read_column(self._values, wanted))
        return found

    def _bytes(self, kept: Bools) -> bytes:
        """Return the bytes of the kept rows: row by row if they are few, else by a mask."""
        rows = self._rows
        places = np.flatnonzero(kept)
        if _FEW * len(places) >= len(kept):
            return np.frombuffer(rows.data, dtype=np.uint8)[np.repeat(kept, rows.sizes)].tobytes()
        data, ends = memoryview(rows.data), self._ends[places]
        starts = ends - rows.sizes[places]
        return b"".join(data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))


def find_stored_inside(predicate: Predicate, rows: StoredRows, version: TableSchema) -> Bools:
    """Return which stored rows, all of one version, are inside a predicate."""
    return _find_inside(predicate, ColumnValues.of_stored_rows(rows, Layout.of(version)))


def _select(packed: PackedBytes, chosen: Bools) -> PackedBytes:
    """Return the chosen byte strings."""
    data = np.frombuffer(packed.data, dtype=np.uint8)[np.repeat(chosen, packed.sizes)].tobytes()
    return PackedBytes(data, packed.sizes[chosen])


def select_full_rows(predicate: Predicate, rows: FullRows, version: TableSchema) -> FullRows:
    """Return the rows of the full data that are inside a predicate."""
    stored = rows.stored.select(find_stored_inside(predicate, rows.stored, version))
    return FullRows(table_id=rows.table_id, schema_version=rows.schema_version, stored=stored)


def _find_inside(
    predicate: Predicate, values: ColumnValues, column_of: Callable[[Column], Values] | None = None
) -> Bools:
    """Return which rows are inside a predicate; `column_of` gives columns that are extracted already."""
    return evaluate_predicate(predicate, column_of or (lambda wanted: _read_column(values, wanted)), values.rows)


def _read_column(values: ColumnValues, wanted: Column) -> pa.Array:
    """Return the values of a column; rows older than the column have its default."""
    found = values.column(wanted.number)
    # rows written before the column was added have its default, at the source and at every target
    return default_values(wanted, pa.string(), values.rows) if found is None else found
