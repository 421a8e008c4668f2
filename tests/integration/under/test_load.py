"""Full load into an embedded PostgreSQL: what it creates, refuses and continues (scenarios 21, 22, 25)."""

from __future__ import annotations

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    INT,
    TEXT,
    Change,
    Feed,
    applied_offset,
    column,
    following,
    items,
    make_referring_schema,
    put,
    query,
    rows_at,
    settings_for,
    table,
    unique_label,
    wait_until_caught_up,
)
from tests.support.waiting import eventually
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational import full_sync as load
from venus.adapters.targets.relational import load_task as loadtask
from venus.adapters.targets.relational.control import list_quarantine, read_table_states, retry_quarantine
from venus.adapters.targets.relational.full_sync import LoadProgress, full_sync
from venus.adapters.targets.relational.load_task import SplitResult, SplitTask
from venus.errors import ProtocolError, Refused
from venus.model import Index, Kind, LogicalType
from venus.process import runners

pytestmark = pytest.mark.integration


def test_a_target_is_loaded_and_then_follows(database: str, broker: FakeDelivery, feed: Feed) -> None:
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(1200)))
    settings = settings_for(broker.address, {"a": database})
    reports: list[LoadProgress] = []
    report = full_sync(settings, "a", reports.append)
    assert report.rows == {"shop.items": 1200}
    assert rows_at(database, items()) == feed.model[1]
    assert applied_offset(database) == 1200
    assert (reports[0].phase, reports[-1].phase, reports[-1].rows) == ("planning", "done", 1200)
    with following(settings, "a"):
        feed.cut(put(1, "changed", 5), put(5000, "new", None))
        wait_until_caught_up(database, broker)
        eventually(lambda: broker.acknowledged["main/a"] == broker.next_offset, "the acknowledgement")
    assert rows_at(database, items()) == feed.model[1]
    assert full_sync(settings, "a").already


def test_keys_indexes_and_foreign_keys_are_created_after_the_rows(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    number = LogicalType(kind=Kind.DECIMAL, precision=12, scale=2)
    orders = table(
        1,
        'Orders "x"',
        column(1, "id", INT, identity=True, comment="it's the key"),
        column(2, "no"),
        column(3, "total", number, nullable=False, default_sql="0"),
        indexes=(Index(name="by_total", columns=("total",)), Index(name="", columns=("no",), unique=True)),
        comment="what was ordered",
    )
    lines = make_referring_schema(
        table(2, "lines", column(1, "order", INT), column(2, "pos", INT), column(3, "what"), key=("order", "pos")),
        "order",
        orders,
    )
    feed.describe(orders, lines)
    feed.cut(*(put(i, f"n{i}", "1.50") for i in range(1, 11)))
    feed.cut(*(Change(2, (str(i), "1"), ("thing",)) for i in range(1, 11)))
    settings = settings_for(broker.address, {"a": database}, schema="copy")
    report = full_sync(settings, "a")
    assert report.warnings == ()
    found = query(
        database,
        "SELECT conname, contype::text, condeferrable, convalidated FROM pg_constraint "
        "WHERE connamespace = 'copy'::regnamespace AND contype <> 'n' ORDER BY 1",
    )
    assert found == [
        ('Orders "x"_pkey', "p", False, True),
        ("lines_fk", "f", True, True),
        ("lines_pkey", "p", False, True),
    ]
    names = [r[0] for r in query(database, "SELECT indexname FROM pg_indexes WHERE schemaname = 'copy' ORDER BY 1")]
    assert names == ['Orders "x"_no_key', 'Orders "x"_pkey', "by_total", "lines_pkey"]
    query(database, 'INSERT INTO copy."Orders ""x""" (no) VALUES (\'mine\')')
    assert query(database, 'SELECT id, total::text FROM copy."Orders ""x""" WHERE no = \'mine\'') == [(11, "0.00")]


def test_existing_tables_are_compared_and_every_difference_is_named(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items(), items(2, "others"))
    feed.cut(put(1, "x", 1))
    query(database, "CREATE SCHEMA shop")
    query(database, "CREATE TABLE shop.items (id int PRIMARY KEY, label text NOT NULL, more int NOT NULL)")
    settings = settings_for(broker.address, {"a": database})
    with pytest.raises(Refused) as caught:
        full_sync(settings, "a")
    assert str(caught.value).split("\n") == [
        "shop.items.id is integer, the source needs bigint",
        "shop.items.label is NOT NULL, the source allows NULL",
        "shop.items: column amount is missing",
        "shop.items.more is NOT NULL without a default, and the source does not have it",
    ]
    assert query(database, "SELECT to_regclass('shop.others')") == [(None,)]
    assert broker.pinned == {}


@pytest.mark.parametrize(("rule", "expected"), [("refuse", None), ("truncate", 2), ("append", 3)])
def test_existing_rows_are_refused_or_removed(
    rule: str, expected: int | None, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items())
    feed.cut(put(1, "x", 1), put(2, "y", 1))
    query(database, "CREATE SCHEMA shop")
    query(database, "CREATE TABLE shop.items (id bigint PRIMARY KEY, label text, amount bigint, more int)")
    query(database, "INSERT INTO shop.items VALUES (77, 'mine')")
    settings = settings_for(broker.address, {"a": database}, on_existing=rule)
    if expected is None:
        with pytest.raises(Refused, match="has rows already"):
            full_sync(settings, "a")
        return
    full_sync(settings, "a")
    assert query(database, "SELECT count(*) FROM shop.items") == [(expected,)]


@pytest.mark.parametrize(("sums_off", "says"), [((1, 0), "3 rows were loaded of the 4"), ((0, 1), "other rows were")])
def test_a_load_with_a_wrong_number_of_rows_fails(
    sums_off: tuple[int, int], says: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(3)))
    settings = settings_for(broker.address, {"a": database})
    broker.sums_off = sums_off
    with pytest.raises(ProtocolError, match=f"shop.items: {says}"):
        full_sync(settings, "a")
    assert [found.state for found in read_table_states(settings, "a")] == ["LOADING"]
    assert applied_offset(database) == -1
    broker.sums_off = (0, 0)
    assert full_sync(settings, "a").rows == {"shop.items": 3}
    assert read_table_states(settings, "a")[0].state == "ACTIVE"


