"""Row bytes to Arrow columns, for whole batches at once: the input of Spark and of Parquet files.

The codec locates the values. One call gathers the values of a column, another parses them; no object is made per row.
Rows of an older schema version are returned in the columns of the requested version. Columns are matched by number: a
column that did not exist yet has its default, a dropped column is left out.

A column gets an Arrow type only if that type holds each of its values exactly. Otherwise it stays text: the canonical
text of protos/venus/wire/change.proto, which loses nothing. Values that the source's type allows and Arrow's does not
(a date before Christ, NaN in a decimal) raise `ValueMisfit` when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from venus.codec.batch import TableChanges
from venus.codec.copy_text import read_keys, read_others, read_whole_rows
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout, LocatedCells
from venus.codec.stored_rows import HEAD_BYTES, StoredRows
from venus.errors import ConfigError, UnsupportedType
from venus.model import ChangeKind, Column, Kind, LogicalType, Sequence, TableSchema

#: Digits of Arrow's and Spark's widest decimal.
_DIGITS_MAX = 38
_FRACTION_MAX = 6
_INTS = {2: pa.int16(), 4: pa.int32(), 8: pa.int64()}


def arrow_type(logical: LogicalType) -> pa.DataType:
    """Return the type for values of this kind; text if there is no exact counterpart."""
    match logical.kind:
        case Kind.INT:
            return _INTS.get(logical.length, pa.string())
        case Kind.FLOAT:
            return pa.float32() if logical.length == 4 else pa.float64()
        case Kind.DECIMAL:
            return _decimal(logical.precision, logical.scale)
        case Kind.BYTES:
            return pa.binary()
        case Kind.BOOL:
            return pa.bool_()
        case Kind.DATE:
            return pa.date32()
        case Kind.TIMESTAMP if logical.precision <= _FRACTION_MAX:
            return pa.timestamp("us")
        case Kind.TIMESTAMPTZ if logical.precision <= _FRACTION_MAX:
            return pa.timestamp("us", tz="UTC")
    return pa.string()


def _decimal(precision: int, scale: int) -> pa.DataType:
    """Return the decimal type for a precision and scale, text if Arrow has none."""
    if scale < 0:  # NUMBER(5,-2) has up to seven digits, none after the point
        precision, scale = precision - scale, 0
    precision = max(precision, scale)  # NUMBER(2,5) is 0.000xx
    return pa.decimal128(precision, scale) if 0 < precision <= _DIGITS_MAX else pa.string()


def becomes_text(logical: LogicalType) -> bool:
    """Return whether Arrow holds values of this type as text because no Arrow type holds them exactly."""
    textual = logical.kind in (Kind.TEXT, Kind.CHAR, Kind.JSON, Kind.UUID)
    return not textual and arrow_type(logical) == pa.string()


def column_type(column: Column, text_columns: frozenset[str] = frozenset()) -> pa.DataType:
    """Return a column's type; `text_columns` are those that an operator or a misfit has changed to text."""
    if column.name in text_columns and column.type.kind is not Kind.BYTES:
        return pa.string()
    return arrow_type(column.type)


_LITERAL = re.compile(r"'(?P<text>(?:[^']|'')*)'|(?P<bare>[-+]?[\d.]+(?:[eE][-+]?\d+)?|true|false)", re.IGNORECASE)
_SHOWN_MAX = 60


