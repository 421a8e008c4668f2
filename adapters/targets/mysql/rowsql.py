"""The statements that change one target table, composed once for a table version, and values as SQL (VENUS 3.4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from venus.adapters.dialects.mysql.sql import literal
from venus.adapters.dialects.statements import Statements
from venus.adapters.targets.mysql.naming import MysqlPlacedTable, quote
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.mysql.types import is_text, write_sql
from venus.adapters.targets.relational.place import OWN, name_columns
from venus.adapters.targets.relational.row_statements import TableStatements
from venus.adapters.targets.relational.session import Refusal
from venus.codec.columns import Value, keys_to_columns, to_columns
from venus.codec.copy_text import to_copy
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, LogicalType, TableSchema

if TYPE_CHECKING:
    from venus.adapters.targets.mysql.application import ApplicationTables

statement = Statements(__name__.rpartition(".")[0])

#: The longest statement that writes rows; shorter if the server accepts less.
STATEMENT_BYTES = 1 << 20
#: From this number of rows LOAD DATA pays off; for fewer, INSERT takes fewer round trips.
LOAD_ROWS_MIN = 50
#: How many keys one statement deletes.
KEYS_MAX = 2_000
#: How many keys one statement deletes if it contains each key twice, with texts as hexadecimal digits.
_EXACT_KEYS_MAX = 200


class MysqlRowSql(TableStatements):
    """Statements that write to one target table; `columns` are those of `schema`, which may be an older version."""

    placed: MysqlPlacedTable

    def __init__(self, placed: MysqlPlacedTable, group: str, application: ApplicationTables | None = None) -> None:
        super().__init__(placed, group, f"{quote(placed.namespace)}.")
        #: The reader of the application's tables, in a database that follows.
        self.application = application
        #: Whether to refuse rows that a table of the application would store with a different value.
        self.is_exact = True
        self._text_keys = application.text_keys(placed) if application is not None else {}
        self.names |= {
            "touched_database": literal(placed.namespace),
            "touched_name": literal(f"{OWN}touched_{self.suffix}"),
            "key_definitions": application.key_definitions(placed) if application is not None else "",
        }
        if application is not None:
            self.names["match"] = application.key_match(placed)

    def writer(self, kind: LogicalType, name: str) -> Callable[[Value], str]:
        """Return the function that writes values of this type as SQL for the column with this name at the source."""
        if self.application is None:
            return value_writer(kind, self.placed.types[name])
        table = self.application.find(self.placed.name)
        found = table.declared.get(self.placed.fold(name)) if table is not None else None
        write = value_writer(kind, found.column_type if found is not None else self.placed.types[name])
        return partial(_write_year_0, write) if kind.kind in (Kind.DATE, Kind.TIMESTAMP) else write

    def exact_key(self) -> tuple[str, list[bool]]:
        """Return the SQL of the key with texts as bytes, and whether each key column is text; [] if none is."""
        texts = [name in self._text_keys for name in self.placed.schema.key]
        terms = [
            f"CAST(CONVERT({column} USING utf8mb4) AS BINARY)" if is_text_key else column
            for column, is_text_key in zip(map(self.placed.column, self.placed.schema.key), texts, strict=True)
        ]
        return (f"({', '.join(terms)})" if len(terms) > 1 else terms[0]), texts if any(texts) else []

    def same(self, column: Column) -> str:
        name = self.placed.column(column.name)
        left, right = f"t.{name}", f"s.{name}"
        if is_text(self.placed.types[column.name]):  # an existing table may compare texts without case
            left, right = f"CAST({left} AS BINARY)", f"CAST({right} AS BINARY)"
        return f"{left} <=> {right}"

    def text(self, block: str, **more: str) -> str:
        return statement("apply", block, **(self.names | more))


def row_sql(placed: MysqlPlacedTable, group: str) -> MysqlRowSql:
    """Return the statements that write to the target table of this version."""
    return MysqlRowSql(placed, group)


def _timestamptz_literal(value: str) -> str:
    """Return the literal of a timestamp without its zone, which is UTC."""
    return literal(value.removesuffix("+00"))


def value_writer(kind: LogicalType, declared: str) -> Callable[[Value], str]:
    """Return the function that writes a canonical value as SQL. Raises Refusal for a value no column can hold."""
    if kind.kind is Kind.BYTES:
        return lambda value: f"X'{value.hex()}'" if value else "''"  # type: ignore[union-attr]
    if kind.kind is Kind.NATIVE and declared.startswith("bit("):
        return lambda value: f"b'{value!s}'"
    if kind.kind is Kind.INT:
        return lambda value: str(value)
    if kind.kind is Kind.BOOL:
        return lambda value: "1" if value == "t" else "0"
    write = _timestamptz_literal if kind.kind is Kind.TIMESTAMPTZ else literal
    if check := _CHECKS.get("text" if is_text(declared) else declared.partition("(")[0]):
        return partial(_write_checked, check, write)
    return write  # type: ignore[return-value]


def _write_checked(check: Callable[[str], bool], write: Callable[[str], str], value: str) -> str:
    """Write a value as SQL. Raises Refusal if the check shows that no column can hold it."""
    if not check(value):
        raise Refusal(f"no column here can hold {value}", "22007", summary="no column here can hold a value of it")
    return write(value)


def _is_calendar_date(text: str) -> bool:
    """Return whether a date has a year of four digits; the server interprets other years in its own way."""
    return len(text) >= 10 and text[4] == "-" and text[7] == "-" and not text.endswith("BC") and text[:4] != "0000"


def _is_number(text: str) -> bool:
    """Return whether the server can store this number: it has no NaN, infinity or negative zero."""
    return text not in ("NaN", "Infinity", "-Infinity", "-0")


_CHECKS: dict[str, Callable[[str], bool]] = {
    "date": lambda text: len(text) == 10 and _is_calendar_date(text),
    "datetime": _is_calendar_date,
    "timestamp": _is_calendar_date,
    "double": _is_number,
    "float": _is_number,
    "decimal": _is_number,
}


def _write_year_0(write: Callable[[Value], str], value: Value) -> str:
    """Write 1 BC as the year 0, which the server's calendar has (dialects/mysql/rows.py)."""
    if isinstance(value, str) and value.startswith("0001-") and value.endswith(" BC"):
        return literal(f"0000{value[4:].removesuffix(' BC')}")
    return write(value)


