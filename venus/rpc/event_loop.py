"""Event loop of a process with grpc.aio and HTTP, and the bridge between it and other threads.

gRPC's thread signals each event by one byte in a pair of sockets. Its handler takes all waiting events, but only one
byte. If several events arrive in each turn of the loop, about 280 bytes fill the pair. From then on gRPC's thread
blocks until the next turn: one event a turn. So this loop reads all other bytes itself.

A wake-up of the loop costs a system call and a turn of the interpreter lock, so calls from threads are collected. The
first one wakes the loop, which then runs all calls posted until that moment. Each lane of blocking calls has its own
threads, so that heartbeats and health checks never wait for large reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from venus.flow.degradation import THREADS, Lane

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Time limit from a connection to the end of its TLS handshake.
TLS_HANDSHAKE_S = 5.0
_HANDLER = "_handle_events"
_BYTES_MAX = 4096
#: All loops of a process share the pair. If two of them read it at once, a handler could find no byte and take nothing.
_one_loop = threading.Lock()


class EventLoop(asyncio.SelectorEventLoop):
    """Event loop of a process with grpc.aio and HTTP."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        """Listen, and close connections that do not complete their TLS handshake soon; asyncio would wait for 60 s."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", TLS_HANDSHAKE_S)
        return await super().create_server(*args, **options)

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Register a callback for readable sockets; gRPC's handler is called once for all its waiting bytes."""
        if isinstance(fd, socket.socket) and _HANDLER in repr(callback):
            callback = functools.partial(_handle_all, fd, callback)
        super().add_reader(fd, callback, *args)


def _handle_all(pair: socket.socket, handle: Callable[..., object], *args: Any) -> None:
    """Read all waiting bytes but one, which the handler reads: their events are already in gRPC's queue."""
    with _one_loop, contextlib.suppress(BlockingIOError):  # another loop of this process has taken them, and the events
        waiting = len(pair.recv(_BYTES_MAX, socket.MSG_PEEK))
        if waiting > 1:
            pair.recv(waiting - 1)
        handle(*args)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`."""
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        return runner.run(main)


class LoopBridge:
    """Calls into the loop from any thread, and calls from the loop to the lanes' threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False
        self._together = 0  # the thread that is inside `coalesce_posts`
        self._owes_wake = False  # whether that thread has posted a call that wakes the loop
        self._pools = {
            lane: ThreadPoolExecutor(threads, f"venus-{lane.label.replace(' ', '-')}")
            for lane, threads in THREADS.items()
        }
        self._calls_of = dict.fromkeys(Lane, 0)  # calls that wait or run

    def post(self, call: Callable[P, object], *args: P.args, **_: P.kwargs) -> None:
        """Run `call` in the loop, in the order of posting. Works in any thread."""
        self._calls.append((call, args))
        if threading.get_ident() == self._together:
            self._owes_wake = True
        else:
            self._wake()

    def post_idly(self, call: Callable[P, object], *args: P.args, **_: P.kwargs) -> None:
        """Queue `call` without waking the loop: it runs, in the order of posting, with the next call that does."""
        self._calls.append((call, args))

    @contextlib.contextmanager
    def coalesce_posts(self) -> Iterator[None]:
        """Wake the loop once for all calls that this thread posts inside. Only one thread may call it."""
        self._together = threading.get_ident()
        try:
            yield
        finally:
            self._together = 0
            owes_wake, self._owes_wake = self._owes_wake, False
            if owes_wake and self._calls:
                self._wake()

    def _wake(self) -> None:
        """Wake the loop to run all queued calls, unless it is woken already."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # the loop has ended
                self._calls.clear()

    def _run(self) -> None:
        """Run all queued calls, in the loop."""
        self._woken = False
        while self._calls:
            call, args = self._calls.popleft()
            try:
                call(*args)
            except Exception:  # the remaining calls must still run
                logger.exception("a call into the event loop failed")

    def call_when_done(self, future: Future[T], call: Callable[[Future[T]], object]) -> None:
        """Run `call` in the loop when the broker's core has resolved the future."""
        future.add_done_callback(lambda done: self.post(call, done))

    async def run_blocking(self, lane: Lane, call: Callable[P, T], *args: P.args, **_: P.kwargs) -> T:
        """Run a blocking call in its lane. If it returns a future of the broker's core, await that too."""
        self._calls_of[lane] += 1
        try:
            answer = await self._loop.run_in_executor(self._pools[lane], call, *args)
        finally:
            self._calls_of[lane] -= 1
        return await asyncio.wrap_future(answer) if isinstance(answer, Future) else answer

    async def open_blocking(
        self, lane: Lane, close: Callable[[T], object], call: Callable[P, T], *args: P.args, **_: P.kwargs
    ) -> T:
        """Run a blocking call that opens something. If the caller is cancelled meanwhile, close what it has opened."""
        opening = asyncio.ensure_future(self.run_blocking(lane, call, *args, **_))

        def close_unwanted(done: asyncio.Future[T]) -> None:
            """Close what the cancelled call has opened."""
            if not done.cancelled() and done.exception() is None:
                with contextlib.suppress(RuntimeError):  # the lanes are closed because the broker stops
                    self.run_in_background(lane, close, done.result())

        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(close_unwanted)
            raise

    def lane_load(self, lane: Lane) -> tuple[int, int]:
        """Return how many calls of a lane run and how many wait."""
        threads, calls = THREADS.get(lane, 1), self._calls_of[lane]
        return min(calls, threads), max(0, calls - threads)

    def run_in_background(self, lane: Lane, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a blocking call without waiting for it. Cancelled streams use it to clean up."""
        self._pools[lane].submit(call, *args, **kwargs)

    def close(self) -> None:
        """Wait for the calls of every lane and stop its threads."""
        for pool in self._pools.values():
            pool.shutdown(wait=True)
