"""The file of `migrate --ddl-only` runs in psql, and creates exactly what `migrate` creates; from each source."""

from __future__ import annotations

import sqlite3
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.end_to_end import end_to_end
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.upper.capture import run_capture_fill
from venus.cli.load import build_ddl

pytestmark = pytest.mark.integration

_LONG = "a_name_that_is_longer_than_the_sixty_three_bytes_that_postgresql_keeps_of_it"
_SQLITE = f"""
PRAGMA journal_mode = wal;
CREATE TABLE "Customer" (id INTEGER PRIMARY KEY AUTOINCREMENT, "Full Name" TEXT NOT NULL COLLATE NOCASE UNIQUE,
    credit DECIMAL(10,2) DEFAULT 0 CONSTRAINT fair CHECK (credit >= 0), ok BOOLEAN DEFAULT 1 CHECK (ok IN (0, 1)),
    since TIMESTAMP DEFAULT CURRENT_TIMESTAMP, {_LONG} INT, twice INT AS (id * 2), CHECK (instr("Full Name", 'x') = 0));
CREATE TABLE orders (no INT, line INT, customer INT REFERENCES "Customer" (id) ON DELETE CASCADE ON UPDATE SET NULL,
    what TEXT, lost INT REFERENCES nowhere (id), PRIMARY KEY (no, line), UNIQUE (what, customer));
CREATE INDEX late ON orders (no DESC, what) WHERE what IS NOT NULL;
CREATE INDEX low ON orders (lower(what));
CREATE VIEW seen AS SELECT 1;
INSERT INTO "Customer" ("Full Name", credit) VALUES ('ann', 12.5);
INSERT INTO orders VALUES (10, 1, 1, 'a', NULL);
"""
_POSTGRES = """
CREATE SCHEMA kinds;
CREATE TYPE kinds."Mood" AS ENUM ('so so', 'it''s', 'fine');
CREATE DOMAIN code AS varchar(8) DEFAULT 'none' NOT NULL CONSTRAINT long CHECK (length(VALUE) > 2);
CREATE DOMAIN good AS kinds."Mood" CHECK (VALUE::kinds."Mood" > 'so so');
CREATE DOMAIN better AS good CHECK (VALUE IS NOT NULL);
CREATE TABLE felt (id int PRIMARY KEY, mood kinds."Mood" DEFAULT 'fine' CHECK (mood <> 'it''s'), moods kinds."Mood"[],
    code code, codes code[], better better);
CREATE INDEX felt_fine ON felt (id) WHERE mood = 'fine';
INSERT INTO felt VALUES (1, 'so so', '{fine,"it''s"}', 'abc', '{abc,def}', 'fine');
CREATE TABLE customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "Full Name" text NOT NULL,
    credit numeric(10,2) DEFAULT 0 CONSTRAINT fair CHECK (credit >= 0), tags text[] DEFAULT '{}', doc jsonb,
    code uuid DEFAULT gen_random_uuid(), UNIQUE ("Full Name", credit));
COMMENT ON TABLE customer IS 'who buys; it''s them';
COMMENT ON COLUMN customer.doc IS 'anything';
CREATE TABLE orders (no serial PRIMARY KEY, customer bigint REFERENCES customer ON DELETE CASCADE, what char(8));
CREATE UNIQUE INDEX one ON customer (lower("Full Name")) WHERE credit > 0;
CREATE INDEX inside ON customer USING gin (doc jsonb_path_ops);
CREATE INDEX covering ON orders (customer DESC NULLS LAST) INCLUDE (what);
INSERT INTO customer ("Full Name") VALUES ('ann');
INSERT INTO orders (customer, what) VALUES (1, 'a');
"""
_MARIADB = (
    "CREATE TABLE customer (id bigint unsigned AUTO_INCREMENT PRIMARY KEY COMMENT 'the number',"
    " name varchar(40) NOT NULL UNIQUE, credit decimal(10,2) DEFAULT 1.50 CHECK (credit >= 0),"
    " state enum('a','b') DEFAULT 'a', made timestamp DEFAULT now()) COMMENT 'who buys'",
    "CREATE TABLE orders (no int AUTO_INCREMENT PRIMARY KEY, customer bigint unsigned, what varchar(300),"
    " KEY falling (what DESC, customer), KEY start (what(10)), FULLTEXT words (what),"
    " FOREIGN KEY (customer) REFERENCES customer (id) ON DELETE CASCADE)",
    "INSERT INTO customer (name) VALUES ('ann')",
    "INSERT INTO orders (customer, what) VALUES (1, 'a')",
)

