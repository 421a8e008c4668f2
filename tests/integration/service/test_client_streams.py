"""Streams of venus.client: memory is limited, no change is lost or doubled, and positions are kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.feed import Feed, items, put
from tests.support.brokers.real_broker import RealBroker
from tests.support.waiting import eventually
from venus.client import AsyncBroker, ChangeBatch, Changes, connect, connect_async
from venus.client import changes as client_changes
from venus.codec.changed_rows import frame_cost
from venus.errors import Unavailable
from venus.rpc.listener import CREDIT_BYTES, ListenerClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration
WAIT_S = 60.0
#: Two rows of this size never share a frame.
LARGE = "x" * 600_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RealBroker]:
    running = RealBroker(tmp_path / "data")
    yield running
    running.stop()


@pytest.fixture
def feed(broker: RealBroker) -> Feed:
    made = Feed(broker)
    made.describe(items())
    made.cut(put(1, "EU", 1))
    return made


def ids(batch: ChangeBatch | None) -> list[int]:
    assert batch is not None, f"no change within {WAIT_S:g} s"
    return [row["id"] for row in batch.rows()]


def take_until(changes: Changes, offset: int) -> list[int]:
    """Take changes up to a position; return the keys in their order."""
    found: list[int] = []
    while changes.position is None or changes.position.offset < offset:
        found += ids(changes.poll(WAIT_S))
    return found


def held_bytes(changes: Changes) -> int:
    """Return the bytes that the client has received and the program has not taken yet."""
    stream = changes._client
    assert stream is not None
    waiting = sum(len(batch._found.rows.packed.data) for batch in changes._ready)
    return waiting + sum(map(frame_cost, list(stream._arrived)))


def test_a_program_that_does_not_read_limits_the_clients_memory_and_loses_nothing(
    broker: RealBroker, feed: Feed
) -> None:
    with connect(broker.address) as connection:
        changes = connection.changes("shop.items", start="now")
        eventually(lambda: changes.poll(0.05) is not None, "the position of a live subscription")
        peak = 0
        for number in range(10, 40):
            feed.cut(put(number, LARGE, number))
            peak = max(peak, held_bytes(changes))
        eventually(lambda: held_bytes(changes) > CREDIT_BYTES // 2, "changes that wait")
        peak = max(peak, held_bytes(changes))
        assert take_until(changes, broker.next_offset) == list(range(10, 40))
        assert peak <= CREDIT_BYTES + 2 * len(LARGE), "18 MB were written meanwhile"


class BreakingClient(ListenerClient):
    """A stream that delivers frame by frame. The first stream breaks in the middle of a transaction."""

    breaks = 1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._left: list[broker_pb2.ChangesFrame] = []
        self._is_broken = False

    def take(self, timeout_s: float) -> list[broker_pb2.ChangesFrame]:
        if self._is_broken:
            raise Unavailable("the connection broke")
        self._left += super().take(0.0 if self._left else timeout_s)
        frames, self._left = self._left[:1], self._left[1:]
        in_middle = any(
            one.stored and not one.loaded and not one.next_offset for frame in frames for one in frame.changes
        )
        if in_middle and type(self).breaks:
            type(self).breaks, self._is_broken = 0, True
        return frames


def test_a_transaction_that_breaks_in_the_middle_is_neither_lost_nor_doubled(
    broker: RealBroker, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_changes, "ListenerClient", BreakingClient)
    monkeypatch.setattr(BreakingClient, "breaks", 1)
    with connect(broker.address) as connection:
        changes = connection.changes("shop.items")
        assert take_until(changes, broker.next_offset) == [1]
        feed.cut(*(put(number, LARGE, number) for number in range(10, 18)), batch_rows=1)
        assert take_until(changes, broker.next_offset) == list(range(10, 18))
        assert not BreakingClient.breaks, "it broke in the middle"


def test_a_position_acknowledged_while_the_broker_is_away_is_kept(broker: RealBroker, feed: Feed) -> None:
    with connect(broker.address) as connection:
        changes = connection.changes("shop.items", group="mailer")
        batch = changes.poll(WAIT_S)
        while batch is not None and batch.position is None:
            batch = changes.poll(WAIT_S)
        assert batch is not None
        broker.stop()
        eventually(lambda: changes.poll(0.05) is None and not changes.is_connected, "the end of the stream")
        batch.acknowledge()
        broker.start()
        feed.cut(put(2, "EU", 2))
        assert take_until(changes, broker.next_offset) == [2]

        def acknowledged_offset() -> int:
            consumers = connection.status()["businesses"][0]["consumers"]
            return max((int(one.get("acknowledged", 0)) for one in consumers if one["group"] == "mailer"), default=0)

        assert batch.position is not None
        eventually(lambda: acknowledged_offset() == batch.position.offset, "the acknowledged position")  # type: ignore[union-attr]


async def take_async(broker: AsyncBroker, count: int, live: asyncio.Semaphore) -> list[int]:
    """Return the keys of this many changes."""
    found: list[int] = []
    async with broker.changes("shop.items") as changes:
        async for batch in changes:
            found += ids(batch)
            if batch.position is not None:
                live.release()
            if len(found) >= count:
                break
    return found


def test_subscriptions_of_an_event_loop_need_no_thread_while_they_wait(broker: RealBroker, feed: Feed) -> None:
    many = 12

    async def main() -> list[list[int]]:
        executor, live = ThreadPoolExecutor(1), asyncio.Semaphore(0)
        asyncio.get_running_loop().set_default_executor(executor)
        async with connect_async(broker.address) as connection:
            tasks = [asyncio.create_task(take_async(connection, 2, live)) for _ in range(many)]
            for _ in range(many):
                await live.acquire()
            idle = 0
            async with asyncio.timeout(WAIT_S):
                while idle < 20:  # for a while the event loop's only thread has nothing to do
                    await asyncio.sleep(0.01)
                    idle = idle + 1 if executor._work_queue.empty() and executor._idle_semaphore._value else 0
            await asyncio.to_thread(feed.cut, put(2, "EU", 2))
            return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [[1, 2]] * many


def test_a_cancelled_wait_loses_no_batch(broker: RealBroker, feed: Feed) -> None:
    async def main() -> list[int]:
        found: list[int] = []
        async with connect_async(broker.address) as connection:
            changes = connection.changes("shop.items")
            while len(found) < 101:
                try:
                    found += ids(await asyncio.wait_for(anext(changes), 0.002))
                except TimeoutError:
                    continue
            await changes.close()
            with pytest.raises(StopAsyncIteration):
                await anext(changes)
        return found

    def write() -> None:
        for number in range(2, 102):
            feed.cut(put(number, "EU", number))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert sorted(asyncio.run(main())) == list(range(1, 102))
    finally:
        writer.join()


def test_an_event_loop_reads_snapshot_and_status(broker: RealBroker, feed: Feed) -> None:
    async def main() -> tuple[list[Any], str]:
        async with connect_async(broker.address) as connection:
            rows = [row for batch in [b async for b in connection.snapshot("shop.items")] for row in batch.to_pylist()]
            return rows, (await connection.status())["businesses"][0]["business"]

    rows, business = asyncio.run(main())
    assert [(row["id"], row["label"], row["amount"]) for row in rows] == [(1, "EU", 1)]
    assert business == "main"
