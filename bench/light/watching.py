"""The process of light subscribers: one thread that waits for all of its connections at once.

It replaces the gRPC subscribers of `bench.subscribers`. Each subscriber reads every increment once and in order; after
half of its credit, or every `SAY_EVERY_S` even without a frame, it acknowledges and returns the credit.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Orders

from bench.arrivals import Arrival, FrameContent
from bench.light.connection import Connection, Stream
from bench.subscribers import OPENING_MAX, SAY_EVERY_S
from bench.venus_transmission import BUSINESS
from venus.rpc.sealed import seal
from venus.wire import broker_pb2

#: Bytes of one read, into a buffer that all connections share: small enough to be compared within a core's cache.
RECEIVE_BYTES = 256 << 10
READ_OR_WRITE = selectors.EVENT_READ | selectors.EVENT_WRITE


class Watch:
    """The light subscribers of one process, `on_one` of them on each connection."""

    def __init__(
        self, addresses: Sequence[str], count: int, name: str, offset: int, credit_bytes: int, on_one: int
    ) -> None:
        self._addresses, self._count, self._name, self._on_one = addresses, count, name, on_one
        self._opening = broker_pb2.Open(business=BUSINESS, offset=offset, credit_bytes=credit_bytes)
        self._seen = Arrival([offset] * count, [[] for _ in range(count)], [[] for _ in range(count)])
        self._selector = selectors.DefaultSelector()
        self._connections: list[Connection] = []
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._looked_at = time.monotonic()

    def open(self) -> None:
        """Open all streams, and wait until the broker has answered them."""
        begun = 0
        while self._seen.opened < self._count:
            while begun < min(self._count, self._seen.opened + OPENING_MAX):
                self._open_stream(begun)
                begun += 1
            self._serve_once()

    def _open_stream(self, number: int) -> None:
        """Open the stream of one subscriber, on a new connection if the last one is full."""
        if number % self._on_one == 0:
            address = self._addresses[len(self._connections) % len(self._addresses)]
            self._connections.append(Connection(address, self._record_frame))
            self._selector.register(self._connections[-1].socket, READ_OR_WRITE, self._connections[-1])
        connection = self._connections[-1]
        stream = connection.open(number, f"{self._name}-{number}", self._seen.frames_read)
        self._opening.group = stream.group
        if not connection.send(stream, seal(broker_pb2.ConsumerFrame(open=self._opening))):
            raise ConnectionError(f"no room for the first words of {self._on_one} streams")
        self._write(connection)

    def serve(self, orders: Orders) -> None:
        """Execute orders until None: report when all subscribers have everything below the ordered offsets."""
        while (wanted := self._next_order(orders)) is not None:
            for number in range(self._count):
                while self._seen.positions[number] < max(wanted):
                    self._serve_once()
            orders.send(self._seen.arrivals(wanted, self._opening.offset))

    def _next_order(self, orders: Orders) -> Sequence[int] | None:
        """Serve the connections until an order arrives; return the order."""
        self._selector.register(orders, selectors.EVENT_READ)
        while not self._serve_once():
            pass
        self._selector.unregister(orders)
        found: Sequence[int] | None = orders.recv()
        return found

    def close(self) -> None:
        """End all streams."""
        for connection in self._connections:
            connection.socket.close()
        self._selector.close()

    def _serve_once(self) -> bool:
        """Read and write the connections that are ready; return whether an order waits."""
        is_ordered = False
        for key, events in self._selector.select(SAY_EVERY_S / 4):
            if key.data is None:
                is_ordered = True
                continue
            if events & selectors.EVENT_READ:
                key.data.receive(self._buffer)
            self._write(key.data)
        now = time.monotonic()
        if now - self._looked_at > SAY_EVERY_S / 4:
            self._looked_at = now
            self._return_old_credit(now)
        return is_ordered

    def _write(self, connection: Connection) -> None:
        """Write queued bytes of a connection; if some are left, also wait until its socket accepts more."""
        events = selectors.EVENT_READ if connection.flush() else READ_OR_WRITE
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)

    # -- credit --------------------------------------------------------------------------------------------------

    def _record_frame(self, connection: Connection, stream: Stream, frame: FrameContent) -> None:
        """Record a frame of a subscriber, and return credit if much is owed."""
        now = time.monotonic()
        self._seen.take(stream.number, frame, now)
        stream.taken += frame.price
        is_much = stream.taken >= self._opening.credit_bytes // 2
        if is_much or (stream.taken and now - stream.said_at > SAY_EVERY_S):
            self._return_credit(connection, stream, now)

    def _return_credit(self, connection: Connection, stream: Stream, now: float) -> None:
        """Return a subscriber's credit and acknowledge, if the flow-control windows have room."""
        position = self._seen.positions[stream.number]
        frame = broker_pb2.ConsumerFrame(credit_bytes=stream.taken, acknowledge=position)
        if connection.send(stream, seal(frame)):
            stream.taken, stream.said_at = 0, now

    def _return_old_credit(self, now: float) -> None:
        """Return all credit that has been owed for long: without it, a broker may wait before it sends more."""
        for connection in self._connections:
            for stream in connection.streams.values():
                if stream.taken and now - stream.said_at > SAY_EVERY_S:
                    self._return_credit(connection, stream, now)
            self._write(connection)


def run(
    addresses: Sequence[str], count: int, name: str, offset: int, credit_bytes: int, on_one: int, orders: Orders
) -> None:
    """Run the light subscribers of one process, which execute the orders of the main process."""
    orders.send(None)
    orders.recv()
    watch = Watch(addresses, count, name, offset, credit_bytes, on_one)
    try:
        watch.open()
        orders.send(None)
        watch.serve(orders)
    except Exception as error:
        orders.send(f"{type(error).__name__}: {error}")
        raise
    finally:
        watch.close()
