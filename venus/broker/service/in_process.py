"""The broker's end of streams of clients in the same process (venus/rpc/in_process.py).

A stream is one task in the service's event loop, which runs the same handler as a gRPC call. Its context passes frames
from and to the client. Frames and bodies are checked, but not the identity of a peer.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from venus.errors import Unavailable, VenusError
from venus.rpc.event_loop import LoopBridge
from venus.rpc.in_process import END, InProcessStream, stopping_error
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: Serves a stream until it ends. Raises VenusError for the client.
Handler = Callable[[Any], Awaitable[None]]
#: How long streams may take to end when the broker stops.
STOP_GRACE_S = 2.0


class InProcessContext:
    """The part of a gRPC context that the handler of a stream uses."""

    def __init__(self, stream: InProcessStream[Any, Any]) -> None:
        self._stream = stream
        self._ready = asyncio.Event()
        #: Each takes a small message in the client's thread, or returns False. The handler of a producer sets them.
        self.on_half: Callable[[broker_pb2.Half], bool] = lambda _: False
        self.on_commit: Callable[[broker_pb2.Decision], bool] = lambda _: False
        #: Writes the half message that was taken, in the client's thread if possible.
        self.carry_out: Callable[[], None] = lambda: None

    def peer(self) -> str:
        """Return the name of the peer in messages."""
        return "this process"

    def wake(self) -> None:
        """Make `read` look for the client's next frame. Used in the event loop."""
        self._ready.set()

    async def read(self) -> Any:
        """Return the client's next frame, or EOF."""
        while True:
            self._ready.clear()
            frame, pause_s = self._stream.take()
            if frame is END:
                return grpc.aio.EOF
            if frame is not None:
                return frame
            timer = None if pause_s is None else asyncio.get_running_loop().call_later(pause_s, self._ready.set)
            try:
                await self._ready.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    async def write(self, frame: Any) -> None:
        """Hand a frame to the client. A client that refuses it has ended the stream, as if its connection were lost."""
        try:
            self._stream.put(frame)
        except VenusError as error:
            raise asyncio.CancelledError(str(error)) from error

    def put_at_once(self, frame: Any) -> bool:
        """Hand a frame to the client in this thread; False = the client refuses it, and `write` will end the stream."""
        try:
            self._stream.put(frame)
        except VenusError:
            return False
        return True


class InProcessServer:
    """Streams of clients in this process."""

    def __init__(self, bridge: LoopBridge, handlers: Mapping[str, Handler]) -> None:
        self._bridge, self._handlers = bridge, handlers
        self._lock = threading.Lock()
        self._serving = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: The address at which other processes reach the broker.
        self.address = ""

    def start(self, address: str) -> None:
        """Serve from now on."""
        self.address, self._serving = address, True

    def open(self, method: str, stream: InProcessStream[Any, Any]) -> ServedTask:
        """Return the broker's end of a stream."""
        return ServedTask(self, stream, self._handlers[method])

    def start_task(self, served: ServedTask) -> None:
        """Start to serve a stream. Raises Unavailable if the broker is stopping. Works in any thread."""
        with self._lock:  # a stream that is posted before `stop` is seen by it
            if not self._serving:
                raise stopping_error(self.address)
            self.post(self._run, served)

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Run a call in the event loop, from any thread."""
        self._bridge.post(call, *args)

    def _run(self, served: ServedTask) -> None:
        """Start the task of a stream; refuse the stream if the broker is stopping. Runs in the event loop."""
        if not self._serving:
            served.refuse()
            return
        task = served.task = asyncio.create_task(served.serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: served.on_done())

    def refuse_streams(self) -> None:
        """Serve no new streams."""
        with self._lock:
            self._serving = False

    async def stop(self) -> None:
        """Wait until all streams, which were asked to end, have ended; cancel streams that take too long."""
        await wait_for_tasks(self._tasks)


class ServedTask:
    """The broker's end of one stream."""

    def __init__(self, server: InProcessServer, stream: InProcessStream[Any, Any], handler: Handler) -> None:
        self._server, self._stream, self._handler = server, stream, handler
        self._context: InProcessContext | None = None
        self._is_woken = False
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to serve. Raises Unavailable if the broker is stopping."""
        self._server.start_task(self)

    def wake(self) -> None:
        """Let the stream read the client's frames: the client may have something to send."""
        if not self._is_woken:
            self._is_woken = True
            self._server.post(self._on_wake)

    def send_half(self, half: broker_pb2.Half) -> bool:
        """Hand a half message to the core without a frame; return False if that is not possible now."""
        return self._context is not None and self._context.on_half(half)

    def commit(self, decision: broker_pb2.Decision) -> bool:
        """Hand a COMMIT to the core without a frame; return False if that is not possible now."""
        return self._context is not None and self._context.on_commit(decision)

    def carry_out(self) -> None:
        """Write the half message that was handed to the core, in this thread if possible."""
        if self._context is not None:
            self._context.carry_out()

    def _on_wake(self) -> None:
        """Let the handler look for the client's next frame. Runs in the event loop."""
        self._is_woken = False
        if self._context is not None:
            self._context.wake()

    def cancel(self) -> None:
        """End the stream now."""
        self._server.post(self._on_cancel)

    def _on_cancel(self) -> None:
        """Cancel the task of the stream. Runs in the event loop."""
        if self.task is not None:
            self.task.cancel()

    def refuse(self) -> None:
        """End the stream for the client, because the broker is stopping."""
        self._stream.end(stopping_error(self._server.address))

    def on_done(self) -> None:
        """End the stream for the client if its task was cancelled before it began."""
        self._stream.end(Unavailable("the stream was cancelled"))

    async def serve(self) -> None:
        """Serve the stream until it ends, and end it for the client."""
        context = self._context = InProcessContext(self._stream)
        self._stream.end(await run_handler(self._handler, context) or Unavailable("the broker ended the stream"))


async def run_handler(handler: Handler, context: Any) -> VenusError | None:
    """Serve a stream until it ends; return the error for its client, None if the handler has ended."""
    try:
        await handler(context)
    except asyncio.CancelledError:
        return Unavailable("the stream was cancelled")
    except VenusError as raised:
        error = copy.copy(raised)  # other streams may end with the same error; each caller gets a copy
        if isinstance(error, Unavailable):
            error.said_by_peer = True
        return error
    except Exception as raised:
        logger.exception("a stream of %s failed", context.peer())
        return VenusError(f"the broker failed: {raised!r}")
    return None


async def wait_for_tasks(tasks: set[asyncio.Task[None]]) -> None:
    """Wait until all streams, which were asked to end, have ended; cancel streams that take too long."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=STOP_GRACE_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
