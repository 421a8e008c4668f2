"""A MariaDB database with an application, and a source that captures it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy

from tests.support.databases.mariadb import MariaServer
from venus.adapters.dialects.mysql.source import MysqlSource
from venus.cli.prove.follower import Follower


@dataclass(slots=True)
class Clock:
    """Clock that a test sets."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Shop:
    """The application's session, and a follower of the captured changes."""

    server: MariaServer
    url: str
    app: Any
    clock: Clock = field(default_factory=Clock)
    options: str = ""
    _source: MysqlSource | None = None
    _follower: Follower | None = None

    @property
    def database(self) -> str:
        return str(sqlalchemy.make_url(self.url).database)

    @property
    def source(self) -> MysqlSource:
        if self._source is None:
            self._source = MysqlSource(self.url + self.options, monotonic=self.clock)
        return self._source

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as the application, each in a transaction of its own; return the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with self.app.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
        return rows

    def capture(self, *include: str) -> Follower:
        """Install the triggers, and read the existing rows."""
        self.source.installer.install(include or ["*"], [])
        self._follower = Follower(self.source)
        self._follower.drain()
        return self._follower

    def check_same(self, follower: Follower, *tables: str) -> None:
        """Check that the captured rows equal the table's rows, by the text of every value."""
        for table in tables:
            columns = [c.name for c in self.schema(follower, table).columns]
            texts = ", ".join(f"CAST(`{c}` AS CHAR)" for c in columns)
            there = {tuple(row) for row in self.run(f"SELECT {texts} FROM `{table}`")}
            assert {tuple(row[c] for c in columns) for row in follower.rows(table).values()} == there, table

    def schema(self, follower: Follower, table: str) -> Any:
        return max((s for s in follower.schemas.values() if s.name == table), key=lambda s: s.version)

    def state(self, table: str) -> tuple[str, str]:
        (found,) = [t for t in self.source.registry.read_registered_tables() if t.schema.name == table]
        return found.state, found.reason

    def wait_for(self, query: str) -> None:
        """Wait until the administrator's query returns a row.

        Polls every 0.2 s at most: a query within 0.1 s gets InnoDB's last answer about transactions again.
        """
        deadline = time.monotonic() + 60
        while not self.server.execute(query):
            assert time.monotonic() < deadline, query
            time.sleep(0.2)

    def restart(self) -> None:
        """Open the source again, as another process would."""
        if self._source is not None:
            self._source.close()
        self._source = None

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self.app.close()


@pytest.fixture
def shop(mariadb_server: MariaServer, mariadb_database: str) -> Iterator[Shop]:
    """Make a database with MariaDB's usual collation, which ignores case and trailing blanks."""
    name = sqlalchemy.make_url(mariadb_database).database
    shop = Shop(mariadb_server, mariadb_database, mariadb_server.connect(name, autocommit=True, local_infile=True))
    yield shop
    shop.close()
