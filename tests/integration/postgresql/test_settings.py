"""Settings of the source's database, or of the application's sessions, must not change what is captured."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
import sqlalchemy

from tests.integration.postgresql.conftest import Sql, Start, state
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.cli.prove.follower import Follower
from venus.errors import DatabaseUnavailable
from venus.model import BatchNo

pytestmark = pytest.mark.integration


def test_a_fill_continues_past_null_in_a_key(sql: Sql, database: str) -> None:
    sql("CREATE TABLE t (k text[] PRIMARY KEY)")
    sql("""INSERT INTO t VALUES ('{a,NULL}'), ('{a,"NULL"}'), ('{a,NULL,b}'), ('{z,NULL}')""")
    sql(f"ALTER DATABASE {sqlalchemy.make_url(database).database} SET array_nulls = off")
    with closing(PostgresSource(database)) as source:
        source.installer.install(["*"], [])
        follower = Follower(source)
        for _ in range(10):
            follower.cut(fill_rows=1)
        assert not follower.due()
        assert len(follower.rows("t")) == 4


@pytest.mark.parametrize("strings", ["on", "off"])
def test_backslashes_in_names_are_read_literally_in_every_mode(strings: str, sql: Sql, capture: Start) -> None:
    sql(r"""CREATE TABLE "C:\new" ("k\n'x" int PRIMARY KEY, v text)""")
    sql(r"""CREATE TABLE parted ("k\n'x" int PRIMARY KEY, v text) PARTITION BY RANGE ("k\n'x")""")
    sql("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10)")
    sql("CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20)")
    follower = capture()
    # the second row makes the triggers take their slower path
    sql(f"SET escape_string_warning = off; SET standard_conforming_strings = {strings}; SET quote_all_identifiers = on")
    sql(r"""INSERT INTO "C:\new" VALUES (1, 'a')""")
    sql(r"""UPDATE "C:\new" SET v = 'b'""")
    sql("INSERT INTO parted VALUES (1, 'a'), (11, 'b')")
    sql("TRUNCATE low")
    follower.drain()
    assert [state(follower, name) for name in (r"C:\new", "parted")] == [("ACTIVE", "")] * 2
    assert follower.rows(r"C:\new") == {("1",): {r"k\n'x": "1", "v": "b"}}
    assert follower.rows("parted") == {("11",): {r"k\n'x": "11", "v": "b"}}


LIMITS = {
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "300",
    "lock_timeout": "100",
    "idle_in_transaction_session_timeout": "300",
    "idle_session_timeout": "300",
    "transaction_timeout": "300",
    "search_path": "nowhere, pg_catalog",
}


@pytest.mark.parametrize("name", LIMITS)
def test_time_limits_and_other_modes_do_not_apply_to_venus(name: str, sql: Sql, database: str) -> None:
    if not sql("SELECT name FROM pg_settings WHERE name = %s", name):
        pytest.skip(f"this server has no {name}")
    sql("CREATE TABLE t (k int PRIMARY KEY, v int)")
    sql("INSERT INTO t VALUES (1, 1)")
    sql(f"ALTER DATABASE {sqlalchemy.make_url(database).database} SET {name} = {LIMITS[name]}")
    with closing(PostgresSource(database)) as source:
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        sql("UPDATE t SET v = 2")
        sql("INSERT INTO t VALUES (3, 3)")
        cut = follower.open([])
        assert cut is not None
        assert sum(section.count for section in cut.read_sections(rows_max=1, bytes_max=1)) == 2
        time.sleep(0.6)  # the broker takes long
        cut.commit(follower.epoch, [], [], BatchNo(0))
        time.sleep(0.6)
        source._connection.run("SELECT pg_sleep(0.6)")
        follower.drain()
        assert not follower.due()


def test_capture_waits_for_a_read_only_source(sql: Sql, capture: Start, database: str) -> None:
    """As after a failover, while the address is that of a standby."""
    sql("CREATE TABLE t (k int PRIMARY KEY)")
    follower = capture()
    sql(f"ALTER DATABASE {sqlalchemy.make_url(database).database} SET default_transaction_read_only = on")
    with closing(PostgresSource(database)) as source, pytest.raises(DatabaseUnavailable) as said:
        source.registry.raise_epoch(follower.epoch)
    assert "it is a standby, or default_transaction_read_only is on" in str(said.value)


def test_the_heartbeat_arrives_where_the_role_fires_no_triggers(sql: Sql, database: str) -> None:
    sql("CREATE TABLE t (k int PRIMARY KEY)")
    with closing(PostgresSource(database)) as source:
        source.installer.install(["*"], [])
    sql(f"ALTER DATABASE {sqlalchemy.make_url(database).database} SET session_replication_role = replica")
    with closing(PostgresSource(database)) as source:
        follower = Follower(source)
        follower.drain()
        source.capture.write_heartbeat()
        assert follower.cut() is not None
