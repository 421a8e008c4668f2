"""A broker with hundreds of businesses: no step walks through all of them, and all caches share one budget."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from venus.broker.machine.business import Business
from venus.broker.machine.consumers import ConsumerState
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.pipeline import consumer_groups
from venus.broker.pipeline.group import CommandGroup
from venus.broker.queue.buffer import ENTRY_BYTES, BodyBuffer
from venus.broker.replicas import replicated_logs
from venus.broker.replicas.replicated_logs import CoreLogs, RecentEntries, ReplicaStanding, ReplicatedLogs, clear_oldest
from venus.broker.snapshot.scavenger import PASS_EVERY_S, Scavenger
from venus.broker.store.rocks import Store, StoreBatch


def business(number: int) -> Business:
    return Business(number=number, name=f"shop{number}", reviews=ReviewSchedule(first_s=1.0))


def test_the_buffer_of_one_business_is_not_walked_for_the_others() -> None:
    buffer = BodyBuffer(1 << 30)
    for index in range(100_000):
        buffer.save((1, index), b"x")

    began = time.thread_time()
    for n in range(1000):
        buffer.save((2 + n % 200, n), b"y")
        buffer.mark_delivered(2 + n % 200, n + 1)
    took = time.thread_time() - began

    assert took < 0.5
    buffer.mark_delivered(1, 50_000)
    assert buffer.status().nbytes == 101_000 * (1 + ENTRY_BYTES)


def test_each_business_gives_up_its_share_of_the_buffer() -> None:
    buffer = BodyBuffer(100_000)
    body = bytes(1000 - ENTRY_BYTES)
    for index in range(90):
        buffer.save((1, index), body)
    for index in range(30):
        buffer.save((2, index), body)
        buffer.save((3, index), body)

    kept = [sum(buffer.get((number, index)) is not None for index in range(90)) for number in (1, 2, 3)]

    assert sum(kept) <= 100
    assert kept[0] > 40
    assert min(kept[1:]) > 15, "none loses all of it for the others"
    assert all(buffer.get((number, 0)) is not None for number in (1, 2, 3)), "a lagging reader wants the oldest"


def test_thousands_of_absent_consumers_are_forgotten_in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[str] = []
    monkeypatch.setattr(consumer_groups, "forget", lambda _group, _business, name, _at: forgotten.append(name))
    monkeypatch.setattr(consumer_groups, "logger", SimpleNamespace(warning=lambda *_: None))
    found = business(1)
    found.consumers = {f"g{n}": ConsumerState(group=f"g{n}", acknowledged=n, kept=n) for n in range(5000)}

    began = time.thread_time()
    consumer_groups.age_consumers(cast(CommandGroup, None), found, 10**12, 0, 1.0)

    assert time.thread_time() - began < 1
    assert (len(forgotten), found.consumers) == (5000, {})


class _Floors:
    """Counts the queries for the floor below which tombstones of a business may be removed."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = 0

    def __call__(self, _business: Business) -> int:
        self.asked += 1
        return self.answer


def _scavenger(floors: _Floors, clock: list[float]) -> Scavenger:
    store = SimpleNamespace(values=None)
    return Scavenger(cast(Store, store), forget_below=floors, monotonic=lambda: clock[0])


def test_tables_with_tombstones_are_not_all_visited_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scavenger, "_store_record", lambda *_args, **_options: None)
    floors, clock = _Floors(), [0.0]
    found, one = _scavenger(floors, clock), business(1)
    for table_id in range(3000):
        found.record_table(one, table_id, cast(StoreBatch, None))

    clock[0] = 2 * PASS_EVERY_S
    for _ in range(100):
        clock[0] += 0.025
        assert found._next_pass() is None

    assert floors.asked <= 5, "it was asked for each table in each round"


