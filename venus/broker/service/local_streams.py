"""The broker's end of streams of other processes of this machine (venus/rpc/local_socket.py).

A stream is a connection and a task in the service's event loop, which runs the same handler as a gRPC call. Only
processes of the broker's own user are served, and only by a broker without TLS, whose clients may do everything.
Invalid data ends the connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from venus.broker.service.access import FIRST_FRAME_S
from venus.broker.service.in_process import STOP_GRACE_S, Handler, run_handler, wait_for_tasks
from venus.errors import ProtocolError, VenusError
from venus.rpc.in_process import stopping_error
from venus.rpc.local_socket import (
    GREETING,
    RECEIVE_BYTES,
    PieceKind,
    PieceReader,
    build_piece,
    encode_error,
    is_own_user,
    listen_at,
    peer_of,
)
from venus.rpc.sealed import frame_opener, serialise_frame, stream_types

logger = logging.getLogger(__name__)

#: A connection is read until this many bytes of frames wait for their handler. Empty frames count as well.
QUEUED_BYTES_MAX, FRAME_OVERHEAD_BYTES = RECEIVE_BYTES, 64
#: A client that reads nothing gets no more than this and one frame.
UNSENT_BYTES_MAX = RECEIVE_BYTES
#: The shortest time between two checks of a silent client.
CHECK_S_MIN = 0.01


class LocalServer:
    """Streams of clients on this machine."""

    def __init__(self, handlers: Mapping[str, Handler], *, silence_s: float, timeout_s: float) -> None:
        self.handlers, self.silence_s, self.timeout_s = handlers, silence_s, timeout_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._address = ""

    @property
    def streams(self) -> int:
        """How many streams are served."""
        return len(self._tasks)

    async def start(self, address: str) -> None:
        """Listen. If that is not possible, return without an error: clients then use gRPC."""
        self._address = address
        listening = listen_at(address)
        if listening is None:
            logger.info("clients on this machine use gRPC: a local socket for %s cannot be opened", address)
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: LocalContext(self), sock=listening)

    def run(self, context: LocalContext, handler: Handler) -> asyncio.Task[None]:
        """Serve a stream in a task."""
        task = asyncio.get_running_loop().create_task(self._run(context, handler))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, context: LocalContext, handler: Handler) -> None:
        """Run the handler of a stream, then end the stream for the client."""
        is_serving = self._server is not None
        context.end(await run_handler(handler, context) if is_serving else stopping_error(self._address))

    def refuse_streams(self) -> None:
        """Serve no new streams."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        """Wait until all streams, which were asked to end, have ended; cancel streams that take too long."""
        await wait_for_tasks(self._tasks)


class LocalContext(asyncio.Protocol):
    """One connection, as a substitute for the gRPC context of a stream's handler."""

    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._reader = PieceReader()
        self._parse: Callable[[bytes], Any] | None = None
        self._handler: Handler | None = None
        self._task: asyncio.Task[None] | None = None
        self._frames: deque[bytes] = deque()
        self._queued_bytes = 0
        self._pinged_at: float | None = None  # the first ping since the client was last heard
        self._has_all = self._is_paused = False
        self._arrived, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()

    # -- the connection --------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Greet a process of the own user; disconnect any other one."""
        self._transport: asyncio.Transport = transport
        connected = transport.get_extra_info("socket")
        if not is_own_user(connected):
            logger.debug("a process of user %s was refused at the local socket", peer_of(connected)[1])
            transport.abort()
            return
        process = peer_of(connected)[0]  # 0: of a process namespace that is not visible here
        self._peer = f"process {process or 'of a container'} of this machine"
        self._heard_at = self._began_at = time.monotonic()
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        transport.write(GREETING)
        asyncio.get_running_loop().call_later(self.seconds_to_next_check(self._heard_at), self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the handler, as a lost connection over gRPC does."""
        self._has_all = True
        self._arrived.set()
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Let the handler wait: the client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let the handler continue."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Handle the pieces that arrived from the client; an invalid one ends the connection."""
        if self._transport.is_closing():
            return
        self._heard_at, self._pinged_at = time.monotonic(), None
        try:
            for kind, content in self._reader.feed(data):
                self._on_piece(kind, content)
        except ProtocolError as error:
            logger.warning("%s: %s", self._peer, error)
            self.end(error)

    def _on_piece(self, kind: PieceKind, content: bytes) -> None:
        """Handle one piece from the client: the opening of the stream, a frame, the end, a ping or its answer."""
        if kind is PieceKind.OPEN:
            self._open(content.decode("ascii", errors="replace"))
        elif kind is PieceKind.FRAME:
            self._queue_frame(content)
        elif kind is PieceKind.END:
            self._has_all = True
            self._arrived.set()
        elif kind is PieceKind.PING:
            self._send_sign(PieceKind.PONG)
        elif kind is PieceKind.ERROR:
            raise ProtocolError("a client of a local stream sent an error")

    def _open(self, method: str) -> None:
        """Find the handler of the method that the client opens. Raises ProtocolError."""
        if self._handler is not None or method not in self._server.handlers:
            raise ProtocolError(f"a local stream cannot be opened for {method!a}")
        self._handler, self._parse = self._server.handlers[method], frame_opener(stream_types(method)[0])

    def _queue_frame(self, content: bytes) -> None:
        """Queue a frame for the handler, and start the handler with the first one."""
        if self._handler is None or self._has_all:
            raise ProtocolError("a frame came before its local stream was opened, or after its end")
        if self._task is None:
            self._task = self._server.run(self, self._handler)
        self._frames.append(content)
        self._queued_bytes += len(content) + FRAME_OVERHEAD_BYTES
        if self._queued_bytes > QUEUED_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._arrived.set()

    # -- the silence of a client -----------------------------------------------------------------------------------

    def seconds_to_next_check(self, now: float) -> float:
        """Return in how many seconds to check again: at the latest when a ping, or the end of the stream, is due."""
        silence_s, timeout_s = self._server.silence_s, self._server.timeout_s
        due = self._heard_at + silence_s if self._pinged_at is None else self._pinged_at + timeout_s
        return min(silence_s / 2, timeout_s / 2, max(CHECK_S_MIN, due - now))

    def _check(self) -> None:
        """Disconnect a client that opens no stream or answers no ping. Send a sign of life while reading is paused.

        Silence alone is no reason to cut a client: the broker itself may not have run or read for that long.
        """
        if self._transport.is_closing():
            return
        now, server = time.monotonic(), self._server
        if self._is_paused:
            self._send_sign(PieceKind.PONG)
        elif self._task is None and now - self._began_at > FIRST_FRAME_S:
            self._transport.abort()
        elif self._pinged_at is not None and now - self._pinged_at >= server.timeout_s:
            logger.warning("%s has not answered for %.0f s: its stream is ended", self._peer, now - self._heard_at)
            self._transport.abort()
        elif now - self._heard_at >= server.silence_s:
            self._pinged_at = now if self._pinged_at is None else self._pinged_at
            self._send_sign(PieceKind.PING)
        asyncio.get_running_loop().call_later(self.seconds_to_next_check(now), self._check)

    def _send_sign(self, kind: PieceKind) -> None:
        """Send a ping or its answer to a client that reads."""
        if self._writable.is_set():  # a client that does not read needs no answer
            self._transport.write(build_piece(kind))

    # -- the handler -----------------------------------------------------------------------------------------------

    def peer(self) -> str:
        """Return the name of the peer in messages."""
        return self._peer

    async def read(self) -> Any:
        """Return the client's next frame, or EOF."""
        while not self._frames:
            if self._has_all:
                return grpc.aio.EOF
            self._arrived.clear()
            await self._arrived.wait()
        content = self._frames.popleft()
        self._queued_bytes -= len(content) + FRAME_OVERHEAD_BYTES
        if self._is_paused and self._queued_bytes <= QUEUED_BYTES_MAX:
            self._is_paused = False
            self._heard_at = time.monotonic()
            self._transport.resume_reading()
        assert self._parse is not None
        return self._parse(content)

    async def write(self, frame: Any) -> None:
        """Send a frame; wait while the client does not read."""
        await self._writable.wait()
        if not self._transport.is_closing():  # else the handler is cancelled next
            self._transport.write(build_piece(PieceKind.FRAME, serialise_frame(frame)))

    def end(self, error: VenusError | None) -> None:
        """End the stream for the client, and the connection."""
        if not self._transport.is_closing():
            self._transport.write(encode_error(error) if error is not None else build_piece(PieceKind.END))
            self._transport.close()
            asyncio.get_running_loop().call_later(STOP_GRACE_S, self._transport.abort)
