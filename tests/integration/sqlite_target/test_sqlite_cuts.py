"""Cuts at a SQLite target: readers see whole cuts, writers are named while it waits, refused rows are quarantined."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from tests.conformance.targets.places import SqlitePlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import INT, TEXT, column, deletion, items, make_referring_schema, put, table
from tests.support.processes.forks import ForkedModule
from tests.support.waiting import eventually
from venus.adapters.targets.sqlite import session as sessions
from venus.errors import Refused
from venus.model import Kind, LogicalType

pytestmark = pytest.mark.integration

MONEY = LogicalType(kind=Kind.DECIMAL, precision=10, scale=2)


def place_of(stage: Stage) -> SqlitePlace:
    assert isinstance(stage.place, SqlitePlace)
    return stage.place


@contextmanager
def watched_labels(place: SqlitePlace) -> Iterator[set[tuple[int, int]]]:
    """Collect (rows, different labels) of the table as another program repeatedly reads them."""
    seen: set[tuple[int, int]] = set()
    ended = threading.Event()

    def read() -> None:
        with closing(sqlite3.connect(f"file:{place.file}?mode=ro", uri=True)) as connection:
            while not (seen and ended.is_set()):
                seen.add(connection.execute("SELECT count(*), count(DISTINCT label) FROM items").fetchone())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        ended.set()
        reader.join()


def test_a_reader_never_sees_half_of_a_cut(stage: Stage) -> None:
    """Every cut gives all rows another label; large cuts are written in pieces while they arrive."""
    stage.feed.describe(items())
    stage.feed.cut(*(put(i, "0", i) for i in range(300)))
    stage = stage.configure(apply={"cut_group_rows_max": 50})
    stage.target.load()
    with watched_labels(place_of(stage)) as seen, stage.follow_in_thread():
        for n in range(1, 30):
            stage.feed.cut(*(put(i, n, i) for i in range(300)), batch_rows=40)
            stage.wait_until_applied(stage.feed.broker.next_offset)

    assert seen == {(300, 1)}
    stage.compare_tables()


def test_a_killed_load_and_a_killed_stream_leave_whole_cuts(stage: Stage, broker: FakeDelivery) -> None:
    stage.feed.describe(items())
    stage.feed.cut(*(put(i, "0", i) for i in range(100)))
    place = place_of(stage)
    with ForkedModule("tests.support.faults.killed_session", broker.address, place.name, place.url) as victim:
        killed = sum(victim.run("load", step, "before", 0) for step in (1, 2, 3))
        stage.target.load()
        for n, (step, moment) in enumerate(place.kills, 1):
            stage.feed.cut(*(put(i, n, i) for i in range(100)), batch_rows=30)
            killed += victim.run("apply", step, moment, broker.next_offset)
            ((labels, broken),) = place.query(
                "SELECT count(DISTINCT label), (SELECT * FROM pragma_quick_check) FROM items"
            )
            assert (labels, broken) == (1, "ok")
    stage.follow_to_end()

    assert killed >= 6
    stage.compare_tables()


def test_another_writer_is_waited_for_and_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SHOW_S", 0.1)
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    with (
        closing(sqlite3.connect(place_of(stage).file, isolation_level=None)) as writer,
        stage.follow_in_thread() as reports,
    ):
        eventually(lambda: bool(reports), "the loop")
        writer.execute("BEGIN IMMEDIATE")
        stage.feed.cut(put(2, "b", 2))
        eventually(lambda: any("waits for the write lock" in r.error for r in reports), "a report")
        error = next(r.error for r in reports if r.error)
        writer.execute("COMMIT")
        stage.wait_until_applied(stage.feed.broker.next_offset)

    assert f"copy.db waits for the write lock of {place_of(stage).file}, which process {os.getpid()} (" in error
    stage.compare_tables()


def test_a_writer_that_holds_its_lock_does_not_end_the_loop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LOCK_WAIT_S", 0.2)
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    with (
        closing(sqlite3.connect(place_of(stage).file, isolation_level=None)) as writer,
        stage.follow_in_thread() as reports,
    ):
        eventually(lambda: bool(reports), "the loop")
        writer.execute("BEGIN IMMEDIATE")
        stage.feed.cut(put(2, "b", 2))
        eventually(lambda: any("has held the file for" in r.error for r in reports), "the error")
        writer.execute("COMMIT")
        stage.wait_until_applied(stage.feed.broker.next_offset)

    stage.compare_tables()


@pytest.mark.parametrize("way", ["load", "stream"])
def test_values_that_sqlite_would_change_wait_in_quarantine(way: str, stage: Stage) -> None:
    reals = table(1, "reals", column(1, "id", INT), column(2, "value", LogicalType(kind=Kind.FLOAT, length=8)))
    stage = stage.configure(on_error="quarantine")
    stage.feed.describe(reals)
    stage.feed.cut(put(1, "1.5"))
    if way == "stream":
        stage.target.load()
    stage.feed.cut(put(2, "NaN"), put(3, "Infinity"), put(4, "-0"), put(5, None))
    if way == "stream":
        stage.follow_to_end()
    else:
        stage.target.load()
    waiting = stage.target.open_quarantine().list()

    assert place_of(stage).query("SELECT id, value FROM reals") == [(1, 1.5), (3, float("inf")), (5, None)]
    assert [(q.key, q.sqlstate, q.message) for q in waiting] == [
        ('{"id": "2"}', "SQLITE_MISMATCH", "SQLite stores another value for NaN"),
        ('{"id": "4"}', "SQLITE_MISMATCH", "SQLite stores another value for -0"),
    ]
    assert waiting[0].created_at.tzinfo is not None
    assert stage.target.read_view().unaccounted_rows == 0


def test_a_target_gets_the_rows_of_its_predicate(stage: Stage) -> None:
    stage = stage.configure(where={"items": "amount < 10"})
    stage.feed.describe(items())
    stage.feed.cut(*(put(i, "x", i) for i in range(20)))
    stage.target.load()
    loaded = set(stage.place.rows(stage.settings, items()))
    with stage.follow_in_thread():
        stage.feed.cut(put(1, "leaves", 100), put(15, "enters", 5), put(16, "stays out", 99))
        stage.wait_until_applied(stage.feed.broker.next_offset)

    assert loaded == {(str(i),) for i in range(10)}
    assert set(stage.place.rows(stage.settings, items())) == loaded - {("1",)} | {("15",)}


def test_a_table_follows_its_columns_and_halts_at_another_key(stage: Stage) -> None:
    first = items()
    stage.feed.describe(first)
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    renamed = (first.columns[0], column(2, "title"), first.columns[2], column(4, "price", MONEY, default_sql="1.5"))
    second = replace(first, version=2, columns=renamed)
    third = replace(second, version=3, key=("title",))
    with stage.follow_in_thread():
        stage.feed.describe(second)
        stage.feed.cut(put(2, "b", 2, "3.00"))
        stage.wait_until_applied(stage.feed.broker.next_offset)
        found = place_of(stage).query("SELECT id, title, amount, price FROM items ORDER BY id")
        stage.feed.describe(third)
        stage.feed.cut(replace(put(1, "1", 1, "1.00"), key=("c",)))
        eventually(lambda: stage.table("shop.items").state == "HALTED", "the halt")

    assert found == [(1, "a", 1, "1.50"), (2, "b", 2, "3.00")]
    assert "`venus migrate --target s --empty-meanwhile` loads it again" in stage.table("shop.items").reason


def test_a_new_table_that_already_exists_halts_alone(stage: Stage) -> None:
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    place_of(stage).query("CREATE TABLE late (id INTEGER PRIMARY KEY, label NUMERIC, amount INTEGER)")
    with stage.follow_in_thread():
        stage.feed.describe(items(2, "late"))
        stage.feed.cut(put(1, "1e5", 1, table=2), put(2, "b", 2))
        stage.wait_until_applied(stage.feed.broker.next_offset)

    late = stage.table("shop.late")
    assert (late.state, late.held) == ("HALTED", 1)
    assert "late.label is NUMERIC" in late.reason
    assert stage.table("shop.items").state == "ACTIVE"


def test_rows_of_another_program_are_not_overwritten(stage: Stage) -> None:
    place_of(stage).query("CREATE TABLE items (id INTEGER PRIMARY KEY, label TEXT, amount INTEGER)")
    place_of(stage).query("INSERT INTO items VALUES (1, 'mine', 1)")
    stage.feed.describe(items())
    stage.feed.cut(put(1, "theirs", 1))

    with pytest.raises(Refused, match="items has rows already"):
        stage.target.load()
    assert place_of(stage).query("SELECT label FROM items") == [("mine",)]
    emptied = stage.configure(on_existing="truncate")
    emptied.target.load()
    emptied.compare_tables()


def test_foreign_keys_act_for_the_application_and_not_for_venus(stage: Stage) -> None:
    parent, child = items(), make_referring_schema(items(2, "children"), "amount", items())
    stage.feed.describe(parent, child)
    stage.feed.cut(put(1, "a", 1), put(1, "child", 1, table=2))
    stage.target.load()
    with stage.follow_in_thread():
        stage.feed.cut(deletion(1))  # the parent comes before its child, in an earlier cut
        stage.feed.cut(deletion(1, table=2))
        stage.wait_until_applied(stage.feed.broker.next_offset)
    stage.compare_tables()

    with closing(sqlite3.connect(place_of(stage).file)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            connection.execute("INSERT INTO children VALUES (5, 'orphan', 5)")


def test_a_lost_file_is_loaded_again(stage: Stage) -> None:
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(f"{place_of(stage).file}{suffix}")

    with pytest.raises(Refused, match="has not been loaded yet"):
        stage.target.follow(threading.Event())
    stage.target.load()
    stage.compare_tables()


def test_keys_that_differ_only_in_case_or_blanks_are_different_rows(stage: Stage) -> None:
    stage.feed.describe(table(1, "keyed", column(1, "id", TEXT), column(2, "v")))
    stage.feed.cut(*(put(key, key) for key in ("a", "A", "a ", "ä", "", "1", "01", "1e0")))
    stage.target.load()
    with stage.follow_in_thread():
        stage.feed.cut(put("A", "changed"), deletion("a"), deletion("1"))
        stage.wait_until_applied(stage.feed.broker.next_offset)

    stage.compare_tables()
