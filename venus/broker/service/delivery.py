"""The Delivery service: increments from an offset on, and the full data (VENUS 3.3, offset -1)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import grpc

from venus.broker.core import Core
from venus.broker.listening.listening import JudgedBatch
from venus.broker.replicas.gate import Gate
from venus.broker.service.chunk_prefetcher import ChunkPrefetcher
from venus.broker.service.consumer_stream import ConsumerStream, Context, StreamContext
from venus.broker.service.listener_stream import ListenerStream
from venus.broker.service.live_changes import ClientSilent
from venus.broker.service.service_status import ServiceStatus, now_us
from venus.broker.service.shared_frames import SharedFrames
from venus.broker.service.traffic import Traffic
from venus.errors import Diverged, Overloaded, ProtocolError, Refused, Unavailable, VenusError
from venus.flow.admission import DeliveryWindow, Limiter
from venus.flow.degradation import Lane
from venus.network.topology import PULLS_AS
from venus.rpc.errors import abort_on_error
from venus.rpc.event_loop import LoopBridge
from venus.rpc.sealed import check_frame_seal
from venus.wire import broker_pb2, broker_pb2_grpc


class GroupStream(Protocol):
    """The keys of a stream in `StreamIndex`. They never change."""

    @property
    def business(self) -> str:
        """The business that the stream reads."""

    @property
    def group(self) -> str:
        """The group for which the stream reads."""

    @property
    def is_transient(self) -> bool:
        """Whether the stream is a reader outside every group; its position is not kept."""


S = TypeVar("S", bound=GroupStream)


class StreamIndex(Generic[S]):
    """Index of streams by business and by group. Only the event loop changes it; `of_group` works in any thread."""

    def __init__(self) -> None:
        self._by_business: dict[str, dict[S, None]] = {}
        self._by_group: dict[tuple[str, str], tuple[S, ...]] = {}  # replaced, never changed

    def __iter__(self) -> Iterator[S]:
        return (stream for streams in self._by_business.values() for stream in streams)

    def add(self, stream: S) -> None:
        """Add a stream."""
        self._by_business.setdefault(stream.business, {})[stream] = None
        if not stream.is_transient:
            who = stream.business, stream.group
            self._by_group[who] = (*self._by_group.get(who, ()), stream)

    def remove(self, stream: S) -> None:
        """Remove a stream."""
        streams = self._by_business[stream.business]
        del streams[stream]
        if not streams:
            del self._by_business[stream.business]
        if not stream.is_transient:
            who = stream.business, stream.group
            left = tuple(other for other in self._by_group[who] if other is not stream)
            if left:
                self._by_group[who] = left
            else:
                del self._by_group[who]

    def of_business(self, business: str) -> Collection[S]:
        """Return the streams of a business, in the order in which they were added."""
        return self._by_business.get(business, {}).keys()

    def of_group(self, business: str, group: str) -> tuple[S, ...]:
        """Return the streams of a consumer group: one, or two while a new stream replaces the old one."""
        return self._by_group.get((business, group), ())


AnyStream = ConsumerStream | ListenerStream


class DeliveryService(broker_pb2_grpc.DeliveryServicer):
    """All consumers' streams, and snapshots."""

    def __init__(
        self, core: Core, bridge: LoopBridge, service_status: ServiceStatus, traffic: Traffic, gate: Gate
    ) -> None:
        self.core = core
        self.traffic = traffic
        self._gate = gate
        self.bridge = bridge
        self.service_status = service_status
        self.streams: StreamIndex[ConsumerStream] = StreamIndex()
        self.frames = SharedFrames(bridge)
        #: Streams of subscriptions by content.
        self.listeners: StreamIndex[ListenerStream] = StreamIndex()
        core.listening.deliver = lambda judged: bridge.post(self._on_judged, judged)
        core.listening.on_lost = lambda number: bridge.post(self._on_refill, number)
        #: The consumers in this process that are the only ones of their business.
        self._sole: dict[str, ConsumerStream] = {}
        core.publisher.add_listener(self._on_published)
        core.commits.writer.batch_notifications = bridge.coalesce_posts  # one wake-up with the answers to producers

    def _on_published(self, business: str, next_offset: int) -> None:
        """Send a commit to the only consumer of a business, or let the event loop do so. In the committing thread."""
        sole = self._sole.get(business)
        # a consumer that arrives during the call finds this commit in the queue, unless it was registered before the
        # call
        if sole is None or not sole.send_at_once(next_offset) or self._sole.get(business) is not sole:
            self.bridge.post(self._on_commit, business, next_offset)

    def _find_sole(self, business: str) -> None:
        """Record the only stream of a business, if it is in this process; called when a stream begins or ends."""
        streams = list(self.streams.of_business(business))
        if len(streams) == 1 and streams[0].is_in_process:
            self._sole[business] = streams[0]
        else:
            self._sole.pop(business, None)

    def _on_commit(self, business: str, next_offset: int) -> None:
        """Wake the streams of a business, because its queue has a new end."""
        self.frames.on_tail_moved(business, next_offset)
        for stream in self.streams.of_business(business):
            if next_offset > stream.tail or stream.ahead:
                stream.tail = max(stream.tail, next_offset)
                stream.wake.set()

    def _on_judged(self, judged: JudgedBatch) -> None:
        """Pass the result of live matching to the listeners' streams of its business."""
        for stream in self.listeners.of_business(self.core.catalogue.find_name(judged.business)):
            stream.on_judged(judged)

    def _on_refill(self, number: int) -> None:
        """End the listeners' streams of a mirror whose full data is loaded again."""
        error = Unavailable("this mirror takes the full data again; connect again")
        for stream in self.listeners.of_business(self.core.catalogue.find_name(number)):
            stream.end(error)

    def window_of(self, business: str, group: str) -> DeliveryWindow | None:
        """Return the window of a consumer group, None if it has no stream. Works in any thread."""
        found: list[AnyStream] = [*self.streams.of_group(business, group), *self.listeners.of_group(business, group)]
        return found[0].window if found else None

    def all_streams(self) -> Iterator[AnyStream]:
        """Yield the streams of consumers and listeners."""
        yield from self.streams
        yield from self.listeners

    def _of_business(self, business: str) -> list[AnyStream]:
        """Return all streams of a business: of consumers and of listeners."""
        return [*self.streams.of_business(business), *self.listeners.of_business(business)]

    def end_all(self) -> None:
        """End every stream because the broker stops."""
        for stream in self.all_streams():
            stream.end(Unavailable("the broker is stopping"))

    def end_business(self, business: str, error: VenusError) -> None:
        """End every stream of a business."""
        self.frames.drop(business)
        for stream in self._of_business(business):
            stream.end(error)

    def end_groups(self, business: str, error: VenusError) -> None:
        """End the streams of consumer groups, whose positions another broker or set logs now."""
        for stream in self._of_business(business):
            if not stream.is_transient:
                stream.end(error)

    async def Subscribe(self, request_iterator: Any, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Serve one consumer until it leaves."""
        async with abort_on_error(context):
            await self.serve(context)

    async def serve(self, context: StreamContext) -> None:
        """Serve one consumer over any transport. Raises the VenusError that ends its stream."""
        first = check_frame_seal(await context.read(), "the first frame of a consumer")
        if first is grpc.aio.EOF or not first.HasField("open"):
            raise ProtocolError("the first frame of a consumer must have open")
        enter = self._gate.admit_reader if first.open.transient else self._gate.admit_consumer
        enter(first.open.business)
        if not first.open.transient:
            self.core.homes.refuse_consumer(first.open.business)
            self._refuse_namesake(first.open)
        with self.traffic.count_stream(first.open.business, first.open.group):
            stream = ConsumerStream(
                self.core,
                self.bridge,
                self.service_status,
                self.traffic,
                self.frames,
                context,
                first.open,
                partial(self._gate.read_replicas, first.open.business),
                self._gate.address,
            )
            self.streams.add(stream)
            self._find_sole(stream.business)
            self.frames.add_stream(stream.business)
            term = self._gate.term(stream.business)
            try:
                await stream.run(first)
            except Diverged:
                if term:
                    await self._gate.confirm_leadership(stream.business, term)
                raise
            finally:
                self.streams.remove(stream)
                self._find_sole(stream.business)
                self.frames.remove_stream(stream.business)
                self._on_stream_end(stream)

    def _refuse_namesake(self, wanted: broker_pb2.Open) -> None:
        """Refuse a set while another set of the same name pulls: each would move the other's positions."""
        for stream in self.streams.of_group(wanted.business, wanted.group):
            if wanted.set_id and stream.set_id and wanted.set_id != stream.set_id:
                name = wanted.group.removeprefix(PULLS_AS)
                raise Refused(
                    f"two sets are called {name}: another one, at {stream.peer}, pulls {wanted.business} already",
                    hint="give each set a name of its own: [cluster] set",
                )

    def _on_stream_end(self, stream: ConsumerStream) -> None:
        """Record that a consumer group has disconnected, unless another stream of the group is open."""
        if not stream.is_transient and not self.streams.of_group(stream.business, stream.group):
            self.service_status.reports.record_disconnect(stream.business, stream.group, now_us())

    async def Listen(self, request_iterator: Any, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Serve one client's subscriptions until it leaves."""
        async with abort_on_error(context):
            try:
                await self.serve_listener(context)
            except ClientSilent:
                self.traffic.record_cut_listener()
                raise

    async def serve_listener(self, context: StreamContext) -> None:
        """Serve one client's subscriptions over any transport. Raises the VenusError that ends its stream."""
        first = check_frame_seal(await context.read(), "the first frame of a listener")
        if first is grpc.aio.EOF or not first.HasField("open"):
            raise ProtocolError("the first frame of a listener must have open")
        enter = self._gate.admit_consumer if first.open.group else self._gate.admit_reader
        enter(first.open.business)
        if first.open.group:
            self.core.homes.refuse_consumer(first.open.business)
        with self.traffic.count_stream(first.open.business, first.open.group or first.open.client):
            stream = ListenerStream(self.core, self.bridge, self.traffic, context, first.open)
            self.listeners.add(stream)
            try:
                await stream.run(first)
            finally:
                self.listeners.remove(stream)

    async def OpenSnapshot(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.OpenSnapshotRequest, context: Context
    ) -> broker_pb2.Snapshot | None:
        """Open a snapshot at a cut."""
        async with abort_on_error(context):
            self._gate.admit_snapshot(request.business, request.holder)
            if request.holder:
                self.core.homes.refuse_consumer(request.business)
            self.traffic.check_snapshot(request.business, request.holder)
            try:
                full_data = self.core.full_data
                return await self.bridge.open_blocking(Lane.FULL_DATA, full_data.release, full_data.open, request)
            except Overloaded as error:
                self.traffic.record_delay(Limiter.SNAPSHOTS, request.business, request.holder, error.retry_after_s)
                raise
        return None

    async def ReadSplit(self, request: broker_pb2.ReadSplitRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Send the chunks of one key range. The next chunk is read while one is being sent."""
        async with abort_on_error(context):
            chunks = ChunkPrefetcher(self.core, self.bridge, request)
            business = self.core.full_data.business_of(request.snapshot_id)
            async with self.traffic.hold_load_slot(business):
                try:
                    while (chunk := await chunks.next()) is not None:
                        await self.traffic.pace_full_data(business, len(chunk.body), chunks.took_s)
                        await context.write(chunk)
                finally:
                    chunks.close()

    async def SumSnapshot(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.SnapshotRef, context: Context
    ) -> broker_pb2.SnapshotTotals | None:
        """Return the totals that a complete load must match."""
        async with abort_on_error(context):
            return await self.bridge.run_blocking(Lane.FULL_DATA, self.core.full_data.totals, request.snapshot_id)
        return None

    async def RenewSnapshot(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.SnapshotRef, context: Context
    ) -> broker_pb2.Snapshot | None:
        """Renew a lease."""
        async with abort_on_error(context):
            return await self.bridge.run_blocking(Lane.CONTROL, self.core.full_data.renew, request.snapshot_id)
        return None

    async def CloseSnapshot(  # type: ignore[override]  # noqa: N802
        self, request: broker_pb2.SnapshotRef, context: Context
    ) -> broker_pb2.Empty | None:
        """Close a snapshot."""
        async with abort_on_error(context):
            # closing may remove many files
            await self.bridge.run_blocking(Lane.FULL_DATA, self.core.full_data.close, request.snapshot_id)
            return broker_pb2.Empty()
        return None
