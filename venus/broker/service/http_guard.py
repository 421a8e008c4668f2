"""Limits of the HTTP server: the number of connections, and the time for a request, an answer and a handshake.

uvicorn has no time-out for a request that never ends, and no limit of connections. A few hundred idle connections
would use up the file descriptors that gRPC and the store need. The number of TLS handshakes is limited too; the event
loop limits their time (venus/rpc/event_loop.py). uvicorn also wakes ten times a second to update the Date header; here
each request sets the header.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 64
#: Limit of connections whose TLS handshake has not ended.
HANDSHAKES_MAX = 32
#: The read buffer of each TLS connection: one record. asyncio's default is 256 KiB, which stay allocated until closed
#: connections are garbage-collected. Requests have no bodies. The name is private: another version may ignore it.
READ_BYTES = 16 << 10
sslproto.SSLProtocol.max_size = READ_BYTES
#: Time-out from the first byte, or the last answer, to the end of a request's head.
HEAD_S = 5.0
#: Time-out from the head to the end of the answer, and until the client has read it.
ANSWER_S = 30.0


#: Keys of a request's state: the client's certificate (PEM; None without one), and a function for an answer without an
#: end. The function replaces the time-out with one for a client that does not read; its arguments are that time and
#: what to call then.
CERTIFICATE, LIMIT_UNREAD = "certificate", "limit_unread"


def _certificate_of(transport: asyncio.Transport) -> bytes | None:
    """Return the client's certificate (PEM), None if there is none."""
    secured = transport.get_extra_info("ssl_object")
    found = secured.getpeercert(binary_form=True) if secured is not None else None
    return ssl.DER_cert_to_PEM_cert(found).encode() if found else None


class GuardedListener(socket.socket):
    """A listening socket that closes the oldest unfinished handshake when there are too many.

    A protocol learns of a connection only after its handshake, so `accept` counts the handshakes.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._beginning: dict[int, socket.socket] = {}  # by descriptor, the oldest first
        self._ending: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. asyncio accepts all waiting connections in one turn of its loop.

        The loop closes the displaced connections in its next turn; until then, new connections wait in the kernel.
        """
        self._ending = [one for one in self._ending if one.fileno() >= 0]
        if len(self._ending) >= HANDSHAKES_MAX:
            raise BlockingIOError
        connection, address = super().accept()
        self._beginning = {number: one for number, one in self._beginning.items() if one.fileno() == number}
        if len(self._beginning) >= HANDSHAKES_MAX:
            oldest = self._beginning.pop(next(iter(self._beginning)))
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its transport sees the end and closes it
            self._ending.append(oldest)
        self._beginning[connection.fileno()] = connection
        return connection, address

    def record_begun(self, number: int) -> None:
        """Record that the connection with this descriptor is ready for requests."""
        self._beginning.pop(number, None)


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with time-outs. With too many connections, the one idle longest is closed."""

    #: All connections of this process, the oldest first.
    _all: dict[GuardedProtocol, None] = {}  # shared on purpose
    _deadline: asyncio.TimerHandle | None = None
    _serving = False
    #: Only for an answer without an end: the time-out of a client that does not read, and what to call after it.
    _unread_s: float | None = None
    _on_unread: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or refuse it if all others are being answered."""
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        listener = getattr(self.config, "listener", None)
        if raw is not None and listener is not None:
            listener.record_begun(raw.fileno())
        self.app_state = {**self.app_state, CERTIFICATE: _certificate_of(transport), LIMIT_UNREAD: self._limit_unread}
        if len(self._all) >= CONNECTIONS_MAX:
            dawdler = next((found for found in self._all if not found._serving), self)
            dawdler.transport.abort()
            self._all.pop(dawdler, None)
            if dawdler is self:
                return
        self._all[self] = None
        self._set_deadline(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the list."""
        self._all.pop(self, None)
        self._lift_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process bytes. Bytes that do not end a request's head do not extend the deadline."""
        date = (b"date", formatdate(usegmt=True).encode())
        self.server_state.default_headers = [date, *self.config.encoded_headers]
        super().data_received(data)
        if not self._serving and self.cycle is not None and not self.cycle.response_complete:
            self._serving = True
            self._set_deadline(ANSWER_S)

    def on_response_complete(self) -> None:
        """Set the deadline of the next request, or of the client to read the answer."""
        self._serving, self._unread_s, self._on_unread = False, None, None
        self._set_deadline(ANSWER_S if self.transport.get_write_buffer_size() else HEAD_S)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Stop the answer while too much of it is unread, for a limited time if it has no end."""
        super().pause_writing()
        if self._unread_s is not None:
            self._set_deadline(self._unread_s)

    def resume_writing(self) -> None:
        """Continue the answer."""
        super().resume_writing()
        if self._unread_s is not None:
            self._lift_deadline()

    def _limit_unread(self, seconds: float, on_unread: Callable[[], None]) -> None:
        """Limit the time for which the client may leave an endless answer unread."""
        self._unread_s, self._on_unread = seconds, on_unread
        if self.flow.write_paused:  # by the previous answer, which the client has not read
            self._set_deadline(seconds)
        else:
            self._lift_deadline()

    def _set_deadline(self, seconds: float) -> None:
        """Abort the connection after some seconds, in place of an earlier deadline."""
        self._lift_deadline()
        self._deadline = self.loop.call_later(seconds, self._abort)

    def _lift_deadline(self) -> None:
        """Remove the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()

    def _abort(self) -> None:
        """Close the connection at once, and report an answer that was left unread."""
        if self._on_unread is not None:
            self._on_unread()
        transport: Any = self.transport
        transport.abort()


class GuardedConfig(uvicorn.Config):
    """uvicorn's configuration with the listening socket, so that protocols can reach it."""

    listener: GuardedListener | None = None


class GuardedServer(uvicorn.Server):
    """uvicorn without its signal handlers, which the process installs itself, and without its periodic ticks."""

    def __init__(self, config: GuardedConfig) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield

    async def main_loop(self) -> None:
        """Serve until `end`."""
        await self._ended.wait()

    def end(self) -> None:
        """Make `serve` return once all requests are answered."""
        self.should_exit = True
        self._ended.set()
