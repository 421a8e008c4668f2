"""One producer's stream: half messages and decisions in, acknowledgements and outcomes out (VENUS 3.2, 3.3 figure 4).

The stream checks the digest of every half message before the core gets it; it counts a damaged one and asks for it
again. Answers wait for the disk and are coalesced: one `halves_through` acknowledges everything that one fsync covered.
A producer over a limit must pause or send again. Half messages wait for a slot of the disk (traffic.py); while a
business has too many unsaved bytes, its stream is not read, and HTTP/2 flow control slows the producer. Decisions on
earlier batches do not wait for the half messages in the same frame.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from venus.broker.core import Core
from venus.broker.pipeline.producer_commands import HalvesResult, ShippedHalf
from venus.broker.service.direct_intake import DirectIntake
from venus.broker.service.in_process import InProcessContext
from venus.broker.service.local_streams import LocalContext
from venus.broker.service.service_status import ServiceStatus, now_us
from venus.broker.service.traffic import Traffic
from venus.broker.service.unsaved import Intake, ReceivedFrame
from venus.codec.batch import digest
from venus.errors import DigestMismatch, Fenced, Overloaded, ProtocolError, StoreFull, Unavailable, VenusError
from venus.flow.degradation import Lane
from venus.flow.precedence import SMALL_BYTES
from venus.rpc.compression import BodyDecompressor, check_frame
from venus.rpc.event_loop import LoopBridge
from venus.rpc.reports import SOURCE
from venus.rpc.sealed import check_frame_seal
from venus.wire import broker_pb2

#: An answer that can wait is sent after this long, or with the next frame.
ANSWER_WITHIN_S = 0.05


class ProducerOutbox:
    """Answers that wait to be sent to a producer; a newer answer replaces older ones of its kind.

    Its size is bounded: numbers are merged, and there are at most as many rollbacks and reviews as half messages.
    """

    def __init__(self, init_ack: broker_pb2.InitAck) -> None:
        self.wake = asyncio.Event()
        self._first: broker_pb2.InitAck | None = init_ack
        self._through = 0
        self._decided: list[broker_pb2.Decided] = []
        self._resend: broker_pb2.Resend | None = None
        self._throttle_ms = 0
        self._taken = True
        self._reviews: dict[int, broker_pb2.HalfRef] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._first or self._through or self._decided or self._resend or self._throttle_ms or self._reviews)

    def acknowledge_halves(self, through: int) -> None:
        """Acknowledge that every half message up to this one is on disk."""
        self._through = max(self._through, through)
        self.wake.set()

    def add_decision(self, answer: broker_pb2.Decided, *, can_wait: bool = False) -> None:
        """Answer a decision. The answer to a COMMIT replaces the answer to the previous COMMIT.

        An answer that `can_wait` is sent with the next frame, which saves every second frame when changes are few.
        """
        last = self._decided[-1] if self._decided else None
        if last is not None and last.verdict == answer.verdict == broker_pb2.COMMIT:
            if answer.batch_no < last.batch_no:  # the answer to a repeated decision covers less
                answer = last
            self._decided.pop()
        self._decided.append(answer)
        if not can_wait:
            self.wake.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ANSWER_WITHIN_S, self._on_timer)

    def _on_timer(self) -> None:
        """Send the answers that could wait."""
        self._timer = None
        if self:
            self.wake.set()

    def request_resend(self, batch_no: int, reason: str) -> None:
        """Ask for half messages again, from this one on."""
        if self._resend is None or batch_no < self._resend.batch_no:
            self._resend = broker_pb2.Resend(batch_no=batch_no, reason=reason)
        self.wake.set()

    def throttle(self, retry_after_ms: int, *, taken: bool) -> None:
        """Ask to slow down and, if not everything was taken, to send the rest again."""
        self._throttle_ms = max(self._throttle_ms, retry_after_ms)
        self._taken = self._taken and taken
        self.wake.set()

    def request_review(self, halves: list[broker_pb2.HalfRef]) -> None:
        """Ask for the outcome of these half messages."""
        self._reviews.update((half.batch_no, half) for half in halves)
        self.wake.set()

    def take_frames(self) -> list[broker_pb2.BrokerFrame]:
        """Return frames with all pending answers, and clear them."""
        self.wake.clear()
        frame = broker_pb2.BrokerFrame(
            init_ack=self._first,
            halves_through=self._through,
            decided=self._decided[0] if self._decided else None,
            resend=self._resend,
            throttle=broker_pb2.Throttle(retry_after_ms=self._throttle_ms, taken=self._taken)
            if self._throttle_ms
            else None,
            review=broker_pb2.Review(halves=self._reviews.values()) if self._reviews else None,
        )
        frames = [frame] if self else []
        frames.extend(broker_pb2.BrokerFrame(decided=answer) for answer in self._decided[1:])
        self._first = self._resend = None
        self._through = self._throttle_ms = 0
        self._taken = True
        self._decided, self._reviews = [], {}
        return frames


logger = logging.getLogger(__name__)

#: After this many damaged half messages in a row the connection is ended.
MISMATCHES_MAX = 3

Context = grpc.aio.ServicerContext[Any, Any]
StreamContext = Context | InProcessContext | LocalContext


@dataclass(frozen=True, slots=True)
class StreamServices:
    """The parts that all producers' streams use."""

    core: Core
    bridge: LoopBridge
    service_status: ServiceStatus
    traffic: Traffic


