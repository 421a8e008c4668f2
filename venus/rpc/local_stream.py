"""Client end of a stream to a broker on this machine, without gRPC (local_socket.py).

A frame over gRPC costs both processes ten times the CPU, mostly in threads that wake each other. Here the calling
thread sends its frames itself, and one thread receives. That thread also sends what the socket did not take at once. A
client that cannot use a local stream, or has to use another broker, uses gRPC.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from venus.errors import DigestMismatch, NotLeader, Overloaded, Unavailable, VenusError
from venus.rpc.channel import KEEPALIVE_TIMEOUT_S
from venus.rpc.connection import OVERLOADED_S, BrokerConnection
from venus.rpc.local_socket import RECEIVE_BYTES, PieceKind, PieceReader, build_piece, connect_to, decode_error
from venus.rpc.sealed import opener, seal, stream_types

T = TypeVar("T")
SentT = TypeVar("SentT", bound=Message, covariant=True)
FrameT = TypeVar("FrameT", bound=Message, contravariant=True)


class LocalClient(Protocol[SentT, FrameT]):
    """The methods of a client that its stream to a broker in the same process calls (duplex.py)."""

    @property
    def lock(self) -> threading.Lock:
        """The lock of the client's queues."""
        ...

    def next_frame_under_lock(self, attempt: int) -> tuple[SentT | None, float | None, bool]:
        """Return the next frame; without one, in how many seconds there may be one, and whether the stream is over."""
        ...

    def on_frame(self, frame: FrameT) -> None:
        """Handle a frame. Raises VenusError for an invalid one, which ends the stream."""
        ...

    def on_end(self, error: VenusError) -> None:
        """Record the end of the stream and its cause."""
        ...


class LocalBroker:
    """A broker on this machine, in place of a channel to it."""

    def __init__(self, address: str, keepalive_s: float) -> None:
        self.address, self.keepalive_s = address, keepalive_s


class LocalStreamRefused(Exception):
    """The broker serves no local streams any more."""


class LocalConnection:
    """Substitute for a connection over gRPC (connection.py), which it opens if a local stream cannot be used."""

    def __init__(self, address: str, business: str, keepalive_s: float) -> None:
        self._reach, self._business, self._keepalive_s = address, business, keepalive_s
        self._fallback: BrokerConnection | None = None
        if not self._is_served():
            self._open_fallback()
            if self._fallback is not None and self._is_served():  # the broker was still starting at the first check
                self._fallback.close()
                self._fallback = None

    @property
    def address(self) -> str:
        """HOST:PORT of the broker."""
        return self._fallback.address if self._fallback is not None else str(self._reach)

    @property
    def can_move_nearer(self) -> bool:
        """Whether a nearer set of brokers serves again."""
        return self._fallback is not None and self._fallback.can_move_nearer

    def call(self, business: str, ask: Callable[[Any], T]) -> T:
        """Return the result of `ask`; repeat it for a while if the broker says when to ask again."""
        end = time.monotonic() + OVERLOADED_S
        while self._fallback is None:
            try:
                return ask(LocalBroker(str(self._reach), self._keepalive_s))
            except (LocalStreamRefused, NotLeader):  # the other connection can choose another broker
                self._open_fallback()
            except Overloaded as error:
                if not error.retry_after_s or time.monotonic() + error.retry_after_s > end:
                    raise
                time.sleep(error.retry_after_s)
        return self._fallback.call(business, ask)

    def record_error(self, business: str, error: VenusError) -> None:
        """Record what an error says about leaders and unreachable brokers, for the next connection."""
        if self._fallback is not None:
            self._fallback.record_error(business, error)

    def close(self) -> None:
        """Close the channel of the fallback."""
        if self._fallback is not None:
            self._fallback.close()

    def _is_served(self) -> bool:
        """Return whether the broker serves local streams now."""
        found = connect_to(self._reach)
        if found is not None:
            found.close()
        return found is not None

    def _open_fallback(self) -> None:
        """Open the connection over gRPC."""
        self._fallback = BrokerConnection(self._reach, business=self._business, keepalive_s=self._keepalive_s)


