"""Capture waits for dirty marks inside the server: what ends a wait, what it costs, what the next cut must do."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.integration.postgresql.conftest import Sql, Start
from tests.support.waiting import eventually
from venus.adapters.dialects.postgresql import connection as connections
from venus.adapters.dialects.postgresql.capture import capture as sources
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.errors import SourceError

pytestmark = pytest.mark.integration

#: Of a wait that something else has to end.
LONG_S = 100.0
_WAIT = re.compile(r"EXECUTE venus_wait \('\{.*\}', [0-9.]+, (\d+)\); EXECUTE venus_dirty")


def count_polls(text: str) -> int:
    """Return the maximum number of looks of one wait."""
    found = _WAIT.fullmatch(text)
    assert found is not None, text
    return int(found[1])


def test_a_change_ends_a_wait_and_the_cut_does_not_poll_again(
    sql: Sql, capture: Start, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "WAIT_S", LONG_S)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    later = threading.Timer(0.3, sql, ["INSERT INTO item VALUES (1)"])
    statements.clear()
    began = time.monotonic()
    later.start()
    assert follower.source.capture.wait(0.001)
    waited_s = time.monotonic() - began
    later.join()
    assert 0.2 < waited_s < LONG_S
    assert len(statements) == 1, "one round trip, however many looks"
    cut = follower.source.capture.open_cut([])
    assert cut is not None
    assert "EXECUTE venus_dirty" not in statements
    cut.rollback()


def test_a_small_cut_takes_few_round_trips(sql: Sql, capture: Start, statements: list[str]) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    for n in range(3):
        sql(f"INSERT INTO item VALUES ({n})")
        assert follower.source.capture.wait(0.001)
        statements.clear()
        assert follower.cut() is not None
    opening, ending = statements[-2:]  # the COPY comes between them; before them, the follower has read the registry
    assert "BEGIN" in opening
    assert "LOCK TABLE" in opening
    assert "EXECUTE venus_open_0" in opening
    assert ending.endswith("COMMIT")


def test_where_no_temporary_function_may_be_created_a_block_waits(
    sql: Sql, database: str, capture: Start, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "WAIT_S", LONG_S)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    capture()
    sql("CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not here'; END$$")
    sql("CREATE EVENT TRIGGER refusing ON ddl_command_end WHEN TAG IN ('CREATE FUNCTION') EXECUTE FUNCTION refuse()")
    with closing(PostgresSource(database)) as source:
        assert source.capture.open_cut([]) is None
        later = threading.Timer(0.1, sql, ["INSERT INTO item VALUES (1)"])
        later.start()
        statements.clear()
        assert source.capture.wait(0.001)
        later.join()
        assert "1..looks LOOP" in statements[0]
        cut = source.capture.open_cut([])
        assert cut is not None
        cut.rollback()
    sql("DROP EVENT TRIGGER refusing")


def test_the_waiting_function_belongs_to_this_session_alone(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    assert follower.source.capture.wait(0.001)
    where = "SELECT nspname FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE proname = 'venus_wait'"
    ((schema,),) = sql(where)
    assert schema.startswith("pg_temp")
    follower.source.close()
    eventually(lambda: not sql(where), "it ends with its session")


def test_marks_of_paused_tables_do_not_end_a_wait(
    sql: Sql, capture: Start, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "WAIT_S", 0.3)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    follower.source.registry.set_table_state(follower.table_id("item"), "PAUSED", "")
    sql("INSERT INTO item VALUES (1)")
    assert follower.cut() is None
    began = time.monotonic()
    assert follower.source.capture.wait(0.01)
    assert time.monotonic() - began > 0.25
    statements.clear()
    assert follower.source.capture.open_cut([]) is None
    assert statements == [], "the wait has seen that there is nothing"


def test_a_wait_ends_by_itself_and_long_pauses_are_left_to_the_caller(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    assert follower.source.capture.wait(0.001)
    assert follower.source.capture.wait(sources.WAIT_S)
    assert not follower.source.capture.wait(sources.WAIT_S * 2)


def test_an_idle_source_has_one_statement_and_twenty_looks_a_second(
    sql: Sql, capture: Start, statements: list[str]
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    statements.clear()
    began = time.monotonic()
    for _ in range(2):
        assert follower.source.capture.wait(0.05, 3.0)
    assert time.monotonic() - began > 1.75 * sources.REST_S
    assert len(statements) == 2, "one round trip each"
    assert all(count_polls(text) == 20 for text in statements)


@pytest.mark.parametrize(("logged", "count"), [("250ms", 4), ("1min", 20), ("0", 20), ("-1", 20)])
def test_a_wait_is_not_logged_as_a_slow_statement(
    sql: Sql, database: str, capture: Start, statements: list[str], logged: str, count: int
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    capture()
    ((name,),) = sql("SELECT current_database()")
    sql(f"ALTER DATABASE {name} SET log_min_duration_statement = '{logged}'")
    with closing(PostgresSource(database)) as source:
        assert source.capture.open_cut([]) is None
        statements.clear()
        assert source.capture.wait(0.05, 3.0)
    assert count_polls(statements[0]) == count


def test_marks_are_read_only_after_a_transaction_has_ended(sql: Sql, database: str, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    capture()
    with closing(PostgresSource(database)) as source:

        def scans() -> int:
            source._connection.run("SELECT pg_stat_force_next_flush()")
            ((count,),) = sql("SELECT seq_scan FROM pg_stat_user_tables WHERE relid = 'venus.dirty'::regclass")
            return int(count)

        assert source.capture.open_cut([]) is None
        before = scans()
        for _ in range(2):
            assert source.capture.wait(0.01, 3.0)
        assert 2 <= scans() - before < 20, "each of forty looks would be one"


def test_a_change_ends_a_wait(sql: Sql, capture: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "REST_S", LONG_S)
    monkeypatch.setattr(sources, "REST_LOOKS", 10_000)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    later = threading.Timer(0.1, sql, ["INSERT INTO item VALUES (1)"])
    later.start()
    began = time.monotonic()
    assert follower.source.capture.wait(0.05, LONG_S)
    assert time.monotonic() - began < LONG_S
    later.join()


def test_a_transaction_that_began_before_others_and_ends_after_them_ends_a_wait(
    sql: Sql, open_sessions: Callable[[], Sql], capture: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is no newer than those that the wait has seen: only its end shows that it exists."""
    monkeypatch.setattr(sources, "REST_S", LONG_S)
    monkeypatch.setattr(sources, "REST_LOOKS", 10_000)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    older = open_sessions()
    older("BEGIN")
    older("INSERT INTO item VALUES (1)")
    sql("SELECT pg_current_xact_id()")  # a newer transaction, which leaves no mark
    later = threading.Timer(0.3, older, ["COMMIT"])
    later.start()
    began = time.monotonic()
    assert follower.source.capture.wait(0.05, LONG_S)
    assert time.monotonic() - began < LONG_S
    later.join()
    assert follower.cut() is not None


