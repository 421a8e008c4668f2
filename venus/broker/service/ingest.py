"""The Ingest service: admits one producer at a time for each business (VENUS 3.2, 3.3).

A producer is live as long as its stream lasts. A killed process loses its stream at once; a frozen or unreachable
machine stops answering keepalive and loses it after the keepalive timeout. A new producer waits for about the
keepalive timeout at most: until the old stream ends, or until it is refused because the current producer has sent
something, which a working producer does with every heartbeat. Only the broker's monotonic clock measures these times.

`ask_for_reviews` sends reviews of undecided half messages on the live stream of the current epoch. Only delivered
reviews count; without a producer no review is sent and no half message is discarded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol
from weakref import WeakValueDictionary

import grpc

from venus.broker.core import Core
from venus.broker.replicas.gate import Gate
from venus.broker.service.producer_stream import Context, ProducerStream, StreamContext, StreamServices
from venus.broker.service.service_status import ServiceStatus, now_us
from venus.broker.service.traffic import Traffic
from venus.errors import Diverged, Fenced, Held, ProtocolError, Unavailable, VenusError
from venus.flow.degradation import Lane
from venus.rpc.errors import abort_on_error
from venus.rpc.event_loop import LoopBridge
from venus.rpc.reports import SOURCE
from venus.rpc.sealed import check_frame_seal
from venus.wire import broker_pb2, broker_pb2_grpc

#: Interval between two checks of the current producer.
LOOK_S = 0.05


class CurrentProducer(Protocol):
    """The stream of the producer that holds a business."""

    init: broker_pb2.Init
    #: When it connected, Unix seconds.
    since: float
    #: When its last frame arrived, on the monotonic clock.
    heard_at: float

    @property
    def is_ending(self) -> bool:
        """Whether the broker is ending the stream."""
        ...


def must_wait(holder: CurrentProducer | None, init: broker_pb2.Init) -> bool:
    """Return whether a new producer must wait for the current one."""
    if holder is None or holder.is_ending or init.take_over:
        return False
    if init.owner and init.owner == holder.init.owner:
        return False
    return init.gives_way or not holder.init.gives_way


async def wait_for_holder(
    live: Mapping[str, CurrentProducer],
    init: broker_pb2.Init,
    *,
    patience_s: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until no other producer holds the business. Raises Held once the holder is known to be alive."""
    asked_at = monotonic()
    while (holder := live.get(init.business)) is not None and must_wait(holder, init):
        if holder.heard_at > asked_at or monotonic() - asked_at >= patience_s:
            raise _held_error(holder, monotonic())
        await asyncio.sleep(LOOK_S)


