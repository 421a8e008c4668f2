"""The conversion of one captured table's rows into sections: SQL text, bounded reading, canonical text, packed bytes.

On the path of a row this module lies between the snapshot and the batches; later modules never see the driver's values.

A fill continues behind a key with one statement for each column of the key, each a single range of the key's index.
Oracle does not compare rows, and `K1 > :p1 OR K1 = :p1 AND K2 > :p2` is one range that begins at the first row: every
chunk would read all earlier rows again. So the rest of the last group is read first (`K1 = :p1 AND K2 > :p2`), then
the rows behind it (`K1 > :p1`). In this order the statements return the rows in key order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from venus.adapters.dialects.fill_cursor import FillCursor
from venus.adapters.dialects.halted_tables import UnfitRow
from venus.adapters.dialects.oracle.dictionary.tables import OracleReading, OracleTable
from venus.adapters.dialects.oracle.dictionary.types import LONGS
from venus.adapters.dialects.oracle.language.ddl import CaptureStyle
from venus.adapters.dialects.oracle.names import ARCHIVE_STATE, log_key_columns, log_table_name, quote
from venus.adapters.dialects.oracle.session import lobs
from venus.adapters.dialects.oracle.session.connection import Row
from venus.adapters.dialects.oracle.sql import statement
from venus.adapters.dialects.oracle.values.canonical_text import canonical_texts
from venus.adapters.dialects.row_limits import ROW_BYTES_MAX, describe_size
from venus.codec.changes import TableChanges
from venus.codec.columns import Value, from_columns, keys_from_columns
from venus.codec.layout import Layout
from venus.codec.packed import PackedBytes
from venus.errors import ProtocolError, SourceError
from venus.model import Column

#: A statement and its bind values.
Bound = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FillSql:
    """The statements of a table's fill. Those behind a key are ordered by the number of bound columns, all first."""

    first: str
    behind: tuple[str, ...]
    up_to_end: tuple[str, ...]
    last: str  # the greatest key
    counted: bool  # whether the statements bind the number of rows
    key: tuple[OracleReading, ...]

    def build_reads(self, cursor: bytes, rows: int) -> list[Bound]:
        """Return the statements that, run one after the other, return the next rows."""
        lines = {"lines": rows} if self.counted else {}
        if not cursor:
            return [(self.first, lines)]
        place = FillCursor.parse(cursor)
        end = {} if place.end is None else self._binds("e", place.end)
        blocks = self.behind if place.end is None else self.up_to_end
        keys = len(blocks)
        return [(text, lines | end | self._binds("p", place.after[: keys - n])) for n, text in enumerate(blocks)]

    def _binds(self, name: str, key: Seq[Any]) -> dict[str, Any]:
        pairs = zip(self.key, key, strict=False)
        return {f"{name}{n}": r.bind_value(_decode_tag(tag, value)) for n, (r, (tag, value)) in enumerate(pairs, 1)}


def fill_sql(
    file: str, parts: dict[str, str], key: Seq[tuple[str, OracleReading]], keys_read: str, *, long: bool
) -> FillSql:
    """Build a table's statements. `key`: its columns in SQL with their readings; `keys_read`: their expressions.

    `long`: the table has a LONG, which no subquery may contain ("SQL Language Reference", Data Types). Its statements
    have no ROWNUM; the reader stops by itself.
    """
    block = "fill_long" if long else "fill"
    after = " AND {}" if file == "inline" else "WHERE {} "
    at = [column for column, _ in key]
    ranges = _key_ranges(key)
    ends = (
        f"{at[0]} <= {_bind_expression(key[0][1], 'e1')} AND NOT "
        f"({' OR '.join(f'({r})' for r in _key_ranges(key, 'e'))})"
    )
    order = {"order": ", ".join(at)}
    last = {"columns": keys_read, "lobs": "", "order": ", ".join(f"{column} DESC" for column in at)}
    return FillSql(
        first=statement(file, block, **parts, **order, after=""),
        behind=tuple(statement(file, block, **parts, **order, after=after.format(r)) for r in ranges),
        up_to_end=tuple(
            statement(file, block, **parts, **order, after=after.format(f"{r} AND {ends}")) for r in ranges
        ),
        last=statement(file, "fill", **(parts | last), after=""),
        counted=not long,
        key=tuple(reading for _, reading in key),
    )