@pytest.mark.parametrize(
    ("pause_s", "rest_s", "count"), [(0.05, 0.0, 2), (0.05, 0.16, 3), (0.001, 3.0, 100), (0.015, 3.0, 20)]
)
def test_a_wait_is_short_if_work_is_due_or_in_progress(
    sql: Sql, capture: Start, statements: list[str], pause_s: float, rest_s: float, count: int
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    statements.clear()
    assert follower.source.capture.wait(pause_s, rest_s)
    assert count_polls(statements[0]) == count


def test_a_table_that_the_application_has_locked_is_polled_with_pauses(sql: Sql, capture: Start, database: str) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    sql("INSERT INTO item VALUES (1)")
    holder = connections.PostgresConnection(database, application="holder")
    with holder.transaction():
        holder.run("LOCK TABLE public.item IN ACCESS EXCLUSIVE MODE")
        assert follower.source.capture.wait(0.001)
        assert follower.source.capture.open_cut([]) is None
        assert not follower.source.capture.wait(0.001)
    holder.close()
    follower.drain()
    assert follower.rows("item") == {("1",): {"id": "1"}}


def test_a_wait_leaves_errors_to_the_next_cut(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    sql("ALTER TABLE venus.dirty RENAME TO gone")
    assert not follower.source.capture.wait(0.001)
    with pytest.raises(SourceError):
        follower.source.capture.open_cut([])