def _held_error(holder: CurrentProducer, now: float) -> Held:
    """Return the error for a producer that must not replace the current one."""
    since = datetime.fromtimestamp(holder.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    heard_s = max(0.0, now - holder.heard_at)
    return Held(
        f"capture of business {holder.init.business} is held by {holder.init.producer}, connected since {since},"
        f" last heard from {heard_s:.1f} s ago",
        hint="stop it there, or run `venus sync --take-over`, which stops it permanently",
    )


class IngestService(broker_pb2_grpc.IngestServicer):
    """All producers' streams; one live producer for each business."""

    def __init__(
        self,
        core: Core,
        bridge: LoopBridge,
        service_status: ServiceStatus,
        *,
        traffic: Traffic,
        patience_s: float,
        gate: Gate,
    ) -> None:
        self.core = core
        self.bridge = bridge
        self.service_status = service_status
        self._shared = StreamServices(core, bridge, service_status, traffic)
        self.live: dict[str, ProducerStream] = {}
        self._patience_s = patience_s
        self._gate = gate
        self._admission_locks = WeakValueDictionary[str, asyncio.Lock]()

    async def Produce(self, request_iterator: Any, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Serve one producer until it leaves, is fenced or breaks the protocol."""
        async with abort_on_error(context):
            await self.serve(context)

    async def serve(self, context: StreamContext) -> None:
        """Serve one producer over any transport. Raises the VenusError that ends its stream."""
        first = check_frame_seal(await context.read(), "the first frame of a producer")
        if first is grpc.aio.EOF or not first.HasField("init"):
            raise ProtocolError("the first frame of a producer must have init")
        init = first.init
        with self._shared.traffic.count_stream(init.business, init.producer):
            stream = await self._admit(context, init)
            try:
                await stream.run(first)
            finally:
                self._leave(stream)
                self.core.producers.leave(init.business)

    async def _admit(self, context: StreamContext, init: broker_pb2.Init) -> ProducerStream:
        """Admit a producer, one at a time. Raises Held while another one is alive."""
        while True:
            await wait_for_holder(self.live, init, patience_s=self._patience_s)
            # one lock for each business: opening may wait for a leader or for followers
            async with self._admission_locks.setdefault(init.business, asyncio.Lock()):
                if not must_wait(self.live.get(init.business), init):
                    return await self._open(context, init)

    async def _open(self, context: StreamContext, init: broker_pb2.Init) -> ProducerStream:
        """Check and initialise a producer, and return its registered stream."""
        if self.service_status.network is not None:
            self.service_status.network.check_producer(init.business)
        await self._gate.admit_producer(init.business)
        term = self._gate.term(init.business)
        answer = self.core.producers.init(
            init.business, init.producer, init.source_epoch, init.source_last_batch, insists=init.take_over
        )
        try:
            stream = ProducerStream(self._shared, context, init, await asyncio.wrap_future(answer))
            self._enter(stream)
        except BaseException as error:
            self.core.producers.leave(init.business)
            if term and isinstance(error, Diverged):
                await self._gate.confirm_leadership(init.business, term)
            raise
        return stream

    def _enter(self, stream: ProducerStream) -> None:
        """Register a stream as the live producer; end an older one. Raises Fenced if a newer one is live."""
        older = self.live.get(stream.business)
        if older is not None and older.epoch > stream.epoch:
            raise Fenced(f"a newer producer of {stream.business} has taken over")
        self.live[stream.business] = stream
        self.service_status.producers[stream.business] = stream.producer
        if older is not None:
            older.end(Fenced(f"{stream.producer} has taken over business {stream.business}"))

    def _leave(self, stream: ProducerStream) -> None:
        """Remove an ended stream, unless a newer one has taken its place."""
        if self.live.get(stream.business) is stream:
            del self.live[stream.business]
            del self.service_status.producers[stream.business]
            self.service_status.reports.record_disconnect(stream.business, SOURCE, now_us())

    @contextmanager
    def overrule(self, business: str, batch_no: int) -> Iterator[None]:
        """Run an operator's decision on a half message; the live stream ends with Unavailable instead of Fenced."""
        stream = self.live.get(business)
        error = Unavailable(f"an operator has decided half message {batch_no} of {business}: connect again")
        if stream is not None:
            stream.instead_of_fenced = error
        try:
            yield
        except VenusError:
            if stream is not None:
                stream.instead_of_fenced = None
            raise
        if stream is not None:
            stream.end(error)

    def end_all(self) -> None:
        """End every stream because the broker stops."""
        for stream in list(self.live.values()):
            stream.end(Unavailable("the broker is stopping"))


logger = logging.getLogger(__name__)

REVIEW_EVERY_S = 0.25
#: Interval of reviews while nothing is undecided; less if a first review is due within four of these intervals.
QUIET_EVERY_S = 1.0


async def ask_for_reviews(core: Core, bridge: LoopBridge, ingest: IngestService, *, first_s: float) -> None:
    """Send due reviews until cancelled. `first_s` is the time from a half message to its first review."""
    quiet_s = max(REVIEW_EVERY_S, min(QUIET_EVERY_S, first_s / 4))
    while True:
        await asyncio.sleep(REVIEW_EVERY_S if core.producers.has_undecided else quiet_s)
        if not core.producers.has_undecided:
            continue  # the usual case uses no thread
        try:
            due = await bridge.run_blocking(Lane.CONTROL, core.producers.due_reviews)
        except VenusError as error:
            logger.warning("reviews: %s", error)
            continue
        except Exception:  # without this task no reviews would be sent
            logger.exception("the broker could not find out which reviews are due")
            continue
        for business, epoch, halves in due:
            stream = ingest.live.get(business)
            if stream is not None and stream.epoch == epoch:
                stream.outbox.request_review(halves)
