"""Cases from public bug reports in tests/story/field_cases: a setup, the line `-- CHANGES`, and the changes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import libpq

FOLDER = Path(__file__).parents[2] / "story" / "field_cases"
_MARK = "-- CHANGES\n"
_END = re.compile(r";\s*$", re.MULTILINE)

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class FieldCase:
    """One case as statements; a transaction of several statements begins with BEGIN and ends with COMMIT."""

    name: str
    make: str
    setup: tuple[str, ...]
    changes: tuple[str, ...]


def read_case(name: str) -> FieldCase:
    """Read a case by the number at the start of its file name."""
    (path,) = FOLDER.glob(f"{name}*.sql")
    setup, changes = path.read_text().split(_MARK)
    return FieldCase(path.name, path.suffixes[0].lstrip("."), tuple(_statements(setup)), tuple(_statements(changes)))


def _statements(text: str) -> Iterator[str]:
    lines = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("--"))
    yield from (one.strip() for one in _END.split(lines) if one.strip())


@dataclass(frozen=True, slots=True)
class FieldSource:
    """The database of a case: a session of the application, and its tables."""

    url: str
    run: Callable[[str], Rows]
    quote: Callable[[str], str]
    #: Returns the tables as (namespace, name), without VENUS's own.
    tables: Callable[[], list[tuple[str, str]]]
    columns: Callable[[str, str], list[str]]
    #: Converts a value to text; None if both sides are PostgreSQL.
    cast: str = ""

    def rows(self, namespace: str, name: str) -> list[tuple[str | None, ...]]:
        """Return a table's rows as text, sorted."""
        return as_text(self.run(self._query(namespace, name, self.quote)))

    def rows_at(self, target: str, namespace: str, name: str) -> list[tuple[str | None, ...]]:
        """Return the rows of the table of this name at a PostgreSQL target, in the source's columns."""
        return as_text(query(target, self._query(namespace, name, double_quoted)))

    def _query(self, namespace: str, name: str, quote: Callable[[str], str]) -> str:
        columns = ", ".join(f"{quote(c)}{self.cast}" for c in self.columns(namespace, name))
        return f"SELECT {columns} FROM {quote(namespace)}.{quote(name)}"


def as_text(rows: Rows) -> list[tuple[str | None, ...]]:
    """Return rows as text, sorted."""
    return sorted((tuple(None if v is None else _text(v) for v in row) for row in rows), key=str)


def _text(value: Any) -> str:
    return bytes(value).hex() if isinstance(value, (bytes, memoryview)) else str(value)


def double_quoted(name: str) -> str:
    """Quote a name as standard SQL does."""
    return '"' + name.replace('"', '""') + '"'


def _backticks(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


PG_TABLES = (
    "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname !~ '^(pg_|information_schema|venus)'"
    " ORDER BY 1, 2"
)
PG_COLUMNS = (
    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(quote_ident(%s) || '.' || quote_ident(%s))"
    " AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)


@contextmanager
def postgres_source(url: str) -> Iterator[FieldSource]:
    """Open a PostgreSQL database; values are compared in its own text form."""
    connection = psycopg2.connect(libpq(url))
    connection.autocommit = True

    def run(text: str, values: Sequence[str] | None = None) -> Rows:
        cursor = connection.cursor()
        cursor.execute(text, values)
        return cursor.fetchall() if cursor.description else []

    def columns(namespace: str, name: str) -> list[str]:
        return [row[0] for row in run(PG_COLUMNS, (namespace, name))]

    try:
        yield FieldSource(url, run, double_quoted, lambda: [(r[0], r[1]) for r in run(PG_TABLES)], columns, "::text")
    finally:
        connection.close()


@contextmanager
def mariadb_source(server: MariaServer, url: str) -> Iterator[FieldSource]:
    """Open a MariaDB database."""
    name = str(sqlalchemy.make_url(url).database)
    connection = server.connect(name, autocommit=True)

    def run(text: str) -> Rows:
        cursor = connection.cursor()
        cursor.execute(text)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def tables() -> list[tuple[str, str]]:
        found = run(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{name}'"
            " AND table_name NOT LIKE 'venus%' ORDER BY 1"
        )
        return [(name, row[0]) for row in found]

    def columns(_: str, table: str) -> list[str]:
        found = run(
            f"SELECT column_name FROM information_schema.columns WHERE table_schema = '{name}'"
            f" AND table_name = '{table}' ORDER BY ordinal_position"
        )
        return [row[0] for row in found]

    try:
        yield FieldSource(url, run, _backticks, tables, columns)
    finally:
        connection.close()


@contextmanager
def sqlite_source(path: Path) -> Iterator[FieldSource]:
    """Open a SQLite file."""
    connection = sqlite3.connect(path, isolation_level=None)

    def run(text: str) -> Rows:
        return connection.execute(text).fetchall()

    def tables() -> list[tuple[str, str]]:
        found = run("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'venus%' ORDER BY 1")
        return [("main", row[0]) for row in found if not row[0].startswith("sqlite_")]

    def columns(_: str, table: str) -> list[str]:
        return [row[1] for row in run(f"PRAGMA table_info({double_quoted(table)})")]

    try:
        yield FieldSource(f"sqlite:///{path}", run, double_quoted, tables, columns)
    finally:
        connection.close()
