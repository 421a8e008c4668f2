"""kill -9 of a mirror at every step of every write: the mirror continues where it was, and ends equal to the home."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.fault.engine.test_kill_at_write import LIFE_S, PROCESSES, killer
from tests.support.engines import engines, mirrored
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.wire import broker_pb2, mirror_pb2

BATCHES, ROWS = 4, 5
#: Number of batches after which the mirror takes the full data a second time.
AGAIN_AT = 2


@dataclass(frozen=True)
class FullDataCopy:
    """The full data of the home at one cut."""

    begin: bytes
    chunks: tuple[bytes, ...]


@dataclass(frozen=True)
class Home:
    """The home's full data and increments, as its mirror receives them."""

    fulls: tuple[FullDataCopy, FullDataCopy]
    increments: tuple[bytes, ...]
    rows: dict[bytes, bytes]


def record_home(path: Path) -> Home:
    """Run a home, and record what a mirror pulls from it."""
    engine = engines.make(path)
    producer = engines.Producer(engine)
    producer.commit(engines.rows(0, 40))
    fulls = [full(engine)]
    for n in range(BATCHES):
        producer.commit([(b"%08d" % n, None), *engines.rows(n * 7, ROWS - 1, b"%d" % n)])
        if n + 1 == AGAIN_AT:
            eventually(lambda: mirrored.business_of(engine).materialised.offset == 40 + AGAIN_AT * ROWS)
            fulls.append(full(engine))
    increments = tuple(i.SerializeToString() for i in engines.queue(engine, 40))
    home = Home(fulls=(fulls[0], fulls[1]), increments=increments, rows=engines.full_data(engine))
    engine.stop()
    return home


def full(engine: Core) -> FullDataCopy:
    snapshot = engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=engines.BUSINESS, splits=2))
    said = mirror_pb2.MirrorBegin(
        set="home",
        network="n",
        offset=snapshot.offset,
        epoch=snapshot.epoch,
        sequence=snapshot.sequence,
        last_batch=snapshot.last_batch,
        schemas=snapshot.schemas,
    )
    chunks = [
        chunk.body
        for split in snapshot.splits
        for chunk in engine.full_data.read_split(
            broker_pb2.ReadSplitRequest(snapshot_id=snapshot.snapshot_id, split=split)
        )
    ]
    engine.full_data.close(snapshot.snapshot_id)
    return FullDataCopy(said.SerializeToString(), tuple(chunks))


def work(path: Path, report: Path, kill_at: int | None) -> None:
    """Replicate from the mirror's position on, as the replicator does, and note each position known to be durable."""
    home: Home = pickle.loads((path.parent / "home.pickle").read_bytes())
    engine = engines.make(path, on_write=killer(kill_at) if kill_at is not None else None)
    business = engine.mirrors.enter(engines.BUSINESS)
    mirror = business.committed.mirror
    if mirror is None or not mirror.end:
        take_full_data(engine, home.fulls[1] if mirror is not None and mirror.reason else home.fulls[0])
    for increment in map(broker_pb2.Increment.FromString, home.increments):
        reached = mirrored.take(engine, [increment])
        report.write_text(str(reached))
        mirror = business.committed.mirror
        assert mirror is not None
        if reached == 40 + AGAIN_AT * ROWS and mirror.offset == 40:
            take_full_data(engine, home.fulls[1], reason="a test wants it")
    eventually(lambda: business.is_filled)
    engines.full_data(engine)
    engine.stop()
    report.write_text("done")


def take_full_data(engine: Core, found: FullDataCopy, reason: str = "") -> None:
    said = mirror_pb2.MirrorBegin.FromString(found.begin)
    said.reason = said.reason or reason
    business = mirrored.business_of(engine)
    index = engine.mirrors.begin_full_data(business, said).result(engines.WAIT_S)
    for number, body in enumerate(found.chunks):
        engine.mirrors.take_full_rows(business, index, number, body).result(engines.WAIT_S)
    engine.mirrors.end_full_data(business, index, 0).result(engines.WAIT_S)


def run(path: Path, kill_at: int | None) -> str:
    report = path.with_suffix(".report")
    process = PROCESSES.Process(target=work, args=(path, report, kill_at))
    process.start()
    process.join(LIFE_S)
    assert process.exitcode in ((0,) if kill_at is None else (0, -9))
    return report.read_text() if report.exists() else ""


@pytest.mark.fault
@pytest.mark.parametrize("step", [9, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_kill_9_of_a_mirror_at_any_step_of_any_write(tmp_path: Path, step: int) -> None:
    home = record_home(tmp_path / "home")
    (tmp_path / "home.pickle").write_bytes(pickle.dumps(home))
    for kill_at in count(2, step):
        path = tmp_path / str(kill_at)
        report = run(path, kill_at)
        inspect(path, home, int(report) if report.isdecimal() else 0)
        if report == "done":
            assert kill_at > 20, "the hook saw fewer writes than there must be"
            return
        assert run(path, None) == "done"
        inspect(path, home, 40 + BATCHES * ROWS)


def inspect(path: Path, home: Home, safe: int) -> None:
    """Compare the served data with the home's, and check that every position noted as durable is there."""
    engine = engines.make(path)
    try:
        if not engine.catalogue.has_stored(engines.BUSINESS):
            assert not safe
            return
        business = mirrored.business_of(engine)
        mirror = business.committed.mirror
        assert mirror is not None
        assert business.committed.next_offset >= safe
        if mirror.end:
            eventually(lambda: business.is_filled)
            start, end = business.log_start, business.committed.next_offset
            wanted = [i for i in map(broker_pb2.Increment.FromString, home.increments) if start <= i.base_offset < end]
            assert engines.queue(engine, start) == wanted
            if end == 40 + BATCHES * ROWS:
                assert engines.full_data(engine) == home.rows
    finally:
        engine.stop()