_CHECKS = "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = 't'::regclass"

Compare = Callable[[str], str]


@pytest.fixture
def compare(tmp_path: Path, database: str, second_database: str, postgres_server: Server) -> Compare:
    """Load one database, run the file in another; return the file if both databases are the same."""

    def compare_with_load(source: str) -> str:
        with end_to_end(tmp_path, source, database) as e2e:
            before = build_ddl(e2e.settings, open_target(e2e.settings, "main")).text
            e2e.install()
            text = build_ddl(e2e.settings, open_target(e2e.settings, "main")).text
            e2e.load()
        assert text == before
        file = tmp_path / "target.sql"
        file.write_text(text)
        psql = [str(postgres_server.bin / "psql"), "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", str(file)]
        done = subprocess.run([*psql, libpq(second_database)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        query(database, "DROP SCHEMA venus CASCADE")
        assert dump(postgres_server, second_database) == dump(postgres_server, database)
        return text

    return compare_with_load


def dump(server: Server, url: str) -> list[str]:
    command = [str(server.bin / "pg_dump"), "--schema-only", "--dbname", libpq(url)]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    return [line for line in text.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))]


def test_from_sqlite(tmp_path: Path, compare: Compare) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as app:
        app.executescript(_SQLITE)

    text = compare(f"sqlite:///{tmp_path / 'shop.db'}")

    head = text.partition("-- Schemas")[0]
    for message in (
        "check constraint Customer_check3 instr(",
        "generated column twice",
        "name a_name_that_is_longer",
        "foreign key orders_fk0 (lost): main.nowhere is not captured",
        "view seen",
    ):
        assert message in head
    assert "ON DELETE CASCADE ON UPDATE SET NULL" in text.partition("`venus cutover --target main` does these")[2]


def test_from_postgresql(compare: Compare, postgres_server: Server) -> None:
    source = postgres_server.create_database()
    try:
        with closing(psycopg2.connect(libpq(source))) as app:
            app.cursor().execute(_POSTGRES)
            app.commit()
        assert "COMMENT ON COLUMN" in compare(source)
    finally:
        postgres_server.drop_database(source)


def test_from_mariadb(compare: Compare, mariadb_server: MariaServer, mariadb_database: str) -> None:
    with closing(mariadb_server.connect(str(sqlalchemy.make_url(mariadb_database).database), autocommit=True)) as app:
        for text in _MARIADB:
            app.cursor().execute(text)

    head = compare(mariadb_database).partition("-- Schemas")[0]

    assert "values of column state enum('a','b')" in head
    assert "index start BTREE (what): it covers only the beginning of a value" in head
    assert "index words FULLTEXT (what)" in head


def test_a_check_that_rows_violate_is_reported_and_not_created(tmp_path: Path, database: str) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as app:
        app.executescript(
            "PRAGMA journal_mode = wal; PRAGMA ignore_check_constraints = on;"
            "CREATE TABLE t (id INTEGER PRIMARY KEY, n INT,"
            " CONSTRAINT low CHECK (n < 5), CONSTRAINT fine CHECK (n > 0));"
            "INSERT INTO t VALUES (1, 9)"
        )
        with end_to_end(tmp_path, f"sqlite:///{tmp_path / 'shop.db'}", database) as e2e:
            e2e.install()
            run_capture_fill(e2e.settings, threading.Event())
            report = full_sync(e2e.settings, "main")
            e2e.start()
            app.execute("UPDATE t SET n = 10")  # the source accepts such rows, and so must the target
            app.commit()
            e2e.wait_until_caught_up()

            assert query(database, _CHECKS) == [("fine",)]
            assert query(database, "SELECT n FROM t") == [(10,)]
    assert [w for w in report.warnings if '"low"' in w]
