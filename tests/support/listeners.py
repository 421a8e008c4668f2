"""Servers that receive alarms: a real HTTP server, a real SMTP server, and servers that hang in several ways."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.support.ports import free_port


class HttpListener:
    """HTTP server that keeps received requests, and answers with `status`."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.taken: list[dict[str, Any]] = []
        self.status = 200
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if listener.status == 200:
                    listener.taken.append(json.loads(body) | {"path": self.path})
                self.send_response(listener.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> HttpListener:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def events(self) -> list[tuple[str, str]]:
        """Return event and rule of every received message."""
        return [(alarm["event"], alarm["rule"]) for document in list(self.taken) for alarm in document["alarms"]]


class MailListener:
    """An SMTP server on the loopback interface."""

    def __init__(self) -> None:
        self.taken: list[tuple[list[str], str]] = []
        self._controller = Controller(self, hostname="127.0.0.1", port=0, ready_timeout=60.0)

    async def handle_DATA(self, _: SMTP, __: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.content
        assert isinstance(content, bytes)
        self.taken.append((envelope.rcpt_tos, content.decode()))
        return "250 taken"

    @property
    def address(self) -> str:
        """Return HOST:PORT."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> MailListener:
        self._port = self._controller.port = free_port()  # aiosmtpd's own start would wait for port 0 to answer
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()


def say_nothing(connection: socket.socket, over: threading.Event) -> None:
    """Never answer."""
    over.wait(300)


def drip(connection: socket.socket, over: threading.Event) -> None:
    """Send single bytes with pauses: each byte restarts a time-out."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not over.wait(0.2):
        connection.sendall(b"x")


@contextmanager
def run_hanging_server(behave: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """Run a server that passes each accepted connection to `behave`; yield its address."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            behave(connection, over)

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            for thread in (accepting, *threads):
                thread.join(10)


def measure_s(call: Callable[[], object]) -> float:
    """Return how long a call takes, in seconds."""
    began = time.monotonic()
    call()
    return time.monotonic() - began