class LocalStream(Generic[SentT, FrameT]):
    """One stream, with its receiving thread."""

    def __init__(self, client: LocalClient[SentT, FrameT], attempt: int, first: SentT) -> None:
        self._client, self._attempt = client, attempt
        self._unsent = memoryview(build_piece(PieceKind.FRAME, seal(first)))
        self._socket: socket.socket | None = None  # None: not open yet, or closed again
        self._thread: threading.Thread | None = None
        self._poke = -1
        self._has_ended = False  # no more frames are sent
        self._due_at = self._sleeps_until = float("inf")  # when there may be a frame to send
        self._heard_at = self._pinged_at = 0.0

    def start(self, broker: LocalBroker, method: str, thread_name: str) -> None:
        """Open the stream at the broker. Raises LocalStreamRefused if the broker serves none."""
        connected = connect_to(broker.address)
        if connected is None:
            raise LocalStreamRefused
        try:
            poke = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:  # no descriptors are left
            connected.close()
            raise LocalStreamRefused from None
        self._keepalive_s, self._heard_at = broker.keepalive_s, time.monotonic()
        self._parse: Callable[[bytes], Any] = opener(stream_types(method)[1])
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        with self._client.lock:
            self._poke = poke
            self._unsent = memoryview(build_piece(PieceKind.OPEN, method.encode()) + self._unsent)
            self._socket = connected
        self._thread.start()

    def wake(self) -> None:
        """Send the queued frames. The caller holds the client's lock."""
        self._send()
        if self._socket is not None and (self._unsent or self._due_at < self._sleeps_until):
            os.eventfd_write(self._poke, 1)

    def close(self, timeout_s: float) -> None:
        """Wait until the broker has ended the stream; cut it after a while."""
        if self._thread is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            with self._client.lock, suppress(OSError):
                if self._socket is not None:
                    self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join()

    # -- under the client's lock -----------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send frames until there are no more, or until the socket is full."""
        while self._socket is not None:
            if self._unsent:
                try:
                    self._unsent = self._unsent[self._socket.send(self._unsent) :]
                except BlockingIOError:
                    return
                except OSError:  # the thread finds the end of the connection
                    self._has_ended, self._unsent = True, memoryview(b"")
                    return
            elif self._has_ended:
                return
            else:
                frame, pause_s, self._has_ended = self._client.next_frame_under_lock(self._attempt)
                self._due_at = time.monotonic() + pause_s if pause_s is not None else float("inf")
                if frame is not None:
                    self._unsent = memoryview(build_piece(PieceKind.FRAME, seal(frame)))
                elif self._has_ended:
                    self._unsent = memoryview(build_piece(PieceKind.END))
                else:
                    return

    def _add(self, kind: PieceKind) -> None:
        """Append a piece without content to the unsent bytes."""
        self._unsent = memoryview(bytes(self._unsent) + build_piece(kind))

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Receive until the stream ends, close the socket, and pass the cause to the client."""
        connected = self._socket
        assert connected is not None
        error: VenusError
        try:
            error = self._receive(connected)
        except OSError as failure:
            error = Unavailable(f"the connection to the broker was lost: {failure.strerror}")
        except VenusError as refused:
            error = refused
        with self._client.lock:
            self._socket = None
            connected.close()
            os.close(self._poke)
        self._client.on_end(error)

    def _receive(self, connected: socket.socket) -> VenusError:
        """Handle what arrives until the end of the stream; return its cause. Raises OSError and VenusError."""
        reader, poller = PieceReader(), select.poll()
        poller.register(self._poke, select.POLLIN)
        while True:
            with self._client.lock:
                self._send()
                wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
                self._sleeps_until = min(self._due_at, self._next_check())
            poller.register(connected, wanted)
            found = dict(poller.poll(max(0.0, self._sleeps_until - time.monotonic()) * 1000))
            if self._poke in found:
                os.eventfd_read(self._poke)
            if found.get(connected.fileno(), 0) & ~select.POLLOUT:
                data = connected.recv(RECEIVE_BYTES)
                if not data:
                    return Unavailable("the broker has closed the connection")
                self._heard_at = time.monotonic()
                for kind, content in reader.feed(data):
                    if (error := self._on_piece(kind, content)) is not None:
                        return error
            elif self._check_silence():
                return Unavailable("the broker does not answer any more")

    def _on_piece(self, kind: PieceKind, content: bytes) -> VenusError | None:
        """Handle a piece; return the cause if it ends the stream."""
        if kind is PieceKind.FRAME:
            try:
                frame = self._parse(content)
            except DecodeError:
                frame = None
            if frame is None:
                raise DigestMismatch("a message arrived damaged: it cannot be parsed")
            self._client.on_frame(frame)
        elif kind is PieceKind.PING:
            with self._client.lock:
                self._add(PieceKind.PONG)
        elif kind is PieceKind.ERROR:
            return decode_error(content)
        elif kind is PieceKind.END:
            return Unavailable("the broker ended the stream")
        return None

    def _next_check(self) -> float:
        """Return when the broker's silence is to be judged."""
        is_asked = self._pinged_at > self._heard_at
        return self._pinged_at + KEEPALIVE_TIMEOUT_S if is_asked else self._heard_at + self._keepalive_s

    def _check_silence(self) -> bool:
        """Return whether the broker has owed an answer for too long; ask it for one after a while."""
        now = time.monotonic()
        if now < self._next_check():
            return False
        if self._pinged_at > self._heard_at:
            return True
        self._pinged_at = now
        with self._client.lock:
            self._add(PieceKind.PING)
        return False
