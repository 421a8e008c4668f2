"""Client end of a bidirectional stream: the common part of producer and subscriber, and its three transports.

Calls only queue frames. Over gRPC one thread writes (gRPC's own, which takes the next frame as soon as the last one is
sent) and one reads. To a broker on this machine (local_stream.py) the caller writes and one thread reads. To a broker
in the same process (in_process.py) the broker's event loop does both. Once the stream has broken, every call raises the
error that broke it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

import grpc
from google.protobuf.message import Message

from venus.errors import Unavailable, VenusError
from venus.rpc.address import BrokerAddress
from venus.rpc.connection import BrokerConnection
from venus.rpc.errors import from_rpc_error
from venus.rpc.in_process import InProcessBroker, InProcessConnection, InProcessStream, find_broker
from venus.rpc.local_stream import LocalBroker, LocalConnection, LocalStream

CLOSE_TIMEOUT_S = 2.0

SentT = TypeVar("SentT", bound=Message)
FrameT = TypeVar("FrameT", bound=Message)

#: Connection on which a stream is opened.
BrokerChannel = grpc.Channel | InProcessBroker | LocalBroker
#: Opens a gRPC stream that sends these frames.
OpenCall = Callable[[grpc.Channel, Iterator[SentT]], "grpc._CallIterator[FrameT]"]


class Duplex(Generic[SentT, FrameT]):
    """Bidirectional stream of a client for one business."""

    #: The method of the broker, and how it is opened over gRPC.
    method = ""
    open_call: OpenCall[SentT, FrameT]
    #: Name of the reading thread.
    thread_name = "venus-stream"

    def __init__(self, address: str, business: str, keepalive_s: float) -> None:
        self._business = business
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)  # for the callers
        self._error: VenusError | None = None
        self._closing = False
        self._attempt = 0  # streams opened until a broker accepted this one
        self._stream: GrpcStream[SentT, FrameT] | LocalStream[SentT, FrameT] | InProcessStream[SentT, FrameT] | None = (
            None
        )
        self._connection = _connect(address, business, keepalive_s)

    @property
    def address(self) -> str:
        """HOST:PORT of the broker at the other end."""
        return self._connection.address

    @property
    def can_move_nearer(self) -> bool:
        """Whether a nearer set of brokers serves again: a stream that is opened now goes there."""
        return self._connection.can_move_nearer

    def close(self) -> None:
        """Send the queued frames, end the stream and its threads; never raises because of the peer."""
        with self._lock:
            self._closing = True
            self._wake()
        if self._stream is not None:
            self._stream.close(CLOSE_TIMEOUT_S)
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- for the kinds of streams --------------------------------------------------------------------------------

    def _first_frame(self) -> SentT:
        """Return the frame that opens the stream."""
        raise NotImplementedError

    def _take_frame(self) -> tuple[SentT | None, float | None]:
        """Take the next frame; without one, return in how many seconds to try again; None = not before `_wake`.

        The lock is held.
        """
        raise NotImplementedError

    def compress(self, frame: SentT) -> SentT:
        """Compress the newest frame for the wire, in the writing thread."""
        return frame

    def on_frame(self, frame: FrameT) -> None:
        """Handle a frame. Raises VenusError for an invalid one, which ends the stream."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Notify the stream that there may be something to send. The lock is held."""
        if self._stream is not None:
            self._stream.wake()

    def _open_stream(self, channel: BrokerChannel) -> None:
        """Open one more stream; the one before it has ended."""
        with self._lock:
            self._error = None
            self._attempt += 1
            attempt = self._attempt
            if isinstance(channel, grpc.Channel):
                stream = self._stream = GrpcStream(self, attempt)
                start = partial(stream.start, channel)
            elif isinstance(channel, LocalBroker):
                local = self._stream = LocalStream(self, attempt, self._first_frame())
                start = partial(local.start, channel, self.method, self.thread_name)
            else:
                inside = self._stream = InProcessStream(self, attempt, self._first_frame())
                start = partial(inside.start, channel, self.method)
        start()  # from here on the stream may call this object

    # -- for the streams -----------------------------------------------------------------------------------------

    @property
    def lock(self) -> threading.Lock:
        """The lock of the queues."""
        return self._lock

    def frames(self, attempt: int, work: threading.Condition) -> Iterator[SentT]:
        """Yield the frames to send, and wait for them; `work` has the lock."""
        yield self._first_frame()
        while (frame := self.wait_for_frame(attempt, work)) is not None:
            yield self.compress(frame)

    def wait_for_frame(self, attempt: int, work: threading.Condition) -> SentT | None:
        """Return the next frame, None at the end of the stream."""
        while True:
            with self._lock:
                frame, pause_s, over = self.next_frame_under_lock(attempt)
                if frame is not None or over:
                    return frame
                work.wait(pause_s)

    def next_frame(self, attempt: int) -> tuple[SentT | None, float | None, bool]:
        """Return the next frame; without one, in how many seconds there may be one, and whether the stream is over."""
        with self._lock:
            return self.next_frame_under_lock(attempt)

    def next_frame_under_lock(self, attempt: int) -> tuple[SentT | None, float | None, bool]:
        """Return the result of `next_frame`; the caller holds the lock."""
        if self._error is not None or attempt != self._attempt:
            return None, None, True
        frame, pause_s = self._take_frame()
        return frame, pause_s, frame is None and self._closing

    def on_end(self, error: VenusError) -> None:
        """Record the end of the stream and its cause."""
        if not self._closing:  # an end that this side requested says nothing about the broker
            self._connection.record_error(self._business, error)
        with self._lock:
            self._error = error
            self._wake()
            self._news.notify_all()


