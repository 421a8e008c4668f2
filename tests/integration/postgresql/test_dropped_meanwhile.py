"""Another session drops objects while the dictionary is read: the snapshot shows them, but their definitions are gone.

Functions such as pg_get_triggerdef() and format_type() read the newest catalogue, whatever the snapshot contains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import psycopg2.errors
import pytest

from tests.integration.postgresql.conftest import Sql, Start, state
from venus.adapters.dialects.contract import RegisteredTable, SchemaChanged
from venus.adapters.dialects.postgresql import connection as connections
from venus.adapters.dialects.postgresql.dictionary.structure import read_structure
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.adapters.dialects.postgresql.sql import statement
from venus.adapters.targets.postgresql.naming import PlacedTable
from venus.adapters.targets.postgresql.schema.table_objects import read_objects
from venus.adapters.targets.postgresql.session import TargetSession
from venus.cli.prove.follower import Follower
from venus.model import ForeignKey, TableSchema

pytestmark = pytest.mark.integration

#: Queries of the dictionary before which an object is dropped.
PLACES = [
    *(("dictionary", block) for block in ("types", "columns", "indexes", "foreign_keys", "partitions", "signatures")),
    *(("structure", block) for block in ("checks", "indexes", "actions", "heirs", "defaults", "own_types")),
    ("dictionary", "dropped"),
    *(("triggers", block) for block in ("present", "functions", "logs", "seen_now")),
]
#: DDL that makes the objects for each test; `{n}` is the object's number.
ITEM = """
CREATE TYPE mood_{n} AS ENUM ('good', 'bad');
CREATE DOMAIN price_{n} AS numeric CONSTRAINT positive CHECK (VALUE > 0) CONSTRAINT round CHECK (VALUE = round(VALUE));
CREATE TABLE parent_{n} (id int PRIMARY KEY);
CREATE TABLE item_{n} (
    id int PRIMARY KEY, mood mood_{n}, price price_{n}, up int REFERENCES parent_{n}, v text DEFAULT 'x' || 'y',
    twice numeric GENERATED ALWAYS AS (id * 2) STORED, CONSTRAINT fair CHECK (price < 1000));
