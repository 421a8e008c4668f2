"""Databases that can be restored from a backup as a DBA does it, which loses all later changes."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pymysql
import sqlalchemy

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server
from tests.support.pipelines.end_to_end import run_at

Rows = list[tuple[Any, ...]]


class Database(Protocol):
    """One database, with at most one backup."""

    url: str

    def run(self, *statements: str) -> Rows:
        """Run statements as the application, each in a transaction of its own; return the last one's rows."""
        ...

    def back_up(self) -> None:
        """Take a backup; no session may be connected."""
        ...

    def restore(self) -> None:
        """Restore the backup, and end every session."""
        ...


class SqliteFile:
    """A SQLite database, whose backup is a copy of its file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.db"
        self.url = f"sqlite:///{self.path}"
        self.run("PRAGMA journal_mode = WAL")

    def run(self, *statements: str) -> Rows:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
            rows: Rows = []
            for statement in statements:
                rows = connection.execute(statement).fetchall()
            return rows

    def back_up(self) -> None:
        self.run("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(self.path, self.path.with_suffix(".backup"))

    def load(self) -> None:
        """Restore the rows into the same file under every open session: `.restore` of sqlite3."""
        with (
            closing(sqlite3.connect(self.path.with_suffix(".backup"))) as backup,
            closing(sqlite3.connect(self.path, timeout=30)) as there,
        ):
            backup.backup(there)

    def restore(self) -> None:
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        shutil.copy(self.path.with_suffix(".backup"), self.path.with_suffix(".new"))
        self.path.with_suffix(".new").rename(self.path)


class PostgresDatabase:
    """A database, and its backup: a copy made with it as the template, so even the oids of its objects are the same."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.create_database()
        self.name = sqlalchemy.make_url(self.url).database or ""

    def run(self, *statements: str) -> Rows:
        return run_at(self.url, *statements)

    def back_up(self) -> None:
        self.server.execute(f"CREATE DATABASE {self.name}_backup TEMPLATE {self.name}")

    def restore(self) -> None:
        self.server.drop_database(self.url)
        self.server.execute(f"CREATE DATABASE {self.name} TEMPLATE {self.name}_backup")

    def drop(self) -> None:
        """Remove both databases."""
        self.server.execute(f"DROP DATABASE IF EXISTS {self.name}_backup WITH (FORCE)")
        self.server.drop_database(self.url)


class MariaDatabase:
    """A database, and a dump of it."""

    def __init__(self, server: MariaServer, folder: Path) -> None:
        self.server, self.dump = server, folder / "backup.sql"
        self.url = server.create_database()
        self.name = sqlalchemy.make_url(self.url).database or ""

    def run(self, *statements: str) -> Rows:
        with closing(self.server.connect(self.name, autocommit=True)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def back_up(self) -> None:
        self.dump.write_bytes(self._client("mariadb-dump", "--single-transaction", "--hex-blob", self.name))

    def restore(self) -> None:
        self.server.drop_database(self.url)
        self.server.execute(f"CREATE DATABASE {self.name} COLLATE utf8mb4_general_ci")
        self.load()

    def load(self) -> None:
        """Run the dump in the existing database, with all its sessions connected."""
        self._client("mariadb", self.name, text=self.dump.read_bytes())

    def _client(self, program: str, *arguments: str, text: bytes = b"") -> bytes:
        command = [program, "--no-defaults", "-h", "127.0.0.1", "-P", str(self.server.port), "-u", "root", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def drop(self) -> None:
        """Remove the database."""
        try:
            self.server.drop_database(self.url)
        except pymysql.Error as error:  # a test may have failed in the middle of a restore
            raise AssertionError(f"{self.name} cannot be removed") from error


@contextmanager
def make_restorable(kind: str, folder: Path, fixture: Any) -> Iterator[Database]:
    """Make a database of one kind; `fixture` returns the servers."""
    match kind:
        case "sqlite":
            yield SqliteFile(folder)
        case "postgresql":
            postgres = PostgresDatabase(fixture("postgres_server"))
            yield postgres
            postgres.drop()
        case _:
            maria = MariaDatabase(fixture("mariadb_server"), folder)
            yield maria
            maria.drop()
