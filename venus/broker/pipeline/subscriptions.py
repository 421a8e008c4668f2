"""The interface of consumers: reading the queue from an offset on, and keeping it for them (VENUS 3.3, 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.mirror import home_to_wire
from venus.broker.machine.queue_index import QueuedBatch
from venus.broker.pipeline.commit_thread import CommitThread, Guard
from venus.broker.pipeline.consumer_groups import ConsumerGroups
from venus.broker.queue import early_delivery, reader
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.queue.early_delivery import EarlyDelivery
from venus.broker.queue.reader import ReadResult
from venus.broker.queue.reduced_batches import ReducedBatchCache, TableChoice
from venus.broker.queue.row_identities import RowIdentities
from venus.broker.snapshot.snapshots import SnapshotManager
from venus.broker.store.rocks import Store
from venus.codec.stored_rows import SealedChunk
from venus.errors import Unavailable
from venus.wire import broker_pb2


class Subscriptions:
    """Reading and positions of consumers. Thread-safe; works in the caller's thread."""

    def __init__(
        self,
        catalogue: BusinessCatalogue,
        commits: CommitThread,
        groups: ConsumerGroups,
        store: Store,
        buffer: BodyBuffer,
        guard: Guard,
        knows_end: Callable[[Business], bool],
        networks: Callable[[], Sequence[str]],
    ) -> None:
        self._catalogue = catalogue
        self._commits = commits
        self._groups = groups
        self._store = store
        self._buffer = buffer
        self._guard = guard
        self._knows_end = knows_end
        self._networks = networks
        self._cut = ReducedBatchCache()
        #: Which rows are here, by the predicates of this set and of its upstream sets.
        self.rows = RowIdentities(store)

    def read(
        self,
        business: str,
        offset: int,
        max_bytes: int,
        table_ids: Sequence[int] = (),
        only: TableChoice | None = None,
        there: Sequence[tuple[int, int]] = (),
    ) -> ReadResult:
        """Return committed increments from `offset` on. Raises OffsetTrimmed, OffsetDiverged.

        `table_ids` selects batches that concern one of these tables; `only` selects these tables and rows of them.
        Half messages in `there` come without their bodies, because those were sent ahead.
        """
        found = self._catalogue.find(business)
        with self._guard():
            if only is not None:
                part = only.part(found, self._store)

                def cut(place: QueuedBatch, whole: bytes) -> tuple[int, bytes]:
                    """Return the part of a batch's body that the consumer wants."""
                    return self._cut.body(found, place, whole, part)

                return reader.read_increments(self._store, self._buffer, found, offset, max_bytes, part.ids, cut)
            result = reader.read_increments(
                self._store, self._buffer, found, offset, max_bytes, frozenset(table_ids), there=there
            )
            for increment in result.increments:
                self.rows.add_changes(found, increment)
            return result

    def serving_business(self, business: str, offset: int) -> Business:
        """Return a business whose queue has the offset. Raises OffsetTrimmed, OffsetDiverged, Unavailable."""
        found = self._catalogue.find(business)
        reader.check_range(found, offset)
        return found

    def read_ahead(self, business: str, sent: EarlyDelivery, max_bytes: int) -> list[broker_pb2.Increment]:
        """Return the half messages after those already sent to a consumer, or their withdrawal; [] = nothing new."""
        found = self._catalogue.find(business)
        with self._guard():
            return early_delivery.read_early(self._store, self._buffer, found, sent, max_bytes)

    def fill_of(self, business: str) -> tuple[int, int]:
        """Return the number of the business, and at a mirror the number of its full data. Both only grow."""
        found = self._catalogue.find(business)
        mirror = found.committed.mirror
        return found.number, mirror.begin if mirror is not None else 0

    def check_position(
        self, business: str, offset: int, epoch: int, wanted: broker_pb2.Open | None = None
    ) -> broker_pb2.Opened:
        """Check that a consumer may resume at an offset; describe the rows by the filters in `wanted`.

        Raises OffsetTrimmed, OffsetDiverged, OtherRows, Unavailable.
        """
        found = self._catalogue.find(business)
        knows_end = self._knows_end(found)  # read first: the end that is compared can only be newer
        with self._guard():
            opened = reader.check_position(self._store, found, offset, epoch, knows_end=knows_end)
            opened.networks.extend(self._networks())
            self.rows.check_rows(found, offset, wanted or broker_pb2.Open(), opened)
        return opened

    def attach(
        self, business: str, group: str, offset: int, *, kept: int | None = None, transient: bool = False
    ) -> int:
        """Attach a stream of a group, which has applied everything below `offset`, until `detach`; return its token.

        Raises NotLeader, because only the leader can log the position of a group.
        """
        found = self._catalogue.hold(business)
        try:
            return self._groups.attach(found, group, offset, kept=kept, transient=transient)
        except BaseException:
            self._commits.release(self._catalogue, found)
            raise

    def acknowledge(self, business: str, group: str, token: int, offset: int, kept: int | None = None) -> bool:
        """Record that a group has applied everything below `offset` and needs `kept` on. Positions never go back."""
        return self._groups.acknowledge(self._catalogue.find(business), group, token, offset, kept)

    def detach(self, business: str, group: str, token: int) -> None:
        """Record that a stream has ended; forget a transient reader."""
        found = self._catalogue.find(business)
        self._commits.release(self._catalogue, found)
        self._groups.detach(found, group, token)

    def retire(self, business: Business) -> None:
        """Invalidate the tokens of all groups because another broker leads."""
        self._groups.retire(business)

    def kept_offset(self, business: str, group: str, token: int) -> int:
        """Return the offset from which the queue is kept for a stream."""
        return self._groups.kept_offset(self._catalogue.find(business), group, token)

    def forget(self, business: str, group: str) -> None:
        """Remove a consumer group, so that nothing is kept for it. Raises Refused, Unavailable."""
        self._groups.forget(self._catalogue.find(business), group)