def _connect(
    address: str, business: str, keepalive_s: float
) -> BrokerConnection | LocalConnection | InProcessConnection:
    """Return the connection for an address: in this process, on this machine, or over gRPC."""
    broker = find_broker(address)
    if broker is not None:
        return InProcessConnection(broker)
    if isinstance(address, BrokerAddress) and address.may_be_local:
        return LocalConnection(address, business, keepalive_s)
    return BrokerConnection(address, business=business, keepalive_s=keepalive_s)


class GrpcStream(Generic[SentT, FrameT]):
    """One stream over gRPC, with its reading thread."""

    def __init__(self, client: Duplex[SentT, FrameT], attempt: int) -> None:
        self._client, self._attempt = client, attempt
        self._work = threading.Condition(client.lock)  # for the writer
        self._call: grpc._CallIterator[FrameT] | None = None
        self._reader: threading.Thread | None = None

    def start(self, channel: grpc.Channel) -> None:
        """Open the stream at the broker."""
        call = self._call = type(self._client).open_call(channel, self._client.frames(self._attempt, self._work))
        self._reader = threading.Thread(target=self._read, args=(call,), name=self._client.thread_name, daemon=True)
        self._reader.start()

    def wake(self) -> None:
        """Notify the sender that there may be something to send. The caller holds the client's lock."""
        self._work.notify()

    def close(self, timeout_s: float) -> None:
        """Wait until the broker has ended the stream; cancel it after a while."""
        if self._reader is None or self._call is None:
            return
        self._reader.join(timeout_s)
        if self._reader.is_alive():
            self._call.cancel()
            self._reader.join()

    def _read(self, call: grpc._CallIterator[FrameT]) -> None:
        """Pass frames from the broker to the client, and at the end the error that ended the stream."""
        error: VenusError
        try:
            for frame in call:
                self._client.on_frame(frame)
            error = Unavailable("the broker ended the stream")
        except grpc.RpcError as failure:
            error = from_rpc_error(failure)
        except VenusError as refused:
            call.cancel()
            error = refused
        self._client.on_end(error)
