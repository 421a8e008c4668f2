"""Conversion of a captured table's rows to sections: bounded reading, canonical text, limits, packed bytes.

The rows come from a snapshot, and the sections become batches. A dialect supplies the SQL and converts a column's
values to canonical text; later steps see only this text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from venus.adapters.dialects.column_choice import WAY_OUT
from venus.adapters.dialects.registry_rules import UnfitRow
from venus.codec.batch import TableChanges
from venus.codec.columns import Value, from_columns, keys_from_columns
from venus.codec.packed import Ints, PackedBytes
from venus.codec.row_bytes import Layout
from venus.errors import DatabaseUnavailable, ProtocolError, SourceError
from venus.model import Finding
from venus.rpc.channel import MESSAGE_BYTES_MAX

Row = tuple[Any, ...]

#: A message carries the whole row with its key, its position in the batch and at worst every table's description.
ROW_BYTES_MAX = MESSAGE_BYTES_MAX - (1 << 20)
#: How many rows are fetched at a time if a row may be large: a section exceeds its limit by at most this many.
WIDE_PIECE_ROWS = 16
#: Assumed size of a value whose type has no length.
VALUE_BYTES = 10
#: Overhead of a row and of a section, as TableChanges.nbytes counts it.
_ROW_OVERHEAD = 9
_SECTION_OVERHEAD = 32


@dataclass(frozen=True, slots=True)
class FillCursor:
    """The cursor of a fill: the last key that was read, and the key at which the fill ends, as JSON of the dialect.

    The end is the greatest key that the first chunk's snapshot shows. Rows after that key were written later and are
    in the log, so the fill skips them. Without this end, a fill would never finish where the application appends
    faster than chunks are read.
    """

    after: list[Any]
    end: list[Any] | None = None  # None: unknown, as in a fill that an older version began

    @classmethod
    def parse(cls, cursor: bytes) -> FillCursor:
        """Parse a cursor; an older version stored the key alone."""
        found = json.loads(cursor)
        return cls(found) if isinstance(found, list) else cls(found["after"], found["end"])

    @property
    def cursor(self) -> bytes:
        """The bytes of this cursor that the registry stores."""
        return json.dumps({"after": self.after, "end": self.end}, ensure_ascii=False).encode()


def describe_size(nbytes: int) -> str:
    """Describe the size of a row that is too large to be carried, and the limit."""
    return f"{nbytes / (1 << 20):.1f} MiB, a row can have {ROW_BYTES_MAX >> 20} MiB"


#: How long `venus check` and `venus assess` count the rows of all tables that are too large.
COUNT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeValues:
    """The columns of one table whose values may be larger than a message."""

    table: str
    columns: Seq[str]
    #: Returns the number of its rows and of large rows; the argument is the time limit in seconds.
    count: Callable[[float], Seq[Any]]


def find_large_rows(
    tables: Iterable[LargeValues], monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Finding]:
    """Yield the tables with rows that are larger than a message, and those that could not be counted in time."""
    until, uncounted, limit = monotonic() + COUNT_S, [], f"the {ROW_BYTES_MAX >> 20} MiB of a row"
    for one in tables:
        try:
            rows, large = one.count(left_s) if (left_s := until - monotonic()) >= 1 else (None, 0)
        except (SourceError, DatabaseUnavailable):  # no privilege (see `check`), or no time
            rows, large = None, 0
        if rows is None:
            uncounted.append(one.table)
        elif large and int(large):  # the sum is NULL for an empty table; MariaDB and MySQL return text
            found = f"column {', '.join(one.columns)}: {int(large):,} of {int(rows):,} rows have more than {limit}"
            yield Finding(where=one.table, message=f"{found}, and such a row halts its table", remedy=WAY_OUT)
    if uncounted:
        message = f"rows above {limit} could not be counted within {COUNT_S:.0f} s in {', '.join(uncounted)}"
        yield Finding(where="tables", message=message)


def find_too_large(record_ids: PackedBytes, rows: PackedBytes) -> tuple[int, str] | None:
    """Return index and description of the first row that no message can carry; None if all can be carried."""
    if len(record_ids.data) + len(rows.data) <= ROW_BYTES_MAX:
        return None
    sizes = record_ids.sizes.astype(np.int64) + rows.sizes
    places = np.flatnonzero(sizes > ROW_BYTES_MAX)
    return (int(places[0]), describe_size(int(sizes[places[0]]))) if len(places) else None


class FetchingCursor(Protocol):
    """The method of a driver's cursor that a `RowStream` calls."""

    def fetchmany(self, size: int, /) -> Any: ...


