"""The last day of a migration, from each source: rehearsed, refused, done, taken back (features 4, scenario 41)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import sqlalchemy

from tests.support.mariadb import MariaServer
from tests.support.pipeline import Pipeline, with_password
from tests.support.postgres import Server, libpq
from venus.adapters.under.control import resume, resync
from venus.adapters.under.load import full_sync
from venus.config import load
from venus.errors import Refused

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

QUIET = ("--quiet", "0.5", "--wait", "30")

_SQLITE = """
CREATE TABLE customer (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL COLLATE NOCASE UNIQUE,
    credit DECIMAL(10,2) DEFAULT 0 CHECK (credit >= 0), since TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE orders (no INTEGER PRIMARY KEY, customer INT REFERENCES customer (id) ON DELETE CASCADE, what TEXT);
CREATE INDEX orders_late ON orders (no DESC) WHERE what IS NOT NULL;
INSERT INTO customer (name, credit) VALUES ('ann', 12.5), ('bob', 3), ('carl', NULL);
INSERT INTO orders VALUES (10, 1, 'a'), (11, 2, NULL);
"""
_POSTGRES = """
CREATE TABLE customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL,
    credit numeric, ratio double precision, tags text[], doc jsonb, CONSTRAINT fair CHECK (credit >= 0));
CREATE TABLE orders (no serial PRIMARY KEY, customer bigint REFERENCES customer ON DELETE CASCADE, what char(8));
CREATE UNIQUE INDEX customer_name ON customer (lower(name));
CREATE SEQUENCE tickets START 100 INCREMENT 5;
SELECT nextval('tickets');
INSERT INTO customer (name, credit, ratio, tags, doc) VALUES ('ann', 12.50, 'NaN', '{a,NULL}', '{"b": 1, "a": 2}'),
    ('bob', 3, 1e20, NULL, NULL);
