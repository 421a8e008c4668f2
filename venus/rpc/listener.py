"""The client's end of a stream of subscriptions by content (SREM 2): many subscriptions, one credit, one position.

One thread reads ahead within the credit, which is returned as the caller takes frames.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from venus.codec.changed_rows import frame_cost
from venus.errors import Unavailable, VenusError
from venus.rpc import limits
from venus.rpc.channel import KEEPALIVE_S
from venus.rpc.duplex import BrokerChannel, Duplex
from venus.rpc.sealed import LISTEN, listen
from venus.wire import broker_pb2

ANSWER_TIMEOUT_S = 60.0
CREDIT_BYTES = 4 << 20
#: Credit is returned after this time, or once this part of it is taken: not for each frame, which would double them.
CREDIT_EVERY_S, CREDIT_PART = 0.25, 0.25


class ListenerClient(Duplex[broker_pb2.ListenerFrame, broker_pb2.ChangesFrame]):
    """Stream of one client's subscriptions to one business."""

    method, open_call = LISTEN, staticmethod(listen)
    thread_name = "venus-listener"

    def __init__(
        self,
        address: str,
        business: str,
        *,
        group: str = "",
        client: str = "",
        credit_bytes: int = CREDIT_BYTES,
        keepalive_s: float = KEEPALIVE_S,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(address, business, keepalive_s)
        self._on_news = on_news  # called in the reading thread after a frame, and at the end
        self._open = broker_pb2.ListenerOpen(business=business, group=group, client=client, credit_bytes=credit_bytes)
        self._credit_bytes = credit_bytes
        self._arrived: deque[broker_pb2.ChangesFrame] = deque()
        self._begin: list[broker_pb2.SubscriptionRequest] = []
        self._end: list[int] = []
        self._acknowledged = self._acknowledge = 0
        self._taken_bytes = 0
        self._credited_at = time.monotonic()
        self._has_deadline = False  # the writer will ask again when credit is due

    def open(self, timeout_s: float = ANSWER_TIMEOUT_S) -> int:
        """Open the stream; return the position that the broker keeps for the group, 0 if it keeps none."""
        return self._connection.call(self._business, lambda channel: self._start(channel, timeout_s))

    def _start(self, channel: BrokerChannel, timeout_s: float) -> int:
        """Open a stream; return the position that the broker keeps for the group."""
        self._open_stream(channel)
        with self._lock:
            if not self._wait(timeout_s):
                raise Unavailable(f"the broker did not answer within {timeout_s:g} s")
            return self._arrived.popleft().kept

    def begin(self, requests: Iterable[broker_pb2.SubscriptionRequest]) -> None:
        """Begin subscriptions."""
        with self._lock:
            self._begin.extend(requests)
            self._wake()

    def end(self, numbers: Iterable[int]) -> None:
        """End subscriptions; changes that are on their way still arrive."""
        with self._lock:
            self._end.extend(numbers)
            self._wake()

    def acknowledge(self, offset: int) -> None:
        """Let the broker keep this position for the group."""
        with self._lock:
            self._acknowledge = max(self._acknowledge, offset)
            self._wake()

    def take(self, timeout_s: float) -> list[broker_pb2.ChangesFrame]:
        """Return the frames that have arrived, [] if none came in time. Raises the error that ended the stream."""
        with self._lock:
            self._wait(timeout_s)
            taken = list(self._arrived)
            self._arrived.clear()
            self._taken_bytes += sum(map(frame_cost, taken))
            if self._taken_bytes and (not self._has_deadline or self._is_credit_due()):
                self._wake()
            return taken

    @property
    def failure(self) -> VenusError | None:
        """What has ended the stream; frames that came before it can still be taken."""
        with self._lock:
            return self._error

    def _wait(self, timeout_s: float) -> bool:
        """Wait until a frame has arrived; return False after the timeout. Raises the error that ended the stream."""
        end = time.monotonic() + timeout_s
        while not self._arrived:  # what has arrived counts, even if the stream has failed after it
            if self._error is not None:
                raise self._error
            if self._closing:
                raise Unavailable("this stream is closed")
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._news.wait(left)
        return True

    def _is_credit_due(self) -> bool:
        """Return whether credit must be returned now."""
        is_late = time.monotonic() - self._credited_at >= CREDIT_EVERY_S
        return bool(self._taken_bytes) and (is_late or self._taken_bytes >= CREDIT_PART * self._credit_bytes)

    def _first_frame(self) -> broker_pb2.ListenerFrame:
        return broker_pb2.ListenerFrame(open=self._open)

    def _take_frame(self) -> tuple[broker_pb2.ListenerFrame | None, float | None]:
        self._has_deadline = False
        if not (self._begin or self._end or self._acknowledge > self._acknowledged or self._is_credit_due()):
            self._has_deadline = bool(self._taken_bytes)
            left_s = self._credited_at + CREDIT_EVERY_S - time.monotonic()
            return None, max(0.0, left_s) if self._taken_bytes else None
        frame = broker_pb2.ListenerFrame(
            begin=self._begin,
            end=self._end,
            credit_bytes=self._taken_bytes,
            acknowledge=self._acknowledge if self._acknowledge > self._acknowledged else 0,
        )
        self._begin, self._end, self._taken_bytes = [], [], 0
        self._acknowledged, self._credited_at = self._acknowledge, time.monotonic()
        return frame, None

    def on_frame(self, frame: broker_pb2.ChangesFrame) -> None:
        limits.check(frame, "from the broker: ")
        with self._lock:
            self._arrived.append(frame)
            self._news.notify_all()
        self._on_news()

    def on_end(self, error: VenusError) -> None:
        super().on_end(error)
        self._on_news()
