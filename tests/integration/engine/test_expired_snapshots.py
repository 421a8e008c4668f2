"""Snapshots without a lease: their readers end, the broker continues, and no files remain."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Producer
from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.service.access import AccessControl, Peer
from venus.broker.snapshot import snapshots
from venus.broker.snapshot.lease_manager import SnapshotLease
from venus.broker.snapshot.reading import ChunkReader
from venus.broker.store.rocks import Store
from venus.codec.stored_rows import SealedChunk
from venus.errors import Denied, SnapshotExpired, Unavailable
from venus.security.roles import CALLS, PeerIdentity, roles_of
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


def open_snapshot(engine: Core) -> broker_pb2.Snapshot:
    return engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS))


def checkpoints_in(path: Path) -> list[str]:
    return [found.name for found in (path / "snapshots").iterdir()]


def test_closing_a_snapshot_during_its_checksum_fails_that_call_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that is given up closes its snapshot while the broker still computes its checksums for that load."""
    errors = engines.Errors()
    engine = engines.make(tmp_path, errors=errors)
    producer = Producer(engine)
    for table_id in (1, 2, 3):
        producer.commit(engines.rows(0, 5), table_id=table_id)
    snapshot = open_snapshot(engine)
    read = ChunkReader.next

    def close_meanwhile(chunks: ChunkReader, store: Store) -> SealedChunk:
        engine.full_data.close(snapshot.snapshot_id)
        return read(chunks, store)

    monkeypatch.setattr(ChunkReader, "next", close_meanwhile)
    with pytest.raises(SnapshotExpired):
        engine.full_data.totals(snapshot.snapshot_id)

    assert errors.fatal == []
    assert checkpoints_in(tmp_path) == []
    producer.commit(engines.rows(5, 1))
    engine.stop()


def test_a_checkpoint_that_comes_too_late_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint keeps files from deletion, and a client that was asked to retry does not know of it."""
    go = threading.Event()
    make = Store.checkpoint

    def make_late(store: Store, path: Path) -> None:
        assert go.wait(engines.WAIT_S)
        make(store, path)

    engine = engines.make(tmp_path)
    Producer(engine).commit(engines.rows(0, 5))
    with monkeypatch.context() as patched:
        patched.setattr(Store, "checkpoint", make_late)
        patched.setattr(snapshots, "_CHECKPOINT_WAIT_S", 0.1)
        with pytest.raises(Unavailable, match="too far behind"):
            open_snapshot(engine)
        go.set()
    snapshot = open_snapshot(engine)  # after the late checkpoint

    assert len(checkpoints_in(tmp_path)) == 1
    engine.full_data.close(snapshot.snapshot_id)
    assert checkpoints_in(tmp_path) == []
    engine.stop()


def test_access_to_a_snapshot_is_checked_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a business was being removed, access was not checked: any client with a snapshot's id could read it."""
    engine = engines.make(tmp_path)
    Producer(engine).commit(engines.rows(0, 5))
    engine.producers.leave(BUSINESS)
    snapshot = open_snapshot(engine)
    some: Any = SimpleNamespace(record_refusal=lambda *_: False)
    access = AccessControl(some, some, some, engine.full_data.business_of)
    stranger = Peer(PeerIdentity(name="eu", roles=roles_of(["consumer(eu, payroll)"])), "somewhere")
    method, request = "/venus.wire.Delivery/ReadSplit", broker_pb2.ReadSplitRequest(snapshot_id=snapshot.snapshot_id)
    forget, asked = engine.snapshots.forget, []

    def forget_after_check(business: Business) -> None:
        asked.append(engine.full_data.business_of(snapshot.snapshot_id))
        with pytest.raises(Denied, match=r"role consumer\(\*, main\) is missing"):
            access.check_names(stranger, method, CALLS[method], request)
        forget(business)

    monkeypatch.setattr(engine.snapshots, "forget", forget_after_check)
    engine.forget_business(BUSINESS)

    assert asked == [BUSINESS]
    assert engine.full_data.business_of(snapshot.snapshot_id) == ""
    engine.stop()


def test_a_snapshot_made_while_its_business_is_removed_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot stayed open for an hour, with every row of a forgotten business, and belonged to no business."""
    engine = engines.make(tmp_path)
    Producer(engine).commit(engines.rows(0, 5))
    engine.producers.leave(BUSINESS)
    cut = engine.snapshots._make_checkpoint

    def forget_meanwhile(*of: Any) -> SnapshotLease:
        made = cut(*of)
        engine.forget_business(BUSINESS)
        return made

    monkeypatch.setattr(engine.snapshots, "_make_checkpoint", forget_meanwhile)
    with pytest.raises(Unavailable, match="was just removed"):
        open_snapshot(engine)

    assert engine.snapshots.all_leases() == []
    assert checkpoints_in(tmp_path) == []
    engine.stop()
