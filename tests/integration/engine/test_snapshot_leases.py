"""Leases on snapshots: how many, of which consumer, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Clock, Producer
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.snapshot import snapshots
from venus.config.sections import LimitsSettings
from venus.errors import Overloaded, Refused, SnapshotExpired
from venus.wire import broker_pb2

KEYS = 400


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> Iterator[Core]:
    opened = engines.make(tmp_path, clock, limits=LimitsSettings(slow_request_ms=0))  # the clock of this test jumps
    yield opened
    opened.stop()


def open_snapshot(engine: Core, **options: object) -> broker_pb2.Snapshot:
    return engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS, **options))  # type: ignore[arg-type]


def test_a_lease_survives_a_restart_and_ends_in_time(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock)
    Producer(engine).commit(engines.rows(0, 100))
    snapshot = open_snapshot(engine, lease_s=600)
    engine.stop()

    engine = engines.make(tmp_path, clock)
    clock.now_s += 500
    assert len(engines.chunks(engine, snapshot, snapshot.splits[0])) == 1  # each read renews the lease
    clock.now_s += 500
    assert engine.full_data.renew(snapshot.snapshot_id).offset == 100
    clock.now_s += 601

    with pytest.raises(SnapshotExpired):
        engines.chunks(engine, snapshot, snapshot.splits[0])
    eventually(lambda: not list((tmp_path / "snapshots").iterdir()))
    engine.stop()


def test_the_number_of_leases_is_limited_over_all_snapshots(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock, limits=LimitsSettings(leases=3, slow_request_ms=0))
    Producer(engine).commit(engines.rows(0, 10))
    first = open_snapshot(engine, holder="a")
    open_snapshot(engine, holder="b")
    clock.now_s += 31
    open_snapshot(engine, holder="c")
    assert len(list((tmp_path / "snapshots").iterdir())) == 2

    with pytest.raises(Overloaded) as caught:
        open_snapshot(engine)
    assert str(caught.value) == (
        "3 leases on snapshots are held already, by a (its lease: 3569 s), b (its lease: 3569 s), c (its lease: 3600 s)"
    )
    assert caught.value.retry_after_s == 1.0
    engine.full_data.renew(first.snapshot_id)
    assert len(engines.chunks(engine, first, first.splits[0])) == 1, "a holder of a lease is not disturbed"
    engine.full_data.close(first.snapshot_id)
    open_snapshot(engine, holder="d")
    engine.stop()

    engine = engines.make(tmp_path, clock, limits=LimitsSettings(leases=2, slow_request_ms=0))
    assert len(engines.status(engine).leases) == 3, "what was promised is kept"
    with pytest.raises(Overloaded, match="3 leases on snapshots are held"):
        open_snapshot(engine)
    engine.stop()


def test_one_consumer_leaves_leases_for_the_others(tmp_path: Path, clock: Clock) -> None:
    """A client that opened snapshots and closed none held all leases, and no other client could load for an hour."""
    engine = engines.make(tmp_path, clock, limits=LimitsSettings(leases=8, slow_request_ms=0))
    Producer(engine).commit(engines.rows(0, 10))
    Producer(engine, "payroll").commit(engines.rows(0, 10))

    def count_opened(holder: str, business: str = BUSINESS) -> int:
        count = 0
        while True:
            try:
                engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=business, holder=holder))
            except Overloaded as error:
                refusals.append(str(error))
                return count
            count += 1

    refusals: list[str] = []
    assert [
        count_opened("eu"),
        count_opened("us"),
        count_opened("eu", "payroll"),
        count_opened(""),
        count_opened("eu"),
    ] == [4, 2, 1, 1, 0]
    assert refusals == [
        "eu has 4 leases on snapshots of main already, and 4 are left for all others",
        "us has 2 leases on snapshots of main already, and 2 are left for all others",
        "eu has 1 lease on snapshots of payroll already, and 1 are left for all others",
        "8 leases on snapshots are held already, by eu (its lease: 3600 s), us (its lease: 3600 s), an unnamed "
        "client (its lease: 3600 s) and 1 load of other businesses",
        "8 leases on snapshots are held already, by eu (its lease: 3600 s), us (its lease: 3600 s), an unnamed "
        "client (its lease: 3600 s) and 1 load of other businesses",
    ]
    engine.stop()


def test_a_lease_whose_answer_was_lost_ends_when_its_client_has_stopped_waiting(engine: Core, clock: Clock) -> None:
    """The lease lasted its whole length, up to an hour, and kept queue and files without a reader."""

    def holders() -> list[str]:
        engine.snapshots.expire()
        return sorted(lease.holder for lease in engines.status(engine).leases)

    Producer(engine).commit(engines.rows(0, 10))
    lost, kept, read = (open_snapshot(engine, holder=name, confirms=True) for name in ("lost", "kept", "read"))
    open_snapshot(engine, holder="of an older version")
    assert lost.lease_s == kept.lease_s == 3600
    engine.full_data.renew(kept.snapshot_id)
    clock.now_s += 60
    assert len(engines.chunks(engine, read, read.splits[0])) == 1
    assert len(holders()) == 4
    clock.now_s += 61

    assert holders() == ["kept", "of an older version", "read"]
    with pytest.raises(SnapshotExpired):
        engine.full_data.renew(lost.snapshot_id)
    clock.now_s += 3400
    assert len(holders()) == 3


def test_a_snapshot_that_cannot_be_described_leaves_no_lease(
    engine: Core, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*_: object) -> list[broker_pb2.Split]:
        raise Refused("no such split")

    Producer(engine).commit(engines.rows(0, 10))
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "plan_splits", plan)
        with pytest.raises(Refused, match="no such split"):
            open_snapshot(engine)

    assert list(engines.status(engine).leases) == []
    assert not list((tmp_path / "snapshots").iterdir())
    open_snapshot(engine)


def test_a_snapshot_whose_id_no_client_knows_does_not_survive_a_crash(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker crashes between storing the lease and storing its plan, once for each snapshot that may be open."""

    def crash(*_: object) -> list[broker_pb2.Split]:
        raise KeyboardInterrupt

    limits = LimitsSettings(snapshots=2)
    for number in range(3):
        engine = engines.make(tmp_path, clock, limits=limits)
        if not number:
            Producer(engine).commit(engines.rows(0, 10))
        assert list(engines.status(engine).leases) == []
        assert not list((tmp_path / "snapshots").glob("*"))
        with monkeypatch.context() as patched:
            patched.setattr(snapshots, "plan_splits", crash)
            patched.setattr(snapshots.SnapshotManager, "close", lambda self, snapshot_id: None)
            with pytest.raises(KeyboardInterrupt):
                open_snapshot(engine)
        engine.stop()

    engine = engines.make(tmp_path, clock, limits=limits)
    open_snapshot(engine)
    engine.stop()


def test_a_lease_is_as_long_as_the_operator_allows(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock, snapshot_lease_s=5000.0)
    Producer(engine).commit(engines.rows(0, 10))
    assert open_snapshot(engine, lease_s=5000).lease_s == 5000
    with pytest.raises(Refused, match="a lease of 5001 s is too long: this broker gives 5000 s at most"):
        open_snapshot(engine, lease_s=5001)
    engine.stop()

    engine = engines.make(tmp_path, clock, snapshot_lease_s=60.0)
    assert [lease.lease_s for lease in engines.status(engine).leases] == [3600]
    assert open_snapshot(engine, lease_s=3600).lease_s == 3600  # a Spark job may ask for more than 60 s
    engine.stop()
