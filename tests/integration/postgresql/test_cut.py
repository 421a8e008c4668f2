"""How a cut reads: plans, memory, and other sessions that work at the same time."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.integration.postgresql.conftest import Sql, Start
from tests.support.processes.memory import peak_bytes
from tests.support.waiting import eventually
from venus.adapters.dialects.postgresql.capture import cut_opening, cut_statements
from venus.adapters.dialects.postgresql.capture.cut import PostgresCut, PostgresFillPace
from venus.adapters.dialects.postgresql.capture.cut_opening import LockWaitState, PolledTables, open_cut
from venus.adapters.dialects.postgresql.connection import Conflict, PostgresConnection
from venus.adapters.dialects.postgresql.registry import load_captured_tables
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.adapters.dialects.postgresql.sql import statement
from venus.adapters.dialects.registry_rules import HaltTracker
from venus.adapters.dialects.rows import FillCursor
from venus.cli.prove.follower import Follower
from venus.errors import DatabaseUnavailable, VenusError
from venus.model import BatchNo, BatchRecord, ChangeKind, Epoch, Sequence

# -- plans -----------------------------------------------------------------------------------------------------------


def plan_of(connection: PostgresConnection, rows: int, pages: int) -> str:
    """Return the plan of the statement that a cut of this many rows executes."""
    (captured,) = [c for c in load_captured_tables(connection)[0] if c.schema.name == "big"]
    assert captured.table is not None
    text = cut_statements.changes_query(
        captured.table, captured.schema, inserts_only=False, taken=rows <= cut_statements.SMALL_CLAIM_ROWS
    )
    query = re.sub(r"\) TO STDOUT$", "", text.strip().removeprefix("COPY ("))
    with connection.transaction():
        connection.run(cut_statements.planner_settings(rows, pages))
        return "\n".join(r[0] for r in connection.rows("EXPLAIN " + query))


@pytest.mark.parametrize("logged", [1, 1000])
def test_few_changes_of_a_large_table_are_read_through_its_key(
    logged: int, sql: Sql, capture: Start, database: str
) -> None:
    sql("CREATE TABLE big (id int PRIMARY KEY, v text)")
    sql("INSERT INTO big SELECT i, repeat('x', 50) FROM generate_series(1, 100000) i")
    capture()
    # the planner's statistics of a log table are always outdated: here they are of very many rows
    sql("UPDATE big SET v = 'y'")
    sql("ANALYZE venus.l_00002; ANALYZE big; DELETE FROM venus.l_00002")
    sql(f"UPDATE big SET v = 'z' WHERE id <= {logged}")
    connection = PostgresConnection(database)
    plan = plan_of(connection, logged, 1000)
    connection.close()
    assert "Nested Loop" in plan
    assert "Index Scan using big_pkey" in plan
    assert "Seq Scan on big" not in plan


def test_an_opening_reads_few_changes_of_a_large_table_through_its_key(sql: Sql, capture: Start, database: str) -> None:
    sql("CREATE TABLE big (id int PRIMARY KEY, v text)")
    sql("INSERT INTO big SELECT i, repeat('x', 50) FROM generate_series(1, 100000) i")
    capture()
    sql("UPDATE big SET v = 'y'")
    sql("ANALYZE venus.l_00002; ANALYZE big; DELETE FROM venus.l_00002")
    connection = PostgresConnection(database)
    (captured,) = [c for c in load_captured_tables(connection)[0] if c.schema.name == "big"]
    assert captured.table is not None
    query = cut_statements.opening_query({2: captured.table.oid}, [(captured.table, captured.schema)])
    with connection.transaction():
        connection.run(cut_statements.KEYED_PLAN)
        plan = "\n".join(r[0] for r in connection.rows("EXPLAIN " + query))
    connection.close()
    assert "Index Scan using big_pkey" in plan
    assert "Seq Scan on big" not in plan


def test_a_table_that_was_analysed_while_its_rows_came_is_read_through_its_key(
    sql: Sql, capture: Start, database: str
) -> None:
    """The planner takes the table as empty then: it would read the log once and search it for each key."""
    sql("CREATE TABLE big (id int PRIMARY KEY, v text)")
    sql("INSERT INTO big SELECT i, repeat('x', 50) FROM generate_series(1, 100000) i")
    capture()
    sql("UPDATE big SET v = 'z' WHERE id <= 20000")
    sql("ANALYZE venus.l_00002; ANALYZE big; UPDATE pg_class SET reltuples = 0 WHERE oid = 'big'::regclass")
    connection = PostgresConnection(database)
    plan = plan_of(connection, 20_000, 1_000_000)
    connection.close()
    assert "Nested Loop" in plan
    assert "Index Cond: (id = " in plan, plan


def test_many_changes_are_read_in_one_pass(sql: Sql, capture: Start, database: str) -> None:
    sql("CREATE TABLE big (id int PRIMARY KEY, v text)")
    sql("INSERT INTO big SELECT i, repeat('x', 50) FROM generate_series(1, 100000) i")
    capture()
    sql("ANALYZE venus.l_00002")  # it is empty now: the planner estimates one row
    sql("UPDATE big SET v = 'y'")
    connection = PostgresConnection(database)
    plan = plan_of(connection, 100_000, 1000)
    connection.close()
    assert "Hash" in plan
    assert "Nested Loop" not in plan


def test_a_fill_reads_each_chunk_through_the_key(sql: Sql, capture: Start, database: str) -> None:
    sql("CREATE TABLE big (a int, b text, v text, PRIMARY KEY (a, b))")
    sql("INSERT INTO big SELECT i % 7, i, 'x' FROM generate_series(1, 50000) i; ANALYZE big")
    capture()
    connection = PostgresConnection(database)
    (captured,) = [c for c in load_captured_tables(connection)[0] if c.schema.name == "big"]
    assert captured.table is not None
    text = cut_statements.fill_query(
        captured.table, captured.schema, FillCursor(["3", "17"], ["4", "0"]).cursor, 20_000
    )
    with connection.transaction():
        connection.run(statement("cut", "fill_plan"))
        plan = connection.rows("EXPLAIN " + re.sub(r"\) TO STDOUT$", "", text.strip().removeprefix("COPY (")))
    connection.close()
    plan_text = "\n".join(r[0] for r in plan)
    assert "Index Scan using big_pkey" in plan_text
    assert "ROW(a, b) > ROW('3'::bigint, '17'::text)) AND (ROW(a, b) <= ROW('4'::bigint, '0'::text))" in plan_text
    assert "Sort" not in plan_text


# -- between snapshot and lock ----------------------------------------------------------------------------------------


class MeddlingConnection(PostgresConnection):
    """Connection that runs a function just before the cut locks its tables."""

    meddle: Callable[[], object] = staticmethod(lambda: None)

    def run(self, text: str, params: object = None) -> int:
        if "LOCK TABLE" in text:
            self.meddle()
        return super().run(text, params)  # type: ignore[arg-type]


@pytest.fixture
def meddling(sql: Sql, capture: Start, database: str) -> Iterator[tuple[Follower, MeddlingConnection]]:
    sql("CREATE TABLE item (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    follower = capture()
    sql("INSERT INTO item VALUES (1), (2)")
    connection = MeddlingConnection(database)
    connection.run("; ".join(cut_statements.prepare_statements(looker=False)))
    connection.expect_types(oid for (oid,) in connection.rows(statement("cut", "types")))
    yield follower, connection
    connection.close()


def try_to_open(connection: MeddlingConnection, *, everywhere: bool) -> PostgresCut | None:
    captured, mark = load_captured_tables(connection)
    return open_cut(
        connection,
        captured,
        PolledTables.classify(captured),
        mark,
        [],
        PostgresFillPace(),
        HaltTracker(),
        LockWaitState(time.monotonic),
        everywhere=everywhere,
        idle=True,
    )


def test_a_truncate_between_snapshot_and_read_is_not_taken_as_an_empty_table(
    sql: Sql, meddling: tuple[Follower, MeddlingConnection]
) -> None:
    follower, connection = meddling
    connection.meddle = lambda: sql("TRUNCATE item")
    with pytest.raises(Conflict, match="truncated"):
        try_to_open(connection, everywhere=True)
    assert follower.source.capture.read_backlog()[follower.table_id("item")][0] == 3
    follower.drain()
    assert follower.rows("item") == {}


def test_a_small_cut_locks_its_tables_before_its_snapshot(
    meddling: tuple[Follower, MeddlingConnection], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the snapshot contains a TRUNCATE that the lock has waited for, and none follows it."""
    monkeypatch.setattr(cut_opening, "GIVE_WAY_MS", 120_000)
    _, connection = meddling
    application = PostgresConnection(database, application="application")
    commit = threading.Timer(0.5, application.run, ["COMMIT"])

    def truncate() -> None:
        application.run("BEGIN; TRUNCATE public.item; INSERT INTO public.item VALUES (7)")
        commit.start()

    connection.meddle = truncate
    cut = try_to_open(connection, everywhere=False)
    assert cut is not None
    first, rows = cut.read_sections(rows_max=100, bytes_max=1 << 20)
    assert first.kind is ChangeKind.TRUNCATE
    assert rows.count == 3
    assert rows.is_deleted.sum() == 2  # the deletions of 1 and 2
    cut.rollback()
    commit.join()
    application.close()


