"""A SQLite file as an application uses it, with VENUS beside it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from venus.adapters.dialects.sqlite.source import SqliteSource
from venus.cli.prove.follower import BYTES_MAX, ROWS_MAX, Follower
from venus.codec.batch import TableChanges
from venus.codec.columns import Value


@dataclass(slots=True)
class Copy:
    """The rows that a target would have; the copy follows the source from the first call on."""

    source: SqliteSource
    bytes_max: int = BYTES_MAX
    chunk_rows: int = ROWS_MAX
    sections: list[TableChanges] = field(default_factory=list)
    _follower: Follower | None = None

    @property
    def follower(self) -> Follower:
        """Return the reader that maintains the copy."""
        if self._follower is None:
            self._follower = Follower(self.source)
        self._follower.read_registry()
        return self._follower

    def follow(self) -> bool:
        """Take one cut; return False if there was none."""
        seen = self.follower.cut(bytes_max=self.bytes_max, fill_rows=self.chunk_rows)
        self.sections += seen.sections if seen else []
        return seen is not None

    def catch_up(self) -> None:
        """Follow until no change is left."""
        while self.follow():
            pass

    def id_of(self, name: str) -> int:
        """Return a table's id."""
        return self.follower.table_id(name)

    def content(self, name: str) -> dict[tuple[Value, ...], tuple[Value, ...]]:
        """Return a dictionary from key values to the other values in wire order."""
        return {key: tuple(row.values())[len(key) :] for key, row in self.follower.rows(name).items()}


@dataclass(slots=True)
class Shop:
    """The application's connection, the source, and a copy that follows it."""

    file: Path
    app: sqlite3.Connection
    source: SqliteSource
    copy: Copy

    def run(self, script: str) -> None:
        """Run statements as the application, each in a transaction of its own."""
        for statement in script.split(";"):
            if statement.strip():
                self.app.execute(statement)

    def rows(self, query: str) -> set[tuple[object, ...]]:
        """Return a query's rows from the application's connection."""
        return set(self.app.execute(query).fetchall())


def application(file: Path) -> sqlite3.Connection:
    """Connect as an application does."""
    connection = sqlite3.connect(file, isolation_level=None, timeout=30)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


@contextmanager
def open_shop(file: Path, ddl: str = "", *, install: bool = True, wal: bool = True) -> Iterator[Shop]:
    """Make a file with these tables and capture all of them."""
    app = application(file)
    app.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
    app.executescript(ddl)
    source = SqliteSource(file)
    try:
        if install:
            source.installer.install(["*"], [])
        yield Shop(file=file, app=app, source=source, copy=Copy(source))
    finally:
        source.close()
        app.close()


@contextmanager
def keep_writing(file: Path, *, keys: int, every_s: float) -> Iterator[None]:
    """Insert, replace and delete rows of t (id, v) within the block; `keys` is the number of different keys."""
    stop = threading.Event()

    def write() -> None:
        n = 0
        with closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as app:
            while not stop.wait(every_s):
                n += 1
                app.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (n * 7 % keys, f"value {n}"))
                app.execute("DELETE FROM t WHERE id = ?", (n * 11 % keys,))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
