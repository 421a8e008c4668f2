"""A TCP proxy between a client and a broker that disturbs the traffic as networks do: cut, silence, delay, damage."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from enum import Enum

CHUNK_BYTES = 65536


class Direction(Enum):
    """Direction of bytes through a proxy."""

    UP = "client to broker"
    DOWN = "broker to client"


class Proxy:
    """Listens on a free loopback port and forwards everything by default."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._flowing = threading.Event()
        self._flowing.set()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._damage: dict[Direction, bytes | int] = {}
        self._closed = False
        self.delay_s = 0.0
        self.bytes_per_s = 0.0  # bytes per second in each direction; 0 = unlimited
        self.passed = dict.fromkeys(Direction, 0)
        self.flipped = 0
        self.accepted = 0
        self._spawn(self._accept)

    # -- faults --------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every connection."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for end in sockets:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            _close(end)

    def silence(self) -> None:
        """Keep the connections open but forward nothing more."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward bytes again."""
        self._flowing.set()

    def flip_at(self, way: Direction, position: int) -> None:
        """Flip one bit of the byte that follows `position` more bytes."""
        self._damage[way] = position

    def flip_in(self, way: Direction, pattern: bytes) -> None:
        """Flip one bit in the middle of the next occurrence of `pattern`."""
        self._damage[way] = pattern

    def half_close(self, way: Direction) -> None:
        """End one direction of every connection as if its sender had finished."""
        with self._lock:
            for index in range(0, len(self._sockets), 2):
                end = self._sockets[index + (way is Direction.UP)]
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Stop listening, and end every connection."""
        self._closed = True
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- internals -----------------------------------------------------------------------------------------------

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                self.accepted += 1
            except OSError:
                return
            try:
                broker = socket.create_connection(self._target, timeout=10)
            except OSError:
                _close(client)
                continue
            broker.settimeout(None)
            for end in (client, broker):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets += [client, broker]
            self._spawn(self._pump, client, broker, Direction.UP)
            self._spawn(self._pump, broker, client, Direction.DOWN)

    def _pump(self, source: socket.socket, sink: socket.socket, way: Direction) -> None:
        """Forward one direction of a connection, with the faults that are switched on."""
        for data in receive(source):
            if self.delay_s:
                time.sleep(self.delay_s)
            if self.bytes_per_s:
                time.sleep(len(data) / self.bytes_per_s)
            self._flowing.wait()
            data = self._damage_data(data, way)
            self.passed[way] += len(data)
            try:
                sink.sendall(data)
            except OSError:
                break
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _damage_data(self, data: bytes, way: Direction) -> bytes:
        wish = self._damage.get(way)
        if isinstance(wish, bytes):
            found = data.find(wish)
            position = found + len(wish) // 2 if found >= 0 else len(data)
        elif wish is not None:
            position = wish
            self._damage[way] = max(0, wish - len(data))
        else:
            return data
        if position >= len(data):
            return data
        del self._damage[way]
        self.flipped += 1
        return data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


def receive(source: socket.socket) -> Iterator[bytes]:
    """Yield received bytes until the connection ends in any way."""
    while True:
        try:
            data = source.recv(CHUNK_BYTES)
        except OSError:
            return
        if not data:
            return
        yield data


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