def test_a_small_cut_includes_a_table_that_was_written_meanwhile(
    sql: Sql, meddling: tuple[Follower, MeddlingConnection]
) -> None:
    """Everything that a snapshot shows is one cut, also a table that the poll did not report."""
    _, connection = meddling
    connection.meddle = lambda: sql("INSERT INTO other VALUES (5); INSERT INTO item VALUES (3)")
    meddled = connection.meddle

    def meddle_once() -> None:
        connection.meddle = lambda: None
        meddled()

    connection.meddle = meddle_once
    cut = try_to_open(connection, everywhere=False)
    assert cut is not None
    assert [section.count for section in cut.read_sections(rows_max=100, bytes_max=1 << 20)] == [3, 1]
    cut.rollback()


def test_ddl_between_registry_and_read_is_a_schema_change(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY, v int)")
    follower = capture()
    sql("INSERT INTO item VALUES (1, 5)")
    sql("ALTER TABLE item ALTER COLUMN v TYPE text USING 'five'")
    with pytest.raises(VenusError) as raised:
        follower.source.capture.open_cut([])
    assert raised.value.retryable
    follower.drain()
    assert follower.rows("item") == {("1",): {"id": "1", "v": "five"}}


# -- other sessions ----------------------------------------------------------------------------------------------------


