"""Rows of a captured table at Oracle: the statements that read it, bounded reading, canonical text, packed sections.

On the path of a row this module lies between the snapshot and the batches; later modules never see the driver's values.
Values stay exact: a float where a decimal is expected shows a wrong setup of the driver, and raises an error.

A fill continues after a key with one statement for each column of the key, each a single range of the key's index.
Oracle cannot compare tuples, and `K1 > :p1 OR K1 = :p1 AND K2 > :p2` is one range that begins at the first row: every
chunk would read all earlier rows again. So the rest of the last group is read first (`K1 = :p1 AND K2 > :p2`), then
the rows after it (`K1 > :p1`). In this order the statements return the rows in key order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from venus.adapters.dialects import rows as limits
from venus.adapters.dialects.canonical_text import float_text
from venus.adapters.dialects.oracle.dictionary.overrides import ENCODED
from venus.adapters.dialects.oracle.dictionary.tables import CONVERTED, OracleReading, OracleTable
from venus.adapters.dialects.oracle.dictionary.types import LONGS
from venus.adapters.dialects.oracle.language.ddl import CaptureStyle
from venus.adapters.dialects.oracle.session import lobs
from venus.adapters.dialects.oracle.session.connection import Row
from venus.adapters.dialects.oracle.sql import ARCHIVE_STATE, log_key_columns, log_table_name, quote, statement
from venus.adapters.dialects.registry_rules import UnfitRow
from venus.adapters.dialects.rows import WIDE_PIECE_ROWS, FillCursor, TableAccess
from venus.codec.columns import Value
from venus.codec.row_bytes import Layout
from venus.errors import SourceError

#: The character that replaces bytes in a conversion into Unicode.
REPLACED = "\N{REPLACEMENT CHARACTER}"
_MONTHS = re.compile(r"([+-])(\d+)-(\d+)")
_DAYS = re.compile(r"([+-])(\d+) (\d+):(\d+):(\d+)(?:\.(\d+))?")


def canonical_texts(rule: str, values: Iterable[Any], scale: int = 0) -> list[Value]:
    """Return a column's values as canonical text (bytes for binary ones); decimals with `scale` digits if above 0."""
    to_text = _RULES.get(rule) or partial(_decode_text, encoding=rule.removeprefix(ENCODED))
    if rule == "number" and scale > 0:
        return [None if v is None else f"{_to_decimal(v):.{scale}f}" for v in values]
    return [None if v is None else to_text(v) for v in values]


def _to_decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise SourceError(f"the driver returned {type(value).__name__} for a NUMBER, which is not exact")
    return Decimal(value)


