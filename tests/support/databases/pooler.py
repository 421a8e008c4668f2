"""A stand-in for PgBouncer: clients share server connections, each for a transaction or for a whole session.

It supports the protocol as far as psycopg2 uses it (simple queries and COPY), without passwords and TLS.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SSL, _CANCEL = 80877103, 80877102
_FATAL = (ConnectionError, OSError, EOFError)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _message(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read one message of PostgreSQL's protocol; return its type and its bytes."""
    head = _read_exactly(connection, 5)
    return head[:1], head + _read_exactly(connection, struct.unpack("!I", head[1:])[0] - 4)


class Pooler:
    """A pooler that listens on a loopback port."""

    def __init__(self, server: Path, *, by_transaction: bool) -> None:
        self._server = server
        self._by_transaction = by_transaction
        self._idle: list[socket.socket] = []
        self._greeting = b""
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for connection in self._idle:
            connection.close()

    def _accept(self) -> None:
        with suppress(*_FATAL):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        with client, suppress(*_FATAL):
            startup = self._startup(client)
            server = self._take_server(startup)
            client.sendall(self._greeting + b"K" + struct.pack("!III", 12, 4711, 0) + b"Z\0\0\0\5I")
            while True:
                kind, data = _message(client)
                if kind == b"X":
                    break
                server = server or self._take_server(startup)
                server.sendall(data)
                if kind != b"d" and self._relay(server, client) and self._by_transaction:
                    self._idle.append(server)
                    server = None
        if server is not None:
            server.close()

    @staticmethod
    def _startup(client: socket.socket) -> bytes:
        while True:
            size = _read_exactly(client, 4)
            body = _read_exactly(client, struct.unpack("!I", size)[0] - 4)
            code = struct.unpack("!I", body[:4])[0]
            if code == _CANCEL:
                raise EOFError
            if code != _SSL:
                return size + body
            client.sendall(b"N")

    def _take_server(self, startup: bytes) -> socket.socket:
        """Return an idle server connection, or open one with this startup message."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._server))
            server.sendall(startup)
            said, kind = b"", b""
            while kind != b"Z":
                kind, data = _message(server)
                said += data if kind in (b"R", b"S") else b""
            self._greeting = said
            return server

    @staticmethod
    def _relay(server: socket.socket, client: socket.socket) -> bool:
        """Forward the server's messages; return whether its transaction has ended."""
        while True:
            kind, data = _message(server)
            client.sendall(data)
            if kind == b"Z":
                return data.endswith(b"I")
            if kind == b"G":
                return False


@contextmanager
def pooler(server: Path, *, by_transaction: bool) -> Iterator[int]:
    """Run a pooler in front of a server's socket; yield its port."""
    running = Pooler(server, by_transaction=by_transaction)
    try:
        yield running.port
    finally:
        running.close()
