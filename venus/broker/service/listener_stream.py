"""One client's stream of subscriptions by content (SREM 2): rows, then a replay of the queue, then live changes.

A subscription begins with the full data, at a position, or now. The stream registers a subscription for live matching,
then reads the queue up to the first live batch, so no change is missed or comes twice. Live changes wait in the stream
up to `LIVE_BYTES_MAX`. A slow client loses waiting live changes and reads the queue again from its position, at its
own pace. A client that reads nothing for `listener_s` is disconnected; the error contains its position.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
import numpy as np

from venus.broker.core import Core
from venus.broker.listening.listening import JudgedBatch, WantedSubscription
from venus.broker.machine.business import Business
from venus.broker.service.consumer_stream import StreamContext
from venus.broker.service.live_changes import (
    ClientLost,
    ClientSilent,
    LiveSubscription,
    PendingSubscription,
    PendingSubscriptions,
    WaitingChanges,
    choose_columns,
    end_news,
    own_news,
)
from venus.broker.service.subscription_reader import NOW, ROWS, KeptQueue, SubscriptionReader
from venus.broker.service.traffic import Traffic
from venus.codec import schema as schemas_codec
from venus.codec.changed_rows import frame_cost
from venus.errors import ProtocolError, Refused, Unavailable, VenusError
from venus.flow.admission import DeliveryWindow
from venus.flow.degradation import Lane
from venus.model import TableSchema
from venus.rpc.channel import FRAME_BYTES
from venus.rpc.compression import Credit
from venus.rpc.event_loop import LoopBridge
from venus.rpc.sealed import check_frame_seal
from venus.wire import broker_pb2, change_pb2

logger = logging.getLogger(__name__)

#: `start` of a live subscription that still replays the queue.
NOT_YET = 1 << 62
#: Interval at which a client without changes gets its position, and a waiting stream checks whether its client reads.
PROGRESS_S = 1.0


class ListenerStream:
    """Stream of one client's subscriptions by content."""

    def __init__(
        self, core: Core, bridge: LoopBridge, traffic: Traffic, context: StreamContext, wanted: broker_pb2.ListenerOpen
    ) -> None:
        limits = traffic.admission.limits
        self.business, self.client = wanted.business, wanted.client
        self.group, self.is_transient = wanted.group or f"listen/{wanted.client or 'client'}", not wanted.group
        self.window = DeliveryWindow(wanted.credit_bytes, limits.slow_consumer_s)
        self._most, self._cut_s = limits.subscriptions_of_client, limits.listener_s
        self._core, self._bridge, self._traffic, self._context = core, bridge, traffic, context
        self._reading = SubscriptionReader(core, bridge, traffic, wanted.business, self.group)
        self._kept = KeptQueue(core, bridge, wanted.business, self.group, transient=self.is_transient)
        self._wake = asyncio.Event()
        self._credit = Credit(wanted.credit_bytes)
        self._returned_at = time.monotonic()
        self._pending = PendingSubscriptions()
        self._live: dict[int, LiveSubscription] = {}
        self._waiting = WaitingChanges()
        self._known: set[tuple[int, int]] = set()  # versions that the client has
        self._position = (0, 0)  # offset and epoch, of all live subscriptions
        self._judged = (0, 0)  # the end of the newest cut that was judged
        self._announced = 0
        self._newest_start = 0
        self._error: VenusError | None = None
        self._eof = False
        self._fill = (0, 0)
        self.sent_changes = 0

    @property
    def subscriptions(self) -> int:
        """How many subscriptions the client has on this stream."""
        return len(self._live) + len(self._pending)

    @property
    def position(self) -> str:
        """The position of the live subscriptions, in the form in which a client returns it."""
        return f"{self._position[0]}-{self._position[1]}"

    def end(self, error: VenusError) -> None:
        """End the stream with this error."""
        self._error = self._error or error
        self._wake.set()

    def unacknowledged_s(self, now: float) -> float:
        """Return for how long the client has owed credit; 0 means it owes none."""
        return now - self.window.slow_since if self.window.slow_since is not None else 0.0

    async def run(self, first: broker_pb2.ListenerFrame) -> None:
        """Serve until the client leaves."""
        self._fill = self._core.subscriptions.fill_of(self.business)
        reader: asyncio.Task[None] | None = None
        try:
            await self._context.write(broker_pb2.ChangesFrame(kept=await self._kept.attach()))
            reader = asyncio.create_task(self._read_frames(first))
            while not self._eof:
                self._wake.clear()
                self._raise_if_ended()
                if not await self._do_next_work():
                    await self._wait_for_work()
        finally:
            if reader is not None:
                reader.cancel()
            self._core.listening.unsubscribe([one.judged_as for one in self._live.values()])
            self._live.clear()
            self._kept.release()

    def _raise_if_ended(self) -> None:
        if self._error is not None:
            raise self._error
        if self._core.subscriptions.fill_of(self.business) != self._fill:
            raise Unavailable(f"{self.business}: the rows of this broker are replaced; connect again")

    async def _do_next_work(self) -> bool:
        """Begin subscriptions, else send live changes, else the position; return False if there is nothing to do."""
        if not self._pending:
            self._kept.unpin()
        if self._pending:
            await self._begin(self._pending.take_together())
        elif self._waiting:
            await self._send_live_changes()
        elif self._position[0] > self._announced:
            await self._send_position()
        else:
            return False
        return True

    async def _wait_for_work(self) -> None:
        try:
            async with asyncio.timeout(PROGRESS_S if self._live else None):
                await self._wake.wait()
        except TimeoutError:
            if not self._waiting and self._judged[0] > self._position[0]:
                self._position = self._judged

    # -- from the judging thread, in the event loop -----------------------------------------------------------------

    def on_judged(self, judged: JudgedBatch) -> None:
        """Handle the result of matching a batch."""
        changes, own = judged.changes.pop(self, ()), own_news(judged, self)
        is_concerned = changes or own.ended or own.reloads  # also for one that is registered but not live yet
        if is_concerned or (self._live and (judged.is_gap or judged.schemas)):
            self._waiting.add(own, changes)
            self._wake.set()
        if judged.at_cut_end:
            self._judged = (judged.next_offset, judged.epoch)

    async def _send_live_changes(self) -> None:
        frame, nbytes, position = broker_pb2.ChangesFrame(), 0, self._position
        while self._waiting and nbytes < FRAME_BYTES:
            part = self._waiting.first
            judged = part.judged
            if part.has_news:
                if frame.changes:
                    break
                part.has_news = False
                await self._handle_news(judged)
                continue
            self._waiting.drop_first()
            self._add_schemas(frame, judged.schemas)
            kept = [self._drop_stale(one, judged) for one in part.changes]
            changes = [one for one in kept if one is not None]
            if judged.at_cut_end and judged.next_offset > position[0]:
                position = (judged.next_offset, judged.epoch)
                if changes:
                    changes[-1].next_offset, changes[-1].epoch = position
            frame.changes.extend(changes)
            nbytes += part.nbytes
        if frame.changes or frame.tables:
            await self._send(frame)
            self._announced = max(self._announced, *(one.next_offset for one in frame.changes), 0)
        self._position = position
        self._kept.advance(self._position[0])

    def _drop_stale(self, changes: broker_pb2.ChangedRows, judged: JudgedBatch) -> broker_pb2.ChangedRows | None:
        """Drop the changes of subscriptions that ended or had read them before going live; None = nothing is left."""
        changes.committed_at_us = judged.committed_at_us
        if judged.base_offset >= self._newest_start and not judged.reloads:
            return changes
        numbers = np.frombuffer(changes.subscriptions, "<u4").tolist()
        end = judged.next_offset  # batches may be judged together: part of them was read before then
        kept = np.array([n in self._live and self._live[n].start < end for n in numbers], np.bool_)
        if not kept.any():
            return None
        changes.rows = np.frombuffer(changes.rows, "<u4")[kept].tobytes()
        changes.subscriptions = np.frombuffer(changes.subscriptions, "<u4")[kept].tobytes()
        changes.operations = np.frombuffer(changes.operations, np.uint8)[kept].tobytes()
        return changes

    async def _handle_news(self, judged: JudgedBatch) -> None:
        """Send which subscriptions ended, restart those that must take all rows again, and read a gap again."""
        frame = broker_pb2.ChangesFrame()
        self._add_schemas(frame, judged.schemas)
        for _, number, error in judged.ended:
            if self._end_live(number):
                frame.news.append(end_news(number, error))
        for _, number in judged.reloads:
            self._restart(number)
        if frame.news or frame.tables:
            await self._send(frame)
        if judged.is_gap:
            await self._read_gap(judged.next_offset)
            self._position = max(self._position, (judged.next_offset, judged.epoch))

    async def _read_gap(self, end: int) -> None:
        """Read a gap of live matching again, up to an offset; for a later subscription, only after its start."""
        together: dict[tuple[int, int], list[WantedSubscription]] = {}
        for one in self._live.values():
            if (start := max(one.start, self._position[0])) < end:
                together.setdefault((one.table_id, start), []).append(one.wanted)
        for (table_id, start), wanted in together.items():
            if failed := await self._read_again(table_id, wanted, start, end):
                await self._send(broker_pb2.ChangesFrame(news=[end_news(n, error) for n, error in failed.items()]))

    def _restart(self, number: int) -> None:
        """End a live subscription and let it begin again with all rows."""
        if (one := self._live.pop(number, None)) is not None:  # else its client has ended it
            self._core.listening.unsubscribe([one.judged_as])
            self._pending.add(PendingSubscription(one.wanted, ROWS, table_id=one.table_id, is_reload=True))

    async def _send_position(self) -> None:
        progress = broker_pb2.ChangedRows(next_offset=self._position[0], epoch=self._position[1])
        await self._send(broker_pb2.ChangesFrame(changes=[progress]))
        self._announced = self._position[0]
        self._kept.advance(self._position[0])

    # -- subscriptions that begin ----------------------------------------------------------------------------------

    async def _begin(self, some: list[PendingSubscription]) -> None:
        """Begin subscriptions; an error ends these and no others."""
        try:
            await self._begin_together(some)
        except VenusError as error:
            if self._error is not None or isinstance(error, ClientLost):
                raise
            live = [one.wanted.number for one in some if self._end_live(one.wanted.number)]
            numbers = [*self._pending.starting, *live]
            await self._send(broker_pb2.ChangesFrame(news=[end_news(number, error) for number in numbers]))
        finally:
            self._pending.starting.clear()

    async def _begin_together(self, some: list[PendingSubscription]) -> None:
        first = some[0]
        described, wanted = await self._send_table(some)
        if not wanted:
            return
        table, position = described[-1], (first.offset, first.epoch)
        if first.offset == ROWS:
            async for frame, reached in self._reading.rows(wanted[0], table, self.window.most):
                position = reached
                schemas = list(frame.tables)
                del frame.tables[:]
                self._add_schemas(frame, schemas)
                await self._send(frame)
                if not self._pending.starting:
                    return
        failed = await self._register(table.table_id, wanted)
        end, epoch = self._find_business().visible_offset, self._find_business().epoch_at_end
        live = [one for one in wanted if one.number in self._live]
        for one in live:
            self._live[one.number].start = end
        if live and first.offset != NOW and position[0] < end:
            failed |= await self._read_again(table.table_id, live, position[0], end, announces=True)
        self._newest_start = max(self._newest_start, end)
        await self._announce_live([one.number for one in live], failed, end, epoch)

    async def _send_table(self, some: list[PendingSubscription]) -> tuple[list[TableSchema], list[WantedSubscription]]:
        """Send the versions of the table; return these, and the subscriptions that fit the table."""
        first = some[0]
        predicates = {one.wanted.number: one.wanted.predicate for one in some}
        described, unfit = await self._reading.describe(
            first.table_id or first.table, first.offset, first.epoch, predicates
        )
        fitting, starting = choose_columns(some, described[-1], unfit), self._pending.starting
        unfit = {number: error for number, error in unfit.items() if number in starting}
        starting -= unfit.keys()
        wanted = [one for one in fitting if one.number in starting]
        frame = broker_pb2.ChangesFrame(news=[end_news(number, error) for number, error in unfit.items()])
        self._add_schemas(frame, map(schemas_codec.to_wire, described))
        state = broker_pb2.RELOADS if first.is_reload else broker_pb2.BEGUN
        for one in wanted:
            frame.news.add(number=one.number, state=state, table_id=described[-1].table_id)
        await self._send(frame)
        return described, wanted

    async def _register(self, table_id: int, wanted: Sequence[WantedSubscription]) -> dict[int, VenusError]:
        """Register subscriptions for live matching, from the next visible batch on; return those that are refused."""
        listening = self._core.listening
        made, refused = await self._bridge.open_blocking(
            Lane.DETAILS,
            lambda done: listening.unsubscribe(done[0]),
            listening.subscribe,
            self._find_business(),
            table_id,
            wanted,
            self,
        )
        failed, starting = dict(refused), self._pending.starting
        for one, judged_as in zip((one for one in wanted if one.number not in failed), made, strict=True):
            if one.number in starting:
                self._live[one.number] = LiveSubscription(one, table_id, judged_as, start=NOT_YET)
            else:  # its client has ended it meanwhile
                listening.unsubscribe([judged_as])
        failed = {number: error for number, error in failed.items() if number in starting}
        starting.difference_update([one.number for one in wanted])
        return failed

    async def _announce_live(
        self, numbers: Iterable[int], failed: Mapping[int, VenusError], end: int, epoch: int
    ) -> None:
        frame = broker_pb2.ChangesFrame(news=[end_news(number, error) for number, error in failed.items()])
        live = [number for number in numbers if number in self._live]
        for number in live:
            frame.news.add(number=number, state=broker_pb2.LIVE)
        if live and not self._find_business().open_cut:
            frame.changes.add(loaded=0, replayed=live, next_offset=end, epoch=epoch)
        if len(live) == len(self._live):
            self._position = self._judged = max(self._position, (end, epoch))
            self._announced = self._position[0]
        await self._send(frame)
        self._kept.advance(self._position[0])

    def _find_business(self) -> Business:
        return self._core.catalogue.find(self.business)

    async def _read_again(
        self, table_id: int, wanted: Sequence[WantedSubscription], start: int, end: int, *, announces: bool = False
    ) -> dict[int, VenusError]:
        """Send the changes between two offsets, matched without previous rows; return subscriptions that ended."""
        replay = await self._reading.open_replay(table_id, wanted, start)
        failed, at = dict(replay.refused), start
        while at < end and len(replay.table):
            for number in [number for number in replay.table.numbers if number not in self._live]:
                replay.table.remove(number)  # its client has ended it
            parts, at = await self._reading.read_again(replay, at, end)
            for part, position in parts:
                failed |= part.ended
                if part.must_reload:
                    for number in replay.table.numbers:
                        replay.table.remove(number)
                        self._restart(number)
                elif part.changes:
                    if announces and part.at_cut_end:
                        part.changes[-1].next_offset, part.changes[-1].epoch = position
                    await self._send(broker_pb2.ChangesFrame(changes=part.changes))
        return {number: error for number, error in failed.items() if self._end_live(number)}

    def _end_live(self, number: int) -> bool:
        """End a live subscription; return whether there was one."""
        if (gone := self._live.pop(number, None)) is not None:
            self._core.listening.unsubscribe([gone.judged_as])
        return gone is not None

    # -- frames ----------------------------------------------------------------------------------------------------

    def _add_schemas(self, frame: broker_pb2.ChangesFrame, schemas: Iterable[change_pb2.TableSchema]) -> None:
        """Add to a frame the table versions that the client does not have yet."""
        for schema in schemas:
            if (schema.table_id, schema.version) not in self._known:
                self._known.add((schema.table_id, schema.version))
                frame.tables.append(schema)

    async def _send(self, frame: broker_pb2.ChangesFrame) -> None:
        """Send a frame once the client has room. Raises Unavailable if the client reads nothing for too long."""
        price = frame_cost(frame)
        while not (self._credit.allows(price) and (price <= self.window.room or not self.window.outstanding)):
            self._wake.clear()
            self._raise_if_ended()
            if self._eof:
                raise ClientLost("the client has left")
            silent_s = time.monotonic() - self._returned_at
            if silent_s > self._cut_s:
                raise ClientSilent(
                    f"{self.client or 'a client'} has read nothing for {silent_s:.0f} s: its subscriptions to "
                    f"{self.business} end at position {self.position}",
                    hint=f"continue from there: `venus listen TABLE --from {self.position}`",
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_S):
                    await self._wake.wait()
        if not self.window.outstanding:
            self._returned_at = time.monotonic()
        self._credit.spend(price)
        self.window.on_sent(price, self._traffic.monotonic())
        self.sent_changes += sum(len(one.operations) or len(one.stored_sizes) // 4 for one in frame.changes)
        await self._context.write(frame)

    # -- from the client -------------------------------------------------------------------------------------------

    async def _on_frame(self, frame: broker_pb2.ListenerFrame) -> None:
        await self._kept.pin([request.offset for request in frame.begin])
        for request in frame.begin:
            self._add_request(request)
        for number in frame.end:
            self._pending.end(number)
            self._end_live(number)
        if frame.credit_bytes > 0:
            self._credit.grant(frame.credit_bytes)
            self.window.on_returned(frame.credit_bytes, self._traffic.monotonic())
            self._returned_at = time.monotonic()
        self._wake.set()
        if frame.acknowledge:
            await self._kept.acknowledge(frame.acknowledge)

    def _add_request(self, request: broker_pb2.SubscriptionRequest) -> None:
        number = request.number
        if not number or number in self._live or number in self._pending:
            raise ProtocolError(f"subscription {number} of a stream begins twice, or is 0")
        if self.subscriptions >= self._most:
            raise Refused(
                f"{self.client or 'a client'} has {self.subscriptions} subscriptions on one stream, which is the most",
                hint="[broker.limits] subscriptions_of_client allows more",
            )
        wanted, columns = WantedSubscription(number, request.predicate), tuple(request.columns)
        self._pending.add(PendingSubscription(wanted, request.offset, request.epoch, request.table, columns))

    async def _read_frames(self, frame: Any) -> None:
        try:
            while True:
                await self._on_frame(frame)
                frame = check_frame_seal(await self._context.read(), f"a frame of listener {self.client}")
                if frame is grpc.aio.EOF:
                    break
                if frame.HasField("open"):
                    raise ProtocolError("open came twice on one stream")  # noqa: TRY301
            self._eof = True
            self._wake.set()
        except VenusError as error:
            self.end(error)
        except Exception as error:
            logger.exception("reading from listener %s of %s failed", self.client, self.business)
            self.end(VenusError(f"the broker failed to read a frame: {error!r}"))
