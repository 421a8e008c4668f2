"""A first load that overlaps the first read of the source, into an embedded PostgreSQL (scenarios 86, 87)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    INT,
    TEXT,
    Feed,
    applied_offset,
    column,
    deletion,
    following,
    items,
    put,
    query,
    rows_at,
    section,
    settings_for,
    table,
    unique_label,
    wait_until_caught_up,
)
from tests.support.brokers.first_reads import FirstRead
from tests.support.brokers.real_broker import RealBroker
from tests.support.databases.postgres import Server
from tests.support.processes.forks import ForkedModule
from venus.adapters.targets.postgresql.rows.merging import RowMerger
from venus.adapters.targets.relational.apply_session import run_apply
from venus.adapters.targets.relational.control import read_progress, read_table_states
from venus.adapters.targets.relational.full_sync import LoadProgress, full_sync
from venus.adapters.targets.relational.load_plan import UnequalRowCount
from venus.errors import Refused
from venus.model import Index, Kind, LogicalType

pytestmark = pytest.mark.integration

Steps = Iterator[Callable[[], None]]

INDEXES = "SELECT indexname FROM pg_indexes WHERE schemaname = 'shop' ORDER BY 1"


def plan() -> None:
    """Take no action: the load asks for the end once before it opens its snapshot."""


def send(feed: Feed, low: int, high: int) -> None:
    """Write rows of the first read to the broker."""
    rows = [put(i, f"label {i}", i) for i in range(low, high)]
    feed.model[1] |= {change.key: change.row for change in rows if change.row is not None}
    feed.sections([section(feed.schemas[1], rows, first_read=True)])


def test_a_load_during_the_first_read_ends_after_it(database: str, broker: FakeDelivery, feed: Feed) -> None:
    feed.describe(replace(items(), indexes=(Index(name="by_amount", columns=("amount",)),)))
    send(feed, 0, 500)
    settings = settings_for(broker.address, {"a": database})
    progress: list[LoadProgress] = []
    steps: Steps = iter(
        [
            lambda: feed.cut(
                put(700, "changed before it is read", 1), deletion(3), put(4, "changed after it was read", 1)
            ),
            lambda: send(feed, 500, 900),
            lambda: feed.cut(put(700, "changed after it was read", 2), deletion(701)),
        ]
    )
    seen: list[object] = []

    def end() -> int | None:
        """Check the target from another session each time, then send the next cut."""
        if step := next(steps, None):
            seen.append([state.state for state in read_table_states(settings, "a")] or ["none"])
            seen.append(query(database, INDEXES) if applied_offset(database) > 0 else [])
            step()
            return None
        return broker.next_offset

    report = full_sync(settings, "a", progress.append, fill_end=end)
    assert (report.offset, report.rows, report.parked, report.halted) == (903 + 2, {"shop.items": 898}, 0, ())
    assert rows_at(database, items()) == feed.model[1]
    assert seen[2:] == [["LOADING"], [("items_pkey",)], ["LOADING"], [("items_pkey",)]]
    assert query(database, INDEXES) == [("by_amount",), ("items_pkey",)]
    assert [state.state for state in read_table_states(settings, "a")] == ["ACTIVE"]
    assert (progress[0].phase, progress[-1].phase) == ("planning", "done")
    assert full_sync(settings, "a").already
    with following(settings, "a"):
        feed.cut(put(1, "behind the load", 5))
        wait_until_caught_up(database, broker)
    assert rows_at(database, items()) == feed.model[1]
    assert read_progress(settings, "a").unaccounted == 0


def test_a_target_whose_first_load_has_not_ended_counts_as_not_loaded(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    feed.describe(items())
    send(feed, 0, 50)
    settings = settings_for(broker.address, {"a": database})

    def stop() -> int | None:
        if applied_offset(database) < 0:
            return None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        full_sync(settings, "a", fill_end=stop)
    assert applied_offset(database) == 50
    splits_read = broker.splits_read
    send(feed, 50, 100)
    assert read_progress(settings, "a").position is None
    with pytest.raises(Refused, match="has not been loaded yet"):
        run_apply(settings, "a", threading.Event())
    report = full_sync(settings, "a", fill_end=lambda: broker.next_offset)
    assert (report.rows, broker.splits_read) == ({"shop.items": 100}, splits_read)
    assert rows_at(database, items()) == feed.model[1]


def test_rows_of_the_first_read_are_copied_without_a_stage(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.describe(items())
    send(feed, 0, 10)
    staged: list[int] = []
    stage = RowMerger._stage

    def count(self: RowMerger, *arguments: object) -> None:
        staged.append(len(arguments[1]))  # type: ignore[arg-type]
        stage(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RowMerger, "_stage", count)
    steps: Steps = iter([plan, lambda: feed.cut(put(600, "x", 1), deletion(3)), lambda: send(feed, 10, 1000)])

    def end() -> int | None:
        if step := next(steps, None):
            step()
            return None
        return broker.next_offset

    report = full_sync(settings_for(broker.address, {"a": database}), "a", fill_end=end)
    assert (report.rows, staged) == ({"shop.items": 999}, [])
    assert rows_at(database, items()) == feed.model[1]


def test_a_trigger_that_discards_rows_halts_the_table(database: str, broker: FakeDelivery, feed: Feed) -> None:
    feed.describe(items())
    query(database, "CREATE SCHEMA shop; CREATE TABLE shop.items (id bigint PRIMARY KEY, label text, amount bigint)")
    query(
        database,
        "CREATE FUNCTION discard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
        "CREATE TRIGGER discard BEFORE INSERT ON shop.items FOR EACH ROW WHEN (NEW.id = 300) "
        "EXECUTE FUNCTION discard(); ALTER TABLE shop.items ENABLE ALWAYS TRIGGER discard",
    )
    send(feed, 0, 10)
    steps: Steps = iter([plan, lambda: send(feed, 10, 500)])

    def end() -> int | None:
        if step := next(steps, None):
            step()
            return None
        return broker.next_offset

    report = full_sync(settings_for(broker.address, {"a": database}), "a", fill_end=end)
    assert len(report.halted) == 1
    assert "shop.items: it has accepted 489 of 490 rows" in report.halted[0]


@pytest.mark.parametrize(
    ("written", "undone", "found"),
    [
        ("INSERT INTO shop.items VALUES (9999, 'another session', 1)", "DELETE FROM shop.items WHERE id = 9999", 501),
        ("DELETE FROM shop.items WHERE id = 7", "INSERT INTO shop.items VALUES (7, 'label 7', 7)", 499),
    ],
)
def test_rows_that_another_session_writes_meanwhile_are_noticed(
    database: str, broker: FakeDelivery, feed: Feed, written: str, undone: str, found: int
) -> None:
    feed.describe(items())
    send(feed, 0, 10)
    settings = settings_for(broker.address, {"a": database})

    def write() -> None:
        query(database, written)

    steps: Steps = iter([plan, lambda: send(feed, 10, 400), write, lambda: send(feed, 400, 500)])

    def end() -> int | None:
        if step := next(steps, None):
            step()
            return None
        return broker.next_offset

    with pytest.raises(
        UnequalRowCount, match=f"shop.items has {found} rows at the target and 500 at the broker"
    ) as said:
        full_sync(settings, "a", fill_end=end)
    assert "venus migrate --empty-meanwhile --target a" in said.value.hint
    assert read_progress(settings, "a").position is None
    query(database, undone)
    assert full_sync(settings, "a", fill_end=lambda: broker.next_offset).rows == {"shop.items": 500}
    assert rows_at(database, items()) == feed.model[1]
    assert not broker.pinned


def test_rows_are_counted_exactly_at_a_snapshot(database: str, broker: FakeDelivery, feed: Feed) -> None:
    """Cuts before and after the snapshot's offset arrive together."""
    feed.describe(items())
    send(feed, 0, 10)
    ends: list[int] = []

    def write() -> None:
        for n in range(3):
            feed.cut(put(9000 + 10 * broker.snapshots_opened + n, "behind a snapshot", 1))

    def end() -> int | None:
        if not applied_offset(database) > 0:
            return None
        if not ends:
            broker.after_snapshot = write
            ends.append(broker.next_offset)
            feed.cut(put(8000, "before the snapshot", 1))
        return ends[0]

    report = full_sync(settings_for(broker.address, {"a": database}), "a", fill_end=end)
    assert (report.offset, report.rows) == (11, {"shop.items": 11})
    assert broker.next_offset == 14


