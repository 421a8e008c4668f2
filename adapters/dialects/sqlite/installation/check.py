"""`venus check` at a SQLite source: what is missing and what cannot be carried. Reads only.

A sample of each table, its first and last rows in key order, is converted with the same rules that capture uses. A
value that does not fit would halt the table later.

SQLite compares a foreign key by the collation of the referenced column, and PostgreSQL compares texts exactly. A row
that spells its parent's key differently therefore refers to nothing at the target. The remedy is to store the exact
spelling of the parent's key.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from pathlib import Path

from venus.adapters.dialects import rows as limits
from venus.adapters.dialects.column_choice import WAY_OUT, ColumnChoice
from venus.adapters.dialects.rows import LargeValues, Row, RowStream
from venus.adapters.dialects.sqlite.connection import is_writable, quote
from venus.adapters.dialects.sqlite.dictionary.tables import (
    NAMESPACE,
    NO_KEY,
    SqliteDictionary,
    SqliteTable,
    assign_numbers,
    choose_tables,
    foreign_collation_message,
    read_table_names,
)
from venus.adapters.dialects.sqlite.rows import SqliteAccess, SqliteValueError, build_access
from venus.adapters.dialects.sqlite.sql import statement
from venus.errors import SourceError
from venus.model import Finding, ForeignKey, Kind, TableSchema, count_phrase

#: Limits of the sample from each end of a table, in rows and in bytes.
SAMPLE_ROWS = 2_000
SAMPLE_BYTES = 8 << 20
EXAMPLES_MAX = 3
VALUE_CHARACTERS = 60
#: SQLite stores decimal numbers as REAL, which keeps this many digits.
_REAL_DIGITS = 15
_KEY_CHOICES = (
    "give it a PRIMARY KEY, or a UNIQUE index over NOT NULL columns, or exclude the table; "
    "a rowid alone is not enough, because VACUUM may change it"
)
_EXPLAINED = {
    "view": "a view has no rows of its own; its tables are captured",
    "virtual": "the module of a virtual table fires no triggers",
    "shadow": "it belongs to a virtual table",
}


def check(
    connection: sqlite3.Connection, file: Path, columns: ColumnChoice, include: Seq[str], exclude: Seq[str]
) -> Iterator[Finding]:
    """Yield the findings about the file, then those about each table."""
    yield from _file_findings(connection, file)
    dictionary = SqliteDictionary(connection, columns)
    names, skipped = read_table_names(connection)
    captured = choose_tables(names, include, exclude)
    yield from columns.findings(
        (NAMESPACE, name, column) for name in captured for column in dictionary.read_columns(name)
    )
    schemas = {}
    for name in captured:
        found = dictionary.read_table(name)
        schemas[name] = found.schema
        yield from (replace(f, table=found.schema.qualified_name) for f in _table_findings(connection, found))
    yield from find_other_spellings(connection, schemas)
    kinds = {other.name: other.kind for other in skipped}
    for name in choose_tables(list(kinds), include, exclude):
        yield Finding(where=f"main.{name}", message=f"{kinds[name]}, not captured: {_EXPLAINED[kinds[name]]}")


def _file_findings(connection: sqlite3.Connection, file: Path) -> Iterator[Finding]:
    if not is_writable(file):
        yield Finding(
            where=str(file),
            message="this account may not write the file or its directory",
            remedy="give the account that runs VENUS write permission on both",
            blocks=True,
        )
    mode = connection.execute("PRAGMA main.journal_mode").fetchone()[0]
    if mode != "wal":
        yield Finding(
            where=str(file),
            message=f"journal_mode is {mode}: the application's commits wait while VENUS reads a cut",
            remedy="run PRAGMA journal_mode=WAL once (VENUS never changes the mode)",
        )


def _table_findings(connection: sqlite3.Connection, found: SqliteTable) -> Iterator[Finding]:
    where = found.schema.qualified_name
    if not found.key:
        yield Finding(where=where, message=NO_KEY, remedy=_KEY_CHOICES, blocks=True)
    for column in found.untyped:
        yield Finding(
            where=where,
            message=f"column {column}: its declaration names no type, and its values have no single type either",
            remedy=f"declare a type, or {WAY_OUT}",
            blocks=True,
            details=tuple(_storage_class_examples(connection, found, column)),
        )
    for collation in found.foreign_collations:
        message = foreign_collation_message(collation)
        yield Finding(where=where, message=message, remedy="drop the index, or exclude the table", blocks=True)
    if found.key and not found.foreign_collations and not found.untyped:
        yield from _null_key_findings(connection, found)
        yield from _value_findings(connection, found)
    wide = [c for c in found.schema.columns if c.type.kind is Kind.DECIMAL and c.type.precision > _REAL_DIGITS]
    for decimal in wide:
        yield Finding(
            where=where,
            message=f"column {decimal.name} ({decimal.source_type}): SQLite keeps only {_REAL_DIGITS} digits of a"
            " number that is not a 64-bit integer; VENUS carries the stored value",
        )


def _storage_class_examples(connection: sqlite3.Connection, found: SqliteTable, column: str) -> Iterator[str]:
    """Yield a description of one row for each storage class that a column contains."""
    keys = [k.name for k in found.key]
    names = ", ".join([*map(quote, keys), f"quote({quote(column)})"])
    table = f"main.{quote(found.schema.name)}"
    kinds = f"SELECT DISTINCT typeof({quote(column)}) FROM {table} WHERE {quote(column)} IS NOT NULL ORDER BY 1"
    for (kind,) in connection.execute(kinds).fetchall():
        query = f"SELECT {names} FROM {table} WHERE typeof({quote(column)}) = ? LIMIT 1"
        *key, value = connection.execute(query, (kind,)).fetchone()
        row = ", ".join(f"{name}={part!r}" for name, part in zip(keys, key, strict=True))
        shown = value if len(value) <= VALUE_CHARACTERS else f"{value[:VALUE_CHARACTERS]}..."
        yield f"row {row}: {kind} {shown}"


def _null_key_findings(connection: sqlite3.Connection, found: SqliteTable) -> Iterator[Finding]:
    if not found.key_may_be_null:
        return
    condition = " OR ".join(f"{quote(name)} IS NULL" for name in found.key_may_be_null)
    query = f"SELECT count(*) FROM main.{quote(found.schema.name)} WHERE {condition}"
    count = connection.execute(query).fetchone()[0]
    if count:
        yield Finding(
            where=found.schema.qualified_name,
            message=f"{count} rows have NULL in the key ({', '.join(found.key_may_be_null)}), which SQLite allows",
            remedy="set the key of these rows and declare the columns NOT NULL, or exclude the table",
            blocks=True,
        )


def _value_findings(connection: sqlite3.Connection, found: SqliteTable) -> Iterator[Finding]:
    access = build_access(replace(found, schema=assign_numbers(found.schema, 0)[0]))
    rows = _read_sample(connection, access)
    nul, undecodable = 0, 0
    for at, column in enumerate(access.layout.columns):
        examples: list[str] = []
        unfit = 0
        for row in rows:
            value = row[at]
            if isinstance(value, str):
                nul += "\0" in value
                if any("\ud800" <= c <= "\udfff" for c in value) if not value.isascii() else False:
                    undecodable += 1
                    continue
            try:
                access.rules[at].canonical_text(value)
            except SqliteValueError as e:
                unfit += 1
                if len(examples) < EXAMPLES_MAX:
                    examples.append(f"row {access.describe_key(row)}: {e}")
        if unfit:
            yield Finding(
                where=found.schema.qualified_name,
                message=f"column {column.name} ({column.source_type or 'no type'}): {unfit} of {len(rows)} rows looked"
                " at have a value that cannot be carried exactly",
                remedy=f"correct the values, declare the type that they have, or {WAY_OUT}",
                blocks=True,
                details=tuple(examples),
            )
    yield from _text_findings(found, nul, undecodable, len(rows))


def find_large_values(connection: sqlite3.Connection, tables: Iterable[SqliteTable]) -> Iterator[LargeValues]:
    """Yield the tables whose values may be larger than a message, unless the file is smaller than that."""
    (nbytes,) = connection.execute(statement("structure", "file_bytes")).fetchone()
    for table in tables if nbytes > limits.ROW_BYTES_MAX else ():
        columns = [c.name for c in table.schema.columns if c.type.kind in (Kind.TEXT, Kind.CHAR, Kind.BYTES)]
        if columns:
            count = partial(_count_large_rows, connection, table.schema.name, columns)
            yield LargeValues(table=table.schema.qualified_name, columns=columns, count=count)


def _count_large_rows(connection: sqlite3.Connection, table: str, columns: Iterable[str], seconds: float) -> Row:
    lengths = " + ".join(statement("structure", "length", column=quote(c)) for c in columns)
    parts = {"lengths": lengths, "table": f"main.{quote(table)}", "bytes": str(limits.ROW_BYTES_MAX)}
    until = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > until, 100_000)
    try:
        found: Row = connection.execute(statement("structure", "large_rows", **parts)).fetchone()
    except sqlite3.OperationalError as error:
        raise SourceError(f"main.{table}: {error}") from error
    finally:
        connection.set_progress_handler(None, 0)
    return found


def _text_findings(found: SqliteTable, nul: int, undecodable: int, looked_at: int) -> Iterator[Finding]:
    where = found.schema.qualified_name
    if undecodable:
        message = f"{undecodable} values in {looked_at} rows are TEXT but not UTF-8"
        yield Finding(where=where, message=message, remedy="store them as BLOB, or correct them", blocks=True)
    if nul:
        yield Finding(
            where=where,
            message=f"{nul} text values in {looked_at} rows contain a NUL character, which PostgreSQL refuses",
            remedy="remove the characters, or expect the target to report these rows",
        )


def _read_sample(connection: sqlite3.Connection, access: SqliteAccess) -> list[Row]:
    """Return the first and the last rows in key order, each once."""
    connection.text_factory = lambda octets: octets.decode(errors="surrogateescape")
    try:
        rows = {}
        for sql in (access.fill_sql, access.tail_sql):
            some = RowStream(connection.execute(sql, (SAMPLE_ROWS,)), access)
            for row in some.take(rows_max=SAMPLE_ROWS, bytes_max=SAMPLE_BYTES):
                rows[row[: access.key_count]] = row
        return list(rows.values())
    finally:
        connection.text_factory = str


#: How many rows of each child table are compared.
ROWS_MAX = 1_000_000


def find_other_spellings(connection: sqlite3.Connection, schemas: Mapping[str, TableSchema]) -> Iterator[Finding]:
    """Yield findings about foreign keys between captured tables whose rows spell the parent's key differently."""
    for child in schemas.values():
        for key in child.foreign_keys:
            parent = schemas.get(key.referred_table)
            if parent is not None and _has_text(parent, key):
                yield from _spelling_findings(connection, child, key)