class FullDataService:
    """Snapshots of the full data. Thread-safe; works in the caller's thread."""

    def __init__(
        self,
        catalogue: BusinessCatalogue,
        snapshots: SnapshotManager,
        guard: Guard,
        networks: Callable[[], Sequence[str]],
    ) -> None:
        self._catalogue = catalogue
        self._snapshots = snapshots
        self._guard = guard
        self._networks = networks

    def open(self, request: broker_pb2.OpenSnapshotRequest) -> broker_pb2.Snapshot:
        """Open a snapshot of everything that is visible now, at the end of a source transaction."""
        business = self._catalogue.find_stored(request.business)
        home = home_to_wire(business.committed.home)  # read first: the snapshot is not older
        with self._guard():
            snapshot = self._snapshots.open(business, request)
        if not self._catalogue.is_stored(business):  # the removal may have missed this lease
            self._snapshots.close(snapshot.snapshot_id)
            raise Unavailable(f"business {business.name!r} was just removed", hint="try again in a moment")
        return self._add_origin(snapshot, home)

    def _add_origin(self, snapshot: broker_pb2.Snapshot, home: broker_pb2.Home | None) -> broker_pb2.Snapshot:
        """Add the networks and the home of its history to a snapshot."""
        snapshot.networks.extend(self._networks())
        if home is not None:
            snapshot.home.CopyFrom(home)
        return snapshot

    def read_split(self, request: broker_pb2.ReadSplitRequest) -> Iterator[SealedChunk]:
        """Read a key range of a snapshot. Raises SnapshotExpired. A damaged file raises an error."""
        with self._guard():
            yield from self._snapshots.read_split(request)

    def totals(self, snapshot_id: str) -> broker_pb2.SnapshotTotals:
        """Return the totals of the planned splits of a snapshot. Raises SnapshotExpired."""
        with self._guard():
            return self._snapshots.totals(snapshot_id)

    def renew(self, snapshot_id: str) -> broker_pb2.Snapshot:
        """Extend the lease of a snapshot; return the snapshot with its home. Raises SnapshotExpired."""
        name = self.business_of(snapshot_id)
        home = home_to_wire(self._catalogue.find(name).committed.home) if name else None
        return self._add_origin(self._snapshots.renew(snapshot_id), home)

    def business_of(self, snapshot_id: str) -> str:
        """Return the business of a snapshot, "" if the snapshot is unknown.

        A business keeps its name until its last snapshot is closed, because the name decides who may read it.
        """
        return self._catalogue.find_name(self._snapshots.business_of(snapshot_id))

    def close(self, snapshot_id: str) -> None:
        """End the lease of a snapshot."""
        self._snapshots.close(snapshot_id)

    def release(self, snapshot: broker_pb2.Snapshot) -> None:
        """Close a snapshot that `open` returned."""
        self.close(snapshot.snapshot_id)