def test_rows_outside_of_a_predicate_are_not_counted(database: str, real: RealBroker) -> None:
    feed = Feed(real)
    feed.describe(items())
    send(feed, 0, 10)
    settings = settings_for(real.address, {"a": database}, where={"items": "amount >= 5"})
    steps: Steps = iter(
        [plan, lambda: send(feed, 10, 100), lambda: feed.cut(put(50, "it leaves", 1), put(1, "enters", 7))]
    )

    def end() -> int | None:
        if step := next(steps, None):
            step()
            return None
        return real.next_offset

    assert full_sync(settings, "a", fill_end=end).rows == {"shop.items": 95}


def test_a_new_column_meanwhile_reaches_all_rows(database: str, broker: FakeDelivery, feed: Feed) -> None:
    feed.describe(unique_label(items()))
    send(feed, 0, 300)
    more = column(4, "more", TEXT)
    wider = replace(feed.schemas[1], version=2, columns=(*items().columns, more), indexes=())

    def add_column() -> None:
        feed.describe(wider)
        feed.cut(put(1, "one", 1, "m"))

    steps: Steps = iter([plan, add_column, lambda: feed.cut(put(2, "two", 2, "n"))])

    def end() -> int | None:
        if step := next(steps, None):
            step()
            return None
        return broker.next_offset

    full_sync(settings_for(broker.address, {"a": database}), "a", fill_end=end)
    expected = {key: row if len(row) == 3 else (*row, None) for key, row in feed.model[1].items()}
    assert rows_at(database, wider) == expected


