"""One consumer's stream: increments from an offset on, after the full data if the consumer asks for it.

A consumer grants credit in bytes. The stream reads only what it may send, so a stopped consumer costs the memory of one
frame at most. A commit wakes the subscribers of its business; one frame carries everything that was committed since the
last one. If the only subscriber is in this process and has everything before the commit, the committing thread sends
the frame itself (`send_at_once`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from venus.broker.core import Core
from venus.broker.machine.mirror import filters_from_wire
from venus.broker.queue.border_masks import border_for
from venus.broker.queue.early_delivery import EarlyDelivery
from venus.broker.queue.reader import ReadResult
from venus.broker.queue.reduced_batches import TableChoice
from venus.broker.service.chunk_prefetcher import ChunkPrefetcher
from venus.broker.service.in_process import InProcessContext
from venus.broker.service.local_streams import LocalContext
from venus.broker.service.replica_watch import ReplicaWatch
from venus.broker.service.service_status import ServiceStatus, now_us
from venus.broker.service.shared_frames import FrameKey, SharedFrames, bytes_max_for
from venus.broker.service.traffic import DEGRADED_FRAME_BYTES, DEGRADED_PAUSE_S, Traffic
from venus.errors import NotLeader, ProtocolError, Unavailable, VenusError
from venus.flow.admission import DeliveryWindow
from venus.flow.degradation import Lane
from venus.model import FULL
from venus.replication.records import LiveBroker
from venus.rpc.channel import FRAME_BYTES
from venus.rpc.compression import BodyCompressor, Credit, cost, is_large
from venus.rpc.event_loop import LoopBridge
from venus.rpc.sealed import SealedMessage, check_frame_seal
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

AGAIN = "it is opened again by itself"
#: How often a stream whose increments are read elsewhere checks the replicas.
WATCH_REPLICAS_S = 1.0
#: A snapshot's lease is renewed after this fraction of it.
RENEW_PART = 0.25

Context = grpc.aio.ServicerContext[Any, Any]
StreamContext = Context | InProcessContext | LocalContext


class ConsumerStream:
    """Stream of one consumer: a task reads acknowledgements and credit, `run` sends."""

    def __init__(
        self,
        core: Core,
        bridge: LoopBridge,
        service_status: ServiceStatus,
        traffic: Traffic,
        frames: SharedFrames,
        context: StreamContext,
        wanted: broker_pb2.Open,
        read_replicas: Callable[[], list[LiveBroker]] = list,
        own_address: str = "",
    ) -> None:
        self.business, self.group = wanted.business, wanted.group
        self.set_id, self.peer = wanted.set_id, str(context.peer())
        #: Frames are not encoded for a consumer in this process, and not compressed for one on this machine.
        self._inside = context if isinstance(context, InProcessContext) else None
        self._compresses = not isinstance(context, InProcessContext | LocalContext)
        self.wake = asyncio.Event()
        self.tail = 0  # the end of the queue, as far as this stream knows
        self._core, self._bridge, self._context, self._wanted = core, bridge, context, wanted
        self._service_status, self._traffic, self._frames = service_status, traffic, frames
        self._tables = tuple(wanted.table_ids)
        self._where = filters_from_wire(wanted.where)
        border = border_for(core.borders, wanted.business, wanted.group)
        chooses = wanted.only or wanted.where or border is not None
        self._only = TableChoice(wanted.only, self._where, border) if chooses else None
        #: A part of the credit. It shrinks while the consumer takes nothing.
        self.window = DeliveryWindow(wanted.credit_bytes, traffic.admission.limits.slow_consumer_s)
        self._credit = Credit(wanted.credit_bytes)
        self._mark: tuple[int, float] | None = None  # an offset, and when it was not acknowledged yet
        self._acknowledged = wanted.offset
        self._position = wanted.offset
        self.is_transient = wanted.transient
        self.ahead = wanted.ahead and not wanted.table_ids and self._only is None
        self._sent = EarlyDelivery(wanted.offset)
        self._compressor = BodyCompressor()
        self._error: VenusError | None = None
        self._eof = False
        self._token = 0  # of the attachment
        self._follows = False  # whether the consumer had everything before the newest commit
        self._turn = threading.Lock()  # held by the thread that sends, and while credit changes
        self._rests = False  # whether the event loop sends nothing, and the committing thread may
        self._read_replicas, self._own_address = read_replicas, own_address
        self._fill = (0, 0)  # number of the business, and at a mirror the full data that the increments follow

    @property
    def is_in_process(self) -> bool:
        """Whether the consumer is in this process."""
        return self._inside is not None

    def end(self, error: VenusError) -> None:
        """End the stream with this error."""
        self._error = self._error or error
        self.wake.set()

    def unacknowledged_s(self, now: float) -> float:
        """Return for how long the consumer has owed an acknowledgement; 0 means it owes none."""
        if self._mark is not None and self._acknowledged >= self._mark[0]:
            self._mark = None
        if self._mark is None and self._acknowledged < self._position:
            self._mark = self._position, now
        return now - self._mark[1] if self._mark is not None else 0.0

    async def run(self, first: broker_pb2.ConsumerFrame) -> None:
        """Serve until the consumer leaves."""
        full_data = self._core.full_data
        snapshot: broker_pb2.Snapshot | None = None
        if self._wanted.offset == FULL:
            request = broker_pb2.OpenSnapshotRequest(
                business=self.business,
                table_ids=self._tables,
                splits=1,
                holder=self.group,
                only=self._wanted.only,
                where=self._wanted.where,
            )
            snapshot = await self._bridge.open_blocking(Lane.FULL_DATA, full_data.release, full_data.open, request)
            self._position = snapshot.offset
        try:
            await self._serve(first, snapshot)
        finally:
            if snapshot is not None:
                self._bridge.run_in_background(Lane.FULL_DATA, full_data.release, snapshot)

    async def _serve(self, first: broker_pb2.ConsumerFrame, snapshot: broker_pb2.Snapshot | None) -> None:
        """Check the position, attach the stream, and send chunks and increments until the consumer leaves."""
        blocking = self._bridge.run_blocking
        epoch = self._wanted.epoch if snapshot is None else snapshot.epoch
        self._fill = self._core.subscriptions.fill_of(self.business)
        opened = await blocking(
            Lane.INCREMENTS, self._core.subscriptions.check_position, self.business, self._position, epoch, self._wanted
        )
        opened.filters = bool(self._where)
        self.tail = max(self.tail, opened.next_offset)
        self._sent = EarlyDelivery(self._position)
        attaching = asyncio.ensure_future(blocking(Lane.INCREMENTS, self._attach))
        reader: asyncio.Task[None] | None = None
        watching: asyncio.Task[None] | None = None
        try:
            self._token = await asyncio.shield(attaching)
            opened.kept = self._core.subscriptions.kept_offset(self.business, self.group, self._token)
            reader = asyncio.create_task(self._read(first))
            if self._wanted.elsewhere and snapshot is None and not self.is_transient:
                replicas = ReplicaWatch(self._read_replicas())
                opened.replicas.extend(replicas.to_messages())
                watching = asyncio.create_task(self._watch_replicas(replicas))
            if snapshot is not None:
                opened.snapshot.CopyFrom(snapshot)
            await self._context.write(broker_pb2.DeliveryFrame(opened=opened))
            if snapshot is not None:
                await self._send_chunks(snapshot)
            if opened.replicas:
                await self._wait_until(lambda: False)  # the replicas send the increments
            await self._send_increments()
        finally:
            for task in (reader, watching):
                if task is not None:
                    task.cancel()
            attaching.add_done_callback(self._detach)  # a cancelled stream may still be attaching

    def _attach(self) -> int:
        """Attach the stream to its consumer group; return the token of the attachment."""
        wanted = self._wanted
        kept = wanted.kept if wanted.HasField("kept") else None
        return self._core.subscriptions.attach(
            self.business, self.group, self._position, kept=kept, transient=wanted.transient
        )

    def _detach(self, attaching: asyncio.Future[int]) -> None:
        """Detach the stream in the background if its attachment succeeded."""
        if not attaching.cancelled() and attaching.exception() is None:
            self._bridge.run_in_background(
                Lane.CONTROL, self._core.subscriptions.detach, self.business, self.group, attaching.result()
            )

    # -- to the consumer -----------------------------------------------------------------------------------------

    async def _send_chunks(self, snapshot: broker_pb2.Snapshot) -> None:
        """Send the full data of a snapshot, and renew its lease."""
        renewed = time.monotonic()
        for split in snapshot.splits:
            request = broker_pb2.ReadSplitRequest(
                snapshot_id=snapshot.snapshot_id,
                split=split,
                chunk_bytes=max(1, min(FRAME_BYTES, self._wanted.credit_bytes)),
            )
            chunks = ChunkPrefetcher(self._core, self._bridge, request)
            try:
                while (sealed := await chunks.next()) is not None:
                    chunk = sealed.to_message()
                    await self._traffic.pace_full_data(self.business, len(chunk.body))
                    await self._wait_until(partial(self._has_credit, cost(chunk)))
                    if self._eof:
                        return
                    self._spend(cost(chunk))
                    await self._context.write(broker_pb2.DeliveryFrame(chunk=chunk))
                    if time.monotonic() - renewed > RENEW_PART * snapshot.lease_s:
                        renewed = time.monotonic()
                        await self._bridge.run_blocking(Lane.CONTROL, self._core.full_data.renew, snapshot.snapshot_id)
            finally:
                chunks.close()

    async def _watch_replicas(self, replicas: ReplicaWatch) -> None:
        """End the stream with NotLeader once the consumer should choose another replica.

        The error names this broker: after Unavailable the client would leave a broker, or even a set, that works.
        """
        while self._error is None:
            await asyncio.sleep(WATCH_REPLICAS_S)
            try:
                self._check_fill()
            except VenusError as error:
                self.end(error)
            if change := replicas.find_change(self._read_replicas(), time.monotonic()):
                self.end(NotLeader(f"{self.business}: {change}", hint=AGAIN, leader=self._own_address))

    async def _send_increments(self) -> None:
        while not self._eof:
            if self._position < self.tail and self._frames.has_many_readers(self.business):
                await self._frames.turnstile.enter()
            self.wake.clear()
            if self._error is not None:
                raise self._error
            frame = await self._next_frame()
            self._check_fill()
            if frame is not None:
                if isinstance(frame, broker_pb2.DeliveryFrame) and self._compresses and is_large(frame):
                    frame = await self._bridge.run_blocking(Lane.INCREMENTS, self._compressor.increments, frame)
                await self._context.write(frame)
                if self._traffic.has_degraded(Lane.INCREMENTS):
                    await asyncio.sleep(DEGRADED_PAUSE_S)
                elif pause_s := self._frames.pause_s(self.business, time.monotonic()):
                    await asyncio.sleep(pause_s)
            else:
                await self._wait_for_news()

    async def _wait_for_news(self) -> None:
        """Wait for data to send. Meanwhile the committing thread may send to a consumer of this process."""
        with self._turn:
            self._rests = self._can_read_here
        try:
            await self.wake.wait()
        finally:
            with self._turn:
                self._rests = False

    def send_at_once(self, next_offset: int) -> bool:
        """Send commits up to `next_offset` in the committing thread; return False if the event loop has to."""
        with self._turn:
            busy = not self._rests or self._sent.is_waiting or self._traffic.has_degraded(Lane.INCREMENTS)
            if self._inside is None or busy or self._error is not None or self._position >= next_offset:
                return False
            try:
                self._check_fill()
                wanted = (self.business, self._position, self._room, self._tables, self._only)
                frame = self._build_frame(self._core.subscriptions.read(*wanted)) if wanted[2] > 0 else None
            except VenusError:  # the event loop gets the same error, and ends the stream
                return False
            return frame is not None and self._inside.put_at_once(frame) and self._position >= next_offset

    def _check_fill(self) -> None:
        """Raise Unavailable if the increments would follow other full data than the consumer has.

        A consumer exactly at the cut must connect again with its position. The check also finds a new business that
        took this name between `check_position` and `attach`.
        """
        number, _ = fill = self._core.subscriptions.fill_of(self.business)
        if number != self._fill[0]:
            raise Unavailable(f"{self.business}: the business was removed and created again")
        if fill != self._fill:
            raise Unavailable(f"{self.business}: this mirror takes the full data again")

    async def _next_frame(self) -> broker_pb2.DeliveryFrame | SealedMessage | None:
        """Return the next frame, or None at the end of the queue or of the credit."""
        room = self._room
        if room <= 0 or self._position >= self.tail:
            self._follows = self._position >= self.tail
            return self._early_frame(room) if self.ahead and room > 0 else None
        if (shared := await self._shared_frame(room)) is not None:
            return shared
        wanted = (self.business, self._position, room, self._tables, self._only, self._sent.waiting)
        if self._can_read_here:
            result = self._core.subscriptions.read(*wanted)
        else:
            result = await self._bridge.run_blocking(Lane.INCREMENTS, self._core.subscriptions.read, *wanted)
        return self._build_frame(result)

    def _build_frame(self, result: ReadResult) -> broker_pb2.DeliveryFrame | None:
        """Return a frame with as much of the result as the credit allows; None if it allows nothing."""
        going: list[broker_pb2.Increment] = []
        left = len(result.increments)
        for increment in result.increments:
            words = self._sent.decision_messages(increment)
            if not self._add_messages(going, words):
                break
            left -= 1
        complete = not left
        position = result.next_offset if complete else self._position
        if going:
            end = going[-1].base_offset + going[-1].count
            position = max(position, end) if complete else end
        if position == self._position:
            return None
        self._position = position
        beyond = not going or position > end
        return broker_pb2.DeliveryFrame(increments=going, progress=position if beyond else 0)

    async def _shared_frame(self, room: int) -> SealedMessage | None:
        """Return a frame shared with other consumers at this position; None means that this consumer needs its own."""
        if self._sent.is_waiting or self.is_in_process or not self._frames.can_share(self.business):
            return None
        position = self._position
        business = self._core.subscriptions.serving_business(self.business, position)
        wanted = FrameKey(
            self.business,
            position,
            self._tables,
            tuple(self._wanted.only),
            bytes_max_for(room),
            self._where,
            self._fill,
            is_masked=self._only is not None and self._only.border is not None,
        )
        read = partial(
            self._core.subscriptions.read, self.business, position, wanted.bytes_max, self._tables, self._only
        )
        found = await self._frames.take(business, wanted, read, from_memory=self._can_read_here)
        if found.frame is None or found.next_offset == position or not self._has_credit(found.price, found.increments):
            return None
        self._spend(found.price)
        self._sent.position = found.end
        self._position = found.next_offset
        self._frames.sent += 1
        return found.frame

    @property
    def _can_read_here(self) -> bool:
        """Whether the event loop can read without a thread: the newest commit is in memory and not rewritten."""
        return self._follows and not (self._only is not None and self._only.is_rewritten)

    @property
    def _room(self) -> int:
        """How many bytes the next frame may have."""
        frame = DEGRADED_FRAME_BYTES if self._traffic.has_degraded(Lane.INCREMENTS) else FRAME_BYTES
        return min(frame, self._credit.balance, self.window.room)

    def _has_credit(self, nbytes: int, messages: int = 1) -> bool:
        """Return whether these messages may be sent together. A message larger than the window is sent alone."""
        if messages > 1:
            return nbytes <= min(self._credit.balance, self.window.room)
        return self._credit.allows(nbytes) and (nbytes <= self.window.room or not self.window.outstanding)

    def _spend(self, nbytes: int) -> None:
        """Count sent bytes against the credit and the window."""
        self._credit.spend(nbytes)
        self.window.on_sent(nbytes, self._traffic.monotonic())

    def _early_frame(self, room: int) -> broker_pb2.DeliveryFrame | None:
        """Return half messages that are sent before their decision. They are in memory."""
        going: list[broker_pb2.Increment] = []
        for increment in self._core.subscriptions.read_ahead(self.business, self._sent, room):
            if not self._add_messages(going, [increment]):
                break
        return broker_pb2.DeliveryFrame(increments=going) if going else None

    def _add_messages(self, going: list[broker_pb2.Increment], words: list[broker_pb2.Increment]) -> bool:
        """Add messages to a frame's list `going` if the credit allows it; return whether it does."""
        price = sum(map(cost, words))
        if not self._has_credit(price):
            return False
        self._spend(price)
        for word in words:
            self._sent.record_sent(word)
        going += words
        return True

    async def _wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` is true or the consumer leaves. Raises the error that ends the stream."""
        while not self._eof:
            self.wake.clear()
            if self._error is not None:
                raise self._error
            if ready():
                return
            await self.wake.wait()

    # -- from the consumer ---------------------------------------------------------------------------------------

    def _on_frame(self, frame: broker_pb2.ConsumerFrame) -> None:
        """Record a consumer's acknowledgement and report in memory; the upkeep logs them later.

        Ignore the frame once a newer stream of the group is attached.
        """
        kept = frame.kept if frame.HasField("kept") else None
        reports = frame.HasField("unaccounted_rows") or frame.HasField("report")
        if not frame.acknowledge and kept is None and not reports:
            return
        self._acknowledged = max(self._acknowledged, frame.acknowledge)
        current = self._core.subscriptions.acknowledge(self.business, self.group, self._token, frame.acknowledge, kept)
        if not current or self.is_transient:
            return  # a transient reader does not speak for the group
        if frame.HasField("unaccounted_rows"):
            self._service_status.reports.record_unaccounted(self.business, self.group, frame.unaccounted_rows)
        if frame.HasField("report"):
            self._service_status.reports.record(self.business, self.group, frame.report, now_us())

    async def _read(self, frame: Any) -> None:
        """Record the consumer's acknowledgements, reports and credit, until it leaves."""
        try:
            while True:
                self._on_frame(frame)
                if frame.credit_bytes > 0:
                    with self._turn:
                        self._credit.grant(frame.credit_bytes)
                        self.window.on_returned(frame.credit_bytes, self._traffic.monotonic())
                    self.wake.set()
                frame = await self._context.read()
                if frame is None:
                    self._core.producers.count(self.business, "digest_mismatches", 1)
                frame = check_frame_seal(frame, f"a frame of consumer group {self.group}")
                if frame is grpc.aio.EOF:
                    break
                if frame.HasField("open"):
                    raise ProtocolError("open came twice on one stream")  # noqa: TRY301
            self._eof = True
            self.wake.set()
        except VenusError as error:
            self.end(error)
        except Exception as error:
            logger.exception("reading from consumer %s of %s failed", self.group, self.business)
            self.end(VenusError(f"the broker failed to read a frame: {error!r}"))