def _render_columns(writers: Sequence[Callable[[Value], str]], values: Sequence[Sequence[Value]]) -> Iterator[str]:
    """Yield each row as a list of SQL values."""
    rendered = [
        ["NULL" if value is None else write(value) for value in column]
        for write, column in zip(writers, values, strict=True)
    ]
    for row in zip(*rendered, strict=True):
        yield f"({','.join(row)})"


def key_lists(sql: MysqlRowSql, layout: Layout, record_ids: PackedBytes, *more: str) -> Iterator[str]:
    """Yield lists of keys as SQL, each short enough for a statement; `more`: values that follow each key."""
    rows = _render_columns(_key_writers(sql, layout), keys_to_columns(record_ids, layout))
    if more:
        rows = (f"{row[:-1]},{','.join(more)})" for row in rows)
    yield from _join_rows(rows, KEYS_MAX, STATEMENT_BYTES)


def _key_writers(sql: MysqlRowSql, layout: Layout) -> list[Callable[[Value], str]]:
    """Return the functions that write the values of the key columns as SQL."""
    return [sql.writer(c.type, c.name) for c in name_columns(sql.placed, layout.columns[: layout.key_count])]


def delete_keys(session: MysqlSession, sql: MysqlRowSql, layout: Layout, record_ids: PackedBytes) -> None:
    """Delete rows by their keys."""
    exact_key, is_text_key = sql.exact_key()
    if not is_text_key:
        for values in key_lists(sql, layout, record_ids):
            session.run(sql.text("delete_values", values=values))
        return
    keys, writers = keys_to_columns(record_ids, layout), _key_writers(sql, layout)
    plain = list(_render_columns(writers, keys))
    exact = list(_render_columns([_write_bytes if t else w for w, t in zip(writers, is_text_key, strict=True)], keys))
    for start in range(0, len(plain), _EXACT_KEYS_MAX):
        values, spelled = (",".join(one[start : start + _EXACT_KEYS_MAX]) for one in (plain, exact))
        session.run(sql.text("delete_exact", values=values, exact_key=exact_key, exact=spelled))


def _write_bytes(text: Value) -> str:
    """Return the bytes of a text as a hexadecimal literal."""
    assert isinstance(text, str)
    return f"X'{text.encode().hex()}'" if text else "''"


def stage_keys(session: MysqlSession, sql: MysqlRowSql, layout: Layout, record_ids: PackedBytes) -> None:
    """Add keys of deleted rows to their staging table."""
    for values in key_lists(sql, layout, record_ids):
        session.run(sql.text("put_staged", stage=sql.key_stage, columns=sql.placed.key, values=values))


def record_keys(session: MysqlSession, sql: MysqlRowSql, layout: Layout, record_ids: PackedBytes, offset: int) -> None:
    """Record that changes at `offset` have touched these keys of the table."""
    for values in key_lists(sql, layout, record_ids, str(offset)):
        session.run(sql.text("touch_values", values=values))


