"""Reads of a stream of subscriptions, and the part of the queue that is kept for them (SREM 2).

A stream of subscriptions looks up tables by name, reads rows of the full data, and reads the queue again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial

from venus.broker.core import Core
from venus.broker.listening.listening import WantedSubscription
from venus.broker.listening.replay import Replay, ReplayedBatch
from venus.broker.machine.business import Business
from venus.broker.machine.records import load_schemas, read_schemas
from venus.broker.queue.reader import find_batch
from venus.broker.service.chunk_prefetcher import ChunkPrefetcher
from venus.broker.service.consumer_stream import RENEW_PART
from venus.broker.service.traffic import Traffic
from venus.broker.store.rocks import Store
from venus.codec.changed_rows import encode_loaded
from venus.codec.stored_rows import decode_chunk
from venus.errors import Refused, VenusError
from venus.flow.degradation import Lane
from venus.model import TableSchema, is_heartbeat
from venus.network.topology import is_labelled
from venus.predicates.ranges import compile_predicate
from venus.rpc.channel import FRAME_BYTES
from venus.rpc.event_loop import LoopBridge
from venus.text.formatting import suggest_nearest
from venus.wire import broker_pb2

#: The offset of a subscription that begins with all rows, and of one that begins now.
ROWS, NOW = -1, -2
#: Limit of bytes in one step of a replay.
REPLAY_BYTES = 1 << 20

#: Offset and epoch.
Position = tuple[int, int]


class SubscriptionReader:
    """Reader for the subscriptions of one stream, in the lanes of the broker."""

    def __init__(self, core: Core, bridge: LoopBridge, traffic: Traffic, business: str, holder: str) -> None:
        self._core, self._bridge, self._traffic = core, bridge, traffic
        self._name, self._holder = business, holder

    async def describe(
        self, table: str | int, offset: int, epoch: int, predicates: Mapping[int, str]
    ) -> tuple[list[TableSchema], dict[int, VenusError]]:
        """Return the versions of a table, by name or id, and which predicates do not fit, by number, with the error.

        The position is checked. Raises Refused, OffsetTrimmed, OffsetDiverged, Unavailable.
        """
        work = partial(self._describe, table, offset, epoch, predicates)
        return await self._bridge.run_blocking(Lane.INCREMENTS, work)

    def _describe(
        self, table: str | int, offset: int, epoch: int, predicates: Mapping[int, str]
    ) -> tuple[list[TableSchema], dict[int, VenusError]]:
        """Do the work of `describe`, in a thread of the lane."""
        business, unfit = self._core.catalogue.find_stored(self._name), dict[int, VenusError]()
        if offset >= 0:
            self._core.subscriptions.check_position(self._name, offset, epoch)
        table_id = table if isinstance(table, int) else find_table(self._core.store, business, table)
        described = [schema for _, schema in load_schemas(self._core.store, business.number, table_id)]
        for number, text in predicates.items():
            try:
                if text:
                    compile_predicate(text, described[-1])
            except VenusError as error:
                unfit[number] = error
        return described, unfit

    # -- the full data ---------------------------------------------------------------------------------------------

    async def rows(
        self, wanted: WantedSubscription, table: TableSchema, bytes_max: int
    ) -> AsyncIterator[tuple[broker_pb2.ChangesFrame, Position]]:
        """Yield frames with the rows of a table that match a predicate, each with the position of the rows."""
        full_data, name = self._core.full_data, table.qualified_name
        request = broker_pb2.OpenSnapshotRequest(
            business=self._name,
            only=[name],
            splits=1,
            holder=self._holder,
            where=[broker_pb2.RowFilter(table=name, predicate=wanted.predicate)] if wanted.predicate else [],
        )
        snapshot = await self._bridge.open_blocking(Lane.FULL_DATA, full_data.release, full_data.open, request)
        position = (snapshot.offset, snapshot.epoch)
        try:
            schemas = [schema for schema in snapshot.schemas if schema.table_id == table.table_id]
            yield broker_pb2.ChangesFrame(tables=schemas), position
            for split in snapshot.splits:
                if split.table_id == table.table_id:
                    async for frame in self._split(snapshot, split, wanted, bytes_max):
                        yield frame, position
        finally:
            self._bridge.run_in_background(Lane.FULL_DATA, full_data.release, snapshot)
        end = broker_pb2.ChangedRows(loaded=wanted.number, next_offset=snapshot.offset, epoch=snapshot.epoch)
        yield broker_pb2.ChangesFrame(changes=[end]), position

    async def _split(
        self, snapshot: broker_pb2.Snapshot, split: broker_pb2.Split, wanted: WantedSubscription, bytes_max: int
    ) -> AsyncIterator[broker_pb2.ChangesFrame]:
        """Yield frames with the rows of one split inside a predicate."""
        request = broker_pb2.ReadSplitRequest(
            snapshot_id=snapshot.snapshot_id, split=split, chunk_bytes=min(FRAME_BYTES, max(1, bytes_max))
        )
        chunks, renewed = ChunkPrefetcher(self._core, self._bridge, request), time.monotonic()
        try:
            while (sealed := await chunks.next()) is not None:
                rows = decode_chunk(sealed.body).rows
                if len(rows):
                    await self._traffic.pace_full_data(self._name, len(sealed.body))
                    found = encode_loaded(split.table_id, rows, wanted.number, wanted.columns)
                    yield broker_pb2.ChangesFrame(changes=[found])
                if time.monotonic() - renewed > RENEW_PART * snapshot.lease_s:
                    renewed = time.monotonic()
                    await self._bridge.run_blocking(Lane.CONTROL, self._core.full_data.renew, snapshot.snapshot_id)
        finally:
            chunks.close()

    # -- the queue -------------------------------------------------------------------------------------------------

    async def open_replay(self, table_id: int, wanted: Sequence[WantedSubscription], start: int) -> Replay:
        """Prepare subscriptions to a table for reading the queue again from an offset on."""
        return await self._bridge.run_blocking(Lane.INCREMENTS, partial(self._open_replay, table_id, wanted, start))

    def _open_replay(self, table_id: int, wanted: Sequence[WantedSubscription], start: int) -> Replay:
        """Do the work of `open_replay`, in a thread of the lane."""
        core, business = self._core, self._core.catalogue.find(self._name)
        described = load_schemas(core.store, business.number, table_id)
        before = find_batch(core.store, business, start - 1) if start > business.log_start else None
        some = [(one.number, one.predicate, one.columns) for one in wanted]
        return Replay(described, start, some, before.last_sequence if before is not None else 0)

    async def read_again(
        self, replay: Replay, start: int, end: int
    ) -> tuple[list[tuple[ReplayedBatch, Position]], int]:
        """Match the next batches; return each with the position after it, and the offset from which to continue."""
        return await self._bridge.run_blocking(Lane.INCREMENTS, partial(self._read_again, replay, start, end))

    def _read_again(self, replay: Replay, start: int, end: int) -> tuple[list[tuple[ReplayedBatch, Position]], int]:
        """Do the work of `read_again`, in a thread of the lane."""
        table_id = replay.table.newest.table_id
        result = self._core.subscriptions.read(self._name, start, REPLAY_BYTES, (table_id,))
        found: list[tuple[ReplayedBatch, Position]] = []
        for increment in result.increments:
            if increment.base_offset >= end:
                return found, end
            after = increment.base_offset + increment.count
            found.append((replay.take(increment.body, increment.committed_at_us), (after, increment.epoch)))
        return found, result.next_offset


class KeptQueue:
    """Retention of the queue for a stream, by its group or a transient reader, and by a pin for new subscriptions.

    A new group counts as a transient reader until its first acknowledgement: it has no position to resume at yet.
    """

    def __init__(self, core: Core, bridge: LoopBridge, business: str, group: str, *, transient: bool) -> None:
        self._core, self._bridge, self._transient = core, bridge, transient
        self._name, self._group = business, group
        self._token = self._pin = 0
        self._pinned, self._is_new = 0, False

    async def attach(self) -> int:
        """Attach the stream; return the position of its group, 0 if it has none."""
        self._token, kept = await self._bridge.open_blocking(
            Lane.INCREMENTS, lambda done: self._detach(done[0]), self._attach
        )
        self._is_new = not self._transient and not kept
        return kept

    def _attach(self) -> tuple[int, int]:
        """Attach the stream to its group, or as a reader; return the token and the group's position (0 = none)."""
        business = self._core.catalogue.find(self._name)
        with business.lock:
            known = None if self._transient else business.consumers.get(self._group)
            offset, is_known = (known.acknowledged, True) if known is not None else (business.visible_offset, False)
        return self._attach_at(offset, transient=not is_known), offset if is_known else 0

    def _attach_at(self, offset: int, *, transient: bool) -> int:
        """Attach the stream at an offset, from which the queue is kept; return the token."""
        return self._core.subscriptions.attach(self._name, self._group, offset, transient=transient)

    def _create_group(self, applied: int) -> int:
        """Attach the stream's new group at the offset that the client has applied; the group may exist by now."""
        business = self._core.catalogue.find(self._name)
        with business.lock:
            known = business.consumers.get(self._group)
            offset = min(applied, business.visible_offset)
        return self._attach_at(max(offset, known.acknowledged if known is not None else 0), transient=False)

    async def acknowledge(self, applied: int) -> None:
        """Record what the client has applied. Raises NotLeader, Unavailable."""
        if self._is_new:
            token = await self._bridge.open_blocking(Lane.INCREMENTS, self._detach, self._create_group, applied)
            self._detach_later(self._token)
            self._token, self._is_new = token, False
        elif not self._transient:
            self._core.subscriptions.acknowledge(self._name, self._group, self._token, applied)

    def advance(self, position: int) -> None:
        """Release the queue below the position of a transient reader."""
        if self._transient and position:
            self._core.subscriptions.acknowledge(self._name, self._group, self._token, position)

    async def pin(self, offsets: Iterable[int]) -> None:
        """Keep the queue from the lowest of these offsets on, until `unpin`, for subscriptions that begin there."""
        lowest = min((offset for offset in offsets if offset >= 0), default=None)
        if lowest is not None and not (self._pin and self._pinned <= lowest):
            work = partial(self._attach_at, lowest, transient=True)
            token = await self._bridge.open_blocking(Lane.INCREMENTS, self._detach, work)
            self.unpin()
            self._pin, self._pinned = token, lowest

    def unpin(self) -> None:
        """Stop keeping the queue for subscriptions that begin."""
        self._detach_later(self._pin)
        self._pin = 0

    def release(self) -> None:
        """Stop keeping the queue for the stream, but not for its group."""
        self.unpin()
        self._detach_later(self._token)
        self._token = 0

    def _detach_later(self, token: int) -> None:
        """End an attachment of the stream, in the background."""
        if token:
            self._bridge.run_in_background(Lane.CONTROL, self._detach, token)

    def _detach(self, token: int) -> None:
        """End an attachment of the stream."""
        self._core.subscriptions.detach(self._name, self._group, token)


def find_table(store: Store, business: Business, name: str) -> int:
    """Return the id of the table of a name, with or without its namespace. Raises Refused."""
    newest = {schema.table_id: schema for _, schema in read_schemas(store, business.number)}  # the last of each
    known = {n: f"{one.namespace}.{one.name}" for n, one in newest.items() if not is_heartbeat(one.namespace, one.name)}
    found = [n for n in known if is_labelled((name,), newest[n].namespace, newest[n].name)]
    if not found:
        raise Refused(
            f"{business.name} has no table {name}{suggest_nearest(name, known.values())}",
            hint="`venus status --json` lists its tables",
        )
    if len({known[n] for n in found}) > 1:
        raise Refused(
            f"{business.name} has several tables {name}", hint=f"write one of: {', '.join(known[n] for n in found)}"
        )
    return max(found)
