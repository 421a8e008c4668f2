"""PostgreSQL to an Oracle schema as an ordinary target: kill -9 under a writer, verify, repair, resync, quarantine.

The target is the stand-in (tests/support/oracle/standin.py), not an Oracle.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.oracle.driver import python_path
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.pipelines.pipeline import Pipeline, with_password
from venus.adapters.dialects.postgresql.torture import COLUMNS, SETUP

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_TABLES = (
    "CREATE TABLE item (id bigint PRIMARY KEY, region varchar(20) NOT NULL, v varchar(40) UNIQUE)",
    "CREATE TABLE piece (id serial PRIMARY KEY, item_id bigint REFERENCES item, note text)",
    "INSERT INTO item SELECT n, CASE WHEN n % 2 = 0 THEN 'EU' ELSE 'US' END, 'v' || n FROM generate_series(1, 500) n",
    "INSERT INTO piece (item_id, note) SELECT n, repeat('ü', n % 40) FROM generate_series(1, 500) n",
)
FOUND = ("--target", "old", "--table", "item", "--table", "piece")
OPTIONS = 'on_error = "quarantine"\n[targets.old.where]\nitem = "region = \'EU\'"\n'


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server, oracle_target: StandIn) -> Iterator[Pipeline]:
    source = postgres_server.create_database()
    url = f"oracle+cx_oracle://root@127.0.0.1:{oracle_target.server.port}/?service_name=SCHOOL"
    made = Pipeline(folder=tmp_path, source=with_password(source), targets={"old": url}, target_options=OPTIONS)
    made.environ["PYTHONPATH"] = python_path(tmp_path / "driver")
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


@contextmanager
def keep_writing(pipeline: Pipeline) -> Iterator[None]:
    """Change a row of each table in one transaction after another."""
    ended = threading.Event()

    def write() -> None:
        with closing(psycopg2.connect(libpq(pipeline.source))) as connection:
            for number in count(1):
                if ended.wait(0.005):
                    return
                with connection, connection.cursor() as cursor:
                    cursor.execute("UPDATE item SET v = %s WHERE id = %s", (f"t{number}", 101 + number % 400))
                    cursor.execute("INSERT INTO piece (item_id, note) VALUES (4, %s)", (f"written {number}",))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


@pytest.fixture
def loaded_pipeline(pipeline: Pipeline) -> Pipeline:
    """Load a target, with a table of every type, and follow; values that it cannot hold wait."""
    numbers = count(1)
    spelled = ", ".join(f"{name} {c.type}" for name, c in COLUMNS.items())
    torture = [
        f"INSERT INTO torture (id, {name}) VALUES ({next(numbers)}, {sql})"
        for name, c in COLUMNS.items()
        for sql, _ in c.values
    ]
    torture.append("INSERT INTO torture (id, short) VALUES (0, '')")
    run(pipeline, *SETUP, *_TABLES, f"CREATE TABLE torture (id int PRIMARY KEY, short varchar(9), {spelled})", *torture)
    assert pipeline.ask("check")["blocks"] == 0
    assert 'CREATE TABLE "ITEM"' in pipeline.venus("migrate", "--target", "old", "--ddl-only").out
    pipeline.ask("install-triggers")
    pipeline.start_broker()
    refused = pipeline.ask("migrate", "--target", "old", code=1)["refused"]
    pipeline.start("sync", "sync", "--target", "old")
    waiting = [
        row["message"] for row in pipeline.ask("quarantine", "list", "--target", "old", code=1)["quarantine"]["old"]
    ]
    assert sum("cannot hold a value of it" in message for message in waiting) == refused > 0
    assert any("Oracle stores NULL for an empty text" in message for message in waiting)
    return pipeline


def test_postgresql_to_oracle(loaded_pipeline: Pipeline, oracle_target: StandIn) -> None:
    def at_target(statement: str) -> list[tuple[object, ...]]:
        return oracle_target.server.execute(statement, SCHEMA)

    def count_written() -> int:
        return len(at_target("""SELECT "ID" FROM "PIECE" WHERE "NOTE" LIKE 'written %'"""))

    def wait_for_more() -> None:
        before = count_written()
        loaded_pipeline.until(lambda: count_written() > before, "further changes")

    with keep_writing(loaded_pipeline):
        for _ in range(3):
            wait_for_more()
            loaded_pipeline.kill("sync")
            loaded_pipeline.start("sync", "sync", "--target", "old")
    run(
        loaded_pipeline,
        "UPDATE item SET region = 'EU' WHERE id = 1",
        "DELETE FROM piece WHERE id % 7 = 0",
        "ALTER TABLE piece ADD COLUMN weight numeric(8,2) DEFAULT 1.50",
        "INSERT INTO piece (item_id, note, weight) VALUES (2, 'new', 7.25)",
    )
    loaded_pipeline.caught_up("old")
    loaded_pipeline.venus("verify", "--target", "old", code=1)  # the rows that wait
    loaded_pipeline.venus("verify", *FOUND)
    assert at_target("""SELECT COUNT(*) FROM "ITEM" WHERE "REGION" <> 'EU'""") == [(0,)]
    weights = at_target('SELECT "WEIGHT" FROM "PIECE" ORDER BY "ID" DESC LIMIT 1')
    assert [str(weight) for (weight,) in weights] == ["7.25"]

    at_target('DELETE FROM "ITEM" WHERE "ID" = 2')
    at_target("""UPDATE "PIECE" SET "NOTE" = 'damaged' WHERE "ID" = 1""")
    loaded_pipeline.venus("verify", *FOUND, code=1)
    loaded_pipeline.venus("verify", *FOUND, "--repair", code=(0, 1))
    loaded_pipeline.caught_up("old")
    loaded_pipeline.venus("verify", *FOUND)
    at_target("""UPDATE "PIECE" SET "NOTE" = 'damaged again'""")
    loaded_pipeline.venus("resync", "piece", "--target", "old")
    loaded_pipeline.until(
        lambda: "resyncing" not in loaded_pipeline.venus("status", code=(0, 1)).out, "the resync", every_s=0.5
    )
    loaded_pipeline.venus("verify", "--target", "old", "--table", "piece")
    refused_command = loaded_pipeline.venus("cutover", "--target", "old", code=2)
    assert "cannot be cut over" in refused_command.err + refused_command.out
    assert loaded_pipeline.stop("sync") == 0