def _has_text(parent: TableSchema, key: ForeignKey) -> bool:
    """Return whether a foreign key refers to a text column, whose values may have several spellings."""
    kinds = {c.name: c.type.kind for c in parent.columns}
    return set(key.referred_columns) <= kinds.keys() and any(kinds[c] is Kind.TEXT for c in key.referred_columns)


def _spelling_findings(connection: sqlite3.Connection, child: TableSchema, key: ForeignKey) -> Iterator[Finding]:
    """Yield a finding if rows of a child table spell the parent's key differently."""
    table, parent = f"main.{quote(child.name)}", f"main.{quote(key.referred_table)}"
    pairs = [(quote(c), quote(p)) for c, p in zip(key.columns, key.referred_columns, strict=True)]
    parts = {
        "child": table,
        "parent": parent,
        "rows": str(ROWS_MAX),
        "column": pairs[0][0],
        "referred": pairs[0][1],
        "match": " AND ".join(f"p.{p} = c.{c}" for c, p in pairs),
        "differ": " OR ".join(f"p.{p} <> c.{c} COLLATE BINARY" for c, p in pairs),
        "columns": ", ".join(c for c, _ in pairs),
        "values": ", ".join(f"p.{p}" for _, p in pairs),
    }
    try:
        count, example, referred = connection.execute(statement("structure", "other_spellings", **parts)).fetchone()
    except sqlite3.OperationalError:  # a collation or a function that only the application has
        return
    if count:
        yield Finding(
            where=child.qualified_name,
            message=f"foreign key {key.name} ({', '.join(key.columns)}) holds only by collation:"
            f" {count_phrase(count, 'row')} refer to another spelling in {key.referred_table}, {example!r} to "
            f"{referred!r};"
            " PostgreSQL compares exactly",
            remedy=statement("structure", "same_spelling", **parts),
        )
