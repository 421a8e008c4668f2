"""PostgreSQL to MariaDB as an ordinary target: predicates, verify, repair, resync, quarantine (scenario 94)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg2
import pytest

from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from venus.adapters.dialects.postgresql.torture import COLUMNS, SETUP

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

_TABLES = (
    "CREATE TABLE item (id bigint PRIMARY KEY, region text NOT NULL, v text UNIQUE)",
    "CREATE TABLE piece (id serial PRIMARY KEY, item_id bigint REFERENCES item, note varchar(40))",
    "INSERT INTO item SELECT n, CASE WHEN n % 2 = 0 THEN 'EU' ELSE 'US' END, 'v' || n FROM generate_series(1, 500) n",
    "INSERT INTO piece (item_id, note) SELECT n, repeat('ü', n % 40) FROM generate_series(1, 500) n",
)
BOTH = ("--table", "item", "--table", "piece")
OPTIONS = 'on_error = "quarantine"\n[targets.m.where]\nitem = "region = \'EU\'"\n'


@pytest.fixture
def pipeline(mariadb_database: str, tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    source = postgres_server.create_database()
    made = Pipeline(
        folder=tmp_path, source=with_password(source), targets={"m": mariadb_database}, target_options=OPTIONS
    )
    made.configure()
    try:
        yield made
    finally:
        made.close()
        postgres_server.drop_database(source)


def run(pipeline: Pipeline, *statements: str) -> None:
    connection = psycopg2.connect(libpq(pipeline.source))
    connection.autocommit = True
    for statement in statements:
        connection.cursor().execute(statement)
    connection.close()


def test_postgresql_to_mariadb(mariadb_server: MariaServer, mariadb_database: str, pipeline: Pipeline) -> None:
    database, numbers = mariadb_database.rpartition("/")[2], count(1)
    spelled = ", ".join(f"{name} {c.type}" for name, c in COLUMNS.items())
    torture = [
        f"INSERT INTO torture (id, {name}) VALUES ({next(numbers)}, {sql})"
        for name, c in COLUMNS.items()
        for sql, _ in c.values
    ]
    run(pipeline, *SETUP, *_TABLES, f"CREATE TABLE torture (id int PRIMARY KEY, {spelled})", *torture)
    assert pipeline.ask("check")["blocks"] == 0
    assert "CREATE TABLE" in pipeline.venus("migrate", "--target", "m", "--ddl-only").out
    pipeline.ask("install-triggers")
    pipeline.start_broker()
    assert pipeline.ask("migrate", "--target", "m", code=1)["refused"] == 9
    pipeline.start("sync", "sync", "--target", "m")
    run(
        pipeline,
        "UPDATE item SET v = 'w' || id WHERE id < 100",
        "UPDATE item SET region = 'EU' WHERE id = 1",
        "DELETE FROM piece WHERE id % 7 = 0",
        "ALTER TABLE piece ADD COLUMN weight numeric(8,2) DEFAULT 1.50",
        "INSERT INTO piece (item_id, note, weight) VALUES (2, 'new', 7.25)",
    )
    moved = "SELECT 1 FROM item WHERE v = 'w2'"
    pipeline.until(lambda: mariadb_server.execute(moved, database), "the first changes")
    pipeline.kill("sync")
    pipeline.start("sync", "sync", "--target", "m")
    pipeline.caught_up("m")

    waiting = pipeline.venus("quarantine", "list", "--target", "m", code=1).out
    assert "shop.torture" in waiting or "public.torture" in waiting
    pipeline.venus("verify", "--target", "m", *BOTH)
    mariadb_server.execute("SET STATEMENT foreign_key_checks = 0 FOR DELETE FROM item WHERE id = 2", database)
    mariadb_server.execute("UPDATE piece SET note = 'damaged' WHERE id = 1", database)
    pipeline.venus("verify", "--target", "m", *BOTH, code=1)
    pipeline.venus("verify", "--target", "m", *BOTH, "--repair", code=(0, 1))
    pipeline.caught_up("m")
    pipeline.venus("verify", "--target", "m", *BOTH)
    mariadb_server.execute("UPDATE piece SET note = 'damaged again'", database)
    pipeline.venus("resync", "piece", "--target", "m")
    pipeline.until(lambda: "resyncing" not in pipeline.venus("status", code=(0, 1)).out, "the resync", every_s=0.5)
    pipeline.venus("verify", "--target", "m", "--table", "piece")

    ((rows,),) = mariadb_server.execute("SELECT count(*) FROM item WHERE region <> 'EU'", database)
    assert rows == 0
    refused = pipeline.venus("cutover", "--target", "m", code=2)
    assert "on which an application relies, so it cannot be cut over" in refused.err
    assert "A PostgreSQL target can be: --target NAME" in refused.err
    assert pipeline.stop("sync") == 0
