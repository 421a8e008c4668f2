"""Many subscribers in one separate process, each a stream over its own TCP connection; and lines with a delay.

*Light* subscribers share connections, because a machine has no room for ten thousand. They may use a client that costs
less than gRPC's (`bench.light`).

Each subscriber checks the seal, reads every increment, returns its credit and acknowledges, like
`venus.rpc.subscriber`; a thousand of those, which are threads, would measure the client instead of the broker. A frame
with the same bytes as one that another subscriber of the process has read is compared, not read again: in production
subscribers have separate machines.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import grpc

from bench.arrivals import Arrival, Arrivals
from bench.venus_transmission import BUSINESS
from venus.rpc.channel import aio_channel, channel_options
from venus.rpc.event_loop import run
from venus.rpc.sealed import SUBSCRIBE, seal
from venus.wire import broker_pb2

#: Longest wait for any progress of the subscribers.
PATIENCE_S = 300.0
#: Used credit is returned after this time, or when half of it is used.
SAY_EVERY_S = 1.0
#: Subscribers of a process that open their streams at once: a broker waits ten seconds for the first frame of each.
OPENING_MAX = 500
#: How often all positions are checked; that is not done for each frame, which has its time of arrival.
LOOK_EVERY_S = 0.02
spawn = multiprocessing.get_context("spawn")


@dataclass(slots=True)
class _OwedCredit:
    """Credit that one subscriber has used up and not returned to the broker yet."""

    call: Any
    number: int
    taken: int = 0
    said_at: float = field(default_factory=time.monotonic)
    is_saying: bool = False

    async def return_credit(self, seen: _Progress) -> None:
        """Return the credit and acknowledge the position, unless an earlier return is still being sent."""
        if self.is_saying:
            return
        taken, self.taken, self.said_at = self.taken, 0, time.monotonic()
        self.is_saying = True
        await self.call.write(broker_pb2.ConsumerFrame(credit_bytes=taken, acknowledge=seen.positions[self.number]))
        self.is_saying = False


@dataclass(slots=True)
class _Progress(Arrival):
    """What the subscribers of one process have received, and the credit that they owe."""

    owed: list[_OwedCredit] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


def _make_channel(address: str) -> grpc.aio.Channel:
    return aio_channel(
        address, [*channel_options(), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    )


async def _subscribe(
    channel: grpc.aio.Channel, number: int, group: str, offset: int, credit_bytes: int, seen: _Progress
) -> None:
    """Run one subscriber: open its stream, record each frame, and return credit."""
    call: Any = channel.stream_stream(SUBSCRIBE, request_serializer=seal, response_deserializer=None)()
    opening = broker_pb2.Open(business=BUSINESS, group=group, offset=offset, credit_bytes=credit_bytes)
    await call.write(broker_pb2.ConsumerFrame(open=opening))
    owed = _OwedCredit(call, number)
    seen.owed.append(owed)
    while (content := await call.read()) is not grpc.aio.EOF:
        now = time.monotonic()
        frame = seen.frames_read.read(content)
        seen.take(number, frame, now)
        owed.taken += frame.price
        seen.changed.set()
        if owed.taken >= credit_bytes // 2 or (owed.taken and now - owed.said_at > SAY_EVERY_S):
            await owed.return_credit(seen)
    raise ConnectionError(f"the stream of {group} has ended: {await call.details()}")


async def _return_overdue_credit(seen: _Progress) -> None:
    """Keep returning credit that has been owed for long: without it, a broker may wait before it sends more."""
    while True:
        await asyncio.sleep(SAY_EVERY_S / 4)
        due = time.monotonic() - SAY_EVERY_S
        for owed in list(seen.owed):
            if owed.taken and owed.said_at < due:
                await owed.return_credit(seen)


async def _serve_subscribers(
    addresses: Sequence[str], count: int, name: str, offset: int, credit: int, on_one: int, orders: Connection
) -> None:
    """Run the subscribers of one process: open their streams on order, then report arrivals below requested offsets."""
    orders.send(None)  # the process is up, which takes a second
    await asyncio.to_thread(orders.recv)
    seen = _Progress([offset] * count, [[] for _ in range(count)], [[] for _ in range(count)])
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        channels = [
            await stack.enter_async_context(_make_channel(addresses[n % len(addresses)]))
            for n in range(-(-count // on_one))
        ]
        tasks = [group.create_task(_return_overdue_credit(seen))]
        for n in range(count):
            while seen.opened < n - OPENING_MAX:
                await _wait_for_arrival(seen)
            work = _subscribe(channels[n // on_one], n, f"{name}-{n}", offset, credit, seen)
            tasks.append(group.create_task(_report_failure(work, orders)))
        while seen.opened < count:
            await _wait_for_arrival(seen)
        orders.send(None)
        while (wanted := await asyncio.to_thread(orders.recv)) is not None:
            while min(seen.positions) < max(wanted):
                await _wait_for_arrival(seen)
            orders.send(seen.arrivals(wanted, offset))
        for task in tasks:
            task.cancel()


async def _report_failure(work: Coroutine[Any, Any, None], orders: Connection) -> None:
    """Run a subscriber; if it fails, report the error to the main process, which would otherwise wait."""
    try:
        await work
    except Exception as error:
        orders.send(f"{type(error).__name__}: {error}")
        raise


async def _wait_for_arrival(seen: _Progress) -> None:
    """Wait until another frame has arrived, for a second at most."""
    seen.changed.clear()
    with suppress(TimeoutError):
        await asyncio.wait_for(seen.changed.wait(), 1.0)
    await asyncio.sleep(LOOK_EVERY_S)


def run_subscribers(*arguments: Any) -> None:
    """Run the subscribers of one process, which execute the orders of the main process."""
    run(_serve_subscribers(*arguments))


class Subscribers:
    """The subscribers of one separate process, which are distributed over brokers."""

    def __init__(
        self,
        addresses: Sequence[str],
        count: int,
        name: str,
        *,
        offset: int = 0,
        credit_bytes: int = 1 << 20,
        on_one: int = 1,
        watch: Callable[..., None] = run_subscribers,
    ) -> None:
        self._orders, theirs = spawn.Pipe()
        self._process = spawn.Process(target=watch, args=(addresses, count, name, offset, credit_bytes, on_one, theirs))
        self._process.start()
        theirs.close()

    def wait_until_running(self) -> None:
        """Wait until the process of the subscribers runs."""
        self._read_answer()

    def open(self) -> None:
        """Order the process to open its streams; `wait_until_open` waits for them."""
        self._orders.send(None)

    def wait_until_open(self) -> None:
        """Wait until the brokers have answered every stream."""
        self._read_answer()

    def ask(self, offsets: Sequence[int]) -> None:
        """Ask when all subscribers have received everything below these offsets; `arrivals` returns the answer."""
        self._orders.send(offsets)

    def arrivals(self) -> Arrivals:
        """Wait for the answer to `ask`, and return it."""
        found = self._read_answer()
        assert isinstance(found, Arrivals)
        return found

    def _read_answer(self) -> object:
        """Return the next answer of the process. Raises TimeoutError, or AssertionError if a subscriber has ended."""
        if not self._orders.poll(PATIENCE_S):
            raise TimeoutError(f"subscribers did not get there within {PATIENCE_S:g} s")
        found = self._orders.recv()
        if isinstance(found, str):
            raise AssertionError(f"a subscriber has ended: {found}")  # noqa: TRY004
        return found

    def close(self) -> None:
        """End the process of the subscribers."""
        with suppress(OSError):
            self._orders.send(None)
        self._process.join(30)
        if self._process.exitcode is None:
            self._process.kill()


@contextmanager
def subscribers(
    addresses: Sequence[str],
    count: int,
    *,
    processes: int = 1,
    offset: int = 0,
    credit_bytes: int = 1 << 20,
    on_one: int = 1,
    watch: Callable[..., None] = run_subscribers,
) -> Iterator[Callable[..., Arrivals]]:
    """Run subscribers within the block; yield a function that waits until all have everything below given offsets.

    Each process runs `watch`: gRPC's client, or that of `bench.light`.
    """
    share = [count // processes + (n < count % processes) for n in range(processes)]
    many = [
        Subscribers(addresses, each, f"bench{n}", offset=offset, credit_bytes=credit_bytes, on_one=on_one, watch=watch)
        for n, each in enumerate(share)
    ]

    def wait_for_offsets(*offsets: int) -> Arrivals:
        """Wait until all subscribers have received everything below these offsets."""
        for each in many:
            each.ask(offsets)
        found = [each.arrivals() for each in many]
        return Arrivals(
            first=min(arrivals.first for arrivals in found),
            last={offset: max(arrivals.last[offset] for arrivals in found) for offset in offsets},
            nbytes=sum(arrivals.nbytes for arrivals in found),
            frames=sum(arrivals.frames for arrivals in found),
            rows=sum(arrivals.rows for arrivals in found),
            cpu_s=sum(arrivals.cpu_s for arrivals in found),
        )

    try:
        for each in many:
            each.wait_until_running()
        for each in many:
            each.open()
        for each in many:
            each.wait_until_open()
        yield wait_for_offsets
    finally:
        for each in many:
            each.close()


# -- lines with a delay ----------------------------------------------------------------------------------------------


class _End(asyncio.Protocol):
    """One end of a connection; it forwards received bytes to the other end after the delay, in order."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._waiting: deque[bytes] = deque()
        self.other: _End | None = None
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._waiting.append(data)
        asyncio.get_running_loop().call_later(self._delay_s, self._pass_on)

    def _pass_on(self) -> None:
        """Forward the oldest waiting bytes, or try again soon if the other end is not connected."""
        data = self._waiting.popleft()
        if self.other is None:  # the far end is not connected yet
            self._waiting.appendleft(data)
            asyncio.get_running_loop().call_later(0.001, self._pass_on)
        elif self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def _serve_lines(target: str, delay_s: float, orders: Connection) -> None:
    """Accept connections, and forward each to the broker with a delay."""
    loop = asyncio.get_running_loop()
    host, _, port = target.rpartition(":")
    tasks: set[asyncio.Task[None]] = set()

    async def connect_far_end(near: _End) -> None:
        _, far = await loop.create_connection(lambda: _End(delay_s), host, int(port))
        near.other, far.other = far, near

    def make_end() -> _End:
        near = _End(delay_s)
        task = loop.create_task(connect_far_end(near))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return near

    server = await loop.create_server(make_end, "127.0.0.1", 0, backlog=2048)
    orders.send(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await asyncio.to_thread(orders.recv)


def _run_lines(target: str, delay_s: float, orders: Connection) -> None:
    asyncio.run(_serve_lines(target, delay_s, orders))


@contextmanager
def delay_line(target: str, delay_s: float) -> Iterator[str]:
    """Yield an address whose connections to a broker have this delay each way; they run in a separate process."""
    orders, theirs = spawn.Pipe()
    process = spawn.Process(target=_run_lines, args=(target, delay_s, theirs))
    process.start()
    try:
        yield str(orders.recv())
    finally:
        orders.send(None)
        process.join(30)
