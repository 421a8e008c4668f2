"""Time limits and other settings of a target's database or role, meant for other sessions, do not affect apply."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing

import psycopg2
import pytest
import sqlalchemy

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, following, items, put, query, wait_until_caught_up
from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.applying import check_counters, check_equal, load_target
from tests.support.waiting import eventually
from venus.adapters.targets.postgresql.session import TargetSession, try_replica_role
from venus.adapters.targets.relational.control import read_table_states, request_resync
from venus.migrations.run import MIGRATION_LOCK

pytestmark = pytest.mark.integration

#: What a machine without time is the cause of.
SLOW = re.compile(r"for a lock of session|^answered after ")
SETTINGS = {
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "300",
    "lock_timeout": "100",
    "idle_in_transaction_session_timeout": "300",
    "idle_session_timeout": "300",
    "transaction_timeout": "300",
    "session_replication_role": "replica",
    "search_path": "nowhere, pg_catalog",
}


def read_settings(database: str) -> dict[str, str]:
    names = {row[0] for row in query(database, "SELECT name FROM pg_settings")}
    return {name: value for name, value in SETTINGS.items() if name in names}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_target_is_loaded_followed_and_resynced_under_every_setting(
    name: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings_here = read_settings(database)
    if name not in settings_here:
        pytest.skip(f"this server has no {name}")
    query(database, f"ALTER DATABASE {sqlalchemy.make_url(database).database} SET {name} = {settings_here[name]}")
    settings = load_target(database, feed, items(), items(2, "others"), rows=5)
    since = dict(feed.committed)
    with following(settings, "a") as reports:
        feed.cut(put(1, "new", 1), put(1, "new", 1, table=2))
        wait_until_caught_up(database, broker)
        with closing(psycopg2.connect(libpq(database), options="-c transaction_isolation=read\\ committed")) as app:
            for limit in read_settings(database).keys() & {name for name in SETTINGS if name.endswith("_timeout")}:
                app.cursor().execute(f"SET {limit} = 0")
            app.commit()
            app.cursor().execute("UPDATE shop.items SET amount = amount WHERE id = '2'")
            feed.cut(put(2, "new", 2), put(2, "new", 2, table=2))
            time.sleep(1.0)
            app.rollback()
        wait_until_caught_up(database, broker)
        request_resync(settings, "a", "items")
        feed.cut(put(3, "new", 3))
        wait_until_caught_up(database, broker)
        eventually(lambda: [t.state for t in read_table_states(settings, "a")] == ["ACTIVE"] * 2, "the tables")
        time.sleep(0.5)
    assert not [report.error for report in reports if report.error and not SLOW.search(report.error)]
    check_equal(database, feed)
    check_counters(settings, feed, since)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name.endswith("_timeout")])
def test_limits_of_time_do_not_end_the_installation_at_a_target(name: str, database: str, feed: Feed) -> None:
    """As when another process of VENUS installs at the same time, which takes longer than the limit."""
    settings_here = read_settings(database)
    if name not in settings_here:
        pytest.skip(f"this server has no {name}")
    with closing(psycopg2.connect(libpq(database))) as other:
        other.cursor().execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])
        query(database, f"ALTER DATABASE {sqlalchemy.make_url(database).database} SET {name} = {settings_here[name]}")
        threading.Timer(1.0, other.rollback).start()
        load_target(database, feed, items(), rows=5)
    check_equal(database, feed)


def test_apply_waits_for_a_read_only_target_and_names_the_remedy(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), rows=5)
    name = sqlalchemy.make_url(database).database
    query(database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with following(settings, "a") as reports:
        feed.cut(put(1, "new", 1))
        eventually(lambda: any("25006" in report.error for report in reports), "the error")
        said = next(report.error for report in reports if "25006" in report.error)
        assert "it is a standby, or default_transaction_read_only is on" in said
        query(database, f"BEGIN READ WRITE; ALTER DATABASE {name} RESET ALL; COMMIT")
        wait_until_caught_up(database, broker)
    check_equal(database, feed)


def test_a_role_with_a_preset_replication_role_needs_no_right_to_set_it(postgres_server: Server, database: str) -> None:
    query(database, "CREATE ROLE applier LOGIN; ALTER ROLE applier SET session_replication_role = replica")
    try:
        session = TargetSession(
            postgres_server.url(str(sqlalchemy.make_url(database).database), "applier"), application="t"
        )
        assert try_replica_role(session)
        session.close()
    finally:
        query(database, "DROP ROLE applier")
