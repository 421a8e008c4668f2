"""The upper adapter's end of the stream to the broker (VENUS 3.3, figure 4): half messages, decisions, reviews.

Once the stream has broken, a new Producer is needed; the broker's InitAck then names the undecided batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from venus.errors import Overloaded, Unavailable, VenusError
from venus.model import Verdict
from venus.rpc import limits
from venus.rpc.channel import KEEPALIVE_S
from venus.rpc.compression import BodyCompressor
from venus.rpc.conditions import AdapterCondition
from venus.rpc.duplex import BrokerChannel, Duplex
from venus.rpc.in_process import InProcessStream
from venus.rpc.outgoing import Outgoing
from venus.rpc.reports import encode
from venus.rpc.sealed import PRODUCE, produce
from venus.wire import broker_pb2

ANSWER_TIMEOUT_S = 60.0
#: A stream to a broker of this process.
Stream = InProcessStream[broker_pb2.ProducerFrame, broker_pb2.BrokerFrame]


class Producer(Duplex[broker_pb2.ProducerFrame, broker_pb2.BrokerFrame]):
    """Stream of one producer; thread-safe."""

    method, open_call = PRODUCE, staticmethod(produce)
    thread_name = "venus-producer"

    def __init__(
        self,
        address: str,
        business: str,
        producer: str,
        *,
        window_bytes_max: int,
        keepalive_s: float = KEEPALIVE_S,
    ) -> None:
        super().__init__(address, business, keepalive_s)
        self._init = broker_pb2.Init(business=business, producer=producer)
        self._window_bytes_max = window_bytes_max
        self._outgoing = Outgoing()
        self._ack: broker_pb2.InitAck | None = None
        self._through = 0
        self._known = 0  # committed before this stream
        self._committed: broker_pb2.Decided | None = None
        self._rolled_back: broker_pb2.Decided | None = None
        self._reviews: dict[int, broker_pb2.HalfRef] = {}
        self._compressor = BodyCompressor()
        self._generation = 0  # raised whenever the broker requests messages again
        self._taken_generation = 0  # the generation of the frame that was taken last
        self._not_before = 0.0
        #: How often the broker asked this producer to send again, and to slow down.
        self.resends = self.throttles = 0

    # -- calls ---------------------------------------------------------------------------------------------------

    def connect(
        self,
        source_epoch: int,
        source_last_batch: int,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
        owner: str = "",
        take_over: bool = False,
        gives_way: bool = False,
    ) -> broker_pb2.InitAck:
        """Open the stream and fence every older producer of the business.

        Raises Held while a producer of another `owner` is alive, unless `take_over` is set. The answer may take as
        long as the broker takes to treat a silent connection as lost.
        """
        self._init.source_epoch = source_epoch
        self._init.source_last_batch = source_last_batch
        self._init.owner, self._init.take_over, self._init.gives_way = owner, take_over, gives_way
        return self._connection.call(self._business, lambda channel: self._connect(channel, timeout_s))

    def _connect(self, channel: BrokerChannel, timeout_s: float) -> broker_pb2.InitAck:
        """Open a stream at the broker and wait for its InitAck."""
        self._open_stream(channel)
        with self._lock:
            self._wait(lambda: self._ack is not None, timeout_s, "the broker did not answer")
            assert self._ack is not None
            return self._ack

    def send_half(self, half: broker_pb2.Half, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Queue a half message; block while the window is full."""
        with self._lock:
            self._wait(self._has_room, timeout_s, "the broker is not persisting anything", Overloaded)
            self._outgoing.add_half(half)
            taker = self._send_at_once()
            if taker is None:
                self._wake()
        if taker is not None:
            taker.carry_out()

    def _send_at_once(self) -> Stream | None:
        """Hand a half message to a broker of this process, whose event loop then need not wake for it.

        Return the stream that has taken it, whose `carry_out` then writes it.
        """
        stream = self._stream
        if not isinstance(stream, InProcessStream) or time.monotonic() < self._not_before:
            return None
        half = self._outgoing.find_half()
        if half is None or not stream.send_half(half):
            return None
        self._outgoing.record_half()
        return stream

    def wait_until_persisted(self, batch_no: int, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Wait until every half message up to this one is on the broker's disk."""
        with self._lock:
            self._wait(lambda: self._through >= batch_no, timeout_s, f"half message {batch_no} is not acknowledged")

    @property
    def persisted_through(self) -> int:
        """The newest half message known to be on the broker's disk."""
        with self._lock:
            self._check()
            return self._through

    def decide(self, batch_no: int, digest: int, verdict: Verdict, *, can_wait: bool = False) -> None:
        """Queue a decision; `wait_until_decided` returns when it is durable.

        `can_wait`: the caller does not wait for the answer.
        """
        with self._lock:
            self._check()
            assert self._ack is not None, "connect first"
            self._rolled_back = None
            self._reviews.pop(batch_no, None)
            self._outgoing.add_decision(
                broker_pb2.Decision(
                    epoch=self._ack.epoch,
                    batch_no=batch_no,
                    digest=digest,
                    verdict=broker_pb2.Verdict.ValueType(verdict),
                    can_wait=can_wait,
                )
            )
            if not self._commit_at_once():
                self._wake()

    def _commit_at_once(self) -> bool:
        """Pass a COMMIT directly to a broker of this process, whose commit thread carries it out."""
        stream, decision = self._stream, self._outgoing.find_commit(self._through)
        if not isinstance(stream, InProcessStream) or decision is None or not stream.commit(decision):
            return False
        self._outgoing.record_commit()
        return True

    def wait_until_decided(self, batch_no: int, timeout_s: float = ANSWER_TIMEOUT_S) -> broker_pb2.Decided:
        """Wait for the answer that covers this batch: COMMIT through it or ROLLBACK from it on."""
        with self._lock:
            self._wait(lambda: self._find_decision(batch_no) is not None, timeout_s, f"batch {batch_no} is not decided")
            answer = self._find_decision(batch_no)
            assert answer is not None
            return answer

    @property
    def decided_through(self) -> int:
        """The newest batch known to be committed."""
        with self._lock:
            self._check()
            return self._committed.batch_no if self._committed is not None else self._known

    def report_committed(self, last_batch: int, next_sequence: int) -> None:
        """Queue the source's committed position for a broker that may have lost it.

        Decide the undecided halves of InitAck before this call; half messages may follow. `wait_until_decided` returns
        when the broker has skipped to this position.
        """
        with self._lock:
            self._check()
            assert self._ack is not None, "connect first"
            self._outgoing.set_committed(
                broker_pb2.Committed(epoch=self._ack.epoch, last_batch=last_batch, next_sequence=next_sequence)
            )
            self._wake()

    def report(self, condition: AdapterCondition) -> None:
        """Queue a report of the tables' condition."""
        with self._lock:
            self._check()
            self._outgoing.set_report(encode(condition))
            self._wake()

    def take_reviews(self) -> list[broker_pb2.HalfRef]:
        """Return the half messages that the broker asked about since the last call; answer them with `decide`."""
        with self._lock:
            self._check()
            reviews = list(self._reviews.values())
            self._reviews.clear()
            return reviews

    # -- both threads --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise the error that ended the stream, or Unavailable if it is closed."""
        if self._error is not None:
            raise self._error
        if self._closing:
            raise Unavailable("this producer is closed")

    def _wait(
        self, done: Callable[[], bool], timeout_s: float, what: str, error: type[VenusError] = Unavailable
    ) -> None:
        """Wait until a condition holds. Raises `error` after the timeout."""
        self._check()
        end = time.monotonic() + timeout_s
        while not done():
            if not self._news.wait(max(0.0, end - time.monotonic())) and not done() and self._error is None:
                raise error(f"{what} after {timeout_s:g} s")
            self._check()

    def _has_room(self) -> bool:
        """Return whether the window has room for a half message."""
        return self._outgoing.unacknowledged_bytes <= self._window_bytes_max and not self._outgoing.is_rolling_back

    def _find_decision(self, batch_no: int) -> broker_pb2.Decided | None:
        """Return the decision that covers a batch, None if it is not decided yet."""
        if self._committed is not None and self._committed.batch_no >= batch_no:
            return self._committed
        if self._rolled_back is not None and self._rolled_back.batch_no <= batch_no:
            return self._rolled_back
        return None

    def _first_frame(self) -> broker_pb2.ProducerFrame:
        return broker_pb2.ProducerFrame(init=self._init)

    def _take_frame(self) -> tuple[broker_pb2.ProducerFrame | None, float | None]:
        if self._closing:
            self._outgoing.hurry()
        pause_s = self._not_before - time.monotonic()
        self._taken_generation = self._generation
        if self._outgoing and pause_s <= 0:
            return self._outgoing.take(), None
        if self._outgoing.is_urgent(self._through):
            return self._outgoing.take_urgent(self._through), None
        return None, pause_s if self._outgoing else None

    def compress(self, frame: broker_pb2.ProducerFrame) -> broker_pb2.ProducerFrame:
        return self._compressor.halves(frame, self._taken_generation)

    def on_frame(self, frame: broker_pb2.BrokerFrame) -> None:
        limits.check(frame, "from the broker: ")
        with self._lock:
            if frame.HasField("init_ack"):
                self._ack = frame.init_ack
                self._known = frame.init_ack.last_batch
                self._through = max([frame.init_ack.last_batch, *(h.batch_no for h in frame.init_ack.undecided)])
            if frame.halves_through > self._through:
                self._through = frame.halves_through
                self._on_persisted()
            if frame.HasField("decided"):
                self._take_decided(frame.decided)
            if frame.HasField("review"):
                self._reviews.update((half.batch_no, half) for half in frame.review.halves)
            if frame.HasField("resend"):
                self.resends += 1
                self._outgoing.resend(frame.resend.batch_no)
                self._generation += 1
                self._wake()
            if frame.HasField("throttle"):
                self.throttles += 1
                self._not_before = time.monotonic() + frame.throttle.retry_after_ms / 1000
                if not frame.throttle.taken:
                    self._outgoing.resend()
                    self._generation += 1
                self._wake()
            self._news.notify_all()

    def _on_persisted(self) -> None:
        """Forget half messages that are on disk, and send those that waited for them."""
        self._outgoing.on_persisted(self._through)
        if self._outgoing:  # half messages that waited for these
            self._wake()

    def _take_decided(self, decided: broker_pb2.Decided) -> None:
        """Record which batches are committed or rolled back."""
        self._outgoing.on_decided(decided)
        if decided.verdict == broker_pb2.COMMIT:
            if self._committed is None or decided.batch_no >= self._committed.batch_no:
                self._committed = decided
            self._through = max(self._through, decided.batch_no)
            self._on_persisted()
        elif decided.verdict == broker_pb2.ROLLBACK:
            self._rolled_back = decided
            self._through = min(self._through, decided.batch_no - 1)
