"""Event loop that keeps up with gRPC, whose thread signals each event by one byte in a pair of sockets.

gRPC's handler takes all events that wait, but one byte only. While several events come in each turn of the loop, some
280 bytes fill the pair, and from then on gRPC's thread stands still until the next turn: one event a turn. With 5,000
subscribers a producer's answer took 5 s in a loop whose turns took 0.1 s. So all bytes but that one are taken here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: From a connection to the end of its TLS handshake.
TLS_HANDSHAKE_S = 5.0
_HANDLER = "_handle_events"
_BYTES_MAX = 4096
#: The pair is one for all loops of a process: between two of them the handler would find no byte, and take nothing.
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