def test_each_table_with_removable_tombstones_is_visited_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scavenger, "_store_record", lambda *_args, **_options: None)
    floors, clock = _Floors(), [0.0]
    found, one, other = _scavenger(floors, clock), business(1), business(2)
    for table_id in range(20):
        found.record_table(one, table_id, cast(StoreBatch, None))
        found.record_table(other, table_id, cast(StoreBatch, None))
    clock[0] = 2 * PASS_EVERY_S
    assert found._next_pass() is None
    floors.answer = 7
    clock[0] += 60
    begun = [found._next_pass() for _ in range(41)]

    assert begun[40] is None
    assert {(begin.business.number, begin.table_id) for begin in begun[:40] if begin is not None} == {
        (number, table_id) for number in (1, 2) for table_id in range(20)
    }
    one.materialised.floors[3] = 9
    found.record_table(one, 3, cast(StoreBatch, None))
    raised = found._next_pass()
    assert raised is not None
    assert (raised.table_id, raised.floor) == (3, 9), "rows under a floor do not wait an hour"


def _publish_businesses(logs: ReplicatedLogs, count: int) -> list[Business]:
    found = [business(number) for number in range(1, count + 1)]
    for one in found:
        logs.publish(one.name, ReplicaStanding())
    return found


def test_the_newest_entries_of_all_logs_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated_logs, "RECENTS_BYTES", 1 << 20, raising=False)
    logs = ReplicatedLogs()
    found = _publish_businesses(logs, 20)
    for round_ in range(20):
        for one in found:
            logs.on_written(one, 10 * round_, [bytes(1 << 14)] * 10)

    kept = {one.name: recent._nbytes for one in found if (recent := logs.recent(one.name)) is not None}
    assert sum(kept.values()) <= (1 << 20) * 9 // 8 + 10 * (1 << 14)
    last = logs.recent(found[-1].name)
    assert last is not None
    assert last.read(199, 1) == (bytes(1 << 14),), "what was written last is here"
    first = logs.recent(found[0].name)
    assert first is not None
    assert first.read(0, 1) is None, "and what is not is read from the store"


def test_logs_that_were_extended_longest_ago_make_room_first() -> None:
    logs = [RecentEntries(1 << 20) for _ in range(4)]
    for used, log in enumerate((logs[2], logs[0], logs[3], logs[1]), 1):
        log.used = used
        log.extend(5, [bytes(1000)] * 10)

    clear_oldest(logs, 21_500)

    assert [log.read(5, 1) is not None for log in logs] == [False, True, False, True]
    logs[2].extend(15, [b"next"])
    assert logs[2].read(15, 1) == (b"next",)
    assert logs[2].read(14, 1) is None


def test_a_removed_replica_is_not_kept_in_memory_by_its_orders() -> None:
    logs = ReplicatedLogs()
    (one,) = _publish_businesses(logs, 1)
    group = cast(CommandGroup, SimpleNamespace(log_changed=set()))
    before = sys.getrefcount(one)
    logs.record_order(group, one, 3)
    positions: list[Any] = []
    logs.subscribe(lambda _name, position: positions.append(position.done))
    logs.on_changed(one)
    group.log_changed.clear()
    logs.forget(one.name)

    assert positions == [3]
    assert sys.getrefcount(one) == before
    assert not logs._done


@pytest.mark.parametrize(
    ("count", "is_bulk", "frame"),
    [
        (1, False, 1 << 20),
        (200, False, (32 << 20) // 200),
        (1, True, 4 << 20),
        (2, True, 2 << 20),
        (8, True, 1 << 20),
        (200, True, (32 << 20) // 200),
    ],
)
def test_answers_to_a_returning_follower_share_one_budget(count: int, is_bulk: bool, frame: int) -> None:
    logs = ReplicatedLogs()
    found = _publish_businesses(logs, count)
    for one in found:
        logs.on_written(one, 0, [bytes(1 << 14)] * (300 if count == 1 else 130))
    core = SimpleNamespace(catalogue=SimpleNamespace(list_stored=lambda: found))
    core_logs = CoreLogs(cast(Any, core), logs, me="b1", background=lambda _call: None)

    answers = [core_logs.recent(one.name, 0, is_bulk=is_bulk) for one in found]

    assert all(answer for answer in answers if answer is not None)
    assert sum(len(entry) for answer in answers if answer is not None for entry in answer) <= 32 << 20
    last = answers[-1]
    assert last is not None
    assert frame - (1 << 14) <= sum(map(len, last)) <= frame + (1 << 14)
