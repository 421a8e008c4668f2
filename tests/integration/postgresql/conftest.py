"""A database, a session of its application, and its source."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import psycopg2.extensions
import pytest

from tests.support.databases.postgres import libpq
from venus.adapters.dialects.postgresql import connection as connections
from venus.adapters.dialects.postgresql.capture import capture as sources
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.prove.follower import Follower

#: Opens the source and follows it.
Start = Callable[[], Follower]


class Sql:
    """A session that commits every statement by itself."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg2.connect(libpq(url))
        self.connection.autocommit = True

    def __call__(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self.connection.close()

    def wait_for_a_waiter(self) -> None:
        """Return when some session waits for a lock."""
        deadline = time.monotonic() + 60
        while not self("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert time.monotonic() < deadline, "no session waits"


def keys(follower: Follower, table: str) -> set[str]:
    """Return the keys of a table's rows, by their first column."""
    return {str(key[0]) for key in follower.rows(table)}


def state(follower: Follower, table: str) -> tuple[str, str]:
    """Return the state of a captured table, and why it has it."""
    (found,) = [each for each in follower.source.registry.read_registered_tables() if each.schema.name == table]
    return found.state, found.reason


@pytest.fixture
def sql(database: str) -> Iterator[Sql]:
    session = Sql(database)
    yield session
    session.close()


@pytest.fixture
def open_sessions(database: str) -> Iterator[Callable[[], Sql]]:
    """Open more sessions."""
    sessions: list[Sql] = []

    def make() -> Sql:
        sessions.append(Sql(database))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def source(database: str) -> Iterator[PostgresSource]:
    source = PostgresSource(database)
    yield source
    source.close()


@pytest.fixture
def capture(source: PostgresSource) -> Callable[[], Follower]:
    """Install on what there is, and fill."""

    def start() -> Follower:
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        return follower

    return start


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep every statement of VENUS's sessions; none is a look into every log, which is due when time has passed."""
    monkeypatch.setattr(sources, "LOOK_S", 300.0)
    statements: list[str] = []
    run = connections.PostgresConnection.run

    def count_listeners(self: connections.PostgresConnection, text: str, params: connections.Params = None) -> int:
        statements.append(text)
        return run(self, text, params)

    monkeypatch.setattr(connections.PostgresConnection, "run", count_listeners)
    return statements
