"""Each database's lock errors are recognised as such, so that a switch repeats its step."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from venus.adapters.dialects.mysql.connection import MysqlConnection, parse_address
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.sqlite import connection as sqlite_connections
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.sqlite import session as sqlite_sessions
from venus.adapters.targets.sqlite.session import SqliteSession
from venus.errors import Deadlock, LockConflict, LockTimeout

pytestmark = pytest.mark.integration

_TABLE = "CREATE TABLE {} (id int PRIMARY KEY, n int)"
_ROWS = "INSERT INTO {} VALUES (1, 0), (2, 0)"
_NAMES = {"postgresql": "public.locked", "mariadb": "locked"}
_SHORT = {"postgresql": "SET lock_timeout = '200ms'", "mariadb": "SET innodb_lock_wait_timeout = 1"}
#: Longer than a database needs to detect the deadlock.
_LONG = {"postgresql": "SET lock_timeout = 0", "mariadb": "SET innodb_lock_wait_timeout = 30"}


Connect = tuple[str, Callable[[], Any]]


@pytest.fixture(params=["postgresql-source", "postgresql-target", "mariadb-source", "mariadb-target"])
def connect(request: pytest.FixtureRequest, database: str, mariadb_database: str) -> Connect:
    """Return the kind of a database that has the table, and a function that connects to it."""
    makers: dict[str, Callable[[], Any]] = {
        "postgresql-source": lambda: PostgresConnection(database, application="venus test"),
        "postgresql-target": lambda: TargetSession(database, application="venus test"),
        "mariadb-source": lambda: MysqlConnection(parse_address(mariadb_database), "READ COMMITTED"),
        "mariadb-target": lambda: MysqlSession(mariadb_database, application="venus test"),
    }
    kind = request.param.partition("-")[0]
    with closing(makers[request.param]()) as session:
        for text in (_TABLE, _ROWS):
            session.run(text.format(_NAMES[kind]))
    return kind, makers[request.param]


def update(kind: str, number: int) -> str:
    return f"UPDATE {_NAMES[kind]} SET n = n + 1 WHERE id = {number}"


def test_a_lock_that_is_not_granted_in_time(connect: Connect) -> None:
    kind, connected = connect
    with closing(connected()) as holder, closing(connected()) as waiter:
        for session in (holder, waiter):
            session.run(_SHORT[kind])
            session.run("BEGIN")
        holder.run(update(kind, 1))
        with pytest.raises(LockTimeout):
            waiter.run(update(kind, 1))


def test_a_deadlock(connect: Connect) -> None:
    kind, connected = connect
    errors: list[LockConflict] = []

    def cross(session: Any, number: int) -> None:
        try:
            session.run(update(kind, number))
        except LockConflict as error:
            errors.append(error)
        finally:
            session.run("ROLLBACK")

    with closing(connected()) as one, closing(connected()) as other:
        for session, number in ((one, 1), (other, 2)):
            session.run(_LONG[kind])
            session.run("BEGIN")
            session.run(update(kind, number))
        thread = threading.Thread(target=cross, args=(one, 2))
        thread.start()
        cross(other, 1)
        thread.join()
    assert [type(error) for error in errors] == [Deadlock]


def test_a_transaction_that_postgresql_cannot_serialize(database: str) -> None:
    with (
        closing(TargetSession(database, application="venus test")) as one,
        closing(TargetSession(database, application="venus test")) as other,
    ):
        one.run(f"{_TABLE}; {_ROWS}".format("public.locked", "public.locked"))
        one.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM public.locked")
        other.run(update("postgresql", 1))
        with pytest.raises(Deadlock):
            one.run(update("postgresql", 1))


def test_a_sqlite_file_that_another_process_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite_sessions, sqlite_connections):
        monkeypatch.setattr(module, "LOCK_WAIT_S", 0.1)
    file = tmp_path / "one.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as holder:
        holder.execute(_TABLE.format("locked"))
        holder.execute("BEGIN IMMEDIATE")
        with (
            closing(SqliteSession(f"sqlite:///{file}", group="g", target="t")) as session,
            pytest.raises(LockTimeout, match="has held the file"),
        ):
            session.run("BEGIN")
        with (
            closing(sqlite_connections.connect(file)) as source,
            pytest.raises(LockTimeout, match="locked"),
            sqlite_connections.write_transaction(source, file),
        ):
            pass
