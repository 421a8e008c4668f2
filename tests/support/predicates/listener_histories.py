"""Random histories of one client's stream of subscriptions, with a model around it.

The stream is the product's own. The model has a queue whose batches are numbers, a judge that delivers each batch to
every subscription, and a reader of the queue. A subscription must get each batch from its start on once and in order,
or a message that it has ended.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np

from tests.support.brokers.feed import items
from venus.broker.listening.listening import JudgedBatch, WantedSubscription
from venus.broker.listening.replay import ReplayedBatch
from venus.broker.service.listener_stream import ListenerStream
from venus.broker.service.subscription_reader import NOW, ROWS
from venus.errors import Refused, Unavailable, VenusError
from venus.wire import broker_pb2

STEPS = 60
#: Turns of the event loop after which no further callback is pending.
SETTLED = 400
TABLE = items()


@dataclass
class ReceivedNews:
    """The messages that a client has received about one subscription since its last start."""

    state: int = 0
    batches: list[int] = field(default_factory=list)
    start: int | None = None
    error: str = ""


class Broker:
    """Model of everything around the stream: queue, judge, positions, and threads."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng, self.end = rng, 5
        self.registered: dict[int, tuple[Any, int]] = {}
        self.made = 0
        self.errors: deque[VenusError] = deque()  # errors of the next parts that are read again
        self.reloads_next = False
        self.kept: dict[int, tuple[int, bool]] = {}  # by token: the offset, and whether a reader holds this position
        self.replays: list[tuple[list[int], int, int]] = []
        self.pause: asyncio.Event | None = None  # callbacks that wait for the registration
        self.business = SimpleNamespace(
            visible_offset=5, epoch_at_end=1, open_cut=False, lock=Lock(), consumers=dict[str, Any]()
        )
        self.subscriptions = self.listening = self
        self.catalogue = SimpleNamespace(find=lambda _: self.business)

    # -- threads -----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Let other coroutines run, a random number of times."""
        for _ in range(self.rng.randint(0, 3) if self.rng else 0):
            await asyncio.sleep(0)

    async def run_blocking(self, _lane: Any, call: Callable[..., Any], *args: Any) -> Any:
        """Run a call as a thread would, between other coroutines."""
        await self._turn()
        found = call(*args)
        await self._turn()
        return found

    async def open_blocking(self, lane: Any, _close: Any, call: Callable[..., Any], *args: Any) -> Any:
        if self.pause is not None and call == self.subscribe:
            await self.pause.wait()
        return await self.run_blocking(lane, call, *args)

    def run_in_background(self, _lane: Any, call: Callable[..., Any], *args: Any) -> None:
        call(*args)

    # -- positions ---------------------------------------------------------------------------------------------------

    def fill_of(self, _business: str) -> tuple[int, int]:
        return 0, 0

    def attach(self, _business: str, group: str, offset: int, *, transient: bool = False) -> int:
        """Attach a consumer group or a transient reader at an offset; return its token."""
        self.made += 1
        self.kept[self.made] = offset, transient
        if not transient:
            self.business.consumers[group] = SimpleNamespace(acknowledged=offset)
        return self.made

    def acknowledge(self, _business: str, _group: str, token: int, offset: int) -> None:
        before, transient = self.kept[token]
        self.kept[token] = max(before, offset), transient

    def detach(self, _business: str, _group: str, token: int) -> None:
        del self.kept[token]

    # -- judging -----------------------------------------------------------------------------------------------------

    def subscribe(self, _business: Any, _table: int, wanted: Sequence[WantedSubscription], listener: Any) -> Any:
        made = list[int]()
        for one in wanted:
            self.made += 1
            self.registered[self.made] = listener, one.number
            made.append(self.made)
        return made, []

    def unsubscribe(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.registered.pop(number, None)

    def commit(self) -> int:
        """Append a batch to the queue; return its offset."""
        self.business.visible_offset += 1
        return int(self.business.visible_offset) - 1

    def judge(self, offset: int, *, ends: Sequence[int] = (), reloads: Sequence[int] = ()) -> JudgedBatch:
        """Return a batch as judged for all subscriptions, some of which end or reload."""
        judged = JudgedBatch(1, offset, offset + 1, 1, offset)
        for judged_as in ends:
            judged.ended.append((*self.registered.pop(judged_as), Refused("it does not fit any more")))
        for judged_as in reloads:
            judged.reloads.append(self.registered.pop(judged_as))
        for listener, number in self.registered.values():
            one = broker_pb2.ChangedRows(
                table_id=1,
                rows=np.zeros(1, "<u4").tobytes(),
                subscriptions=np.array([number], "<u4").tobytes(),
                operations=bytes([1]),
            )
            judged.changes[listener].append(one)
        return judged

    # -- the reader of the queue -------------------------------------------------------------------------------------

    async def describe(self, *_: Any) -> tuple[list[Any], dict[int, VenusError]]:
        await self._turn()
        return [TABLE], {}

    async def rows(
        self, wanted: WantedSubscription, *_: Any
    ) -> AsyncIterator[tuple[broker_pb2.ChangesFrame, tuple[int, int]]]:
        """Yield the mark that all rows of a subscription (here none) were sent, with its position."""
        position = self.business.visible_offset
        await self._turn()
        end = broker_pb2.ChangedRows(loaded=wanted.number, next_offset=position, epoch=1)
        yield broker_pb2.ChangesFrame(changes=[end]), (position, 1)

    async def open_replay(self, _table: int, wanted: Sequence[WantedSubscription], start: int) -> Any:
        """Begin to read the queue again from an offset for these subscriptions."""
        await self._turn()
        numbers = [one.number for one in wanted]
        self.replays.append((list(numbers), start, 0))
        return SimpleNamespace(refused={}, table=_Numbers(numbers))

    async def read_again(self, replay: Any, at: int, end: int) -> tuple[list[tuple[ReplayedBatch, Any]], int]:
        """Return the changes from an offset for subscriptions that missed them, and the offset after them."""
        await self._turn()
        if self.errors:
            raise self.errors.popleft()
        assert min(offset for offset, _ in self.kept.values()) <= at, "the queue may be trimmed while it is read"
        found, must_reload = list[tuple[ReplayedBatch, Any]](), self.reloads_next
        self.reloads_next = False
        if must_reload:
            return [(ReplayedBatch(must_reload=True), (at + 1, 1))], at + 1
        change = broker_pb2.ChangedRows(table_id=1, replayed=replay.table.numbers, committed_at_us=at)
        found.append((ReplayedBatch(changes=[change], at_cut_end=True), (at + 1, 1)))
        return found, min(end, at + 1)


class _Numbers:
    """The subscriptions of a replay."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the subscriptions in this replay."""
        return list(self._numbers)

    def remove(self, number: int) -> None:
        self._numbers.remove(number)


class Client:
    """The client's end of a stream."""

    def __init__(self, broker: Broker, *, group: str = "") -> None:
        self.broker, self.received = broker, dict[int, ReceivedNews]()
        self._frames: asyncio.Queue[Any] = asyncio.Queue()
        self.ended_news = list[int]()
        admission = SimpleNamespace(
            limits=SimpleNamespace(slow_consumer_s=60.0, subscriptions_of_client=100, listener_s=60.0)
        )
        traffic = SimpleNamespace(admission=admission, monotonic=lambda: 0.0)
        wanted = broker_pb2.ListenerOpen(business="main", group=group, client="test", credit_bytes=1 << 30)
        self.stream = ListenerStream(
            cast("Any", broker), cast("Any", broker), cast("Any", traffic), cast("Any", self), wanted
        )
        self.stream._reading = cast("Any", broker)
        self.task = asyncio.create_task(self.stream.run(broker_pb2.ListenerFrame(open=wanted)))

    async def read(self) -> Any:
        return await self._frames.get()

    async def write(self, frame: broker_pb2.ChangesFrame) -> None:
        """Record a frame as the client receives it."""
        for news in frame.news:
            if news.state in (broker_pb2.BEGUN, broker_pb2.RELOADS):
                self.received[news.number] = ReceivedNews()
            self.received.setdefault(news.number, ReceivedNews()).state = news.state
            if news.state == broker_pb2.ENDED:
                self.received[news.number].error = news.error
                self.ended_news.append(news.number)
        for one in frame.changes:
            if one.loaded:
                self.received[one.loaded].start = one.next_offset
            elif one.table_id:
                numbers = list(one.replayed) or np.frombuffer(one.subscriptions, "<u4").tolist()
                for number in numbers:
                    if (received := self.received.get(number)) is not None and received.state != broker_pb2.ENDED:
                        received.batches.append(one.committed_at_us)

    def begin(self, number: int, offset: int, *, columns: Sequence[str] = ()) -> None:
        """Request a subscription from an offset on."""
        request = broker_pb2.SubscriptionRequest(number=number, table="items", offset=offset, columns=columns)
        self._frames.put_nowait(broker_pb2.ListenerFrame(begin=[request]))

    def begin_together(self, *requests: broker_pb2.SubscriptionRequest) -> None:
        self._frames.put_nowait(broker_pb2.ListenerFrame(begin=requests))

    def end(self, number: int) -> None:
        """Request the end of a subscription."""
        self._frames.put_nowait(broker_pb2.ListenerFrame(end=[number]))

    def acknowledge(self, offset: int) -> None:
        self._frames.put_nowait(broker_pb2.ListenerFrame(acknowledge=offset))

    async def leave(self) -> None:
        """End the stream, and wait until the product has handled that."""
        self._frames.put_nowait(grpc.aio.EOF)
        await self.task
        await settle()


async def settle(turns: int = SETTLED) -> None:
    """Let the event loop run this number of turns."""
    for _ in range(turns):
        await asyncio.sleep(0)


class History:
    """A random history of one client's stream."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.broker = Broker(self.rng)
        self.client = Client(self.broker, group=self.rng.choice(["", "mailer"]))
        self.wanted, self.unjudged = dict[int, int](), deque[int]()

    async def run(self) -> None:
        """Take random steps; then judge all batches, and check every subscription."""
        steps = (self.begin, self.end, self.fail, self.reload, self.commit, self.judge)
        for step in self.rng.choices(steps, (30, 10, 4, 4, 22, 30), k=STEPS):
            step()
            await settle(self.rng.choice([0, 1, 5, 30]))
            if self.client.task.done():
                break
        self.broker.errors.clear()
        while self.unjudged:
            self.judge()
        await settle()
        if self.client.task.done():  # an error while the queue is read again, which the client gets
            assert isinstance(self.client.task.exception(), Unavailable), f"history {self.seed}"
        else:
            self.check()
            await self.client.leave()
        assert (self.broker.registered, self.broker.kept) == ({}, {}), f"history {self.seed}"

    def check(self) -> None:
        """Check that each subscription ended with a message, or is registered once and got each batch once."""
        live, visible = self.client.stream._live, self.broker.business.visible_offset
        assert sorted(number for _, number in self.broker.registered.values()) == sorted(live), f"history {self.seed}"
        for number, offset in self.wanted.items():
            received, name = self.client.received[number], f"history {self.seed}, subscription {number} from {offset}"
            assert (received.state == broker_pb2.LIVE) == (number in live), name
            if number in live:
                first = offset if received.start is None else received.start
                if first == NOW:
                    first = received.batches[0] if received.batches else visible
                assert received.batches == list(range(first, visible)), name

    def begin(self) -> None:
        """Begin a random subscription unless it runs; one that has ended begins again."""
        number, visible = self.rng.randint(1, 5), self.broker.business.visible_offset
        if number in self.wanted and self.client.received.get(number, ReceivedNews()).state != broker_pb2.ENDED:
            return
        if number in self.wanted:
            self.client.end(number)
        self.wanted[number] = self.rng.choice([NOW, ROWS, visible, self.rng.randint(max(0, visible - 3), visible)])
        self.client.begin(number, self.wanted[number])

    def end(self) -> None:
        """End a random subscription."""
        if self.wanted:
            number = self.rng.choice(list(self.wanted))
            del self.wanted[number]
            self.client.end(number)

    def fail(self) -> None:
        """Let the next read of the queue fail."""
        self.broker.errors.append(Unavailable("not now"))

    def reload(self) -> None:
        """Let the next read of the queue require a reload of the rows."""
        self.broker.reloads_next = True

    def commit(self) -> None:
        self.unjudged.append(self.broker.commit())

    def judge(self) -> None:
        """Judge the oldest unjudged batch, or report it as a gap; some subscriptions end or reload."""
        if self.unjudged:
            offset, lucky = self.unjudged.popleft(), self.rng.random()
            registered = sorted(self.broker.registered)
            chosen = self.rng.sample(registered, min(1, len(registered)))
            judged = (
                JudgedBatch(1, offset, offset + 1, 1, offset, is_gap=True)
                if lucky < 0.25
                else self.broker.judge(
                    offset,
                    ends=chosen if 0.25 <= lucky < 0.31 else (),
                    reloads=chosen if 0.31 <= lucky < 0.37 else (),
                )
            )
            self.client.stream.on_judged(judged)
