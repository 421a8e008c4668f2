"""Cables between brokers, in a separate process: they count bytes, and each can be interrupted for a while.

An interrupted cable drops everything silently. Afterwards a connection continues when TCP would retransmit: at doubling
intervals since its first lost segment, 0.2 s for an established connection, 1 s for one that was being opened.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

RESEND_S = 0.2
CONNECT_AGAIN_S = 1.0
ANSWER_S = 60.0
spawn = multiprocessing.get_context("spawn")


def sent_again_at(lost_at: float, first_s: float, now: float) -> float:
    """Return when TCP retransmits a lost segment next: the interval doubles each time."""
    step_s, at = first_s, lost_at + first_s
    while at < now:
        step_s *= 2
        at += step_s
    return at


class _Cable:
    """A simulated network line to one broker, with all of its connections."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self.passed = {"up": 0, "down": 0}
        self.connected = asyncio.Event()
        self.connected.set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.open: set[_End] = set()

    @property
    def is_out(self) -> bool:
        """Whether the cable is interrupted."""
        return not self.connected.is_set()

    def make_end(self) -> _End:
        """Return the near end of a new connection, and begin to connect its far end to the broker."""
        near = _End(self, "up")
        task = asyncio.get_running_loop().create_task(self._connect(near))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return near

    async def _connect(self, near: _End) -> None:
        """Connect to the broker; if the cable is interrupted, when TCP would try next after its repair."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self.is_out:
            await self.connected.wait()
            await asyncio.sleep(sent_again_at(began, CONNECT_AGAIN_S, loop.time()) - loop.time())
        try:
            _, far = await loop.create_connection(lambda: _End(self, "down"), *self.target)
        except OSError:
            near.close()
            return
        near.other, far.other = far, near
        near.drain()
        far.drain()

    async def close(self) -> None:
        """End every connection, and stop retransmitting."""
        self.connected.set()  # connections that end now retransmit nothing
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in list(self.open):
            end.abort()
        while self.open:
            await asyncio.sleep(0)


class _End(asyncio.Protocol):
    """One end of a connection through a cable; it forwards received bytes to the other end, in order."""

    def __init__(self, cable: _Cable, way: str) -> None:
        self._cable, self._way = cable, way
        self._waiting: deque[bytes | None] = deque()  # None = the end
        self._resending = False
        self.other: _End | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._cable.open.add(self)

    def data_received(self, data: bytes) -> None:
        self._forward(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._cable.open.discard(self)
        self._forward(None)

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection, whether or not the other side still reads."""
        if self._transport is not None:
            self._transport.abort()

    def _forward(self, item: bytes | None) -> None:
        """Forward bytes, or None for the end; while the cable is interrupted, keep them for a retransmission."""
        self._waiting.append(item)
        if self._cable.is_out and self.other is not None and not self._resending:
            self._resending = True
            task = asyncio.get_running_loop().create_task(self._forward_later())
            self._cable.tasks.add(task)
            task.add_done_callback(self._cable.tasks.discard)
        self.drain()

    async def _forward_later(self) -> None:
        """Forward the waiting bytes when TCP would retransmit them after the cable's repair."""
        loop = asyncio.get_running_loop()
        lost_at = loop.time()
        while self._cable.is_out:
            await self._cable.connected.wait()
            await asyncio.sleep(sent_again_at(lost_at, RESEND_S, loop.time()) - loop.time())
        self._resending = False
        self.drain()

    def drain(self) -> None:
        """Forward the waiting bytes, unless a retransmission has to do it later."""
        while self._waiting and self.other is not None and not self._resending:
            item = self._waiting.popleft()
            if item is None:
                self.other.close()
            elif self.other._transport is not None and not self.other._transport.is_closing():
                self._cable.passed[self._way] += len(item)
                self.other._transport.write(item)


async def _serve_cables(targets: Mapping[str, str], orders: Connection) -> None:
    """Run all cables of the process; execute orders to interrupt, to reconnect and to count bytes."""
    loop = asyncio.get_running_loop()
    cables = {name: _Cable(target) for name, target in targets.items()}
    servers = {name: await loop.create_server(cable.make_end, "127.0.0.1", 0) for name, cable in cables.items()}
    orders.send({name: f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for name, server in servers.items()})
    while (order := await asyncio.to_thread(orders.recv)) is not None:
        what, names = order
        for name in names:
            if what == "out":
                cables[name].connected.clear()
            elif what == "back":
                cables[name].connected.set()
        orders.send({name: dict(cables[name].passed) for name in names})
    for server in servers.values():
        server.close()  # a later connection would start a task that is never awaited
    for cable in cables.values():
        await cable.close()


def _run_cables(targets: Mapping[str, str], orders: Connection) -> None:
    asyncio.run(_serve_cables(targets, orders))


class Cables:
    """Simulated lines to brokers, in a separate process. `at` maps each broker to its cable's address."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._orders, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_run_cables, args=(dict(targets), theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.at: dict[str, str] = self._read_answer()

    def disconnect_all(self, names: Sequence[str]) -> None:
        """Interrupt these cables."""
        self._send_order("out", names)

    def reconnect_all(self, names: Sequence[str]) -> None:
        """End the interruption of these cables."""
        self._send_order("back", names)

    def down(self, name: str) -> int:
        """Return how many bytes a broker has sent through its cable."""
        return int(self._send_order("passed", [name])[name]["down"])

    def close(self) -> None:
        """End every connection."""
        self._orders.send(None)
        self._process.join(30)

    def _send_order(self, what: str, names: Sequence[str]) -> Any:
        """Send an order to the process of the cables; return its answer."""
        self._orders.send((what, list(names)))
        return self._read_answer()

    def _read_answer(self) -> Any:
        """Return the next answer of the cables' process. Raises TimeoutError."""
        if not self._orders.poll(ANSWER_S):
            raise TimeoutError("the cables do not answer")
        return self._orders.recv()


@contextmanager
def lay_cables(**targets: str) -> Iterator[Cables]:
    """Start a cable to each of these brokers, given as name=address; close them at the end of the block."""
    cables = Cables(targets)
    try:
        yield cables
    finally:
        cables.close()
