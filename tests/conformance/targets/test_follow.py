"""Following the queue: load at a cut, increments after it, whole cuts only, acknowledgements; for every target."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.targets.places import ORACLE
from tests.conformance.targets.playing import Stage
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import INT, TEXT, column, deletion, items, put, table
from tests.support.waiting import eventually
from venus.adapters.targets.relational import full_sync
from venus.adapters.targets.relational.database import wait_for_lock
from venus.errors import Refused

pytestmark = pytest.mark.integration

#: Texts that must arrive unchanged.
HARD = "tab\t, newline\n, backslash \\N, quote ', \u00e4\u20ac\U0001f600"


def test_increments_follow_a_load_with_no_gap_and_no_overlap(real_stage: Stage) -> None:
    feed = real_stage.feed
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, f"label {i}", i) for i in range(300)), put(1, "other", 1, table=2))
    report = real_stage.target.load()
    since = dict(feed.committed)
    with real_stage.follow_in_thread():
        for n in range(20):
            feed.cut(
                put(n, "again", n), deletion(n + 100), put(1000 + n, "new", n), put(1, n, n, table=2), batch_rows=2
            )
        real_stage.wait_until_applied(feed.broker.next_offset)

    seen = real_stage.target.read_view()
    assert (report.rows, report.already) == ({"shop.items": 300, "shop.others": 1}, False)
    assert seen.offset == feed.broker.next_offset
    assert {t.table_id: t.rows_applied for t in seen.tables} == {
        number: count - since[number] for number, count in feed.committed.items()
    }
    assert seen.unaccounted_rows == 0
    real_stage.compare_tables()


def test_a_target_that_is_loaded_continues_from_where_it_is(stage: Stage, broker: FakeDelivery) -> None:
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    stage.feed.cut(put(2, "b", 2))
    again = stage.target.load()
    stage.follow_to_end()

    assert (again.already, again.offset, broker.snapshots_opened) == (True, 1, 1)
    stage.compare_tables()


def test_every_kind_of_change_arrives(stage: Stage) -> None:
    feed = stage.feed
    keyed = table(3, "keyed", column(1, "id", INT), column(2, "part"), column(3, "value"), key=("id", "part"))
    feed.describe(items(), items(2, "emptied"), keyed)
    feed.cut(*(put(i, f"label {i}", i) for i in range(10)), *(put(i, "x", i, table=2) for i in range(10)))
    stage.target.load()
    with stage.follow_in_thread():
        feed.cut(put(1, "updated", 1), deletion(2), put(20, None, None), put(3, HARD, 3))
        feed.cut(put(4, "x" * 3_000_000, 4), put(20, "not NULL any more", 5))
        feed.cut(deletion(5), put(55, "label 5", 5))  # the update changes the key
        feed.truncate(2, put(7, "after", 7, table=2))
        hard, shortest = ("1", HARD), ("1", stage.place.shortest_key)
        feed.cut(replace(put(1, "v", table=3), key=hard), replace(put(1, None, table=3), key=shortest))
        stage.wait_until_applied(feed.broker.next_offset)

    stage.compare_tables()


def test_random_histories_leave_the_rows_that_were_written(stage: Stage) -> None:
    feed, rng = stage.feed, random.Random(11)
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, f"label {i}", i) for i in range(40)))
    stage.target.load()
    with stage.follow_in_thread():
        for _ in range(30):
            keys = rng.sample(range(60), rng.randint(1, 20))
            feed.cut(*(deletion(k) if rng.random() < 0.3 else put(k, rng.random(), k) for k in keys), batch_rows=3)
            if rng.random() < 0.2:
                feed.truncate(2, put(rng.randint(1, 9), "after", 1, table=2))
        stage.wait_until_applied(feed.broker.next_offset)

    stage.compare_tables()


def test_tables_change_their_columns_and_new_tables_appear(stage: Stage) -> None:
    feed, first = stage.feed, items()
    feed.describe(first)
    feed.cut(put(1, "a", 1), put(2, "b", 2))
    stage.target.load()
    second = replace(
        first, version=2, columns=(*first.columns, column(4, "extra", TEXT), column(5, "n", INT, default_sql="7"))
    )
    with stage.follow_in_thread():
        feed.cut(put(3, "c", 3))
        feed.describe(second, items(5, "late"))
        feed.model[1] = {key: (*row, None, "7") for key, row in feed.model[1].items()}
        feed.cut(put(9, "label", 1, "more", 8), put(1, "new table", 1, table=5))
        stage.wait_until_applied(feed.broker.next_offset)

    assert {t.name for t in stage.target.read_view().tables} == {"shop.items", "shop.late"}
    stage.compare_tables()


def test_a_cut_is_applied_whole_or_not_at_all(stage: Stage, broker: FakeDelivery) -> None:
    stage.feed.describe(items())
    stage.feed.cut(*(put(i, "first", i) for i in range(10)))
    stage.target.load()
    start = broker.next_offset
    before = dict(stage.feed.model[1])
    with stage.follow_in_thread() as reports:
        broker.hold_from = start + 6  # in the middle of the cut
        stage.feed.cut(*(put(i, "second", i) for i in range(10)), batch_rows=3)
        eventually(lambda: len(reports) >= 3, "reports")
        held = stage.target.read_view().offset
        acknowledged = max(broker.acknowledged.values())
    halfway = stage.place.rows(stage.settings, items())  # also after a stop in the middle of a cut
    broker.release()
    stage.follow_to_end()

    assert (held, acknowledged) == (start, start)
    assert halfway == before
    stage.compare_tables()


def test_an_offset_is_acknowledged_when_it_is_applied_and_never_before(stage: Stage, broker: FakeDelivery) -> None:
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    group = stage.target.read_view().group
    pairs = []
    with stage.follow_in_thread():
        for n in range(15):
            stage.feed.cut(*(put(k, n, n) for k in range(20)))
            pairs.append((broker.acknowledged.get(group, 0), stage.target.read_view().offset))
        stage.wait_until_applied(broker.next_offset)
        eventually(lambda: broker.acknowledged.get(group) == broker.next_offset, "the acknowledgement")

    assert all(acknowledged <= applied for acknowledged, applied in pairs)
    assert list(broker.acknowledged) == [group]


@pytest.mark.fault
def test_a_process_killed_between_two_commits_continues(stage: Stage, broker: FakeDelivery) -> None:
    feed, rng, killed = stage.feed, random.Random(3), 0
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(60)))
    stage.target.load()
    since = feed.committed[1]
    with stage.place.victim(broker.address) as follow:
        for step, moment in stage.place.kills:
            for _ in range(3):
                keys = rng.sample(range(80), 30)
                feed.cut(
                    *(deletion(k) if rng.random() < 0.3 else put(k, rng.random(), step) for k in keys), batch_rows=8
                )
            killed += follow(step, moment, broker.next_offset)
            assert max(broker.acknowledged.values()) <= stage.target.read_view().offset
    feed.cut(put(99, "behind the last kill", 1))
    stage.follow_to_end()

    assert killed >= 3
    assert stage.table("shop.items").rows_applied == feed.committed[1] - since
    stage.compare_tables()


def test_a_target_that_was_never_loaded_refuses_to_follow(stage: Stage) -> None:
    with pytest.raises(Refused, match="has not been loaded yet") as refused:
        stage.target.follow(threading.Event())

    assert f"venus migrate --target {stage.target.name}" in refused.value.hint


def test_one_process_at_a_time_works_on_a_target(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_sync, "BRIEF_LOCK_WAIT_S", 0.2)
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    with stage.follow_in_thread() as reports:
        eventually(lambda: bool(reports), "the loop")
        with pytest.raises(Refused, match=f"another process is working on target {stage.target.name}"):
            stage.target.load()


@pytest.mark.parametrize("place", ["postgresql", "mariadb", "sqlite", ORACLE], indirect=True)
def test_a_load_waits_for_a_process_that_has_just_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = threading.Event()

    def note_wait(*arguments: Any) -> None:
        tries.set()
        wait_for_lock(*arguments)

    monkeypatch.setattr(full_sync, "wait_for_lock", note_wait)
    stage.feed.describe(items())
    stage.feed.cut(put(1, "a", 1))
    stage.target.load()
    tries.clear()
    with ThreadPoolExecutor(1) as pool:
        with stage.follow_in_thread() as reports:
            eventually(lambda: bool(reports), "the loop")
            loading = pool.submit(stage.target.load)
            assert tries.wait(60)
        assert loading.result(60).already