def _key_ranges(key: Seq[tuple[str, OracleReading]], bound: str = "p") -> list[str]:
    """Return the ranges that together cover everything behind the key bound as p1, p2, ...; the nearest first."""
    places = [_bind_expression(reading, f"{bound}{n}") for n, (_, reading) in enumerate(key, 1)]
    found = []
    for last in reversed(range(len(key))):
        equal = [f"{column} = {place}" for (column, _), place in zip(key[:last], places, strict=False)]
        found.append(" AND ".join([*equal, f"{key[last][0]} > {places[last]}"]))
    return found


def _bind_expression(reading: OracleReading, name: str) -> str:
    return reading.bind_expression(name)


def cursor_key(row: Seq[Any], key_count: int) -> list[Any]:
    """Return the fetched key of a row, tagged for a cursor."""
    return [_encode_tag(value) for value in row[:key_count]]


def _encode_tag(value: Any) -> list[Any]:
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    return ["number", str(value)] if isinstance(value, int | Decimal) else ["text", value]


def _decode_tag(tag: str, value: str) -> Any:
    if tag == "bytes":
        return bytes.fromhex(value)
    return Decimal(value) if tag == "number" else value


#: The number of rows fetched at a time, and the number if a row may be large. Memory exceeds a section's limit by at
#: most this many rows.
PIECE_ROWS = 2000
WIDE_PIECE_ROWS = 16
#: The assumed size of a value that has no length.
VALUE_BYTES = 10

#: The summary of a row's log rows in the last column: see cut.sql.
DELETED, ONLY_INSERTS = 0, 1