def run_history(seed: int, server: Server) -> int:
    """Load during a random first read, with real kills around commits; return the number of kills."""
    random_, url = random.Random(seed), server.create_database()
    broker = FakeDelivery()
    broker.start()
    try:
        feed = Feed(broker)
        feed.describe(
            items() if random_.random() < 0.5 else replace(items(), indexes=(Index(name="i", columns=("label",)),))
        )
        read = FirstRead(feed, random_, random_.randint(0, 400))
        read.send_cut()
        kills = 0
        with ForkedModule(
            "tests.support.faults.killed_under", broker.address, url, random_.choice(("0", "100"))
        ) as under:
            for step in (1, 2, 3, 5, 4, 6, 2, 8):
                kills += under.run("first", step, random_.choice(("before", "after")), 0)
                read.send_cut()
            read.send_all()
            settings = settings_for(broker.address, {"a": url})
            report = full_sync(settings, "a", fill_end=lambda: read.end)
        assert rows_at(url, items()) == feed.model[1]
        assert report.offset == broker.next_offset
        assert read_progress(settings, "a").unaccounted == 0
    finally:
        broker.stop()
        server.drop_database(url)
    return kills


@pytest.mark.fault
def test_histories_with_kills(postgres_server: Server) -> None:
    assert sum(run_history(seed, postgres_server) for seed in range(4)) >= 8


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 60))
def test_more_histories_with_kills(seed: int, postgres_server: Server) -> None:
    run_history(seed, postgres_server)


def test_tables_that_the_target_refuses_do_not_block_the_end_of_the_load(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    """Both appear during the first read: one cannot be created, the other is a table of the target's own."""
    feed.describe(items())
    query(database, "CREATE SCHEMA shop; CREATE TABLE shop.other (id bigint, label bytea, amount bigint)")
    send(feed, 0, 10)
    missing = table(
        2, "missing", column(1, "id", INT), column(2, "kind", LogicalType(kind=Kind.NATIVE, name="none.such"))
    )

    def add_tables() -> None:
        feed.describe(missing, items(3, "other"))
        feed.cut(put(1, "x", table=2), put(1, "x", 1, table=3), put(5, "changed", 1))

    steps: Steps = iter([plan, add_tables])

    def end() -> int | None:
        if step := next(steps, None):
            step()
            return None
        return broker.next_offset

    settings = settings_for(broker.address, {"a": database})
    report = full_sync(settings, "a", fill_end=end)

    assert report.rows == {"shop.items": 10}
    assert [line.split(":")[0] for line in report.halted] == ["shop.missing", "shop.other"]
    assert rows_at(database, items()) == feed.model[1]
    assert query(database, "SELECT conname FROM pg_constraint WHERE conrelid = 'shop.other'::regclass") == []
    assert full_sync(settings, "a").already


def test_a_restart_with_empty_begins_an_unfinished_load_again(database: str, broker: FakeDelivery, feed: Feed) -> None:
    feed.describe(items())
    send(feed, 0, 50)
    settings = settings_for(broker.address, {"a": database})

    def stop() -> int | None:
        if applied_offset(database) < 0:
            return None
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        full_sync(settings, "a", fill_end=stop)
    query(database, "DELETE FROM shop.items WHERE id = 3")
    send(feed, 50, 100)

    progress: list[LoadProgress] = []
    report = full_sync(settings, "a", progress.append, empty_meanwhile=True)

    assert (report.already, report.rows) == (False, {"shop.items": 100})
    assert rows_at(database, items()) == feed.model[1]
    assert [found.note for found in progress if found.note] == ["its load begins again: --empty-meanwhile was given"]
    assert full_sync(settings, "a", empty_meanwhile=True).already
