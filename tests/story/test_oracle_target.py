"""PostgreSQL to an Oracle schema (the stand-in) as an ordinary target: verify, repair, resync, quarantine, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
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


def test_postgresql_to_oracle(pipeline: Pipeline, oracle_target: StandIn) -> None:
    def at_target(statement: str) -> list[tuple[object, ...]]:
        return oracle_target.server.execute(statement, SCHEMA)

    numbers = count(1)
    spelled = ", ".join(f"{name} {c.type}" for name, c in COLUMNS.items())
    torture = [
        f"INSERT INTO torture (id, {name}) VALUES ({next(numbers)}, {sql})"
        for name, c in COLUMNS.items()
        for sql, _ in c.values
    ]
    run(pipeline, *SETUP, *_TABLES, f"CREATE TABLE torture (id int PRIMARY KEY, {spelled})", *torture)
    assert pipeline.ask("check")["blocks"] == 0
    assert 'CREATE TABLE "ITEM"' in pipeline.venus("migrate", "--target", "old", "--ddl-only").out
    pipeline.ask("install-triggers")
    pipeline.start_broker()
    refused = pipeline.ask("migrate", "--target", "old", code=1)["refused"]
    pipeline.start("sync", "sync", "--target", "old")
    run(
        pipeline,
        "UPDATE item SET v = 'w' || id WHERE id < 100",
        "UPDATE item SET region = 'EU' WHERE id = 1",
        "DELETE FROM piece WHERE id % 7 = 0",
        "ALTER TABLE piece ADD COLUMN weight numeric(8,2) DEFAULT 1.50",
        "INSERT INTO piece (item_id, note, weight) VALUES (2, 'new', 7.25)",
    )
    pipeline.until(lambda: at_target("""SELECT 1 FROM "ITEM" WHERE "V" = 'w2'"""), "the first changes")
    pipeline.kill("sync")
    pipeline.start("sync", "sync", "--target", "old")
    pipeline.caught_up("old")

    waiting = pipeline.venus("quarantine", "list", "--target", "old", code=1).out
    assert waiting.count("cannot hold a value of it") == refused > 0
    assert "Oracle stores NULL for an empty text" in waiting
    pipeline.venus("verify", "--target", "old", code=1)  # the rows that wait
    found = ("--target", "old", "--table", "item", "--table", "piece")
    pipeline.venus("verify", *found)
    at_target('DELETE FROM "ITEM" WHERE "ID" = 2')
    at_target("""UPDATE "PIECE" SET "NOTE" = 'damaged' WHERE "ID" = 1""")
    pipeline.venus("verify", *found, code=1)
    pipeline.venus("verify", *found, "--repair", code=(0, 1))
    pipeline.caught_up("old")
    pipeline.venus("verify", *found)
    at_target("""UPDATE "PIECE" SET "NOTE" = 'damaged again'""")
    pipeline.venus("resync", "piece", "--target", "old")
    pipeline.until(lambda: "resyncing" not in pipeline.venus("status", code=(0, 1)).out, "the resync", every_s=0.5)
    pipeline.venus("verify", "--target", "old", "--table", "piece")

    assert at_target("""SELECT COUNT(*) FROM "ITEM" WHERE "REGION" <> 'EU'""") == [(0,)]
    assert [str(weight) for (weight,) in at_target('SELECT "WEIGHT" FROM "PIECE" ORDER BY "ID" DESC LIMIT 1')] == [
        "7.25"
    ]
    refused_command = pipeline.venus("cutover", "--target", "old", code=2)
    assert "cannot be cut over" in refused_command.err + refused_command.out
    assert pipeline.stop("sync") == 0
