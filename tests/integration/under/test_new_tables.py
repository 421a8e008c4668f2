"""Tables that the stream brings to a target that has others: what of them cannot be made delays nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.pipelines.whole_way import WholeWay, whole_way
from venus.adapters.targets.relational.control import read_table_states
from venus.adapters.verify.findings import ComparisonVerdict

TABLES = "CREATE TABLE item (id int PRIMARY KEY, name text); INSERT INTO item VALUES (1, 'a')"
STEPS = (WholeWay.install,)

pytestmark = pytest.mark.integration

INDEXES = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass ORDER BY 1"


def bring(way: WholeWay, *statements: str) -> None:
    """Make a table at the source, capture it, and wait until the target has everything."""
    query(way.source, "; ".join(statements))
    way.install()
    query(way.source, "INSERT INTO other VALUES (1, 'x'); INSERT INTO item VALUES (2, 'b')")
    way.until(lambda: any(t.name == "other" for t in read_table_states(way.settings, "main")), "the table to arrive")
    way.caught_up()


def state_of(way: WholeWay, name: str) -> tuple[str, str]:
    (found,) = [t for t in read_table_states(way.settings, "main") if t.name == name]
    return found.state, found.reason


def test_indexes_of_two_tables_may_have_the_same_name(
    tmp_path: Path, database: str, mariadb_server: MariaServer, mariadb_database: str
) -> None:
    """As they have at MariaDB by default: a unique key is called like its first column."""
    name = str(sqlalchemy.make_url(mariadb_database).database)
    table = (
        "CREATE TABLE {} (id int PRIMARY KEY, name varchar(20) COLLATE utf8mb4_bin,"
        " UNIQUE KEY (name), INDEX by_id (id, name))"
    )
    with closing(mariadb_server.connect(name, autocommit=True)) as app:
        cursor = app.cursor()
        cursor.execute(table.format("item"))
        with whole_way(tmp_path, mariadb_database, database) as way:
            way.install()
            way.load()
            way.start()
            cursor.execute(table.format("other"))
            way.install()
            cursor.execute("INSERT INTO other VALUES (1, 'x')")
            way.until(
                lambda: any(t.name == "other" for t in read_table_states(way.settings, "main")), "the table to arrive"
            )
            way.caught_up()
            assert way.verify().verdict is ComparisonVerdict.SAME
            assert query(database, INDEXES, [f"{name}.other"]) == [
                (f"{name}.other_id_name_idx2",),
                (f"{name}.other_name_key2",),
                (f"{name}.other_pkey",),
            ]


def test_a_name_that_was_given_by_hand_at_the_target_stays(way: WholeWay) -> None:
    query(way.source, "CREATE INDEX by_name ON item (name)")
    query(way.target, "CREATE TABLE mine (x int); CREATE INDEX by_name ON mine (x); CREATE INDEX by_other ON mine (x)")
    way.load()
    assert query(way.target, INDEXES, ["item"]) == [("item_name_idx2",), ("item_pkey",)]
    way.start()
    bring(way, "CREATE TABLE other (id int PRIMARY KEY, name text)", "CREATE INDEX by_other ON other (name)")
    assert query(way.target, INDEXES, ["other"]) == [("other_name_idx2",), ("other_pkey",)]


def test_an_index_that_cannot_be_made_is_reported_and_the_table_follows(way: WholeWay) -> None:
    way.load()
    way.start()
    long = "CREATE INDEX by_name ON other USING btree (name) WITH (fillfactor = 70)"
    query(way.target, "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no index'; END$$")
    query(way.target, "CREATE EVENT TRIGGER no ON ddl_command_start WHEN tag IN ('CREATE INDEX') EXECUTE FUNCTION no()")
    query(way.target, "ALTER EVENT TRIGGER no ENABLE ALWAYS")
    bring(way, "CREATE TABLE other (id int PRIMARY KEY, name text)", long)
    state, reason = state_of(way, "other")
    assert state == "ACTIVE"
    assert 'CREATE INDEX "by_name"' in reason
    assert "no index" in reason
    assert way.verify().verdict is ComparisonVerdict.SAME


def test_a_table_that_may_not_be_made_halts_alone(way: WholeWay) -> None:
    way.load()
    way.start()
    query(way.target, "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'no table'; END$$")
    query(way.target, "CREATE EVENT TRIGGER no ON ddl_command_start WHEN tag IN ('CREATE TABLE') EXECUTE FUNCTION no()")
    query(way.target, "ALTER EVENT TRIGGER no ENABLE ALWAYS")
    bring(way, "CREATE TABLE other (id int PRIMARY KEY, name text)")
    state, reason = state_of(way, "other")
    assert (state, "no table" in reason) == ("HALTED", True)
    assert query(way.target, "SELECT name FROM item ORDER BY 1") == [("a",), ("b",)]