class RowStream:
    """The rows of a statement, taken in portions of bounded size."""

    def __init__(self, cursor: FetchingCursor, access: TableAccess) -> None:
        self._cursor = cursor
        self._access = access
        self.ended = False

    def take(self, *, rows_max: int, bytes_max: int) -> list[Row]:
        """Return the next rows: at least one, unless the statement has ended."""
        rows: list[Row] = []
        weight, access = 0, self._access
        while not self.ended and len(rows) < rows_max and weight < bytes_max:
            fitting = (bytes_max - weight) // access.row_bytes + 1
            wanted = min(rows_max - len(rows), WIDE_PIECE_ROWS if access.wide else fitting)
            piece = self._cursor.fetchmany(wanted)
            self.ended = len(piece) < wanted
            weight += access.estimate_size(piece)
            rows += piece
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """How a dialect reads one version of a table: its statements, and the conversion of values to canonical text.

    A row is read as key columns, other columns, whether the row exists, and whether its log has only insertions.
    """

    #: The last two values of a fetched row: for a row that does not exist, for one whose log has only insertions.
    GONE: ClassVar[Any] = 0
    FRESH: ClassVar[Any] = 1
    #: The exception that `canonical_texts` raises for a value that cannot be carried.
    VALUE_ERROR: ClassVar[type[Exception]]
    #: Message about a key column whose canonical text is NULL; empty = the codec refuses the key.
    NULL_IN_KEY: ClassVar[str] = "is NULL in a key"

    layout: Layout
    wide: tuple[int, ...] = ()  # columns whose values may be large

    @property
    def key_count(self) -> int:
        """The number of key columns, with which a row begins."""
        return self.layout.key_count

    @property
    def row_bytes(self) -> int:
        """The assumed size of a row without its large values."""
        return VALUE_BYTES * len(self.layout.columns)

    def estimate_size(self, rows: Seq[Row]) -> int:
        """Return the approximate size of rows in bytes."""
        lengths = sum(len(v) for i in self.wide for row in rows if isinstance(v := row[i], str | bytes))
        return lengths + len(rows) * self.row_bytes

    def canonical_texts(self, column: int, values: Seq[Any]) -> Seq[Value]:
        """Return the canonical text of a column's values."""
        raise NotImplementedError

    def describe_value(self, value: Any) -> str:
        """Describe a key's value for messages."""
        return repr(value)

    def describe_key(self, row: Row) -> str:
        """Return the key of a row as text for messages."""
        pairs = zip(self.layout.columns, row[: self.key_count], strict=False)
        return ", ".join(f"{column.name}={self.describe_value(value)}" for column, value in pairs)

    def build_sections(self, rows: list[Row], *, bytes_max: int) -> Iterator[TableChanges]:
        """Convert rows to sections within the limit, tombstones first. Raises UnfitRow."""
        gone = [row for row in rows if row[-2] == self.GONE]
        there = [row for row in rows if row[-2] != self.GONE] if gone else rows
        if gone:
            yield from divide_section(self._build_section(gone, deleted=True), bytes_max)
        if there:
            yield from divide_section(self._build_section(there, deleted=False), bytes_max)

    def _build_section(self, rows: list[Row], *, deleted: bool) -> TableChanges:
        columns = list(zip(*rows, strict=True))
        texts = self._convert_columns(columns[: self.key_count if deleted else len(self.layout.columns)], rows)
        try:
            if deleted:
                record_ids = keys_from_columns(texts, self.layout)
                packed = PackedBytes(b"", np.zeros(len(rows), dtype=np.uint32))
            else:
                record_ids, packed = from_columns(texts, self.layout)
        except ProtocolError as error:
            raise UnfitRow(str(error)) from error
        if found := find_too_large(record_ids, packed):
            raise UnfitRow(f"row {self.describe_key(rows[found[0]])}: {found[1]}")
        return TableChanges(
            table_id=self.layout.schema.table_id,
            schema_version=self.layout.schema.version,
            record_ids=record_ids,
            rows=packed,
            is_deleted=np.full(len(rows), deleted, dtype=np.bool_),
            inserts_only=not deleted and all(fresh == self.FRESH for fresh in columns[-1]),
        )

    def _convert_columns(self, columns: Seq[Row], rows: list[Row]) -> list[Seq[Value]]:
        """Convert the values of each column to canonical text. Raises UnfitRow for a value without canonical text."""
        texts: list[Seq[Value]] = []
        for n, values in enumerate(columns):
            try:
                texts.append(self.canonical_texts(n, values))
            except self.VALUE_ERROR:
                self._raise_unfit_row(n, values, rows)
                raise
            if n < self.key_count and self.NULL_IN_KEY and None in texts[n]:
                raise UnfitRow(f"column {self.layout.columns[n].name} {self.NULL_IN_KEY}")
        return texts

    def _raise_unfit_row(self, column: int, values: Row, rows: list[Row]) -> None:
        """Raise UnfitRow for the first row whose value in this column has no canonical text."""
        for value, row in zip(values, rows, strict=True):
            try:
                self.canonical_texts(column, [value])
            except self.VALUE_ERROR as error:
                name = self.layout.columns[column].name
                raise UnfitRow(f"row {self.describe_key(row)}: column {name}: {error}") from error


def divide_section(section: TableChanges, bytes_max: int) -> Iterator[TableChanges]:
    """Divide a section that is larger than estimated into sections within the limit. A single row stays whole."""
    if section.nbytes <= bytes_max or section.count == 1:
        yield section
        return
    ids, rows = section.record_ids.bounds, section.rows.bounds
    # int64 first: the sum of two int32 bounds may need more
    weight = _ROW_OVERHEAD * np.arange(len(ids), dtype=np.int64) + ids + rows + _SECTION_OVERHEAD
    start = 0
    while start < section.count:
        limit = weight[start] + bytes_max - _SECTION_OVERHEAD
        end = max(start + 1, int(np.searchsorted(weight, limit, side="right")) - 1)
        yield slice_section(section, ids, rows, start, end)
        start = end


def slice_section(section: TableChanges, ids: Ints, rows: Ints, start: int, end: int) -> TableChanges:
    """Return the rows `start` to `end` of a section; `ids` and `rows` are the byte bounds of its packed values."""
    return replace(
        section,
        record_ids=_slice_packed(section.record_ids, ids, start, end),
        rows=_slice_packed(section.rows, rows, start, end),
        is_deleted=section.is_deleted[start:end],
    )


def _slice_packed(packed: PackedBytes, bounds: Ints, start: int, end: int) -> PackedBytes:
    return PackedBytes(packed.data[bounds[start] : bounds[end]], packed.sizes[start:end])
