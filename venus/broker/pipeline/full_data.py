"""The interface of loaders: a cut of the full data, and its splits (VENUS 3.3, offset -1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.mirror import home_to_wire
from venus.broker.pipeline.commit_thread import Guard
from venus.broker.snapshot.snapshots import SnapshotManager
from venus.codec.chunk import SealedChunk
from venus.errors import Unavailable
from venus.wire import broker_pb2


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
        """Open a snapshot at the end of a source transaction. It has everything that is visible now."""
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
        """Read a key range of a snapshot. Raises SnapshotExpired. A damaged file raises; it never ends the range."""
        with self._guard():
            yield from self._snapshots.read_split(request)

    def sums(self, snapshot_id: str) -> broker_pb2.SnapshotTotals:
        """Return the totals of the planned splits of a snapshot. Raises SnapshotExpired."""
        with self._guard():
            return self._snapshots.sums(snapshot_id)

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

    def let_go(self, snapshot: broker_pb2.Snapshot) -> None:
        """End the lease that `open` returned."""
        self.close(snapshot.snapshot_id)
