"""Python values column by column to row bytes and back, for sources and targets that do not use COPY (VENUS 3.2).

Values are canonical text as str, bytes for binary columns, None for NULL.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from venus.codec.arrow_rows import ColumnValues
from venus.codec.copy_text import check_nulls, read_keys, read_others
from venus.codec.packed import Ints, PackedBytes, Pieces
from venus.codec.row_bytes import Cells, Layout, LocatedCells, bounds_of, few_rows_to_columns, write_rows
from venus.errors import ProtocolError

Value = str | bytes | None
Columns = Seq[Seq[Value]]


def from_columns(columns: Columns, layout: Layout) -> tuple[PackedBytes, PackedBytes]:
    """Return record ids and rows of the values of each column in wire order.

    Raises ProtocolError, naming column and row, for a value of another type than its column's and for a NULL key.
    """
    return write_rows(_build_cells(columns, layout, len(layout.columns)), layout.tags, layout.key_count)


def keys_from_columns(columns: Columns, layout: Layout) -> PackedBytes:
    """Return record ids of the values of the key columns in key order."""
    return write_rows(
        _build_cells(columns, layout, layout.key_count), layout.tags[: layout.key_count], layout.key_count
    )[0]


def _build_cells(columns: Columns, layout: Layout, expected: int) -> Cells:
    """Return the values of columns as cells. Raises ProtocolError."""
    if len(columns) != expected:
        raise ProtocolError(f"{layout.place}: {len(columns)} columns, not {expected}")
    rows = len(columns[0])
    if any(len(c) != rows for c in columns):
        raise ProtocolError(f"{layout.place}: columns of different lengths")
    pieces = Pieces()
    choice = np.empty((rows, expected), dtype=np.int64)
    present = np.empty((rows, expected), dtype=np.bool_)
    for j, column in enumerate(columns):
        present[:, j] = [v is not None for v in column] if None in column else True
        data, bounds = _join_values(column, layout, j)
        choice[:, j] = pieces.add(data, bounds) + np.arange(rows)
    check_nulls(present, np.zeros(rows, dtype=np.bool_), layout)
    return Cells(*pieces.gatherer().gather_array(choice), present)


def _join_values(column: Seq[Value], layout: Layout, index: int) -> tuple[bytes, Ints]:
    """Return a column's values, each after a zero byte, and the positions of these bytes."""
    if not column:
        return b"", np.zeros(1, dtype=np.int64)
    binary = layout.binary[index]
    empty: str | bytes = b"" if binary else ""
    values = [empty if v is None else v for v in column] if None in column else column
    try:
        # The join checks the type of every value, and one call encodes them all.
        data = b"\0" + (b"\0".join(values) if binary else "\0".join(values).encode())  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError) as e:
        raise _misfit_error(column, layout, index) from e
    if not binary and data.count(0) == len(values):
        bounds = np.append(np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == 0), len(data))
        return data, bounds
    lengths = map(len, values if binary else map(str.encode, values))  # type: ignore[arg-type]
    return data, bounds_of(np.fromiter(lengths, dtype=np.int64, count=len(values)) + 1)


def _misfit_error(column: Seq[Value], layout: Layout, index: int) -> ProtocolError:
    """Return the error for the first value that does not fit its column."""
    wanted = bytes if layout.binary[index] else str
    place = f"{layout.place}: column {layout.columns[index].name}"
    for row, value in enumerate(column, 1):
        if value is not None and not isinstance(value, wanted):
            return ProtocolError(f"{place} has {type(value).__name__} in row {row}, not {wanted.__name__}")
        if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            return ProtocolError(f"{place} has text in row {row} that is not valid Unicode")
    return ProtocolError(f"{place} does not fit")


def to_columns(record_ids: PackedBytes, rows: PackedBytes, layout: Layout) -> list[list[Value]]:
    """Return the values of each column in wire order. Raises ProtocolError for bytes that do not fit `layout`."""
    made = (
        few_rows_to_columns(rows, layout, layout.key_count, len(layout.tags)) if len(rows) == len(record_ids) else None
    )
    if made is None:
        made = _to_lists(read_others(rows, len(record_ids), layout), layout, layout.key_count)
    return keys_to_columns(record_ids, layout) + made


def keys_to_columns(record_ids: PackedBytes, layout: Layout) -> list[list[Value]]:
    """Return the values of each key column in key order."""
    made = few_rows_to_columns(record_ids, layout, 0, layout.key_count)
    if made is not None and not any(None in column for column in made):
        return made
    return _to_lists(read_keys(record_ids, layout), layout, 0)


def _to_lists(found: LocatedCells, layout: Layout, first: int) -> list[list[Value]]:
    """Return the values of the located columns as lists; `first` is the first one's place in the layout."""
    cells = ColumnValues(len(found.present), [(found, range(found.present.shape[1]))])
    return [_to_list(cells.column(j), layout, first + j) for j in range(found.present.shape[1])]


def _to_list(values: pa.Array, layout: Layout, index: int) -> list[Value]:
    """Return the values of a column; Arrow makes the objects."""
    if not layout.binary[index]:
        try:
            values = pc.cast(values, pa.large_string())
        except pa.ArrowInvalid as e:
            raise ProtocolError(f"{layout.place}: column {layout.columns[index].name} is not UTF-8") from e
    found: list[Value] = values.to_numpy(zero_copy_only=False).tolist()
    return found


def row_as_dict(record_id: bytes, row: bytes, layout: Layout) -> dict[str, Value]:
    """Return one row by column name, for display: quarantine, status, messages."""
    values = to_columns(PackedBytes.of([record_id]), PackedBytes.of([row]), layout)
    return {column.name: value[0] for column, value in zip(layout.columns, values, strict=True)}