class ValueMisfit(UnsupportedType):
    """A value does not fit the Arrow type of its column."""

    def __init__(self, table: str, column: str, value: str, wanted: pa.DataType) -> None:
        super().__init__(
            f"{table}: column {column} has {value[:_SHOWN_MAX]!r}, which is no {wanted}",
            hint=f"read it as text: add {column} to the option text_columns, or say STRING in the schema",
        )
        self.column = column

    def __reduce__(self) -> tuple[type[UnsupportedType], tuple[str]]:
        return UnsupportedType, (str(self),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowShape:
    """The wanted columns of a table, and their Arrow types."""

    schema: TableSchema
    columns: tuple[Column, ...]
    types: tuple[pa.DataType, ...]

    @classmethod
    def of(cls, schema: TableSchema, names: Seq[str] = (), text_columns: frozenset[str] = frozenset()) -> ArrowShape:
        """Return the shape of the named columns, or of all in the order of the table."""
        by_name = {c.name: c for c in schema.columns}
        for name in (*names, *sorted(text_columns)):
            if name not in by_name:
                raise ConfigError(
                    f"{schema.qualified_name} has no column {name!r}", hint=f"it has: {', '.join(by_name)}"
                )
        columns = tuple(by_name[n] for n in names) if names else schema.columns
        return cls(schema=schema, columns=columns, types=tuple(column_type(c, text_columns) for c in columns))

    @property
    def fields(self) -> list[pa.Field]:
        """The columns as Arrow fields; all may be NULL, because a deleted row has only its key."""
        return [pa.field(c.name, t) for c, t in zip(self.columns, self.types, strict=True)]

    def arrays(self, record_ids: PackedBytes, rows: PackedBytes, version: TableSchema) -> list[pa.Array]:
        """Return the values of rows that were written in `version`. Raises ValueMisfit."""
        cells = ColumnValues.of(record_ids, rows, Layout.of(version))
        dropped = version.version > self.schema.version  # a missing column existed before, and was dropped
        return [self._array(cells, c, t, dropped=dropped) for c, t in zip(self.columns, self.types, strict=True)]

    def _array(self, cells: ColumnValues, column: Column, wanted: pa.DataType, *, dropped: bool) -> pa.Array:
        """Return the values of one column in its wanted type. Raises ValueMisfit."""
        raw = cells.column(column.number)
        if raw is None:
            return pa.nulls(cells.rows, wanted) if dropped else default_values(column, wanted, cells.rows)
        try:
            return parse_values(raw, column, wanted)
        except pa.ArrowInvalid:
            raise ValueMisfit(
                self.schema.qualified_name, column.name, _find_misfit(raw, column, wanted), wanted
            ) from None


class ColumnValues:
    """The values of some rows of one version, extracted column by column."""

    def __init__(self, rows: int, parts: Seq[tuple[LocatedCells, Seq[int]]]) -> None:
        self.rows = rows
        self._places = {number: (found, i) for found, numbers in parts for i, number in enumerate(numbers)}
        self._pieces: dict[int, pa.Array] = {}

    @classmethod
    def of(cls, record_ids: PackedBytes, rows: PackedBytes, layout: Layout) -> ColumnValues:
        """Wrap record ids and rows, the two parts of a section of a batch."""
        keys, others = read_keys(record_ids, layout), read_others(rows, len(record_ids), layout)
        first = layout.key_count
        return cls(len(record_ids), [(keys, layout.numbers[:first]), (others, layout.numbers[first:])])

    @classmethod
    def of_stored_rows(cls, rows: StoredRows, layout: Layout) -> ColumnValues:
        """Wrap stored rows of the full data without copying them."""
        return cls(len(rows), [(read_whole_rows(rows.packed, layout, head=HEAD_BYTES), layout.numbers)])

    def column(self, number: int) -> pa.Array | None:
        """Return the values of a column as bytes, None if this version has no such column."""
        if number not in self._places:
            return None
        found, index = self._places[number]
        if id(found) not in self._pieces:
            self._pieces[id(found)] = _cell_pieces(found)
        choice = np.arange(self.rows, dtype=np.int64) * (2 * found.present.shape[1]) + (2 * index + 1)
        present = found.present[:, index]
        choice = pa.array(choice) if present.all() else pa.array(choice, mask=~present)
        return pc.take(self._pieces[id(found)], choice, boundscheck=False)


def _cell_pieces(found: LocatedCells) -> pa.Array:
    """Cut the bytes of all rows where a value begins or ends; value k is then piece 2k + 1."""
    bounds = np.zeros(found.cuts.size + 2, dtype=np.int64)
    cuts = found.cuts.copy()
    cuts[:, :, 0] += found.present  # a present cell begins with its free byte
    bounds[1:-1] = cuts.reshape(-1)
    bounds[-1] = len(found.data)
    return pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(found.data)]
    )


def parse_values(raw: pa.Array, column: Column, wanted: pa.DataType) -> pa.Array:
    """Return canonical text (bytes of a binary column) as the type wanted. Raises pa.ArrowInvalid."""
    if column.type.kind is Kind.BYTES:
        return pc.cast(raw, wanted)
    text = pc.cast(raw, pa.string())
    if pa.types.is_string(wanted):
        return text
    if column.type.kind is Kind.BOOL and pa.types.is_boolean(wanted):
        known = pc.is_in(text, value_set=pa.array(["t", "f", None], pa.string()))
        if pc.any(pc.invert(known)).as_py():
            raise pa.ArrowInvalid("neither t nor f")
        return pc.equal(text, "t")
    return pc.cast(text, wanted)


def _find_misfit(raw: pa.Array, column: Column, wanted: pa.DataType) -> str:
    """Return the first value that does not fit, tried one by one."""
    for value in raw:
        try:
            parse_values(pa.array([value.as_py()], type=pa.large_binary()), column, wanted)
        except pa.ArrowInvalid:
            return bytes(value.as_py()).decode(errors="replace")
    return "a value"


def default_values(column: Column, wanted: pa.DataType, rows: int) -> pa.Array:
    """Return the values of rows older than the column: its default if that is a literal, else NULL."""
    literal = _LITERAL.fullmatch(column.default_sql.strip())
    if literal is None or column.type.kind is Kind.BYTES:
        return pa.nulls(rows, wanted)
    text = literal["bare"] if literal["text"] is None else literal["text"].replace("''", "'")
    if column.type.kind is Kind.BOOL:
        text = text[:1].lower().replace("1", "t").replace("0", "f")
    try:
        return pa.repeat(parse_values(pa.array([text.encode()], type=pa.large_binary()), column, wanted)[0], rows)
    except pa.ArrowInvalid:
        return pa.nulls(rows, wanted)


#: VENUS's own columns.
OFFSET, SEQUENCE, DELETED, GONE_BEFORE, COMMITTED = "_offset", "_sequence", "_deleted", "_gone_before", "_committed_at"
CHANGE_FIELDS = (
    pa.field(OFFSET, pa.int64()),
    pa.field(SEQUENCE, pa.int64()),
    pa.field(DELETED, pa.bool_()),
    #: On a marker, which has no key: rows whose newest sequence is below this are removed (TRUNCATE, end of a sweep).
    pa.field(GONE_BEFORE, pa.int64()),
    pa.field(COMMITTED, pa.timestamp("us", tz="UTC")),
)


def deletion_floor(section: TableChanges, sequence: int) -> Sequence | None:
    """Return the Sequence below which a truncation or the end of a sweep deletes rows; None for other sections."""
    if section.kind is ChangeKind.TRUNCATE:
        return Sequence(sequence)
    return section.sweep_before if section.kind is ChangeKind.SWEEP_END else None
