"""Sessions that lock a captured table, or have written to it in a transaction that stays open, are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.postgresql.conftest import Sql, Start
from venus.adapters.dialects.postgresql.capture import cut_opening
from venus.adapters.dialects.postgresql.installation import installer
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.errors import DatabaseUnavailable

pytestmark = pytest.mark.integration


def pid_of(session: Sql) -> int:
    return session.connection.info.backend_pid


def test_a_session_that_locks_a_table_for_long_is_named_in_the_log(
    sql: Sql,
    open_sessions: Callable[[], Sql],
    capture: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cut_opening, "LOG_AFTER_S", 0.0)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    sql("INSERT INTO item VALUES (1)")
    locker = open_sessions()
    locker("SET application_name = 'nightly job'")
    locker("BEGIN")
    locker("LOCK TABLE item IN ACCESS EXCLUSIVE MODE")
    for _ in range(3):
        assert follower.source.capture.open_cut([]) is None
    (said,) = [record.getMessage() for record in caplog.records if "cuts have been waiting" in record.getMessage()]
    assert f"public.item is locked by session {pid_of(locker)} (user postgres, nightly job, " in said
    assert said.endswith("idle in transaction: LOCK TABLE item IN ACCESS EXCLUSIVE MODE)")
    locker("ROLLBACK")
    follower.drain()
    assert len(follower.rows("item")) == 1


def test_a_session_that_has_written_and_stays_open_is_named(
    sql: Sql, open_sessions: Callable[[], Sql], capture: Start
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, v text)")
    follower = capture()
    assert follower.source.capture.describe_blockers() == ""
    locker = open_sessions()
    locker("BEGIN")
    locker("INSERT INTO item VALUES (4711, 'Smith')")
    said = follower.source.capture.describe_blockers()
    assert said.startswith(f"public.item: session {pid_of(locker)} (user postgres, ")
    assert said.endswith("INSERT INTO item VALUES (?, ?))")
    locker("ROLLBACK")


def test_a_prepared_transaction_that_blocks_an_installation_is_named(
    sql: Sql, source: PostgresSource, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer, "_RETRY_AFTER_S", 0.0)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    sql("BEGIN")
    sql("INSERT INTO item VALUES (1)")
    sql("PREPARE TRANSACTION 'left behind'")
    try:
        url = f"{database}{'&' if '?' in database else '?'}venus_install_attempts=2"
        with pytest.raises(
            DatabaseUnavailable, match=r"prepared transaction 'left behind' \(owner postgres, prepared "
        ):
            PostgresSource(url).installer.install(["*"], [])
    finally:
        sql("ROLLBACK PREPARED 'left behind'")
