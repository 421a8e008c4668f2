"""A poll reads the dirty marks, however many logs exist; no change is lost whenever its mark is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.postgresql.conftest import Sql, Start
from venus.adapters.dialects.postgresql.capture import capture as sources
from venus.adapters.dialects.postgresql.source import PostgresSource
from venus.adapters.dialects.postgresql.sql import statement
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration


def marks(sql: Sql) -> list[int]:
    return sorted(table_id for (table_id,) in sql("SELECT table_id FROM venus.dirty"))


def test_a_poll_costs_the_same_for_one_table_and_for_many(sql: Sql, capture: Start, statements: list[str]) -> None:
    for n in range(30):
        sql(f"CREATE TABLE t{n} (id int PRIMARY KEY)")
    follower = capture()
    statements.clear()
    assert follower.source.capture.open_cut([]) is None
    assert statements == ["EXECUTE venus_dirty"], "the marks, and no transaction around them"
    sql("INSERT INTO t7 VALUES (1)")
    statements.clear()
    follower.drain()
    touched = {word for text in statements for word in text.split() if word.startswith("venus.l_")}
    assert touched == {f"venus.l_{follower.table_id('t7'):05}"}


def test_an_idle_source_does_not_read_the_dictionary_again(sql: Sql, capture: Start, statements: list[str]) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    follower.source.capture.refresh_schemas()
    follower.source.capture.refresh_schemas()
    statements.clear()
    sql("INSERT INTO item VALUES (1)")
    follower.drain()
    statements.clear()
    assert follower.source.capture.refresh_schemas() == []
    assert len(statements) == 1, "the fingerprint, and nothing else"
    sql("ALTER TABLE item ADD COLUMN v text")
    assert [s.version for s in follower.source.capture.refresh_schemas()] == [2]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX by_v ON item (v)",
        "ALTER INDEX item_pkey RENAME TO other",
        "COMMENT ON COLUMN item.v IS 'a value'",
        "ALTER TABLE item ALTER v SET DEFAULT 5",
        "ALTER TABLE item ADD CHECK (v > 0)",
        "ALTER TABLE item DISABLE TRIGGER ALL",
        "DROP TRIGGER venus_u_00002 ON item",
        "CREATE OR REPLACE FUNCTION venus.f_00002() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "ALTER TYPE mood ADD VALUE 'fine'",
        "ALTER TYPE mood RENAME VALUE 'well' TO 'good'",
        "ALTER DOMAIN positive DROP CONSTRAINT is_positive",
        "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2)",
        "DROP TABLE parted_1",
        "UPDATE venus.captured_table SET state = 'PAUSED' WHERE name = 'item'",
        "ALTER TABLE item RENAME TO thing",
        "DROP TABLE item",
    ],
)
def test_changes_that_concern_capture_change_the_fingerprint(
    statement: str, sql: Sql, capture: Start, statements: list[str]
) -> None:
    sql("CREATE TYPE mood AS ENUM ('well')")
    sql("CREATE DOMAIN positive AS int CONSTRAINT is_positive CHECK (value > 0)")
    sql("CREATE TABLE item (id int PRIMARY KEY, v int, m mood, p positive)")
    sql("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY LIST (id)")
    sql("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)")
    follower = capture()
    follower.source.capture.refresh_schemas()
    follower.source.capture.refresh_schemas()
    statements.clear()
    sql(statement)
    follower.source.capture.refresh_schemas()
    assert len(statements) > 1


def test_a_lost_mark_delays_a_change_but_loses_none(sql: Sql, database: str) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    now = [0.0]
    source = PostgresSource(database, monotonic=lambda: now[0])
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    sql("INSERT INTO item VALUES (1)")
    sql("DELETE FROM venus.dirty")
    assert follower.cut() is None
    now[0] = sources.LOOK_S + 1
    follower.drain()
    assert follower.rows("item").keys() == {("1",)}
    source.close()


def test_the_check_of_every_log_opens_only_the_written_ones(sql: Sql, database: str, statements: list[str]) -> None:
    for n in range(30):
        sql(f"CREATE TABLE t{n} (id int PRIMARY KEY)")
    now = [0.0]
    source = PostgresSource(database, monotonic=lambda: now[0])
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    sql("INSERT INTO t7 VALUES (1)")
    sql("DELETE FROM venus.dirty")
    now[0] = sources.LOOK_S + 1
    statements.clear()
    follower.drain()
    touched = {word for text in statements for word in text.split() if word.startswith("venus.l_")}
    assert touched == {f"venus.l_{follower.table_id('t7'):05}"}
    assert follower.rows("t7").keys() == {("1",)}
    source.close()


def test_a_poll_after_a_cut_takes_one_round_trip(sql: Sql, capture: Start, statements: list[str]) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    follower.drain()
    for row in (1, 2):
        sql(f"INSERT INTO item VALUES ({row})")
        statements.clear()
        cut = follower.open([])
        assert cut is not None
        cut.rollback()
    assert statements[0].startswith("BEGIN"), "a cut that finds rows looks for more without a query before it"


def test_writers_of_one_table_do_not_wait_for_each_other(
    sql: Sql, open_sessions: Callable[[], Sql], capture: Start
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    first, second = open_sessions(), open_sessions()
    first("BEGIN")
    first("INSERT INTO item VALUES (1)")
    second("SET lock_timeout = '10s'")  # it would wait for as long as it may
    second("BEGIN")
    second("INSERT INTO item VALUES (2)")
    second("COMMIT")
    follower.drain()
    assert follower.rows("item").keys() == {("2",)}
    first("COMMIT")
    follower.drain()
    assert follower.rows("item").keys() == {("1",), ("2",)}
    assert marks(sql) == []


def test_a_transaction_leaves_one_mark_per_table_and_an_empty_statement_none(sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    sql("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY LIST (id)")
    sql("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1, 2)")
    follower = capture()
    sql("UPDATE item SET id = id")
    sql("DELETE FROM parted")
    assert marks(sql) == []
    sql("BEGIN")
    for n in (1, 2):
        sql(f"INSERT INTO item VALUES ({n})")
        sql(f"INSERT INTO parted VALUES ({n})")
    sql("COMMIT")
    assert marks(sql) == sorted([follower.table_id("item"), follower.table_id("parted")])


@pytest.mark.parametrize("table", ["item", "parted"])
def test_a_mark_that_was_rolled_back_to_a_savepoint_is_written_again(table: str, sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    sql("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY LIST (id)")
    sql("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1, 2)")
    follower = capture()
    sql("BEGIN")
    sql("SAVEPOINT s")
    sql(f"INSERT INTO {table} VALUES (1)")
    sql("ROLLBACK TO s")
    sql(f"INSERT INTO {table} VALUES (2)")
    sql("COMMIT")
    follower.drain()
    assert follower.rows(table).keys() == {("2",)}


@pytest.mark.parametrize("change", ["TRUNCATE parted", "TRUNCATE parted_1", "TRUNCATE item", "DELETE FROM item"])
def test_every_kind_of_log_entry_leaves_a_mark(change: str, sql: Sql, capture: Start) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    sql("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY LIST (id)")
    sql("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1, 2)")
    follower = capture()
    sql("INSERT INTO item VALUES (1)")
    sql("INSERT INTO parted VALUES (1)")
    follower.drain()
    sql(change)
    assert len(marks(sql)) == 1
    follower.drain()
    assert follower.rows(change.split()[-1].removesuffix("_1")) == {}
    assert marks(sql) == []


def test_a_paused_table_keeps_few_marks_and_its_changes(
    sql: Sql, capture: Start, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("venus.adapters.dialects.postgresql.capture.cut_opening.MARKS_MAX", 3)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    table_id = follower.table_id("item")
    follower.source.registry.set_table_state(table_id, "PAUSED", "")
    for n in range(6):
        sql(f"INSERT INTO item VALUES ({n})")
    assert follower.cut() is None
    assert marks(sql) == [table_id]
    statements.clear()
    assert follower.source.capture.open_cut([]) is None
    assert statements == ["EXECUTE venus_dirty"], "a mark that has to stay costs nothing more"
    assert follower.source.capture.read_backlog()[table_id][0] == 6
    follower.source.registry.set_table_state(table_id, "ACTIVE", "")
    follower.drain()
    assert len(follower.rows("item")) == 6
    assert marks(sql) == []


def test_the_registry_is_loaded_again_when_another_process_has_changed_it(
    sql: Sql, capture: Start, database: str
) -> None:
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    other = PostgresSource(database)
    other.registry.set_table_state(follower.table_id("item"), "PAUSED", "by another process")
    other.close()
    sql("INSERT INTO item VALUES (1)")
    follower.drain()
    assert follower.rows("item") == {}, "the table is paused"


def test_marks_deleted_by_cuts_do_not_accumulate(
    sql: Sql, capture: Start, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "TIDY_CUTS", 2)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()
    table_id = follower.table_id("item")
    sql("ALTER TABLE venus.dirty SET (autovacuum_enabled = off)")
    for n in range(1, 13):
        sql(f"INSERT INTO item SELECT i FROM generate_series({n}000, {n}499) i")
        sql(f"INSERT INTO venus.dirty SELECT {table_id} FROM generate_series(1, 2000)")
        assert follower.cut() is not None
        follower.source.capture.write_heartbeat()
    tidied = [text for text in statements if text.startswith("VACUUM")]
    assert len(tidied) == 6
    assert f"venus.l_{table_id:05}" in tidied[0]
    ((pages,),) = sql("SELECT pg_relation_size('venus.dirty') / 8192")
    assert pages < 60  # nine for each two thousand: about a hundred without the clean-up


def test_a_server_that_cannot_clean_up_marks_is_asked_once(
    sql: Sql, capture: Start, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "TIDY_CUTS", 1)
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    follower = capture()

    def break_tidy_statement(file: str, block: str, /, **parts: str) -> str:
        return "VACUUM (NO_SUCH_OPTION)" if block == "tidy" else statement(file, block, **parts)

    monkeypatch.setattr(f"{sources.__name__}.statement", break_tidy_statement)
    for n in range(3):
        sql(f"INSERT INTO item VALUES ({n})")
        follower.cut()
        follower.source.capture.write_heartbeat()
    assert statements.count("VACUUM (NO_SUCH_OPTION)") == 1