#: Reads a LOB of this length by its locator.
ReadLob = Callable[[Any, int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleAccess:
    """The statements and readings of one version of a table."""

    layout: Layout
    readings: tuple[OracleReading, ...]  # in wire order
    lobs: tuple[int, ...]  # which of them are LOBs: their lengths and locators follow all other columns
    log: str  # empty: captured inline, the table itself has the changes
    changes_sql: str
    deleted_sql: str  # the keys of a part of the log that have a logged deletion
    fill: FillSql
    table_sql: str
    lobs_sql: str
    wide: bool
    #: Archived rows are carried too: the session must see them.
    archived: bool = False

    @property
    def piece(self) -> int:
        """The number of rows to fetch at a time."""
        return WIDE_PIECE_ROWS if self.wide else PIECE_ROWS


def build_access(table: OracleTable) -> OracleAccess:
    """Build the statements for the present version of a table."""
    layout = Layout.of(table.schema)
    readings = tuple(table.readings[c.name] for c in layout.columns)
    key, others = layout.columns[: layout.key_count], layout.columns[layout.key_count :]
    key_at = [f"T.{quote(c.name)}" for c in key]
    columns = [r.expression(f"T.{quote(c.name)}") for r, c in zip(readings, layout.columns, strict=True)]
    located = tuple(n for n, r in enumerate(readings) if r.mapping.located)
    beside = "".join(lobs.lob_columns(f"T.{quote(layout.columns[n].name)}", n + 1) for n in located)
    is_inline = table.keyed.style is CaptureStyle.INLINE
    changes = _inline_changes if is_inline else _log_changes
    deleted = "" if is_inline else statement("cut", "deleted", **_log_parts(table, layout, readings))
    listed = ", ".join(f"{c} AS V{n}" for n, c in enumerate(columns, 1))
    parts = {"columns": listed, "lobs": beside, "table": table.keyed.sql}
    keys_read = ", ".join(f"{c} AS V{n}" for n, c in enumerate(columns[: len(key)], 1))
    keyed = list(zip(key_at, readings, strict=False))
    long = any(r.declared.data_type in LONGS for r in readings)
    return OracleAccess(
        layout=layout,
        readings=readings,
        lobs=located,
        log="" if is_inline else log_table_name(table.schema.table_id),
        changes_sql=changes(table, layout, readings, key_at, columns, beside),
        deleted_sql=deleted,
        fill=fill_sql("inline" if is_inline else "cut", parts, keyed, keys_read, long=long),
        table_sql=table.keyed.sql,
        lobs_sql=beside,
        archived=ARCHIVE_STATE in table.readings,
        wide=any(table.readings[c.name].mapping.wide for c in others),
    )


def _log_changes(
    table: OracleTable, layout: Layout, readings: Seq[OracleReading], key_at: Seq[str], columns: Seq[str], beside: str
) -> str:
    logged = log_key_columns(layout.key_count)
    return statement(
        "cut",
        "changes",
        **_log_parts(table, layout, readings),
        table=table.keyed.sql,
        others="".join(f"{c}, " for c in columns[layout.key_count :]),
        lobs=beside,
        first_key=quote(layout.columns[0].name),
        joined=" AND ".join(f"{at} = G.{k}" for at, k in zip(key_at, logged, strict=True)),
    )


def _log_parts(table: OracleTable, layout: Layout, readings: Seq[OracleReading]) -> dict[str, str]:
    logged = log_key_columns(layout.key_count)
    # the cast makes a key that was logged before its CHAR became wider equal to the present one
    cast = [r.cast_logged(k) for k, r in zip(logged, readings, strict=False)]
    return {
        "log": log_table_name(table.schema.table_id),
        "cast_keys": ", ".join(c if c == k else f"{c} AS {k}" for c, k in zip(cast, logged, strict=True)),
        "grouped": ", ".join(cast),
        "log_key": ", ".join(r.expression(f"G.{k}") for r, k in zip(readings, logged, strict=False)),
        "same_key": " AND ".join(f"D.{k} = G.{k}" for k in logged),
    }


def _inline_changes(
    table: OracleTable,
    _layout: Layout,
    _readings: Seq[OracleReading],
    _key_at: Seq[str],
    columns: Seq[str],
    beside: str,
) -> str:
    return statement("inline", "changes", columns=", ".join(columns), table=table.keyed.sql, lobs=beside)


def regroup_rows(
    pieces: Iterator[list[Row]], access: OracleAccess, read_lob: ReadLob, *, rows_max: int, bytes_max: int
) -> Iterator[list[Row]]:
    """Regroup fetched pieces into portions of bounded row count and bytes, at least one row each.

    This function reads large LOBs, so that memory holds no more of them than a portion may have. Raises UnfitRow.
    """
    rows: list[Row] = []
    weight = 0
    fixed = VALUE_BYTES * len(access.layout.columns)
    for piece in _refuse_undecodable(pieces):
        for fetched in piece:
            large = _large_lobs(fetched, access)
            weighs = fixed + sum(len(v) for v in fetched if isinstance(v, str | bytes))
            weighs += sum(length for _, length, _ in large)
            if rows and (len(rows) >= rows_max or weight + weighs > bytes_max):
                yield rows
                rows, weight = [], 0
            rows.append(_with_large_lobs(fetched, access, large, read_lob))
            weight += weighs
    if rows:
        yield rows


def _refuse_undecodable(pieces: Iterator[list[Row]]) -> Iterator[list[Row]]:
    """Pass pieces on. Both drivers decode texts strictly, and return nothing of a row that they cannot decode."""
    try:
        yield from pieces
    except UnicodeDecodeError as error:
        what = "a text has bytes that are no character in the database's character set"
        raise UnfitRow(f"{what}, so that the driver cannot read its row: {error}") from error


def _large_lobs(row: Row, access: OracleAccess) -> list[tuple[int, int, Any]]:
    """Return index, length and locator of the LOBs that were not fetched with their row; some may be empty."""
    beside = row[len(access.layout.columns) + 2 :]
    pairs = zip(access.lobs, beside[::2], beside[1::2], strict=True)
    return [(n, int(length), lob) for n, length, lob in pairs if length is not None and row[n] is None]


def _with_large_lobs(row: Row, access: OracleAccess, large: Seq[tuple[int, int, Any]], read_lob: ReadLob) -> Row:
    if not access.lobs:
        return row
    values = list(row[: len(access.layout.columns) + 2])
    if (total := sum(length for _, length, _ in large)) > ROW_BYTES_MAX:
        raise _too_large_error(access, row, total)
    for n, length, lob in large:
        try:
            values[n] = read_lob(lob, length) if length else b"" if access.layout.binary[n] else ""
        except lobs.NotUnicodeError as error:
            name = access.layout.columns[n].name
            raise UnfitRow(f"row {describe_key(access, row)}: column {name}: {error}") from error
    return tuple(values)


def _too_large_error(access: OracleAccess, row: Row, nbytes: int) -> UnfitRow:
    return UnfitRow(f"row {describe_key(access, row)}: {describe_size(nbytes)}")


def find_vanished_rows(rows: list[Row]) -> list[Row]:
    """Return the rows that do not exist although the log has no deletion of them."""
    return [row for row in rows if not row[-2] and row[-1] != DELETED]


def describe_key(access: OracleAccess, row: Row) -> str:
    """Describe the key of a row for messages."""
    names = (c.name for c in access.layout.columns)
    return ", ".join(f"{n}={_format_value(v)}" for n, v in zip(names, row[: access.layout.key_count], strict=False))


def _format_value(value: Any) -> Any:
    return f"{value.normalize():f}" if isinstance(value, Decimal) else value


def build_sections(rows: list[Row], access: OracleAccess, *, bytes_max: int) -> Iterator[TableChanges]:
    """Convert rows (key, other columns, exists, log summary) into sections within the limit, tombstones first.

    Raises UnfitRow.
    """
    gone = [row for row in rows if not row[-2]]
    there = [row for row in rows if row[-2]] if gone else rows
    for part, deleted in ((gone, True), (there, False)):
        if part:
            yield from _build_divisible_section(part, access, deleted, bytes_max)


def _build_divisible_section(
    rows: list[Row], access: OracleAccess, deleted: bool, bytes_max: int
) -> Iterator[TableChanges]:
    """Halve a section that is larger than estimated; a single row is never divided."""
    section = _build_section(access, rows, deleted=deleted)
    if len(rows) == 1 and section.nbytes > ROW_BYTES_MAX:
        raise _too_large_error(access, rows[0], section.nbytes)
    if section.nbytes <= bytes_max or len(rows) == 1:
        yield section
        return
    middle = len(rows) // 2
    yield from _build_divisible_section(rows[:middle], access, deleted, bytes_max)
    yield from _build_divisible_section(rows[middle:], access, deleted, bytes_max)


def _build_section(access: OracleAccess, rows: list[Row], *, deleted: bool) -> TableChanges:
    layout = access.layout
    count = layout.key_count if deleted else len(layout.columns)
    columns = list(zip(*rows, strict=True))
    values = _canonical_columns(access, columns[:count], rows)
    try:
        if deleted:
            record_ids, packed = (
                keys_from_columns(values, layout),
                PackedBytes(b"", np.zeros(len(rows), dtype=np.uint32)),
            )
        else:
            record_ids, packed = from_columns(values, layout)
    except ProtocolError as error:
        raise UnfitRow(str(error)) from error
    return TableChanges(
        table_id=layout.schema.table_id,
        schema_version=layout.schema.version,
        record_ids=record_ids,
        rows=packed,
        is_deleted=np.full(len(rows), deleted, dtype=np.bool_),
        inserts_only=not deleted and all(noted == ONLY_INSERTS for noted in columns[-1]),
    )


def _canonical_columns(access: OracleAccess, columns: Seq[Row], rows: list[Row]) -> list[list[Value]]:
    found = []
    for reading, column, described in zip(access.readings, columns, access.layout.columns, strict=False):
        try:
            found.append(canonical_texts(reading.mapping.text, column, described.type.scale))
        except SourceError:
            _raise_unfit_row(access, reading, column, described, rows)
            raise
    return found


def _raise_unfit_row(
    access: OracleAccess, reading: OracleReading, column: Row, described: Column, rows: list[Row]
) -> None:
    for value, row in zip(column, rows, strict=True):
        try:
            canonical_texts(reading.mapping.text, [value], described.type.scale)
        except SourceError as error:
            raise UnfitRow(f"row {describe_key(access, row)}: column {described.name}: {error}") from error