def test_an_interrupted_load_continues_and_reads_no_split_twice(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.describe(unique_label(items()), items(2, "others"))
    feed.cut(*(put(i, f"label {i}", i) for i in range(400)), *(put(i, "o", i, table=2) for i in range(100)))
    settings = settings_for(broker.address, {"a": database})
    calls = []

    def interrupt_load(task: SplitTask) -> SplitResult:
        calls.append(task.split_no)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(task)

    original = load.load_split
    monkeypatch.setattr(load, "load_split", interrupt_load)
    with pytest.raises(KeyboardInterrupt):
        full_sync(settings, "a")
    assert read_table_states(settings, "a")[0].state == "LOADING"
    feed.cut(put(1, "behind the cut", 1))
    report = full_sync(settings, "a")
    assert (report.resumed_splits, report.offset, broker.snapshots_opened) == (3, 500, 1)
    assert len(calls) == len(set(calls)) + 1
    with following(settings, "a"):
        wait_until_caught_up(database, broker)
    for table_id, schema in feed.schemas.items():
        assert rows_at(database, schema) == feed.model[table_id]


def test_many_small_tables_share_connections_and_an_interrupted_load_of_them_continues(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.describe(*(items(n, f"t{n}") for n in range(1, 121)))
    feed.cut(*(put(n, "x", n, table=n) for n in range(1, 121)))
    settings = settings_for(broker.address, {"a": database})
    runs: list[loadtask._SplitLoad] = []
    sessions: list[str] = []
    run = loadtask._SplitLoad.run

    def interrupt_load(loading: loadtask._SplitLoad) -> SplitResult:
        runs.append(loading)
        if len(runs) == 50:
            raise KeyboardInterrupt
        return run(loading)

    def connect(url: str, *, application: str, target: str) -> TargetSession:
        sessions.append(application)
        return TargetSession(url, application=application, target=target)

    monkeypatch.setattr(loadtask._SplitLoad, "run", interrupt_load)
    monkeypatch.setattr("venus.adapters.targets.postgresql.split_writer.TargetSession", connect)
    with pytest.raises(KeyboardInterrupt):
        full_sync(settings, "a")
    report = full_sync(settings, "a")
    splits = len(runs) - 1
    assert report.resumed_splits == 49
    assert splits >= 120
    assert len(sessions) <= splits // loadtask.GROUP_SPLITS + 3
    for table_id, schema in feed.schemas.items():
        assert rows_at(database, schema) == feed.model[table_id]


def test_many_tables_are_loaded_even_if_the_first_ones_are_empty(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    count = load.SINGLE_SPLITS_MAX + 8
    feed.describe(*(items(n, f"t{n}") for n in range(1, count + 1)))
    feed.cut(put(1, "x", 1, table=count))
    report = full_sync(settings_for(broker.address, {"a": database}), "a")
    assert len(report.rows) == count
    assert sum(report.rows.values()) == 1


def test_a_split_that_is_loaded_twice_is_stored_once(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(100)))
    again: list[SplitResult] = []

    def load_twice(task: SplitTask) -> SplitResult:
        result = original(task)
        again.append(original(task))
        return result

    original = load.load_split
    monkeypatch.setattr(load, "load_split", load_twice)
    report = full_sync(settings_for(broker.address, {"a": database}), "a")
    assert all(r.already for r in again)
    assert report.rows == {"shop.items": 100}
    assert rows_at(database, items()) == feed.model[1]


def test_an_expired_snapshot_is_planned_again(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(100)))

    def expire(task: SplitTask) -> SplitResult:
        if task.split_no == 3 and broker.snapshots_opened == 1:
            broker.pinned.clear()
            feed.cut(put(500, "meanwhile", 1))
        return original(task)

    original = load.load_split
    monkeypatch.setattr(load, "load_split", expire)
    report = full_sync(settings_for(broker.address, {"a": database}), "a")
    assert (report.offset, broker.snapshots_opened) == (101, 2)
    assert rows_at(database, items()) == feed.model[1]


def test_a_target_behind_the_trimmed_queue_is_loaded_again_on_request(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(10)))
    settings = settings_for(broker.address, {"a": database})
    full_sync(settings, "a")
    feed.cut(put(3, "newer", 1))
    broker.log_start = 11
    with pytest.raises(Refused, match="would show empty tables until it is done"):
        full_sync(settings, "a")
    assert not full_sync(settings, "a", empty_meanwhile=True).already
    assert rows_at(database, items()) == feed.model[1]


