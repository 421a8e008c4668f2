"""A PostgreSQL database, a session of its application, and a source that captures it."""

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

#: Function that opens the source and returns its follower.
Start = Callable[[], Follower]


class Sql:
    """An autocommit session."""

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
        """Wait until a session waits for a lock."""
        deadline = time.monotonic() + 60
        while not self("SELECT 1 FROM pg_locks WHERE NOT granted"):
            assert time.monotonic() < deadline, "no session waits"


def keys(follower: Follower, table: str) -> set[str]:
    """Return the keys of a table's rows: the values of their first column."""
    return {str(key[0]) for key in follower.rows(table)}


def state(follower: Follower, table: str) -> tuple[str, str]:
    """Return the state of a captured table and the reason."""
    (found,) = [each for each in follower.source.registry.read_registered_tables() if each.schema.name == table]
    return found.state, found.reason


@pytest.fixture
def sql(database: str) -> Iterator[Sql]:
    session = Sql(database)
    yield session
    session.close()


@pytest.fixture
def open_sessions(database: str) -> Iterator[Callable[[], Sql]]:
    """Return a function that opens more sessions."""
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
    """Return a function that installs the triggers on all tables and fills."""

    def start() -> Follower:
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        return follower

    return start


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep every statement of VENUS's sessions; leave out the periodic query of every log."""
    monkeypatch.setattr(sources, "LOOK_S", 300.0)
    statements: list[str] = []
    run = connections.PostgresConnection.run

    def count_listeners(self: connections.PostgresConnection, text: str, params: connections.Params = None) -> int:
        statements.append(text)
        return run(self, text, params)

    monkeypatch.setattr(connections.PostgresConnection, "run", count_listeners)
    return statements
