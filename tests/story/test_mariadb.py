"""The user's path from MariaDB to PostgreSQL, with the commands as subprocesses.

The hardest values of every type, cascades, continuous writers, a killed broker and a killed sync; in the end all values
are equal.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy

from tests.support.databases.mariadb import MariaServer, catalogue
from tests.support.databases.mariadb_workload import change_item, writers
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from venus.adapters.dialects.mysql.torture import COLUMNS

pytestmark = [pytest.mark.integration, pytest.mark.quick, pytest.mark.timeout(600)]

_TABLES = (
    "CREATE TABLE item (id int PRIMARY KEY, v varchar(40) NOT NULL)",
    "CREATE TABLE piece (id int AUTO_INCREMENT PRIMARY KEY, item_id int, note text,"
    " FOREIGN KEY (item_id) REFERENCES item (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "INSERT INTO item SELECT seq, concat('old ', seq) FROM seq_0_to_199",
    "INSERT INTO piece (item_id, note) SELECT seq % 200, repeat('ü', seq % 50) FROM seq_1_to_1000",
)


@pytest.fixture
def pipeline(mariadb_database: str, tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    target = postgres_server.create_database()
    made = Pipeline(folder=tmp_path, source=mariadb_database, targets={"main": with_password(target)})
    made.configure()
    try:
        yield made
    finally:
        made.close()
        postgres_server.drop_database(target)


def rows(connection: Any, query: str) -> set[tuple[str | None, ...]]:
    cursor = connection.cursor()
    cursor.execute(query)
    return {tuple(None if v is None else str(v) for v in row) for row in cursor.fetchall()}


def insert_torture(cursor: Any, first: int) -> dict[int, tuple[str, str | bytes | None]]:
    """Insert a row for each hard value; return which value of which column each row must have."""
    expected = {}
    numbers = count(first)
    for name, column in COLUMNS.items():
        for sql, canonical in column.values:
            number = next(numbers)
            cursor.execute(f"INSERT INTO torture (id, {name}) VALUES ({number}, {sql})")
            expected[number] = (name, canonical)
    return expected


def test_the_users_path_from_mariadb(mariadb_server: MariaServer, mariadb_database: str, pipeline: Pipeline) -> None:
    name = str(sqlalchemy.make_url(mariadb_database).database)
    app = mariadb_server.connect(name, autocommit=True)
    cursor = app.cursor()
    for statement in _TABLES:
        cursor.execute(statement)
    spelled = ", ".join(f"{n} {c.type}" for n, c in COLUMNS.items())
    cursor.execute(f"CREATE TABLE torture (id int PRIMARY KEY, {spelled})")
    expected = insert_torture(cursor, 1)
    untouched = catalogue(mariadb_server, name)

    assert pipeline.ask("check")["blocks"] == 0
    pipeline.ask("install-triggers")
    pipeline.start_broker()
    with writers(mariadb_server, name, change_item) as counts:
        assert pipeline.ask("migrate", "--target", "main")["rows"] > 100
        pipeline.start("sync", "sync", "--target", "main")
        expected |= insert_torture(cursor, 1001)
        threading.Event().wait(1.5)  # time for the users to write
        pipeline.kill("broker")
        pipeline.start_broker()
        pipeline.kill("sync")
        pipeline.start("sync", "sync", "--target", "main")
    assert not counts.failed
    cursor.execute("INSERT INTO piece (item_id, note) SELECT id, v FROM item")
    cursor.execute("DELETE FROM item WHERE id % 7 = 0")
    cursor.execute("UPDATE item SET id = id + 10000 WHERE id % 7 = 1")
    pipeline.wait_until_caught_up("main")

    target = psycopg2.connect(libpq(pipeline.targets["main"]))
    target.cursor().execute(f"SET search_path = {name}; SET timezone = 'UTC'")
    for query in ("SELECT id, v FROM item", "SELECT id, item_id, note FROM piece"):
        there = rows(app, query)
        assert there
        assert rows(target, query) == there, query
    check_torture(target, expected)
    target.close()
    app.close()
    assert pipeline.stop("sync") == 0
    pipeline.ask("uninstall-triggers")
    assert catalogue(mariadb_server, name) == untouched


def check_torture(target: Any, expected: dict[int, tuple[str, str | bytes | None]]) -> None:
    """Check every value in PostgreSQL's text form."""
    cursor = target.cursor()
    found: dict[int, tuple[str, str | bytes | None]] = {}
    for number, (column, canonical) in expected.items():
        binary = isinstance(canonical, bytes)
        read = column if binary else f"format('%%s', {column})"
        cursor.execute(f"SELECT {read} FROM torture WHERE id = %s", (number,))
        ((value,),) = cursor.fetchall()
        found[number] = (column, bytes(value) if binary else value)
    assert found == expected