@pytest.mark.parametrize("before", ["its own", "of another user"])
def test_a_reload_keeps_the_rows_for_readers_with_an_older_snapshot(
    before: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(1, 4)))
    settings = settings_for(broker.address, {"a": database}, on_existing="truncate")
    if before == "its own":
        full_sync(settings, "a")
        feed.cut(put(3, "newer", 1))
        broker.log_start = 4
    else:
        query(
            database, "CREATE SCHEMA shop; CREATE TABLE shop.items (id bigint PRIMARY KEY, label text, amount bigint)"
        )
        query(database, "INSERT INTO shop.items VALUES (1, 'x', 1), (2, 'x', 2), (3, 'x', 3)")
    reader = PostgresDatabase(settings, "a").connect("reader")
    reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    assert reader.row("SELECT 1") == (1,)
    try:
        assert not full_sync(settings, "a", empty_meanwhile=True).already
        assert reader.rows("SELECT id, amount FROM shop.items ORDER BY id") == [(1, 1), (2, 2), (3, 3)]
    finally:
        reader.close()
    assert rows_at(database, items()) == feed.model[1]


@pytest.mark.parametrize("on_error", ["halt", "quarantine"])
def test_rows_refused_during_the_load_are_quarantined(
    on_error: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, "nul \0" if i == 5 else "x", i) for i in range(20)), put(1, "o", 1, table=2))
    query(database, "CREATE SCHEMA shop")
    query(database, "CREATE TABLE shop.items (id bigint PRIMARY KEY, label text, amount bigint CHECK (amount <> 7))")
    settings = settings_for(broker.address, {"a": database}, on_error=on_error)
    report = full_sync(settings, "a")
    assert (report.rows["shop.items"], report.parked) == (18, 2)
    assert read_table_states(settings, "a")[0].state == ("HALTED" if on_error == "halt" else "ACTIVE")
    assert {q.sqlstate for q in list_quarantine(settings, "a")} == {"22021", "23514"}
    query(database, "ALTER TABLE shop.items DROP CONSTRAINT items_amount_check")
    with following(settings, "a"):
        feed.cut(put(5, "mended", 5), put(7, "newer", 8), put(2, "newer", 2))
        wait_until_caught_up(database, broker)
        if on_error == "halt":
            by_key = {q.key: q.id for q in list_quarantine(settings, "a")}
            retry_quarantine(settings, "a", [by_key['{"id": "7"}']])
            assert read_table_states(settings, "a")[0].state == "HALTED"
        else:
            assert retry_quarantine(settings, "a").applied == 4
            assert rows_at(database, items()) == feed.model[1]


def test_a_large_load_runs_in_processes(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "POOL_ROWS_MIN", 1)
    feed.describe(table(1, "items", column(1, "id", INT), column(2, "label", TEXT)))
    feed.cut(*(put(i, "x") for i in range(900)))
    report = full_sync(settings_for(broker.address, {"a": database}), "a")
    assert report.rows == {"shop.items": 900}


def test_the_runner_is_chosen_by_the_number_of_rows(database: str, broker: FakeDelivery, feed: Feed) -> None:
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(900)))
    asked: list[int] = []

    def choose(rows: int) -> runners.Runner:
        asked.append(rows)
        return runners.LocalRunner()

    report = full_sync(settings_for(broker.address, {"a": database}), "a", choose=choose)

    assert report.rows == {"shop.items": 900}
    assert len(asked) == 1
    assert asked[0] >= 900
