"""New tables that the stream brings to a target: an object of theirs that cannot be created delays nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end
from venus.adapters.targets.relational.control import read_table_states
from venus.adapters.verify.findings import ComparisonVerdict

TABLES = "CREATE TABLE item (id int PRIMARY KEY, name text); INSERT INTO item VALUES (1, 'a')"
STEPS = (EndToEnd.install,)

pytestmark = pytest.mark.integration

INDEXES = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass ORDER BY 1"


def add_table(e2e: EndToEnd, *statements: str) -> None:
    """Make a table at the source, capture it, and wait until the target has everything."""
    query(e2e.source, "; ".join(statements))
    e2e.install()
    query(e2e.source, "INSERT INTO other VALUES (1, 'x'); INSERT INTO item VALUES (2, 'b')")
    e2e.until(lambda: any(t.name == "other" for t in read_table_states(e2e.settings, "main")), "the table to arrive")
    e2e.wait_until_caught_up()


def state_of(e2e: EndToEnd, name: str) -> tuple[str, str]:
    (found,) = [t for t in read_table_states(e2e.settings, "main") if t.name == name]
    return found.state, found.reason


def test_indexes_of_two_tables_may_have_the_same_name(
    tmp_path: Path, database: str, mariadb_server: MariaServer, mariadb_database: str
) -> None:
    """MariaDB names a unique key after its first column by default."""
    name = str(sqlalchemy.make_url(mariadb_database).database)
    table = (
        "CREATE TABLE {} (id int PRIMARY KEY, name varchar(20) COLLATE utf8mb4_bin,"
        " UNIQUE KEY (name), INDEX by_id (id, name))"
    )
    with closing(mariadb_server.connect(name, autocommit=True)) as app:
        cursor = app.cursor()
        cursor.execute(table.format("item"))
        with end_to_end(tmp_path, mariadb_database, database) as e2e:
            e2e.install()
            e2e.load()
            e2e.start()
            cursor.execute(table.format("other"))
            e2e.install()
            cursor.execute("INSERT INTO other VALUES (1, 'x')")
            e2e.until(
                lambda: any(t.name == "other" for t in read_table_states(e2e.settings, "main")), "the table to arrive"
            )
            e2e.wait_until_caught_up()
            assert e2e.verify().verdict is ComparisonVerdict.SAME
            assert query(database, INDEXES, [f"{name}.other"]) == [
                (f"{name}.other_id_name_idx2",),
                (f"{name}.other_name_key2",),
                (f"{name}.other_pkey",),
            ]


def test_an_index_that_was_renamed_at_the_target_keeps_its_name(e2e: EndToEnd) -> None:
    query(e2e.source, "CREATE INDEX by_name ON item (name)")
    query(e2e.target, "CREATE TABLE mine (x int); CREATE INDEX by_name ON mine (x); CREATE INDEX by_other ON mine (x)")
    e2e.load()
    assert query(e2e.target, INDEXES, ["item"]) == [("item_name_idx2",), ("item_pkey",)]
    e2e.start()
    add_table(e2e, "CREATE TABLE other (id int PRIMARY KEY, name text)", "CREATE INDEX by_other ON other (name)")
    assert query(e2e.target, INDEXES, ["other"]) == [("other_name_idx2",), ("other_pkey",)]


def test_an_index_that_cannot_be_created_is_reported_and_the_table_follows(e2e: EndToEnd) -> None:
    e2e.load()
    e2e.start()
    long = "CREATE INDEX by_name ON other USING btree (name) WITH (fillfactor = 70)"
    query(e2e.target, "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no index'; END$$")
    query(e2e.target, "CREATE EVENT TRIGGER no ON ddl_command_start WHEN tag IN ('CREATE INDEX') EXECUTE FUNCTION no()")
    query(e2e.target, "ALTER EVENT TRIGGER no ENABLE ALWAYS")
    add_table(e2e, "CREATE TABLE other (id int PRIMARY KEY, name text)", long)
    state, reason = state_of(e2e, "other")
    assert state == "ACTIVE"
    assert 'CREATE INDEX "by_name"' in reason
    assert "no index" in reason
    assert e2e.verify().verdict is ComparisonVerdict.SAME


def test_a_table_that_may_not_be_created_halts_alone(e2e: EndToEnd) -> None:
    e2e.load()
    e2e.start()
    query(e2e.target, "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no table'; END$$")
    query(e2e.target, "CREATE EVENT TRIGGER no ON ddl_command_start WHEN tag IN ('CREATE TABLE') EXECUTE FUNCTION no()")
    query(e2e.target, "ALTER EVENT TRIGGER no ENABLE ALWAYS")
    add_table(e2e, "CREATE TABLE other (id int PRIMARY KEY, name text)")
    state, reason = state_of(e2e, "other")
    assert (state, "no table" in reason) == ("HALTED", True)
    assert query(e2e.target, "SELECT name FROM item ORDER BY 1") == [("a",), ("b",)]