def insert_rows(
    session: MysqlSession,
    sql: MysqlRowSql,
    schema: TableSchema,
    record_ids: PackedBytes,
    rows: PackedBytes,
    *,
    block: str = "insert",
    **names: str,
) -> int:
    """Insert rows of version `schema` into the table, and return their number. Raises Refusal."""
    placed, layout = sql.placed, Layout.of(schema)
    here = {c.number: c for c in placed.schema.columns}
    if block == "insert" and len(record_ids) >= LOAD_ROWS_MIN and session.can_load:
        loaded = _load_rows(session, sql, schema, record_ids, rows, names)
        if loaded == len(record_ids):
            _require_exact(session, sql, schema, (record_ids, rows), names.get("table", placed.sql))
            return loaded
    relation = names.get("table", sql.stage if block == "put_staged" else placed.sql)
    kept = [n for n, c in enumerate(layout.columns) if c.number in here]
    values = to_columns(record_ids, rows, layout)
    columns = [here[layout.columns[n].number] for n in kept]
    names = {"columns": placed.columns(c.name for c in columns)} | names
    writers = [sql.writer(layout.columns[n].type, c.name) for n, c in zip(kept, columns, strict=True)]
    rendered = _render_columns(writers, [values[n] for n in kept])
    written = 0
    for text in _join_rows(rendered, 1 << 30, min(STATEMENT_BYTES, session.packet_bytes // 2)):
        written += session.write_rows(sql.text(block, values=text, **names))
    _require_exact(session, sql, schema, (record_ids, rows), relation)
    return written


def _require_exact(
    session: MysqlSession, sql: MysqlRowSql, schema: TableSchema, rows: tuple[PackedBytes, PackedBytes], relation: str
) -> None:
    """Raise Refusal if a table of the application holds a row with a value that differs from the one sent."""

    def key_conditions() -> list[str]:
        return [sql.text("has_key", values=values) for values in key_lists(sql, Layout.of(schema), rows[0])]

    if sql.application is not None and sql.is_exact and len(rows[0]):
        sql.application.require_exact(session, sql.placed, schema, rows, key_conditions, relation)


def _load_rows(
    session: MysqlSession,
    sql: MysqlRowSql,
    schema: TableSchema,
    record_ids: PackedBytes,
    rows: PackedBytes,
    names: dict[str, str],
) -> int:
    """Try to write all rows by one LOAD DATA. If the server refuses or would alter a row, write nothing."""
    if not can_load(session, sql, schema):
        return 0
    session.run("SAVEPOINT venus_load")
    try:
        lines = escape_for_load(to_copy(record_ids, rows, Layout.of(schema)))
        found = session.load_rows(load_statement(sql, schema, **names), [lines])
    except Refusal:
        found = 0
    undo = "" if found == len(record_ids) else "ROLLBACK TO SAVEPOINT venus_load; "
    session.run(f"{undo}RELEASE SAVEPOINT venus_load")
    return found


def can_load(session: MysqlSession, sql: MysqlRowSql, schema: TableSchema) -> bool:
    """Return whether LOAD DATA can write rows of this version: the server allows it, and each column exists."""
    here = {c.number for c in sql.placed.schema.columns}
    return session.can_load and all(c.number in here for c in schema.columns)


def load_statement(sql: MysqlRowSql, schema: TableSchema, **names: str) -> str:
    """Return the LOAD DATA for the COPY lines of rows of this version."""
    here = {c.number: c for c in sql.placed.schema.columns}
    fields, assignments = [], []
    for number, column in enumerate(schema.wire_columns):
        name = sql.placed.column(here[column.number].name)
        written = write_sql(column.type, f"@v{number}")
        fields.append(name if written == f"@v{number}" else f"@v{number}")
        assignments += [] if written == f"@v{number}" else [f"{name} = {written}"]
    values = f" SET {', '.join(assignments)}" if assignments else ""
    return sql.text("load", fields=", ".join(fields), assignments=values, **names)


def escape_for_load(lines: bytes) -> bytes:
    """Return COPY lines in the form that LOAD DATA reads: it does not know two of the escapes."""
    if b"\\v" not in lines and b"\\f" not in lines:
        return lines
    return _ESCAPE.sub(lambda found: _PLAIN.get(found[0], found[0]), lines)


_ESCAPE, _PLAIN = re.compile(rb"\\."), {b"\\v": b"\v", b"\\f": b"\f"}


def _join_rows(rows: Iterator[str], rows_max: int, bytes_max: int) -> Iterator[str]:
    """Yield lists of rows as SQL, of limited length; a single row may exceed the limit."""
    waiting: list[str] = []
    size = 0
    for row in rows:
        if waiting and (size + len(row) > bytes_max or len(waiting) >= rows_max):
            yield ",".join(waiting)
            waiting, size = [], 0
        waiting.append(row)
        size += len(row) + 1
    if waiting:
        yield ",".join(waiting)
