"""Streams to a broker in this process: frames are handed over as objects, without a connection, encoding or seal.

`venus run` registers its broker here under its address. A Producer or Subscriber with that address then uses it
directly; the same address in another process is reached over gRPC. The broker's event loop takes the next frame of a
client when it is ready to read it, and puts its answers into the client. So no other thread is involved. A stream that
the broker does not read fills the client's own window, as over gRPC. The core is `venus.broker.core.Core`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from venus.errors import Overloaded, Unavailable, VenusError
from venus.wire import broker_pb2

T = TypeVar("T")
SentT = TypeVar("SentT")
FrameT = TypeVar("FrameT")
SentT_co = TypeVar("SentT_co", covariant=True)
FrameT_contra = TypeVar("FrameT_contra", contravariant=True)

#: How long to repeat a request to a broker that says when to ask again.
OVERLOADED_S = 60.0


class StreamClient(Protocol[SentT_co, FrameT_contra]):
    """Interface of a client to its stream (venus/rpc/duplex.py)."""

    def next_frame(self, attempt: int) -> tuple[SentT_co | None, float | None, bool]:
        """Return the next frame; without one, in how many seconds there may be one, and whether the stream is over.

        None seconds: there is none before the client calls `wake`.
        """
        ...

    def on_frame(self, frame: FrameT_contra) -> None:
        """Handle a frame. Raises VenusError for an invalid one, which ends the stream."""
        ...

    def on_end(self, error: VenusError) -> None:
        """Record the end of the stream and its cause."""
        ...


class ServedStream(Protocol):
    """The broker's end of a stream, as its client sees it. Works in any thread."""

    def start(self) -> None:
        """Start to serve. Raises Unavailable if the broker is stopping."""
        ...

    def wake(self) -> None:
        """Notify the stream that the client may have something to send."""
        ...

    def send_half(self, half: broker_pb2.Half) -> bool:
        """Hand a half message to the core without a frame; return False if that is not possible now."""
        ...

    def commit(self, decision: broker_pb2.Decision) -> bool:
        """Hand a COMMIT to the core without a frame; return False if that is not possible now."""
        ...

    def carry_out(self) -> None:
        """Write the half message that was handed to the core, in this thread if possible."""
        ...

    def cancel(self) -> None:
        """End the stream now."""
        ...


class InProcessBroker(Protocol):
    """A broker that serves streams of this process."""

    @property
    def address(self) -> str:
        """The address at which other processes reach it."""
        ...

    def open(self, method: str, stream: InProcessStream[SentT, FrameT]) -> ServedStream:
        """Return the broker's end of a stream."""
        ...


class End:
    """Marker that `take` returns at the end of a stream."""


END: Final = End()


class InProcessStream(Generic[SentT, FrameT]):
    """One stream between a client and a broker of this process."""

    def __init__(self, client: StreamClient[SentT, FrameT], attempt: int, first: SentT) -> None:
        self._client, self._attempt = client, attempt
        self._first: SentT | None = first
        self._ended = threading.Event()
        self._served: ServedStream | None = None

    # -- the client ----------------------------------------------------------------------------------------------

    def start(self, broker: InProcessBroker, method: str) -> None:
        """Open the stream at the broker. Raises Unavailable if the broker is stopping."""
        self._served = broker.open(method, self)
        try:
            self._served.start()
        except VenusError:
            self._ended.set()
            raise

    def wake(self) -> None:
        """Notify the broker that there may be something to send. The caller holds the client's lock."""
        if self._served is not None:
            self._served.wake()

    def send_half(self, half: broker_pb2.Half) -> bool:
        """Hand a half message to the core in this thread; return False if a frame must carry it. The lock is held."""
        return self._served is not None and self._served.send_half(half)

    def commit(self, decision: broker_pb2.Decision) -> bool:
        """Hand a COMMIT to the core in this thread; return False if a frame must carry it. The lock is held."""
        return self._served is not None and self._served.commit(decision)

    def carry_out(self) -> None:
        """Write the half message that the core was given, in this thread or in the core's. The lock is free."""
        if self._served is not None:
            self._served.carry_out()

    def close(self, timeout_s: float) -> None:
        """Wait until the broker has ended the stream; cancel it after a while."""
        if self._served is not None and not self._ended.wait(timeout_s):
            self._served.cancel()
            self._ended.wait(timeout_s)

    # -- the broker, in its event loop; `put` also in the thread that commits --------------------------------------

    def take(self) -> tuple[SentT | End | None, float | None]:
        """Return the client's next frame or END; without one, in how many seconds there may be one."""
        if self._first is not None:
            first, self._first = self._first, None
            return first, None
        frame, pause_s, over = self._client.next_frame(self._attempt)
        return (END, None) if over else (frame, pause_s)

    def put(self, frame: FrameT) -> None:
        """Hand a frame to the client. If the client refuses it, end its stream and raise the VenusError."""
        try:
            self._client.on_frame(frame)
        except VenusError as error:
            self.end(error)
            raise

    def end(self, error: VenusError) -> None:
        """End the stream for the client; only the first call counts."""
        if not self._ended.is_set():
            self._client.on_end(error)
            self._ended.set()


_brokers: dict[str, InProcessBroker] = {}


@contextmanager
def register_broker(reach: str, broker: InProcessBroker) -> Iterator[None]:
    """While the block runs, clients of this process with the address `reach` use `broker` directly."""
    _brokers[reach] = broker
    try:
        yield
    finally:
        del _brokers[reach]


def find_broker(reach: str) -> InProcessBroker | None:
    """Return the broker of this process at an address; None if there is none."""
    return _brokers.get(str(reach))


class InProcessConnection:
    """Stand-in for a connection (venus/rpc/connection.py) to a broker of this process."""

    can_move_nearer: Final = False

    def __init__(self, broker: InProcessBroker) -> None:
        self.address = broker.address
        self._broker = broker

    def call(self, business: str, ask: Callable[[InProcessBroker], T]) -> T:
        """Return the result of `ask`; repeat it for a while if the broker says when to ask again."""
        end = time.monotonic() + OVERLOADED_S
        while True:
            try:
                return ask(self._broker)
            except Overloaded as error:
                if not error.retry_after_s or time.monotonic() + error.retry_after_s > end:
                    raise
                time.sleep(error.retry_after_s)

    def record_error(self, business: str, error: VenusError) -> None:
        """Do nothing: there is no other broker to choose."""

    def close(self) -> None:
        """Do nothing: there is no connection."""


def stopping_error(address: str) -> Unavailable:
    """Return the error of a broker that serves no more streams."""
    return Unavailable(f"broker at {address} is starting or stopping")
