"""Where a dialect is tried: what the suite needs to know of a database to speak to it as an application would.

A new dialect passes the suite by adding a `Place` here and its name to `PLACES` in conftest.py. Statements in the
tests are plain SQL that every dialect takes; the types and literals that differ are asked of the place.
"""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg2
import pymysql
import pytest
import sqlalchemy
from pymysql.constants import ER

from tests.conformance import torture_mysql, torture_postgresql, torture_sqlite
from tests.conformance.torture import Torture
from tests.support.databases.mariadb import MariaServer, catalogue
from tests.support.databases.postgres import Server, libpq
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.registry import open_source
from venus.config import Settings


class Application(Protocol):
    """A session of the application. Nothing is visible to others before `commit`."""

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement; `?` stands for a value."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class Place(Protocol):
    """An empty database of one dialect."""

    dialect: str

    @property
    def namespace(self) -> str: ...

    #: Spellings of int, text, blob, decimal (10,2).
    types: Mapping[str, str]
    #: Whether an empty string is NULL.
    empty_is_null: bool
    #: Whether transactions may commit in another order than they draw numbers.
    concurrent_writers: bool
    #: Whether TRUNCATE is captured as such.
    captures_truncate: bool
    #: Whether triggers see what a cascade deletes.
    fires_on_cascade: bool

    def connect(self) -> Application: ...

    def open(self) -> Source: ...

    def dump(self) -> str:
        """Return the whole catalogue as text: equal before installing and after uninstalling."""
        ...

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        """Return columns by name, and the statements that make what their types need."""
        ...


def do(app: Application, *statements: str) -> None:
    """Run statements in one transaction."""
    for statement in statements:
        app.execute(statement)
    app.commit()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(slots=True)
class DriverApplication:
    """An application on a DB-API driver."""

    connection: Any
    placeholder: str

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        if values:
            cursor.execute(sql.replace("?", self.placeholder), values)
        else:
            cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


def _source(url: str) -> Source:
    return open_source(Settings(source={"url": url}))  # type: ignore[arg-type]


@dataclass(slots=True)
class PostgresPlace:
    """A database on the embedded server."""

    server: Server
    url: str
    dialect: str = "postgresql"
    namespace: str = "public"
    empty_is_null: bool = False
    concurrent_writers: bool = True
    captures_truncate: bool = True
    fires_on_cascade: bool = True
    types: Mapping[str, str] = field(
        default_factory=lambda: {"int": "integer", "text": "text", "blob": "bytea", "decimal": "numeric(10,2)"}
    )

    def connect(self) -> Application:
        return DriverApplication(psycopg2.connect(libpq(self.url)), "%s")

    def open(self) -> Source:
        return _source(self.url)

    def dump(self) -> str:
        command = [str(self.server.bin / "pg_dump"), "--schema-only", libpq(self.url)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        # the key of psql's restricted mode is random
        return "\n".join(line for line in text.splitlines() if "restrict " not in line)

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        return torture_postgresql.COLUMNS, torture_postgresql.SETUP


@dataclass(slots=True)
class SqlitePlace:
    """A database file."""

    path: Path
    dialect: str = "sqlite"
    namespace: str = "main"
    empty_is_null: bool = False
    concurrent_writers: bool = False
    captures_truncate: bool = False  # there is none, and DELETE without WHERE fires the row triggers
    fires_on_cascade: bool = True
    types: Mapping[str, str] = field(
        default_factory=lambda: {"int": "INTEGER", "text": "TEXT", "blob": "BLOB", "decimal": "DECIMAL(10,2)"}
    )

    def connect(self) -> Application:
        connection = sqlite3.connect(self.path, timeout=30)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        return DriverApplication(connection, "?")

    def open(self) -> Source:
        return _source(f"sqlite:///{self.path}")

    def dump(self) -> str:
        connection = sqlite3.connect(self.path)
        try:
            return "\n".join(str(r) for r in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))
        finally:
            connection.close()

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        return torture_sqlite.COLUMNS, torture_sqlite.SETUP


@dataclass(slots=True)
class MariaPlace:
    """A database on a MariaDB server of its own."""

    server: MariaServer
    url: str
    dialect: str = "mysql"
    empty_is_null: bool = False
    concurrent_writers: bool = True
    captures_truncate: bool = False  # no trigger fires; it is noticed afterwards, by InnoDB's number of the table
    fires_on_cascade: bool = True
    types: Mapping[str, str] = field(
        default_factory=lambda: {"int": "int", "text": "longtext", "blob": "longblob", "decimal": "decimal(10,2)"}
    )

    @property
    def namespace(self) -> str:
        return str(sqlalchemy.make_url(self.url).database)

    def connect(self) -> Application:
        return MariaApplication(self.server.connect(self.namespace, sql_mode="STRICT_ALL_TABLES,ANSI_QUOTES"), "%s")

    def open(self) -> Source:
        return _source(self.url)

    def dump(self) -> str:
        return catalogue(self.server, self.namespace)

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        return torture_mysql.COLUMNS, torture_mysql.SETUP


class MariaApplication(DriverApplication):
    """An application on MariaDB, whose names end with the basic plane of Unicode."""

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return super().execute(sql, *values)
        except pymysql.Error as error:
            if error.args[0] == ER.INVALID_CHARACTER_STRING:
                pytest.skip("MariaDB knows no such name")
            raise