INSERT INTO orders (customer, what) VALUES (1, 'a'), (2, 'b');
INSERT INTO orders (no, customer) SELECT nextval('orders_no_seq'), 1 FROM generate_series(1, 40);
DELETE FROM orders WHERE no > 2;
"""
_MARIADB = (
    "CREATE TABLE customer (id bigint unsigned AUTO_INCREMENT PRIMARY KEY, name varchar(40) NOT NULL UNIQUE,"
    " credit decimal(10,2) CHECK (credit >= 0), at datetime(3), ratio double, host inet6)",
    "CREATE TABLE orders (no int AUTO_INCREMENT PRIMARY KEY, customer bigint unsigned, what char(8),"
    " FOREIGN KEY (customer) REFERENCES customer (id) ON DELETE CASCADE)",
    "CREATE SEQUENCE tickets START WITH 100 INCREMENT BY 5 NOCACHE",
    "SELECT nextval(tickets)",
    "INSERT INTO customer (name, credit, at, ratio, host) VALUES ('ann', 12.5, '2026-11-21 10:00:00.5', 0.1,"
    " '::1.2.3.4'), ('bob', 3, NULL, 1e20, NULL)",
    "INSERT INTO orders (customer, what) VALUES (1, 'a'), (2, 'b')",
    "INSERT INTO orders (no) VALUES (40)",
    "DELETE FROM orders WHERE no = 40",
)


@pytest.fixture
def target(postgres_server: Server) -> Iterator[str]:
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


def started(folder: Path, source: str, target: str) -> Pipeline:
    """Bring a source to a target, and leave `venus sync` running."""
    pipeline = Pipeline(folder=folder, source=source, targets={"main": with_password(target)})
    pipeline.configure()
    pipeline.ask("install-triggers")
    pipeline.start_broker()
    pipeline.ask("migrate", "--target", "main")
    pipeline.start("sync", "sync", "--target", "main")
    return pipeline


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(libpq(url))) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else []


def cut_over(pipeline: Pipeline) -> Any:
    """Rehearse, then do it; return the certificate."""
    pipeline.caught_up("main")
    rehearsal = pipeline.ask("cutover", "--target", "main", "--rehearse", *QUIET)
    assert rehearsal["blocks"] == []
    assert rehearsal["certificate"]["equal"]
    found = pipeline.ask("cutover", "--target", "main", *QUIET)["certificate"]
    assert found["equal"]
    assert [t["hash"] for t in found["tables"]] == [t["hash"] for t in rehearsal["certificate"]["tables"]]
    return found


def test_from_sqlite_with_everything_that_can_be_in_the_way(tmp_path: Path, target: str) -> None:
    file = tmp_path / "shop.db"
    app = sqlite3.connect(file, isolation_level=None)
    app.execute("PRAGMA foreign_keys = on")
    app.executescript(_SQLITE)
    pipeline = started(tmp_path, f"sqlite:///{file}", target)
    try:
        app.execute("INSERT INTO customer (name) VALUES ('drawn and gone')")
        app.execute("DELETE FROM customer WHERE id = 4")
        pipeline.caught_up("main")

        # what is in the way is listed with the command that mends it, and nothing has happened
        pipeline.ask("pause", "orders", "--target", "main")
        refused = pipeline.venus("cutover", "--target", "main", *QUIET, code=3)
        assert "main.orders is PAUSED at the target" in refused.err
        assert "venus resume main.orders --target main" in refused.err
        pipeline.ask("resume", "orders", "--target", "main")

        # a row that is not what it should be: the table is named
        query(target, "UPDATE orders SET what = 'b' WHERE no = 10")
        wrong = pipeline.venus("cutover", "--target", "main", *QUIET, code=3)
        assert "main.orders is not the same everywhere" in wrong.err
        assert "venus verify" in wrong.err
        assert query(target, "SELECT count(*) FROM venus.cutover") == [(0,)]
        query(target, "UPDATE orders SET what = 'a' WHERE no = 10")

        pipeline.caught_up("main")
        found = pipeline.ask("cutover", "--target", "main", *QUIET)["certificate"]
        assert found["equal"]
        assert {t["form"] for t in found["tables"]} == {"as it travels"}
        assert json.loads((tmp_path / "cutover-main.json").read_text()) == found
        assert "main.orders" in (tmp_path / "cutover-main.txt").read_text()

        # the application's first writes: numbers behind what the source has handed out, checks and cascades in force
        assert query(target, "INSERT INTO customer (name) VALUES ('new') RETURNING id") == [(5,)]
        with pytest.raises(psycopg2.errors.CheckViolation):
            query(target, "INSERT INTO customer (name, credit) VALUES ('x', -1)")
        with pytest.raises(psycopg2.errors.UniqueViolation):
            query(target, "INSERT INTO customer (name) VALUES ('ANN')")

        # once more: the same, and nothing is done
        again = pipeline.ask("cutover", "--target", "main", *QUIET)
        assert (again["already"], again["certificate"]) == (True, found)
        settings = load(tmp_path / "venus.toml")
        for command in (resume, full_sync, lambda s, name: resync(s, name, "*")):
            with pytest.raises(Refused, match="the application's own"):
                command(settings, "main")

        # late writes at the source are seen, and go nowhere
        app.execute("INSERT INTO orders VALUES (12, 3, 'late')")
        pipeline.until(
            lambda: any("1 changes" in p for p in pipeline.status()["problems"]), "the late write to be seen"
        )
        assert query(target, "SELECT count(*) FROM orders") == [(2,)]

        # back is possible as long as nobody has written there
        back = pipeline.venus("cutover", "--target", "main", "--undo", code=3)
        assert "public.customer has been written to since the cut-over" in back.err
        query(target, "DELETE FROM customer WHERE id = 5")
        pipeline.ask("cutover", "--target", "main", "--undo")
        pipeline.caught_up("main")
        assert query(target, "SELECT count(*) FROM orders") == [(3,)]
        assert pipeline.stop("sync") == 0
    finally:
        app.close()
        pipeline.close()


def test_from_postgresql(tmp_path: Path, target: str, database: str) -> None:
    query(database, _POSTGRES)
    pipeline = started(tmp_path, with_password(database), target)
    try:
        found = cut_over(pipeline)
        assert {c["sequence"]: c["next"] for c in found["counters"]} == {
            "customer_id_seq": 3, "orders_no_seq": 43, '"public"."tickets"': 105,
        }  # fmt: skip
        assert [f["orphans"] for f in found["foreign_keys"]] == [0]

        assert query(target, "INSERT INTO orders (customer) VALUES (1) RETURNING no") == [(43,)]
        assert query(target, "INSERT INTO customer (name) VALUES ('c') RETURNING id") == [(3,)]
        with pytest.raises(psycopg2.errors.GeneratedAlways):
            query(target, "INSERT INTO customer (id, name) VALUES (9, 'd')")
        assert query(target, "SELECT nextval('tickets'), nextval('tickets')") == [(105, 110)]
        query(target, "DELETE FROM customer WHERE id = 1")
        assert query(target, "SELECT no FROM orders") == [(2,)]  # the cascade is the target's now
        valid = "SELECT bool_and(convalidated) FROM pg_constraint WHERE contype IN ('f', 'c')"
        assert query(target, valid) == [(True,)]
    finally:
        pipeline.close()


def test_from_mariadb(tmp_path: Path, target: str, mariadb_server: MariaServer, mariadb_database: str) -> None:
    name = str(sqlalchemy.make_url(mariadb_database).database)
    with closing(mariadb_server.connect(name, autocommit=True)) as app:
        for text in _MARIADB:
            app.cursor().execute(text)
    pipeline = started(tmp_path, mariadb_database, target)
    try:
        found = cut_over(pipeline)
        assert {c["sequence"].removeprefix(f"{name}."): c["next"] for c in found["counters"]} == {
            "customer_id_seq": 3, "orders_no_seq": 41, f'"{name}"."tickets"': 105,
        }  # fmt: skip

        query(target, f"ALTER DATABASE {sqlalchemy.make_url(target).database} SET search_path = {name}")
        assert query(target, "INSERT INTO customer (name) VALUES ('c') RETURNING id") == [(3,)]
        assert query(target, "INSERT INTO orders (customer) VALUES (3) RETURNING no") == [(41,)]
        query(target, "DELETE FROM customer WHERE id IN (1, 3)")
        assert query(target, "SELECT no FROM orders") == [(2,)]
    finally:
        pipeline.close()
