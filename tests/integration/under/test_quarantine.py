"""Rows that the target refuses, and the operators' commands for them (features 4, scenarios 32 and 33)."""

from __future__ import annotations

import random
import threading
import time

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    Feed,
    applied_offset,
    deletion,
    following,
    items,
    make_referring_schema,
    put,
    query,
    rows_at,
    wait_until_caught_up,
)
from tests.support.pipelines.applying import check_counters, check_equal, load_target
from tests.support.waiting import eventually
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.relational import catalogue as catalogues
from venus.adapters.targets.relational.control import (
    list_quarantine,
    pause,
    read_progress,
    read_table_states,
    request_resync,
    resume,
    retry_quarantine,
    skip_quarantine,
)
from venus.adapters.targets.relational.held_tables import CatchUp, CatchUpFindings
from venus.adapters.targets.relational.resync import SideLoad
from venus.errors import Refused

pytestmark = pytest.mark.integration

CHECK = "ALTER TABLE shop.items ADD CONSTRAINT not_odd CHECK (amount <> 666)"
NO_CHECK = "ALTER TABLE shop.items DROP CONSTRAINT not_odd"
UNIQUE = "CREATE UNIQUE INDEX items_label ON shop.items (label)"
EXCLUDE = "ALTER TABLE shop.items ADD CONSTRAINT items_label EXCLUDE USING hash (label WITH =)"


@pytest.mark.parametrize("keyed_rows_max", [0, 1000])
def test_a_refused_row_halts_its_table_alone_and_retry_continues_in_order(
    keyed_rows_max: int, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    child = make_referring_schema(items(2, "others"), "amount", items())
    settings = load_target(database, feed, items(), child, rows=50, apply={"keyed_rows_max": keyed_rows_max})
    since = dict(feed.committed)
    query(database, CHECK)
    with following(settings, "a"):
        feed.cut(put(1, "good", 1))
        start = broker.next_offset
        changes = [put(i, "bad" if i == 17 else "fine", 666 if i == 17 else i) for i in range(1, 40)]
        feed.cut(*changes, put(1, "x", 1, table=2))
        wait_until_caught_up(database, broker)  # otherwise the cuts may be applied together, and row 17 was never bad
        # row 17 does not change again: cuts that catch up together count by net change, and it would never have been
        # bad
        feed.cut(put(18, "later", 4), put(2, "y", 2, table=2))
        wait_until_caught_up(database, broker)
        first, second = read_table_states(settings, "a")
        assert (first.state, first.held_from, second.state) == ("HALTED", start, "ACTIVE")
        assert "not_odd" in first.reason
        assert "23514" in first.reason
        assert "referred to by shop.others" in first.reason
        assert "666" not in first.reason, "the broker's page shows this to anyone: no values of rows"
        assert rows_at(database, items())["1",] == ("good", "1")
        assert rows_at(database, child) == feed.model[2]
        eventually(lambda: broker.acknowledged["main/a"] == start, "the acknowledgement up to the halt")
        (row,) = list_quarantine(settings, "a")
        assert (row.key, row.sqlstate, row.state, row.offset) == ('{"id": "17"}', "23514", "HALTED", start + 16)
        assert row.row_message
        assert "666" in row.message, "who may read the target sees which values"
        retry_quarantine(settings, "a")  # nothing is repaired: the table halts again at the same place
        eventually(lambda: read_table_states(settings, "a")[0].state == "HALTED", "the second halt")
        assert read_table_states(settings, "a")[0].held_from == start
        query(database, NO_CHECK)
        retry_quarantine(settings, "a", tables=["items"])
        eventually(lambda: read_table_states(settings, "a")[0].state == "ACTIVE", "the table's return")
        feed.cut(put(3, "after", 3))
        wait_until_caught_up(database, broker)
        eventually(lambda: broker.acknowledged["main/a"] == broker.next_offset, "the last acknowledgement")
    check_equal(database, feed)
    check_counters(settings, feed, since)
    assert list_quarantine(settings, "a") == []


def test_a_halting_row_can_be_skipped_for_a_reason(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=5)
    since = dict(feed.committed)
    query(database, CHECK)
    with following(settings, "a"):
        feed.cut(put(1, "bad", 666), put(2, "fine", 2))
        wait_until_caught_up(database, broker)
        (row,) = list_quarantine(settings, "a")
        with pytest.raises(Refused, match="reason"):
            skip_quarantine(settings, "a", [row.id], reason=" ")
        skip_quarantine(settings, "a", [row.id], reason="known to be wrong")
        eventually(lambda: read_table_states(settings, "a")[0].state == "ACTIVE", "the table's return")
        feed.cut(put(3, "more", 3))
        wait_until_caught_up(database, broker)
    feed.model[1]["1",] = ("label 1", "1")
    check_equal(database, feed)
    check_counters(settings, feed, since)
    assert read_table_states(settings, "a")[0].rows_skipped == 1
    assert list_quarantine(settings, "a", everything=True)[0].reason == "known to be wrong"


@pytest.mark.parametrize("bad", ["check", "nul", "range"])
def test_a_refused_row_is_quarantined_with_the_later_changes_of_its_key(
    bad: str, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), rows=200, on_error="quarantine", apply={"keyed_rows_max": 3})
    since = dict(feed.committed)
    query(database, CHECK)
    row = {"check": ("bad", 666), "nul": ("a\0b", 1), "range": ("bad", 2**70)}[bad]
    with following(settings, "a"):
        feed.cut(*(put(i, *(row if i in (7, 120) else ("second", i))) for i in range(1, 151)))
        wait_until_caught_up(database, broker)  # otherwise the cuts may be applied together
        feed.cut(put(7, "third", 3), put(8, "third", 3), deletion(120))
        feed.cut(put(9, "fourth", 4))
        wait_until_caught_up(database, broker)
        state = read_table_states(settings, "a")[0]
        assert (state.state, state.rows_quarantined) == ("ACTIVE", 4)
        found = rows_at(database, items())
        assert found["7",] == ("label 7", "7")
        assert found["8",] == ("third", "3")
        waiting = list_quarantine(settings, "a")
        assert [(q.key, bool(q.sqlstate)) for q in waiting] == [
            ('{"id": "7"}', True),
            ('{"id": "120"}', True),
            ('{"id": "7"}', False),
            ('{"id": "120"}', False),
        ]
        check_counters(settings, feed, since)
        report = retry_quarantine(settings, "a")
        assert (report.applied, report.still_refused) == (4, 0)
        feed.cut(put(7, "fifth", 5))
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_changes_that_waited_for_a_skipped_row_are_applied(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=3, on_error="quarantine")
    since = dict(feed.committed)
    query(database, CHECK)
    with following(settings, "a"):
        feed.cut(put(1, "bad", 666))
        wait_until_caught_up(database, broker)
        feed.cut(put(1, "good", 1))
        wait_until_caught_up(database, broker)
        head = list_quarantine(settings, "a")[0]
        report = skip_quarantine(settings, "a", [head.id], reason="no")
        assert report.applied == 1
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_a_paused_table_keeps_its_backlog_and_drains_in_order(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), items(2, "others"), rows=20, apply={"cut_group_rows_max": 40})
    since = dict(feed.committed)
    rng = random.Random(3)
    with following(settings, "a"):
        start = broker.next_offset
        pause(settings, "a", ["shop.items"], reason="maintenance")
        for n in range(30):
            feed.cut(*(put(i, f"{n}", rng.randint(0, 9)) for i in rng.sample(range(60), 10)), put(n, "o", n, table=2))
        wait_until_caught_up(database, broker)
        first, second = read_table_states(settings, "a")
        assert (first.state, first.held_from, first.reason) == ("PAUSED", start, "maintenance")
        assert (second.rows_applied, first.rows_applied) == (30, 0)
        resume(settings, "a", ["shop.items"])
        for n in range(30, 60):
            feed.cut(put(n % 7, f"{n}", n), put(n, "o", n, table=2))
        eventually(lambda: read_table_states(settings, "a")[0].state == "ACTIVE", "the table's return")
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_a_paused_target_waits_and_resumes(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=2)
    pause(settings, "a")
    with following(settings, "a") as reports:
        start = applied_offset(database)
        feed.cut(put(1, "waits", 1))
        eventually(lambda: len(reports) > 0, "a report")
        assert applied_offset(database) == start
        resume(settings, "a")
        wait_until_caught_up(database, broker)
    check_equal(database, feed)


