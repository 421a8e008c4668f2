"""PostgreSQL to a SQLite file as an ordinary target: predicates, verify, repair, resync, quarantine (scenario 95)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from venus.adapters.dialects.postgresql.torture import COLUMNS, SETUP
from venus.adapters.dialects.sqlite.torture import COLUMNS as SQLITE_COLUMNS

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_TABLES = (
    "CREATE TABLE item (id bigint PRIMARY KEY, region text NOT NULL, v text UNIQUE)",
    "CREATE TABLE piece (id serial PRIMARY KEY, item_id bigint REFERENCES item, note varchar(40))",
    "INSERT INTO item SELECT n, CASE WHEN n % 2 = 0 THEN 'EU' ELSE 'US' END, 'v' || n FROM generate_series(1, 500) n",
    "INSERT INTO piece (item_id, note) SELECT n, repeat('ü', n % 40) FROM generate_series(1, 500) n",
)
OPTIONS = 'on_error = "quarantine"\n[targets.edge.where]\nitem = "region = \'EU\'"\n'


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    source = postgres_server.create_database()
    url = f"sqlite:///{tmp_path}/copy.db"
    made = Pipeline(folder=tmp_path, source=with_password(source), targets={"edge": url}, target_options=OPTIONS)
    made.configure()
    try:
        yield made
    finally:
        made.close()
        postgres_server.drop_database(source)


def run(pipeline: Pipeline, *statements: str) -> None:
    with closing(psycopg2.connect(libpq(pipeline.source))) as connection:
        connection.autocommit = True
        for statement in statements:
            connection.cursor().execute(statement)


def at_target(pipeline: Pipeline, statement: str) -> list[tuple[object, ...]]:
    """Run a statement as another program does."""
    with closing(sqlite3.connect(pipeline.folder / "copy.db", isolation_level=None, timeout=30)) as connection:
        return connection.execute(statement).fetchall()


def test_postgresql_to_sqlite(pipeline: Pipeline) -> None:
    numbers = count(1)
    spelled = ", ".join(f"{name} {c.type}" for name, c in COLUMNS.items())
    torture = [
        f"INSERT INTO torture (id, {name}) VALUES ({next(numbers)}, {sql})"
        for name, c in COLUMNS.items()
        for sql, _ in c.values
    ]
    run(pipeline, *SETUP, *_TABLES, f"CREATE TABLE torture (id int PRIMARY KEY, {spelled})", *torture)
    assert pipeline.ask("check")["blocks"] == 0
    assert ") STRICT;" in pipeline.venus("migrate", "--target", "edge", "--ddl-only").out
    pipeline.ask("install-triggers")
    pipeline.start_broker()
    refused = pipeline.ask("migrate", "--target", "edge", code=1)["refused"]
    pipeline.start("sync", "sync", "--target", "edge")
    run(
        pipeline,
        "UPDATE item SET v = 'w' || id WHERE id < 100",
        "UPDATE item SET region = 'EU' WHERE id = 1",
        "DELETE FROM piece WHERE id % 7 = 0",
        "ALTER TABLE piece ADD COLUMN weight numeric(8,2) DEFAULT 1.50",
        "INSERT INTO piece (item_id, note, weight) VALUES (2, 'new', 7.25)",
    )
    pipeline.until(lambda: at_target(pipeline, "SELECT 1 FROM item WHERE v = 'w2'"), "the first changes")
    pipeline.kill("sync")
    pipeline.start("sync", "sync", "--target", "edge")
    pipeline.caught_up("edge")

    waiting = pipeline.venus("quarantine", "list", "--target", "edge", code=1).out
    assert (refused, waiting.count("SQLite stores another value for")) == (2, 2)
    pipeline.venus("verify", "--target", "edge", code=1)  # the rows that wait
    pipeline.venus("verify", "--target", "edge", "--table", "item", "--table", "piece")
    at_target(pipeline, "DELETE FROM item WHERE id = 2")
    at_target(pipeline, "UPDATE piece SET note = 'damaged' WHERE id = 1")
    found = ("--target", "edge", "--table", "item", "--table", "piece")
    pipeline.venus("verify", *found, code=1)
    pipeline.venus("verify", *found, "--repair", code=(0, 1))
    pipeline.caught_up("edge")
    pipeline.venus("verify", *found)
    at_target(pipeline, "UPDATE piece SET note = 'damaged again'")
    pipeline.venus("resync", "piece", "--target", "edge")
    pipeline.until(lambda: "resyncing" not in pipeline.venus("status", code=(0, 1)).out, "the resync", every_s=0.5)
    pipeline.venus("verify", "--target", "edge", "--table", "piece")

    assert at_target(pipeline, "SELECT count(*) FROM item WHERE region <> 'EU'") == [(0,)]
    assert at_target(pipeline, "SELECT weight FROM piece ORDER BY id DESC LIMIT 1") == [("7.25",)]
    refused_command = pipeline.venus("cutover", "--target", "edge", code=2)
    assert "on which an application relies, so it cannot be cut over" in refused_command.err
    assert pipeline.stop("sync") == 0


def test_sqlite_to_sqlite(tmp_path: Path) -> None:
    source = tmp_path / "source.db"
    values = [(name, sql) for name, c in SQLITE_COLUMNS.items() for sql, _ in c.values]
    made = Pipeline(folder=tmp_path, source=f"sqlite:///{source}", targets={"edge": f"sqlite:///{tmp_path}/copy.db"})
    made.configure()
    with closing(sqlite3.connect(source, isolation_level=None, timeout=30)) as application, closing(made):
        spelled = ", ".join(f"{name} {c.type}" for name, c in SQLITE_COLUMNS.items())
        application.execute(f"CREATE TABLE torture (id INTEGER PRIMARY KEY, {spelled})")
        for number, (name, sql) in enumerate(values, 1):
            application.execute(f"INSERT INTO torture (id, {name}) VALUES ({number}, {sql})")
        made.ask("install-triggers")
        made.start_broker()
        assert made.ask("migrate", "--target", "edge")["rows"] == len(values)
        made.start("sync", "sync", "--target", "edge")
        application.execute("UPDATE torture SET c_text = 'changed' WHERE id = 1")
        application.execute("DELETE FROM torture WHERE id = 2")
        made.caught_up("edge")

        made.venus("verify", "--target", "edge", "--leg", "all")
        assert at_target(made, "SELECT count(*), min(c_text) FROM torture WHERE id < 3") == [(1, "changed")]
        assert made.stop("sync") == 0
