"""Client end of a bidirectional stream: the common part of producer and subscriber.

Calls only queue. One thread writes (gRPC's own, which takes the next frame as soon as the last one is sent) and one
reads. Once the stream has broken, every call raises the error that broke it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

import grpc

from venus.errors import Unavailable, VenusError
from venus.rpc.connection import BrokerConnection
from venus.rpc.errors import from_rpc_error

CLOSE_TIMEOUT_S = 2.0

FrameT = TypeVar("FrameT")


class Duplex(Generic[FrameT]):
    """Stream of a business, with its two threads."""

    #: Name of the reading thread.
    thread_name = "venus-stream"

    def __init__(self, address: str, business: str, keepalive_s: float) -> None:
        self._business = business
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for the writer
        self._news = threading.Condition(self._lock)  # for the callers
        self._error: VenusError | None = None
        self._closing = False
        self._attempt = 0  # streams opened until a broker accepted this one
        self._reader: threading.Thread | None = None
        self._call: grpc._CallIterator[FrameT] | None = None
        self._connection = BrokerConnection(address, business=business, keepalive_s=keepalive_s)

    @property
    def address(self) -> str:
        """HOST:PORT of the broker at the other end."""
        return self._connection.address

    @property
    def nearer_is_back(self) -> bool:
        """Whether a nearer set of brokers serves again: a stream that is opened now goes there."""
        return self._connection.nearer_is_back

    def close(self) -> None:
        """Send what is queued, end the stream and its threads; never raises because of the peer."""
        with self._lock:
            self._closing = True
            self._work.notify_all()
        if self._reader is not None:
            self._reader.join(CLOSE_TIMEOUT_S)
            if self._reader.is_alive() and self._call is not None:
                self._call.cancel()
                self._reader.join()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- both threads --------------------------------------------------------------------------------------------

    def _on_frame(self, frame: FrameT) -> None:
        """Handle a frame. Raises VenusError for an invalid one, which ends the stream."""
        raise NotImplementedError

    def _open_stream(self, opened: Callable[[int], grpc._CallIterator[FrameT]]) -> None:
        """Open one more stream; its writer ends when there is a newer attempt."""
        with self._lock:
            self._error = None
            self._attempt += 1
        call = self._call = opened(self._attempt)
        self._reader = threading.Thread(target=self._read, args=(call,), name=self.thread_name, daemon=True)
        self._reader.start()

    def _is_open(self, attempt: int) -> bool:
        return self._error is None and attempt == self._attempt

    def _read(self, call: grpc._CallIterator[FrameT]) -> None:
        error: VenusError
        try:
            for frame in call:
                self._on_frame(frame)
            error = Unavailable("the broker ended the stream")
        except grpc.RpcError as failure:
            error = from_rpc_error(failure)
        except VenusError as refused:
            call.cancel()
            error = refused
        self._on_end(error)

    def _on_end(self, error: VenusError) -> None:
        if not self._closing:  # an end that this side requested says nothing about the broker
            self._connection.record_error(self._business, error)
        with self._lock:
            self._error = error
            self._work.notify_all()
            self._news.notify_all()