def _number_text(value: Any) -> str:
    text = format(_to_decimal(value), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _plain_text(value: Any) -> str:
    if not isinstance(value, str):
        raise SourceError(f"the driver returned {type(value).__name__} for text")
    return value


def _check_text(value: Any) -> str:
    """Return a text converted by the server. Raises SourceError for U+FFFD, which replaces undefined bytes."""
    text = _plain_text(value)
    if REPLACED in text:
        raise SourceError(
            "has bytes that the database's character set does not define, and the server replaces them:"
            f' "TABLE.COLUMN" = "{ENCODED}ENCODING" in [source.type_map] reads the bytes'
        )
    return text


def _decode_text(value: Any, *, encoding: str) -> str:
    """Decode the bytes of a text; those of a long text arrive as hexadecimal digits."""
    octets = bytes.fromhex(value) if isinstance(value, str) else bytes(value)
    try:
        return octets.decode(encoding)
    except UnicodeDecodeError as error:
        bad = octets[error.start : error.end].hex().upper()
        raise SourceError(f"its byte {bad} at {error.start + 1} is no character in {encoding}") from error


def _to_bytes(value: Any) -> bytes:
    return bytes(value)


def _boolean_text(value: Any) -> str:
    return "t" if value else "f"


def _trim_fraction(value: str) -> str:
    """Drop the zeros at the end of a fraction, which the server writes up to the requested number of digits."""
    text = value.strip()
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number_to_boolean_text(value: Any) -> str:
    if value not in (0, 1):
        raise SourceError(f"{value} is neither 0 nor 1, as a boolean must be")
    return "t" if value else "f"


def _whole_number_text(value: Any) -> str:
    number = _to_decimal(value)
    if number != int(number) or not -(1 << 63) <= number < 1 << 63:
        raise SourceError(f"{value} is not a whole number of 64 bits")
    return str(int(number))


def _midnight_date_text(value: str) -> str:
    text = value.strip()
    if not text.endswith(" 00:00:00"):
        raise SourceError(f"{text} has a time of day, which a date cannot have")
    return _timestamp_text(text.removesuffix(" 00:00:00"))


def _uuid_text(value: Any) -> str:
    if len(value) != 16:
        raise SourceError(f"a uuid has 16 bytes, not {len(value)}")
    return str(UUID(bytes=bytes(value)))


def _timestamp_text(value: str) -> str:
    text = _trim_fraction(value)
    return f"{text[1:]} BC" if text.startswith("-") else text


def _zoned_timestamp_text(value: str) -> str:
    text = _trim_fraction(value)
    return f"{text[1:]}+00 BC" if text.startswith("-") else f"{text}+00"


def _year_month_interval_text(value: str) -> str:
    """Convert to PostgreSQL's style: +02-03 becomes 2 years 3 mons."""
    sign, years, months = _match_interval(_MONTHS, value)
    return " ".join(_interval_part(sign, years, "year") + _interval_part(sign, months, "mon")) or "00:00:00"


def _day_time_interval_text(value: str) -> str:
    sign, days, hours, minutes, seconds, fraction = _match_interval(_DAYS, value)
    fraction = (fraction or "")[:6].rstrip("0")
    parts = _interval_part(sign, days, "day")
    if int(hours) or int(minutes) or int(seconds) or fraction or not parts:
        zero = not (int(hours) or int(minutes) or int(seconds) or fraction)
        minus = "-" if sign == "-" and not zero else ""
        parts.append(f"{minus}{hours}:{minutes}:{seconds}" + (f".{fraction}" if fraction else ""))
    return " ".join(parts)


def _match_interval(pattern: re.Pattern[str], value: str) -> tuple[Any, ...]:
    found = pattern.fullmatch(value.strip())
    if found is None:
        raise SourceError(f"the server wrote an interval as {value!r}")
    return found.groups()


def _interval_part(sign: str, digits: str, unit: str) -> list[str]:
    number = int(digits) * (-1 if sign == "-" else 1)
    return [f"{number} {unit}{'' if number == 1 else 's'}"] if number else []


_RULES: dict[str, Callable[[Any], Value]] = {
    "number": _number_text,
    "single": partial(float_text, length=4),
    "double": partial(float_text, length=8),
    "text": _plain_text,
    CONVERTED: _check_text,
    "octets": _to_bytes,
    "truth": _boolean_text,
    "flag": _number_to_boolean_text,
    "whole": _whole_number_text,
    "day": _midnight_date_text,
    "uuid": _uuid_text,
    "moment": _timestamp_text,
    "instant": _zoned_timestamp_text,
    "months": _year_month_interval_text,
    "days": _day_time_interval_text,
}


#: A statement and its bind values.
Bound = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FillSql:
    """The statements of a table's fill. `behind` continues after a key; its first statement binds all key columns."""

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
        end = {} if place.end is None else self._key_binds("e", place.end)
        blocks = self.behind if place.end is None else self.up_to_end
        keys = len(blocks)
        return [(text, lines | end | self._key_binds("p", place.after[: keys - n])) for n, text in enumerate(blocks)]

    def _key_binds(self, name: str, key: Seq[Any]) -> dict[str, Any]:
        pairs = zip(self.key, key, strict=False)
        return {f"{name}{n}": r.bind_value(_decode_tag(tag, value)) for n, (r, (tag, value)) in enumerate(pairs, 1)}


def fill_sql(
    file: str, parts: dict[str, str], key: Seq[tuple[str, OracleReading]], keys_read: str, *, long: bool
) -> FillSql:
    """Build the statements of a fill. `key`: the key columns with their readings; `keys_read`: their expressions.

    `long`: the table has a LONG, which no subquery may contain ("SQL Language Reference", Data Types). The statements
    for a LONG have no ROWNUM; the reader stops after enough rows.
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
    """Return the ranges that together cover everything after the key bound as p1, p2, ...; the nearest first."""
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


#: The number of rows fetched at a time where no row may be large.
PIECE_ROWS = 2000

#: The value of the last column if a row's log rows contain a deletion: see cut.sql.
DELETED = 0

#: Reads a LOB by its locator; the second argument is its length.
ReadLob = Callable[[Any, int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleAccess(TableAccess):
    """The statements that read one version of a table, and how the values of each column are converted."""

    VALUE_ERROR = SourceError
    NULL_IN_KEY = ""

    readings: tuple[OracleReading, ...]  # in wire order
    lobs: tuple[int, ...]  # the indexes of LOBs, whose lengths and locators follow all other columns
    log: str  # empty: captured inline, the table itself has the changes
    changes_sql: str
    deleted_sql: str  # the keys of a part of the log that have a logged deletion
    fill: FillSql
    table_sql: str
    lobs_sql: str
    #: Archived rows are carried too: the session must see them.
    archived: bool = False

    @property
    def piece(self) -> int:
        """The number of rows to fetch at a time."""
        return WIDE_PIECE_ROWS if self.wide else PIECE_ROWS

    def canonical_texts(self, column: int, values: Seq[Any]) -> Seq[Value]:
        return canonical_texts(self.readings[column].rule, values, self.layout.columns[column].type.scale)

    def describe_value(self, value: Any) -> str:
        return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)


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
    changes_sql = _inline_changes_sql if is_inline else _log_changes_sql
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
        changes_sql=changes_sql(table, layout, readings, key_at, columns, beside),
        deleted_sql=deleted,
        fill=fill_sql("inline" if is_inline else "cut", parts, keyed, keys_read, long=long),
        table_sql=table.keyed.sql,
        lobs_sql=beside,
        archived=ARCHIVE_STATE in table.readings,
        wide=tuple(n for n, c in enumerate(layout.columns) if c in others and table.readings[c.name].mapping.wide),
    )


def _log_changes_sql(
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


def _inline_changes_sql(
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
    for piece in _refuse_undecodable(pieces):
        for fetched in piece:
            large = _large_lobs(fetched, access)
            weighs = access.row_bytes + sum(len(v) for v in fetched if isinstance(v, str | bytes))
            weighs += sum(length for _, length, _ in large)
            if rows and (len(rows) >= rows_max or weight + weighs > bytes_max):
                yield rows
                rows, weight = [], 0
            rows.append(_read_large_lobs(fetched, access, large, read_lob))
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


def _read_large_lobs(row: Row, access: OracleAccess, large: Seq[tuple[int, int, Any]], read_lob: ReadLob) -> Row:
    if not access.lobs:
        return row
    values = list(row[: len(access.layout.columns) + 2])
    if (total := sum(length for _, length, _ in large)) > limits.ROW_BYTES_MAX:
        raise UnfitRow(f"row {access.describe_key(row)}: {limits.describe_size(total)}")
    for n, length, lob in large:
        try:
            values[n] = read_lob(lob, length) if length else b"" if access.layout.binary[n] else ""
        except lobs.NotUnicodeError as error:
            name = access.layout.columns[n].name
            raise UnfitRow(f"row {access.describe_key(row)}: column {name}: {error}") from error
    return tuple(values)


def find_vanished_rows(rows: list[Row]) -> list[Row]:
    """Return the rows that do not exist although the log has no deletion of them."""
    return [row for row in rows if not row[-2] and row[-1] != DELETED]