def test_a_table_is_resynced_while_the_others_stream(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), items(2, "others"), rows=300)
    query(database, "UPDATE shop.items SET label = 'edited' WHERE id <= 20")
    query(database, "DELETE FROM shop.items WHERE id BETWEEN 30 AND 40")
    query(database, "INSERT INTO shop.items SELECT 10000 + n, 'stranger', 1 FROM generate_series(1, 9) n")
    with following(settings, "a"):
        request_resync(settings, "a", "items")
        n, end = 0, time.monotonic() + 240
        while read_progress(settings, "a").resyncing:
            n += 1
            feed.cut(put(n % 50 + 1, f"live {n}", n), deletion(n % 30 + 200), put(n, "o", n, table=2))
            feed.cut(put(n % 30 + 200, f"again {n}", n))
            eventually(lambda: broker.next_offset - applied_offset(database) < 50, "the stream to continue")
            assert query(database, "SELECT count(*) > 250 FROM shop.items") == [(True,)]
            assert time.monotonic() < end, "the resync to end"
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    left = query(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'venus' AND tablename ~ 'touched|side'")
    assert left == []


def test_a_halted_table_is_repaired_by_resync(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=30)
    query(database, CHECK)
    with following(settings, "a"):
        feed.cut(put(1, "bad", 666))
        wait_until_caught_up(database, broker)
        feed.cut(put(1, "good again", 1), put(2, "x", 2))
        wait_until_caught_up(database, broker)
        assert read_table_states(settings, "a")[0].state == "HALTED"
        request_resync(settings, "a", "items")
        eventually(lambda: read_table_states(settings, "a")[0].state == "ACTIVE", "the table's return")
        feed.cut(put(3, "continues", 3))
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    assert list_quarantine(settings, "a") == []


def test_an_unknown_table_is_named(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=1)
    with pytest.raises(Refused, match="no table nonsense"):
        pause(settings, "a", ["nonsense"])


def test_a_truncate_resolves_the_changes_that_waited_before_it(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=5, on_error="quarantine")
    since = dict(feed.committed)
    query(database, CHECK)
    with following(settings, "a"):
        feed.cut(put(1, "bad", 666), put(2, "fine", 2))
        wait_until_caught_up(database, broker)
        assert len(list_quarantine(settings, "a")) == 1
        feed.truncate(1, put(1, "new", 1))
        feed.cut(put(3, "more", 1))
        wait_until_caught_up(database, broker)
    check_equal(database, feed)
    check_counters(settings, feed, since)
    assert list_quarantine(settings, "a") == []


@pytest.mark.parametrize("rows_max", [8, 1000])
@pytest.mark.parametrize("constraint", [UNIQUE, EXCLUDE], ids=["unique", "exclude"])
def test_only_refused_rows_are_quarantined_when_other_rows_exchange_values(
    constraint: str, rows_max: int, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    apply = {"keyed_rows_max": 0, "cut_group_rows_max": rows_max}
    settings = load_target(database, feed, items(), rows=60, on_error="quarantine", apply=apply)
    since = dict(feed.committed)
    query(database, CHECK)
    query(database, constraint)
    with following(settings, "a"):
        # Every label moves to the next key, key 60 is deleted, key 61 is refused, and key 62 has a value that does not
        # fit.
        moved = [put(i + 1, f"label {i}", i) for i in range(1, 59)]
        feed.cut(
            put(61, "bad", 666), *moved, deletion(60), put(1, "label 60", 1), put(62, "no number", "x"), batch_rows=5
        )
        wait_until_caught_up(database, broker)
        waiting = {q.key for q in list_quarantine(settings, "a")}
        assert waiting == {'{"id": "61"}', '{"id": "62"}'}
    del feed.model[1]["61",], feed.model[1]["62",]
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_a_row_refused_during_the_catch_up_halts_at_its_own_cut(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), rows=5)
    since = dict(feed.committed)
    query(database, CHECK)
    pause(settings, "a", ["items"])
    with following(settings, "a"):
        feed.cut(put(1, "fine", 1))
        feed.cut(put(2, "fine", 1))
        start = broker.next_offset
        feed.cut(put(3, "bad", 666), put(4, "x", 1))
        feed.cut(put(4, "later", 1))
        wait_until_caught_up(database, broker)
        resume(settings, "a", ["items"])
        eventually(lambda: read_table_states(settings, "a")[0].state == "HALTED", "the halt")
        assert read_table_states(settings, "a")[0].held_from == start
        assert rows_at(database, items())["2",] == ("fine", "1")
        query(database, NO_CHECK)
        resume(settings, "a", ["items"])
        eventually(lambda: read_table_states(settings, "a")[0].state == "ACTIVE", "the table's return")
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_an_interrupted_catch_up_continues_at_its_position(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), rows=5, apply={"cut_group_rows_max": 10})
    since = dict(feed.committed)
    pause(settings, "a", ["items"])
    with following(settings, "a"):
        start = broker.next_offset
        for n in range(4):
            feed.cut(*(put(i, f"{n}", n) for i in range(10)))
        wait_until_caught_up(database, broker)
    resume(settings, "a", ["items"])
    target = PostgresDatabase(settings, "a")
    session = target.connect()
    catch_up = CatchUp(target, session, 1, start, CatchUpFindings(), lambda: False)
    known = catalogues.read_catalogue(target, session)
    while read_table_states(settings, "a")[0].rows_applied == 0:
        catch_up.step(known, defer_constraints=False)
    catch_up.close()
    session.close()
    (state,) = read_table_states(settings, "a")
    assert (state.held_from, state.rows_applied) == (start + 10, 10)
    with following(settings, "a"):
        eventually(lambda: read_table_states(settings, "a")[0].state == "ACTIVE", "the table's return")
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_changes_after_the_cut_of_a_resync_are_newer_than_its_rows(
    database: str, broker: FakeDelivery, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_target(database, feed, items(), rows=50)
    query(database, "UPDATE shop.items SET label = 'edited' WHERE id > 40")
    loaded_side, resume = threading.Event(), threading.Event()

    def run(self: SideLoad) -> None:
        original(self)
        loaded_side.set()
        resume.wait(60)

    original = SideLoad.run
    monkeypatch.setattr(SideLoad, "run", run)
    with following(settings, "a"):
        request_resync(settings, "a", "items")
        assert loaded_side.wait(60)
        feed.cut(put(1, "newer", 1), deletion(2), put(999, "new", 1))
        wait_until_caught_up(database, broker)
        resume.set()
        eventually(lambda: not read_progress(settings, "a").resyncing, "the end of the resync")
    check_equal(database, feed)
