"""A cut-over that is taken back with the writes kept, as an operator goes through it (scenarios 88 to 92, 115)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

QUIET = ("--quiet", "0.2", "--wait", "120")

_SHOP = """
CREATE TABLE customer (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE,
    credit numeric(10, 2) DEFAULT 0 CHECK (credit >= 0), since timestamptz DEFAULT now(), note bytea);
CREATE TABLE orders (no serial PRIMARY KEY, customer bigint REFERENCES customer ON DELETE CASCADE, what varchar(12));
CREATE TABLE audited (what text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO audited VALUES (TG_OP); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION audit();
INSERT INTO customer (name, note) VALUES ('ann', '\\x00ff'), ('bob', NULL);
INSERT INTO orders (customer, what) VALUES (1, 'a'), (2, NULL);
"""
CLOSED = psycopg2.errors.ReadOnlySqlTransaction


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with closing(psycopg2.connect(libpq(url))) as connection:
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else []


class Pair:
    """Two databases with a pipeline between them."""

    def __init__(self, folder: Path, old: str, new: str) -> None:
        self.old, self.new = old, new
        self.pipeline = Pipeline(
            folder=folder,
            source=with_password(old),
            targets={"main": with_password(new)},
            source_options='exclude = ["audited"]',
        )

    def start(self, schema: str = _SHOP) -> None:
        """Load the new database, and leave `venus sync` running."""
        query(self.old, schema)
        self.pipeline.configure()
        self.pipeline.ask("install-triggers")
        self.pipeline.start_broker()
        self.pipeline.ask("migrate", "--target", "main")
        self.pipeline.start("sync", "sync")

    def rows(self, url: str, table: str) -> list[tuple[Any, ...]]:
        """Return all rows of a table as texts."""
        return query(url, f"SELECT t::text FROM {table} t ORDER BY 1")

    def is_equal(self) -> bool:
        """Return whether both databases have the same rows."""
        return all(self.rows(self.old, t) == self.rows(self.new, t) for t in ("customer", "orders"))

    def until_equal(self) -> None:
        """Wait until both databases have the same rows."""
        eventually(self.is_equal, lambda: self.pipeline.tail(), timeout_s=120.0, every_s=0.1)

    def writable(self) -> list[str]:
        """Return the databases that accept a write."""
        found = []
        for name, url in (("old", self.old), ("new", self.new)):
            try:
                query(url, "UPDATE orders SET what = what WHERE no = 1")
            except CLOSED:
                continue
            found.append(name)
        return found


@pytest.fixture
def pair(tmp_path: Path, postgres_server: Server) -> Iterator[Pair]:
    old, new = postgres_server.create_database(), postgres_server.create_database()
    found = Pair(tmp_path, old, new)
    try:
        yield found
    finally:
        found.pipeline.close()
        postgres_server.drop_database(old)
        postgres_server.drop_database(new)


def test_there_and_back(pair: Pair) -> None:
    pair.start()
    pipeline = pair.pipeline
    rehearsal = pipeline.ask("cutover", "--target", "main", "--fall-back", "--rehearse", *QUIET)
    assert rehearsal["blocks"] == []
    found = pipeline.ask("cutover", "--target", "main", "--fall-back", *QUIET)["certificate"]
    assert found["equal"]
    assert pair.writable() == ["new"]

    query(pair.new, "INSERT INTO customer (name) VALUES ('carl')")
    query(pair.new, "INSERT INTO orders (customer, what) VALUES (3, 'there')")
    query(pair.new, "DELETE FROM customer WHERE name = 'bob'")
    pair.until_equal()
    assert query(pair.old, "SELECT count(*) FROM audited") == [(2,)]
    assert pipeline.ask("verify")["verdict"] == "same"

    back = pipeline.ask("fallback", *QUIET)["certificate"]
    assert back["equal"]
    assert pair.writable() == ["old"]
    query(pair.old, "INSERT INTO customer (name) VALUES ('dora')")
    query(pair.old, "INSERT INTO orders (customer, what) VALUES (4, 'back')")
    pair.until_equal()
    assert query(pair.old, "SELECT id FROM customer ORDER BY 1") == [(1,), (3,), (4,)]