def test_a_hung_instance_cannot_block_its_successor_for_ever(sql: Sql, capture: Start, database: str) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    capture()
    sql("INSERT INTO item VALUES (1), (2)")
    hung = PostgresSource(f"{database}&venus_idle_timeout_s=77")
    zombie = Follower(hung)
    open_cut = zombie.open([])
    assert open_cut is not None
    seen = zombie.read(open_cut, [], rows_max=10, bytes_max=1 << 20, fill_rows=1)
    assert hung._connection.rows("SHOW idle_in_transaction_session_timeout") == [("77s",)]
    hung._connection.run("SET idle_in_transaction_session_timeout = 500")  # now it may take as long as it likes
    fresh = PostgresSource(database)
    successor = Follower(fresh)
    successor.drain()
    assert len(successor.rows("item")) == 2
    with pytest.raises(DatabaseUnavailable):
        open_cut.commit(zombie.epoch, seen.batches, [], BatchNo(0))
    hung.close()
    fresh.close()


def test_a_review_waits_for_an_instance_that_is_just_committing(
    sql: Sql, open_sessions: Callable[[], Sql], capture: Start
) -> None:
    follower = capture()
    committing = open_sessions()
    committing("BEGIN")
    committing("UPDATE venus.checkpoint SET last_batch = 77")
    committing("INSERT INTO venus.batch VALUES (77, 1, 1, 1, '00000000000000ff')")
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(follower.source.registry.read_batches([BatchNo(77)])))
    thread.start()
    sql.wait_for_a_waiter()
    assert thread.is_alive()
    committing("COMMIT")
    thread.join()
    (answer,) = answers
    assert BatchNo(77) in answer  # type: ignore[operator]