CREATE INDEX item_v_{n} ON item_{n} (v);
COMMENT ON COLUMN item_{n}.v IS 'text'
"""
GONE = {
    "table": "DROP TABLE item_{n}",
    "table and types": "DROP TABLE item_{n}; DROP TYPE mood_{n}; DROP DOMAIN price_{n}",
}
ALTERED = {
    "type": "DROP TYPE mood_{n} CASCADE",
    "domain": "DROP DOMAIN price_{n} CASCADE",
    "check of a domain": "ALTER DOMAIN price_{n} DROP CONSTRAINT positive",
    "constraints": "ALTER TABLE item_{n} DROP CONSTRAINT fair, DROP CONSTRAINT item_{n}_up_fkey",
    "parent": "DROP TABLE parent_{n} CASCADE",
    "index": "DROP INDEX item_v_{n}",
    "columns": "ALTER TABLE item_{n} DROP COLUMN v, DROP COLUMN twice",
    "name": "ALTER TABLE item_{n} RENAME COLUMN price TO cost",
}

#: Context manager: another session commits a change immediately before a query within the block.
Interrupt = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch, sql: Sql) -> Interrupt:
    """Return a context manager that makes a change before a query, or `later` executions after it.

    The query has an older snapshot if its transaction has read anything. A change that would wait for a lock of that
    transaction is made at the end of the block.
    """
    pending: list[tuple[str, str, int]] = []
    late: list[str] = []
    rows = connections.PostgresConnection.rows

    def change_first(
        self: connections.PostgresConnection, text: str, params: connections.Params = None
    ) -> list[connections.Row]:
        if pending and pending[0][0] == text:
            query, change, later = pending.pop()
            if later:
                pending.append((query, change, later - 1))
            else:
                sql("SET lock_timeout = '200ms'")
                try:
                    sql(change)
                except psycopg2.errors.LockNotAvailable:
                    late.append(change)
                finally:
                    sql("RESET lock_timeout")
        return rows(self, text, params)

    @contextmanager
    def change_before(place: tuple[str, str], change: str, *, later: int = 0) -> Iterator[None]:
        pending.append((statement(*place), change, later))
        yield
        assert not pending, f"{place} was not read"
        while late:
            sql(late.pop())

    monkeypatch.setattr(connections.PostgresConnection, "rows", change_first)
    return change_before


def follow(follower: Follower) -> list[TableSchema]:
    """Refresh the schemas as capture does: a dictionary that changes while it is read is read again."""
    for _ in range(3):
        try:
            return follower.source.capture.refresh_schemas()
        except SchemaChanged:
            continue
    raise AssertionError("the schemas do not settle")


def read_registration(follower: Follower, name: str) -> RegisteredTable:
    return next(t for t in follower.source.registry.read_registered_tables() if t.schema.name == name)


def assert_sound(schemas: list[TableSchema]) -> None:
    assert "???" not in repr(schemas)
    for schema in schemas:
        assert all(isinstance(c.default_sql, str) for c in schema.columns)


@pytest.mark.parametrize("what", [*GONE, *ALTERED])
def test_capture_follows_what_is_dropped_while_it_reads_the_dictionary(
    sql: Sql, capture: Start, interrupt: Interrupt, what: str
) -> None:
    for n, _ in enumerate(PLACES):
        sql(ITEM.replace("{n}", str(n)))
    follower = capture()
    follow(follower)
    change = (GONE | ALTERED)[what]
    for n, place in enumerate(PLACES):
        sql(f"COMMENT ON TABLE item_{n} IS 'so that the dictionary is read again'")
        with interrupt(place, change.replace("{n}", str(n))):
            found = follow(follower)
        assert_sound([*found, *follow(follower)])
        now = read_registration(follower, f"item_{n}")
        if what in GONE:
            assert (now.state, now.reason) == ("RESYNC", "the table is gone: dropped or renamed"), place
        else:
            assert (now.state, now.reason or "") == ("ACTIVE", ""), place
            (fresh,) = follower.source.dictionary.read_tables([f"item_{n}"], [])
            assert now.schema == replace(fresh, table_id=now.schema.table_id, version=now.schema.version), place


@pytest.mark.parametrize(
    "place",
    [
        ("registry", "unreadable"),  # between the two snapshots
        ("triggers", "functions"),
        ("triggers", "present"),
        ("triggers", "seen_now"),
    ],
)
def test_a_partition_that_is_dropped_while_triggers_are_compared_has_no_missing_trigger(
    sql: Sql, capture: Start, interrupt: Interrupt, place: tuple[str, str]
) -> None:
    sql(
        "CREATE TABLE parted (id int, p int, twice int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (id, p))"
        " PARTITION BY LIST (p)"
    )
    for p in (1, 2):
        sql(f"CREATE TABLE parted_{p} PARTITION OF parted FOR VALUES IN ({p})")
    sql("INSERT INTO parted VALUES (1, 1), (2, 2)")
    follower = capture()
    follow(follower)
    sql("COMMENT ON TABLE parted IS 'so that the dictionary is read again'")
    with interrupt(place, "DROP TABLE parted_1"):
        follow(follower)

    now = read_registration(follower, "parted")
    assert now.state == "ACTIVE", now.reason
    assert now.fill.done, "no expression has changed"
    follow(follower)
    now = read_registration(follower, "parted")
    assert now.state == "ACTIVE", now.reason
    assert now.is_compared
    sql("INSERT INTO parted VALUES (3, 2)")
    follow(follower)
    assert read_registration(follower, "parted").state == "ACTIVE"


def test_a_trigger_that_is_dropped_while_triggers_are_compared_is_noticed(
    sql: Sql, capture: Start, interrupt: Interrupt
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    follow(follower)
    sql("COMMENT ON TABLE item IS 'so that the dictionary is read again'")
    with interrupt(("triggers", "present"), "DROP TRIGGER venus_i_00002 ON item"):
        follow(follower)
    follow(follower)
    found, reason = state(follower, "item")
    assert found == "RESYNC"
    assert "venus_i_00002 missing or altered" in reason


@pytest.mark.parametrize("what", ["table and types", "type", "domain", "new type"])
def test_an_installation_reports_a_dictionary_that_changes_while_it_is_read(
    sql: Sql, source: PostgresSource, interrupt: Interrupt, what: str
) -> None:
    """The installation reads outside of a snapshot, because it waits for locks: a later query may see newer changes."""
    added = "CREATE TYPE size_{n} AS ENUM ('s'); ALTER TABLE item_{n} ADD COLUMN size size_{n}"
    change = (GONE | ALTERED | {"new type": added})[what]
    places = [place for place in PLACES if place[0] != "triggers"]
    for n, place in enumerate(places):
        sql(ITEM.replace("{n}", str(n)))
        # the check has read the dictionary before
        with interrupt(place, change.replace("{n}", str(n)), later=1), suppress(SchemaChanged):
            source.installer.install(["*"], [])
        source.installer.install(["*"], [])
        source.installer.uninstall()
        sql(f"DROP TABLE IF EXISTS item_{n}")


def test_a_constraint_whose_definition_is_gone_is_not_carried() -> None:
    """Outside of a snapshot, it may be dropped between the start of the query and the call of the function."""
    rows = {
        statement("structure", "checks"): [(7, "fair", None, "c", None)],
        statement("structure", "actions"): [(7, "item_up_fkey", "a", "a", "s", None)],
    }
    connection = SimpleNamespace(rows=lambda text, params: rows.get(text, []))
    found = read_structure(cast(connections.PostgresConnection, connection), [7])[7]
    key = ForeignKey(
        name="item_up_fkey", columns=("up",), referred_namespace="public", referred_table="p", referred_columns=("id",)
    )
    assert (found.checks, found.left_out, found.enforced_foreign_keys([key])) == ([], [], ())


def test_a_target_reads_the_objects_of_a_table_that_loses_some(sql: Sql, database: str) -> None:
    sql("CREATE TABLE goods (id int PRIMARY KEY, v text, CONSTRAINT fair CHECK (id > 0))")
    sql("CREATE INDEX goods_v ON goods (v); CREATE INDEX goods_id ON goods (id)")
    schema = TableSchema(table_id=1, version=1, namespace="public", name="goods", columns=(), key=("id",))
    placed = PlacedTable(schema=schema, namespace="public", name="goods")
    with closing(TargetSession(database, application="venus test")) as session:
        session.begin_snapshot()
        session.row("SELECT 1")
        sql("DROP INDEX goods_v")
        assert set(read_objects(session, placed)) == {("i", "goods_id"), ("c", "fair"), ("n", "id")}
