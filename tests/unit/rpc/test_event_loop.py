"""The loop handles all of gRPC's events in one iteration, and gRPC's thread never waits for it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from venus.rpc import event_loop

EVENTS = 2000


class Poller:
    """Sends events to a loop as gRPC does: an event into a queue, then a byte into a socket pair."""

    def __init__(self) -> None:
        self.reads, self._writes = socket.socketpair()
        self.reads.setblocking(False)
        self._queue: deque[int] = deque()
        self.turns: list[int] = []  # number of events that each iteration handled
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._thread.join(0.5)  # the loop is busy meanwhile

    def _poll(self) -> None:
        for n in range(EVENTS):
            self._queue.append(n)
            self._writes.send(b"1")

    def _handle_events(self) -> None:
        self.reads.recv(1)
        self.turns.append(len(self._queue))
        self._queue.clear()
        time.sleep(0.002)  # a turn takes time, in which gRPC's thread continues: else it may be one event a turn anyhow

    def close(self) -> None:
        self._thread.join(60)
        self.reads.close()
        self._writes.close()


async def _turn_count(poller: Poller) -> int:
    loop = asyncio.get_running_loop()
    loop.add_reader(poller.reads, poller._handle_events)
    poller.start()
    async with asyncio.timeout(60):
        while sum(poller.turns) < EVENTS:
            await asyncio.sleep(0.001)
    loop.remove_reader(poller.reads)
    return len(poller.turns)


def test_waiting_events_are_handled_in_few_iterations_however_few_bytes_the_pair_holds() -> None:
    poller = Poller()
    assert event_loop.run(_turn_count(poller)) < EVENTS / 20
    poller.close()


def test_grpc_is_recognised_by_its_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Callable[..., Any]] = []
    original = event_loop._handle_all

    def record_call(pair: socket.socket, handle: Callable[..., object], *args: Any) -> None:
        calls.append(handle)
        original(pair, handle, *args)

    monkeypatch.setattr(event_loop, "_handle_all", record_call)

    async def call_echo() -> bytes:
        async def answer(request: bytes, _: object) -> bytes:
            return request

        server = grpc.aio.server()
        handler: Any = grpc.unary_unary_rpc_method_handler(answer)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Test", {"Echo": handler})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary("/Test/Echo")
            found: bytes = await call(b"here")
        await server.stop(None)
        return found

    assert event_loop.run(call_echo()) == b"here"
    assert calls, "gRPC's handler has another name: the loop takes one event a turn again"