class ProducerStream:
    """Stream of one producer: a task reads, `run` writes."""

    def __init__(
        self, service: StreamServices, context: StreamContext, init: broker_pb2.Init, ack: broker_pb2.InitAck
    ) -> None:
        self.business, self.producer, self.epoch = init.business, init.producer, ack.epoch
        self.init, self.since, self.heard_at = init, time.time(), time.monotonic()
        self._service, self._core, self._context = service, service.core, context
        self.outbox = ProducerOutbox(ack)
        self.instead_of_fenced: Unavailable | None = None
        self._error: VenusError | None = None
        self._eof = False
        self._in_flight = 0
        self._intake = Intake(max([ack.last_batch, *(half.batch_no for half in ack.undecided)]))
        self._sends_small = True  # the newest half messages were small
        self._mismatches = 0
        self._decompressor = BodyDecompressor()

    def end(self, error: VenusError) -> None:
        """End the stream with this error once the pending answers are written."""
        if isinstance(error, Fenced) and self.instead_of_fenced is not None:
            error = self.instead_of_fenced
        self._error = self._error or error
        self.outbox.wake.set()

    @property
    def is_ending(self) -> bool:
        """Whether an error is on its way to the producer."""
        return self._error is not None

    @property
    def is_over(self) -> bool:
        """Whether the stream accepts nothing more. Works in any thread."""
        return self._eof or self._error is not None

    def hear(self) -> None:
        """Record that the producer is alive. Works in any thread."""
        self.heard_at = time.monotonic()

    async def run(self, first: broker_pb2.ProducerFrame) -> None:
        """Serve until the producer leaves or an error ends the stream."""
        reader = asyncio.create_task(self._read(first))
        shared, context, direct = self._service, self._context, None
        if isinstance(context, InProcessContext):
            direct = DirectIntake(self, context, shared.core, shared.bridge, shared.traffic)
            context.on_half, context.on_commit = direct.take_half, direct.take_commit
            context.carry_out = direct.carry_out
        try:
            while True:
                for frame in self.outbox.take_frames():
                    await self._context.write(frame)
                    if frame.HasField("review"):
                        numbers = [half.batch_no for half in frame.review.halves]
                        await self._service.bridge.run_blocking(
                            Lane.CONTROL, self._core.producers.count_delivered_reviews, self.business, numbers
                        )
                if self._error is not None:
                    raise self._error
                if self._eof and not self._in_flight and not self.outbox:
                    return
                await self.outbox.wake.wait()
        finally:
            reader.cancel()
            if direct is not None:
                direct.close()

    # -- from the producer ---------------------------------------------------------------------------------------

    async def _read(self, frame: Any) -> None:
        """Process the producer's frames until it leaves or an error ends the stream."""
        try:
            while True:
                await self._take(frame)
                await self._service.traffic.wait_for_room(self.business, self.producer, small=self._sends_small)
                frame = await self._next_frame()
                if frame is grpc.aio.EOF:
                    break
                if frame.HasField("init"):
                    raise ProtocolError("init came twice on one stream")  # noqa: TRY301
            self._eof = True
            self.outbox.wake.set()
        except VenusError as error:
            self.end(error)
        except Exception as error:  # a lost connection cancels the handler; any other error is a bug
            logger.exception("reading from producer %s of %s failed", self.producer, self.business)
            self.end(VenusError(f"the broker failed to read a frame: {error!r}"))

    async def _next_frame(self) -> Any:
        """Return the next frame with an intact seal; ask again for half messages of a damaged frame."""
        while True:
            frame = await self._context.read()
            if frame is not grpc.aio.EOF:
                self.hear()
            if frame is not None:
                return check_frame_seal(frame, "a frame of a producer")
            self._ask_again("a frame's seal is broken")

    async def _take(self, frame: broker_pb2.ProducerFrame) -> None:
        """Process a frame. Decisions on earlier batches do not wait for the frame's half messages."""
        if frame.HasField("report"):
            self._service.service_status.reports.record(self.business, SOURCE, frame.report, now_us())
            self._core.producers.record_fill(self.business, is_filling=bool(frame.report.figures.fills))
        first = frame.halves[0].batch_no if frame.halves else None
        earlier = len(frame.decisions)
        if first is not None:
            earlier = next((n for n, d in enumerate(frame.decisions) if d.batch_no >= first), earlier)
        self._take_decisions(frame.decisions[:earlier])
        if earlier == len(frame.decisions):
            self._take_committed(frame)
            await self._take_halves(frame)
        else:
            await self._take_halves(frame)
            self._take_decisions(frame.decisions[earlier:])
            self._take_committed(frame)

    async def _take_halves(self, frame: broker_pb2.ProducerFrame) -> None:
        """Submit the half messages of a frame; ask again for damaged ones and all that follow."""
        check_frame(frame.halves)
        good: list[ShippedHalf] = []
        skipped = 0
        for message in frame.halves:
            if not self._intake.can_take(message.batch_no):
                skipped += 1
            elif (half := self._unpack_half(message)) is None:
                await self._submit(good)
                good = []
                self._ask_again("a body does not hash to its digest")
            else:
                good.append(half)
                self._mismatches = 0
                self._intake.record_arrival(half.batch_no)
        self._count_skipped(skipped)
        await self._submit(good)

    def _count_skipped(self, count: int) -> None:
        """Count half messages that the stream skips, because earlier ones must be sent again."""
        if count:
            self._core.producers.count(self.business, "skipped_halves", count)

    def _unpack_half(self, message: broker_pb2.Half) -> ShippedHalf | None:
        """Return a half message with its decompressed body, None if the body is damaged."""
        try:
            body = self._decompressor.body(message)
        except DigestMismatch:
            return None
        whole = digest(body) == message.digest
        return ShippedHalf(batch_no=message.batch_no, digest=message.digest, body=body) if whole else None

    def _ask_again(self, reason: str) -> None:
        """Count a damaged half message, and ask for it again. Raises DigestMismatch after several."""
        batch_no = self._intake.newest + 1  # the number in a damaged message cannot be trusted
        self._core.producers.count(self.business, "digest_mismatches", 1)
        self._mismatches += 1
        if self._mismatches >= MISMATCHES_MAX:
            text = f"{self._mismatches} damaged half messages in a row from {self._context.peer()}"
            self._service.service_status.raise_alarm(self.business, text)
            raise DigestMismatch(text, hint="Look at the network between capture and the broker.")
        logger.warning("%s: half message %d: %s", self.business, batch_no, reason)
        self._core.producers.count(self.business, "resends", 1)
        self.outbox.request_resend(self._intake.request_again(batch_no), reason)

    async def _submit(self, halves: list[ShippedHalf]) -> None:
        """Admit half messages by the limits, and pass them on in pieces."""
        if not halves:
            return
        traffic, nbytes = self._service.traffic, _total_bytes(halves)
        self._sends_small = nbytes <= SMALL_BYTES
        verdict = traffic.admit_halves(self.business, self.producer, halves)
        if verdict.pause_s:
            self._throttle(int(verdict.pause_s * 1000) + 1, taken=not verdict.refused)
        if verdict.refused:
            self._intake.request_again(halves[0].batch_no)
            return
        with traffic.unsaved.count_received(self.business, nbytes) as received:
            for piece in traffic.split_halves(halves):
                await self._submit_piece(piece, received)

    async def _submit_piece(self, halves: Sequence[ShippedHalf], received: ReceivedFrame) -> None:
        """Wait for a slot of the disk, then give half messages to the core."""
        traffic, first, nbytes = self._service.traffic, halves[0].batch_no, _total_bytes(halves)
        asked_at = traffic.monotonic()
        turn = await traffic.wait_for_slot(self.business, self.producer, nbytes)
        if not self._intake.can_take(first):  # an earlier one has been refused: both will be sent again
            traffic.unsaved.release_slot(turn)
            self._count_skipped(len(halves))
            return
        for half in halves:
            self._intake.record_arrival(half.batch_no)
        saved = partial(traffic.record_saved, self.business, turn, asked_at, traffic.monotonic())
        received.record_passed_on(nbytes)
        self._hand_over(
            self._core.producers.take_halves(self.business, self.epoch, halves),
            lambda done, number: self._on_halves_saved(done, number, first, saved),
            newest=halves[-1].batch_no,
        )

    def _throttle(self, pause_ms: int, *, taken: bool) -> None:
        """Ask the producer to pause, and count the request."""
        self.outbox.throttle(pause_ms, taken=taken)
        self._core.producers.count(self.business, "throttles", 1)

    def _take_decisions(self, decisions: Sequence[broker_pb2.Decision]) -> None:
        """Give the core the producer's decisions, except unknown outcomes."""
        for decision in decisions:
            if decision.verdict == broker_pb2.UNKNOWN:
                continue  # the local transaction has not ended: the next review asks again
            self._hand_over(
                self._core.producers.decide(
                    self.business, decision.epoch, decision.batch_no, decision.digest, decision.verdict
                ),
                partial(self.on_decision_done, can_wait=decision.can_wait),
            )

    def _take_committed(self, frame: broker_pb2.ProducerFrame) -> None:
        """Pass the source's committed position on to the core."""
        if frame.HasField("committed"):
            skip = self._core.producers.skip_lost(self.business, frame.committed)
            self._hand_over(skip, self.on_decision_done, newest=frame.committed.last_batch)

    def _hand_over(self, future: Future[Any], settle: Callable[[Future[Any], int], None], newest: int = 0) -> None:
        """Let the event loop process the result of a command once the core has resolved it."""
        number = self.begin_flight(newest)
        self._service.bridge.call_when_done(future, lambda done: self.on_settled(done, number, settle))

    def begin_flight(self, newest: int = 0) -> int:
        """Count a command for the core; return its number. `newest` is the command's newest half message."""
        self._in_flight += 1
        return self._intake.record_submission(newest)

    # -- from the core, in the loop ----------------------------------------------------------------------------

    def on_settled(self, done: Future[Any], number: int, settle: Callable[[Future[Any], int], None]) -> None:
        """Process the result of a command that was given to the core."""
        self._in_flight -= 1
        try:
            settle(done, number)
        except (StoreFull, Overloaded) as error:
            self._throttle(self._service.traffic.record_refusal(error, self.business, self.producer), taken=False)
        except VenusError as error:
            self.end(error)
        except Exception as error:
            logger.exception("the core failed for %s", self.business)
            self.end(VenusError(f"the broker failed: {error!r}"))
        if self._eof:
            self.outbox.wake.set()

    def _on_halves_saved(self, done: Future[HalvesResult], number: int, first: int, saved: Callable[[], None]) -> None:
        """Release the slot of a saved piece, and process the result for its half messages."""
        saved()
        self.on_halves_done(done, number, first=first)

    def on_halves_done(self, done: Future[HalvesResult], number: int, *, first: int, is_put: bool = False) -> None:
        """Process the result for half messages from `first` on. `is_put`: the client has the acknowledgement."""
        try:
            result = done.result()
        except (StoreFull, Overloaded):
            if self._intake.is_void(number):
                return  # a Resend or Throttle already covers it
            self._intake.request_again(first)
            raise
        if not is_put:
            self.outbox.acknowledge_halves(result.through)
        self._intake.record_persisted(result.through)
        self._service.service_status.clear_alarms(self.business)
        if result.resend_from is not None and not self._intake.is_void(number):
            self.outbox.request_resend(self._intake.request_again(result.resend_from), result.reason)

    def on_decision_done(
        self, done: Future[broker_pb2.Decided], number: int, *, can_wait: bool = False, is_put: bool = False
    ) -> None:
        """Process the result for a decision. `is_put`: the client has the answer."""
        decided = done.result()
        if decided.verdict == broker_pb2.ROLLBACK:
            self._intake.record_rollback(decided.batch_no)
        if not is_put:
            self.outbox.add_decision(decided, can_wait=can_wait and decided.verdict == broker_pb2.COMMIT)


def _total_bytes(halves: Sequence[ShippedHalf]) -> int:
    return sum(len(half.body) for half in halves)