def test_an_open_transaction_is_named_with_its_age_and_none_of_its_rows_is_skipped(
    sql: Sql, open_sessions: Callable[[], Sql], capture: Start
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    backlog = follower.source.capture.read_backlog
    item, writer = follower.table_id("item"), open_sessions()
    writer("BEGIN")
    writer("INSERT INTO item VALUES (1)")
    eventually(lambda: backlog()[item][1] >= 1, "the age of the open transaction")
    sql("INSERT INTO item VALUES (2)")  # it draws a later number and commits first
    follower.drain()
    assert list(follower.rows("item")) == [("2",)]
    assert f"session {writer.connection.info.backend_pid} " in follower.source.capture.describe_blockers()
    rows, open_s = backlog()[item]
    assert (rows, open_s >= 1) == (0, True), "other commits do not hide its age"
    writer("COMMIT")
    assert backlog()[item] == (1, 0)
    follower.drain()
    assert list(follower.rows("item")) == [("1",), ("2",)]
    assert follower.source.capture.describe_blockers() == ""


# -- memory ----------------------------------------------------------------------------------------------------------

READER = "import sys; from tests.integration.postgresql.test_cut import read_one_cut; print(*read_one_cut(sys.argv[1]))"


def read_one_cut(url: str) -> tuple[int, int, int]:
    """Commit one cut; return its number of rows and of sections, and the peak memory of this process in MiB."""
    source = PostgresSource(url)
    state = source.registry.raise_epoch(Epoch(source.registry.read_state().epoch + 1))
    cut = source.capture.open_cut([])
    assert cut is not None
    counts = [section.count for section in cut.read_sections(rows_max=5000, bytes_max=1 << 20)]
    last = Sequence(state.next_sequence + sum(counts) - 1)
    batch = BatchNo(state.last_batch + 1)
    record = BatchRecord(
        batch_no=batch, epoch=state.epoch, first_sequence=state.next_sequence, last_sequence=last, digest=1
    )
    cut.commit(state.epoch, [record], [], BatchNo(0))
    return sum(counts), len(counts), peak_bytes() >> 20


def test_a_transaction_of_a_million_rows_is_one_cut_in_little_memory(sql: Sql, capture: Start, database: str) -> None:
    sql("CREATE TABLE big (id int PRIMARY KEY, v text, n numeric(10,2))")
    capture()
    sql("INSERT INTO big SELECT i, repeat('x', 60), i / 100.0 FROM generate_series(1, 1000000) i")
    run = subprocess.run([sys.executable, "-c", READER, database], check=True, stdout=subprocess.PIPE, text=True)
    count, sections, megabytes = map(int, run.stdout.split())
    assert (count, sections >= 200) == (1_000_000, True)
    assert megabytes < 256


def test_a_row_that_fits_into_no_message_halts_its_table_alone(
    sql: Sql, source: PostgresSource, capture: Start
) -> None:
    sql("CREATE TABLE doc (id int, at date, body bytea, PRIMARY KEY (at, id)); CREATE TABLE other (id int PRIMARY KEY)")
    item = capture()
    sql("INSERT INTO doc VALUES (7, '2026-11-21', convert_to(repeat('x', 16000000), 'utf8'))")
    sql("INSERT INTO other VALUES (1)")
    item.drain()
    (doc,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "doc"]
    said = "cannot be carried: row at=2026-11-21, id=7: 15.3 MiB, a row can have 15 MiB"
    assert (doc.state, doc.reason) == ("PAUSED", said)
    assert list(item.rows("other")) == [("1",)]
    sql("UPDATE doc SET body = 'less'")
    source.capture.refresh_schemas()
    item.drain()
    assert [row["body"] for row in item.rows("doc").values()] == [b"less"]


def test_the_application_is_never_the_victim_of_a_deadlock_with_a_cut(
    sql: Sql, open_sessions: Callable[[], Sql], capture: Start, database: str
) -> None:
    for name in ("a", "b"):
        sql(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    capture()
    sql("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
    application, source = open_sessions(), PostgresSource(database)
    assert source.registry.read_state()  # the session is connected
    application("BEGIN")
    application("TRUNCATE b")
    cuts: list[object] = []
    reader = threading.Thread(target=lambda: cuts.append(source.capture.open_cut([])))
    reader.start()  # locks a, and waits for b
    while reader.is_alive() and not application("SELECT 1 FROM pg_locks WHERE NOT granted"):
        time.sleep(0.01)  # it waits for 0.2 s
    reader.join(1.5)  # the server looks for a deadlock one second after a wait began; the application's would be next
    application("TRUNCATE a")
    application("COMMIT")
    reader.join(60)
    assert cuts == [None], "the cut gave way"
    cut = source.capture.open_cut([])
    assert cut is not None
    cut.rollback()
    source.close()
