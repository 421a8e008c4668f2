"""One client's stream of subscriptions: starts, ends, gaps, errors and reloads in every order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.brokers.feed import items
from tests.support.predicates.listener_histories import TABLE, Broker, Client, History, settle
from venus.broker.listening import listening
from venus.broker.listening.listening import JudgedBatch, Listening, WantedSubscription
from venus.broker.listening.watched_table import WatchedTable
from venus.broker.machine.business import Business
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.service import live_changes
from venus.broker.service.live_changes import WaitingChanges
from venus.broker.service.subscription_reader import NOW, ROWS
from venus.broker.snapshot.watched_rows import FoldedBatch, FoldedSection
from venus.codec import schema as schemas_codec
from venus.errors import OffsetTrimmed, Unavailable, VenusError
from venus.model import ChangeKind
from venus.wire import broker_pb2

HISTORIES = 40


def run(test: Callable[[Broker], Any]) -> None:
    asyncio.run(test(Broker()))


def request(number: int, offset: int, *columns: str) -> broker_pb2.SubscriptionRequest:
    return broker_pb2.SubscriptionRequest(number=number, table="items", offset=offset, columns=columns)


def test_a_gap_is_read_again_from_the_start_of_a_subscription() -> None:
    async def exercise(broker: Broker) -> None:
        client = Client(broker)
        client.begin(1, 5)
        await settle()
        broker.commit(), broker.commit()
        client.begin(2, 7)
        await settle()
        broker.commit()
        gap = JudgedBatch(1, 5, 8, 1, is_gap=True)
        client.stream.on_judged(gap)
        await settle()
        assert (client.received[1].batches, client.received[2].batches) == ([5, 6, 7], [7])

    run(exercise)


def test_a_gap_before_a_subscription_does_not_move_its_position_back() -> None:
    async def exercise(broker: Broker) -> None:
        client = Client(broker)
        broker.commit()
        client.begin(1, 5)
        await settle()
        before = client.stream.position
        client.stream.on_judged(JudgedBatch(1, 4, 5, 1, is_gap=True))
        await settle()
        assert (client.received[1].batches, client.stream.position) == ([5], before)

    run(exercise)


@pytest.mark.parametrize("error", [OffsetTrimmed("gone"), Unavailable("not now")])
def test_an_error_while_the_queue_is_read_ends_the_starting_subscription(error: VenusError) -> None:
    async def exercise(broker: Broker) -> None:
        client = Client(broker)
        client.begin(3, 5)
        await settle()
        broker.errors.append(error)
        client.begin_together(request(1, 3), request(2, 3))
        await settle()
        assert client.ended_news == [1, 2]
        assert client.received[1].error == str(error)
        assert [number for _, number in broker.registered.values()] == [3]
        assert not client.task.done()

    run(exercise)


def test_the_queue_is_kept_from_the_start_of_a_subscription_until_it_is_live() -> None:
    async def exercise(broker: Broker) -> None:
        client = Client(broker)
        await settle()
        broker.pause = asyncio.Event()
        client.begin(1, 4)
        client.begin(2, 2)
        await settle()
        assert min(offset for offset, _ in broker.kept.values()) == 2
        broker.pause.set()
        await settle()
        assert [offset for offset, _ in broker.kept.values()] == [5]
        await client.leave()
        assert not broker.kept

    run(exercise)


def test_a_new_group_exists_from_its_first_acknowledgement_on() -> None:
    async def exercise(broker: Broker) -> None:
        first = Client(broker, group="mailer")
        first.begin(1, ROWS)
        await settle()
        assert not broker.business.consumers
        await first.leave()
        second = Client(broker, group="mailer")
        second.begin(1, ROWS)
        await settle()
        broker.commit()
        second.acknowledge(5)
        await settle()
        assert broker.business.consumers["mailer"].acknowledged == 5
        assert list(broker.kept.values()) == [(5, False)]
        second.acknowledge(6)
        await settle()
        assert list(broker.kept.values()) == [(6, False)]
        await second.leave()
        assert not broker.kept

    run(exercise)


def test_an_end_or_a_reload_before_a_subscription_is_live_is_not_lost() -> None:
    async def exercise(broker: Broker) -> None:
        client = Client(broker)
        subscribe = broker.subscribe

        def subscribe_and_judge(*arguments: Any) -> Any:
            made, refused = subscribe(*arguments)
            judged = broker.judge(broker.commit(), ends=made[:1], reloads=made[1:])
            client.stream.on_judged(judged)  # before the stream knows that they are registered
            return made, refused

        broker.subscribe = subscribe_and_judge  # type: ignore[assignment, method-assign]
        client.begin_together(request(1, NOW), request(2, NOW))
        await settle()
        assert client.received[1].error == "it does not fit any more"
        assert client.received[2].start is not None

    run(exercise)


def test_an_end_during_the_start_leaves_nothing_registered_and_it_may_start_again() -> None:
    async def exercise(broker: Broker) -> None:
        client = Client(broker)
        await settle()
        broker.pause = asyncio.Event()
        client.begin(1, NOW)
        await settle()
        client.end(1)
        client.begin(1, NOW)
        await settle()
        broker.pause.set()
        await settle()
        assert len(broker.registered) == 1
        assert client.received[1].state == broker_pb2.LIVE
        client.end(1)
        await settle()
        assert not broker.registered

    run(exercise)


def test_a_number_starts_once_and_counts_while_it_starts() -> None:
    async def exercise(broker: Broker) -> None:
        client = Client(broker)
        await settle()
        broker.pause = asyncio.Event()
        client.begin(1, NOW)
        await settle()
        assert client.stream.subscriptions == 1
        client.begin(1, NOW)
        await settle()
        broker.pause.set()
        with pytest.raises(VenusError, match="begins twice"):
            await client.task

    run(exercise)


def test_an_end_and_a_reload_while_the_queue_is_read_again() -> None:
    async def exercise(broker: Broker) -> None:
        client = Client(broker)
        client.begin_together(request(1, 5), request(2, 5))
        await settle()
        broker.commit()
        broker.reloads_next = True
        read_again = broker.read_again

        async def end_and_read(*arguments: Any) -> Any:
            client.end(1)
            await settle(20)
            return await read_again(*arguments)

        broker.read_again = end_and_read  # type: ignore[assignment, method-assign]
        client.stream.on_judged(JudgedBatch(1, 5, 6, 1, is_gap=True))
        await settle()
        assert not client.task.done()
        assert [number for _, number in broker.registered.values()] == [2]
        assert client.received[2].start == 6

    run(exercise)


def test_a_wrong_column_ends_its_own_subscription_only() -> None:
    async def exercise(broker: Broker) -> None:
        client = Client(broker)
        client.begin_together(request(1, 5, "label"), request(2, 5, "labels"), request(3, 5))
        await settle()
        assert client.ended_news == [2]
        assert {n: received.state for n, received in client.received.items() if n != 2} == dict.fromkeys(
            (1, 3), broker_pb2.LIVE
        )

    run(exercise)


def test_waiting_messages_contain_nothing_for_other_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    async def exercise(broker: Broker) -> None:
        client, other = Client(broker), Client(broker)
        for one in (client, other):
            one.begin(1, 5)
        await settle()
        judged = broker.judge(broker.commit())
        client.stream.on_judged(judged)
        assert list(judged.changes) == [other.stream]
        assert not client.stream._waiting.first.judged.changes

    run(exercise)
    waiting = WaitingChanges()
    monkeypatch.setattr(live_changes, "LIVE_BYTES_MAX", 0)
    schema = schemas_codec.to_wire(TABLE)
    waiting.add(JudgedBatch(1, 5, 6, schemas=[schema]), [broker_pb2.ChangedRows(stored=b"x")])
    assert (waiting.first.judged.is_gap, waiting.first.judged.schemas) == (True, [schema])


def test_a_reload_before_judging_fails_stays_in_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "load_schemas", lambda _store, _business, table_id: [(0, items(table_id))])
    judging, delivered, stream = Listening(cast("Any", None), subscriptions_max=10), Queue[JudgedBatch](), object()
    business = Business(1, "main", ReviewSchedule(first_s=1.0))
    for table_id in (1, 2):
        judging.subscribe(business, table_id, [WantedSubscription(table_id, "")], stream)
    judging.deliver = delivered.put
    place = SimpleNamespace(base_offset=5, next_offset=6, epoch=1, committed_at_us=1, cut_end=True)
    sections = [
        FoldedSection(table_id=1, kind=ChangeKind.SWEEP_END, is_exact=False),
        FoldedSection(table_id=2, kind=ChangeKind.CHANGES, before=[None], after=[b"no row"]),
    ]
    monkeypatch.setattr(WatchedTable, "judge", lambda *_: 1 // 0)
    judging.on_folded(business, [FoldedBatch(place=cast("Any", place), sections=sections, schemas=())])
    judged = delivered.get(timeout=60)
    judging.stop()
    assert (judged.is_gap, judged.next_offset, judged.reloads) == (True, 6, [(stream, 1)])


@pytest.mark.parametrize("part", range(3))
def test_random_histories_of_a_stream_hold(part: int) -> None:
    for seed in range(part * HISTORIES, (part + 1) * HISTORIES):

        async def run_one(seed: int = seed) -> None:
            await History(seed).run()

        asyncio.run(run_one())
