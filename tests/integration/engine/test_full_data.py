"""The full data in the store: both write paths, floors, the scavenger, and full data that lags behind the queue."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Producer, the_business, wait_until_caught_up
from tests.support.engines.stored import HEAD
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine import records
from venus.broker.machine.business import Business
from venus.broker.machine.records import decode_materialised_position
from venus.broker.queue import reader
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.snapshot import materialiser
from venus.broker.snapshot.materialiser import Materialiser
from venus.broker.snapshot.scavenger import Scavenger
from venus.broker.snapshot.scrub import Scrub
from venus.broker.snapshot.step import MaterialiserStep
from venus.broker.store import keys
from venus.broker.store.files import FreeSpace
from venus.broker.store.rocks import Store
from venus.flow.precedence import SMALL_BYTES
from venus.model import ChangeKind

DAY_S = 86_400.0


def stored_rows(engine: Core, table_id: int = 1) -> dict[bytes, bytes]:
    prefix = keys.row_prefix(the_business(engine).number, table_id)
    return {key[len(prefix) :]: value for key, value in engine.store.scan_prefix(keys.ROW, prefix)}


def test_batches_that_come_twice_change_nothing(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 20, b"old"))
    producer.commit([(b"%08d" % n, None) for n in range(5)])
    producer.commit(engines.rows(3, 4, b"new"))
    producer.commit(engines.rows(50, 2), markers=[(ChangeKind.TRUNCATE, 0)])
    producer.commit([*engines.rows(60, 2, b"first"), *engines.rows(60, 2, b"second")])
    wait_until_caught_up(engine)
    before = stored_rows(engine)

    engine.stop()
    engines.make_full_data_from_start(tmp_path, met_before=True)
    engine = engines.make(tmp_path)
    wait_until_caught_up(engine)

    assert stored_rows(engine) == before
    assert engine.status(BUSINESS).businesses[0].counters["stale_rows"] == 35
    assert engines.full_data(engine) == {
        b"%08d" % 50: b"x",
        b"%08d" % 51: b"x",
        b"%08d" % 60: b"second",
        b"%08d" % 61: b"second",
    }
    engine.stop()


def test_rows_and_their_offset_survive_together(tmp_path: Path) -> None:
    for life in range(4):
        engine = engines.make(tmp_path)
        producer = Producer(engine)
        for n in range(5):
            producer.commit(engines.rows(n, 10, b"%d" % life))
        engine.stop()

    engine = engines.make(tmp_path)
    wait_until_caught_up(engine)
    assert engine.status(BUSINESS).businesses[0].counters["stale_rows"] == 0  # no row was applied twice
    assert len(engines.full_data(engine)) == 14
    engine.stop()


def test_rows_under_a_floor_are_removed_permanently(tmp_path: Path) -> None:
    clock = Clock()
    engine = engines.make(tmp_path, clock)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 300))
    begin = producer.sequence + 1
    producer.commit([], markers=[(ChangeKind.SWEEP_BEGIN, 0)])
    producer.commit(engines.rows(100, 50))
    producer.commit([], markers=[(ChangeKind.SWEEP_END, begin)])

    eventually(lambda: len(stored_rows(engine)) == 50)

    assert engine.status(BUSINESS).businesses[0].counters["scavenged_rows"] == 250
    assert len(engines.full_data(engine)) == 50
    engine.stop()


def test_tombstones_stay_for_a_day_and_until_every_consumer_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialiser, "IDLE_S", 0.02)
    clock = Clock()
    disk = engines.Disk()
    engine = engines.make(tmp_path, clock, free_bytes=disk)
    producer = Producer(engine)
    slow = engine.subscriptions.attach(BUSINESS, "slow", 0)
    producer.commit(engines.rows(0, 30))
    producer.commit([(b"%08d" % n, None) for n in range(20)])
    wait_until_caught_up(engine)
    clock.now_s += 2 * DAY_S
    producer.commit(engines.rows(100, 1))
    disk.wait_for_rounds()
    assert len(stored_rows(engine)) == 31  # the slow consumer has not read the deletions

    engine.subscriptions.acknowledge(BUSINESS, "slow", slow, 51)
    disk.wait_for_rounds()
    assert len(stored_rows(engine)) == 31  # whether the last deletion is a day old is not known yet
    clock.now_s += 2 * DAY_S

    eventually(lambda: len(stored_rows(engine)) == 11)
    assert not any(HEAD.unpack_from(value)[2] & 1 for value in stored_rows(engine).values())
    assert len(engines.full_data(engine)) == 11
    engine.stop()


def test_tombstones_from_before_a_restart_are_removed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = engines.make(tmp_path, clock)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 30))
    producer.commit([(b"%08d" % n, None) for n in range(20)])
    wait_until_caught_up(engine)
    engine.stop()

    clock.now_s += 2 * DAY_S
    engine = engines.make(tmp_path, clock)
    Producer(engine, source_last_batch=2).commit(engines.rows(100, 1))
    clock.now_s += 2 * DAY_S

    eventually(lambda: len(stored_rows(engine)) == 11)
    assert engine.scavenger.tables == set(), "a table without tombstones is not read repeatedly"
    engine.stop()

    monkeypatch.setattr(Scavenger, "step", lambda *_, **__: None)  # a restarted broker knows this from the store
    engine = engines.make(tmp_path, clock)
    assert engine.scavenger.tables == set()
    Producer(engine, source_last_batch=3).commit([(b"%08d" % 25, None)])
    wait_until_caught_up(engine)
    engine.stop()
    engine = engines.make(tmp_path, clock)
    assert len(engine.scavenger.tables) == 1
    engine.stop()


def test_lagging_full_data_delays_no_decision(tmp_path: Path) -> None:
    """The service slows down producers (test_traffic.py); the commit thread continues."""
    gate = engines.Gate()
    engine = engines.make(tmp_path, buffer_bytes_max=50_000, on_write=gate)
    producer = Producer(engine)
    for n in range(5):
        producer.commit(engines.rows(n * 10, 10, b"w" * 1000))
    assert engine.materialiser.behind_bytes > 50_000
    assert any("behind" in alarm for alarm in engine.status(BUSINESS).businesses[0].alarms)
    message = producer.next_half(engines.rows(0, 1))
    producer.send(message)
    assert producer.decide(message).next_offset == 51

    gate.open()

    wait_until_caught_up(engine)
    assert engine.materialiser.behind_bytes == 0
    engine.stop()


def test_materialising_waits_for_free_space(tmp_path: Path) -> None:
    disk = engines.Disk()
    engine = engines.make(tmp_path, free_bytes=disk)
    producer = Producer(engine)
    message = producer.next_half(engines.rows(0, 10))
    producer.send(message)
    disk.free = (1 << 20) - 1
    producer.decide(message)
    disk.wait_for_rounds()
    assert the_business(engine).materialised.offset == 0

    disk.free = 1 << 30

    wait_until_caught_up(engine)
    assert len(engines.full_data(engine)) == 10
    engine.stop()


class AskingBuffer(BodyBuffer):
    """Empty read buffer of the materialiser. Its first read calls `ask`, so a step has begun then."""

    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__(1 << 20)
        self._asks = [ask]

    def get(self, key: tuple[int, int]) -> bytes | None:
        if self._asks:
            self._asks.pop()()
        return None


def test_a_checkpoint_never_shows_half_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Request the checkpoint during a step that continues into the next cut."""
    monkeypatch.setattr(materialiser, "STEP_BYTES_MAX", 2500)
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    cut = [producer.next_half(engines.rows(n, 10, b"c" * 80), cut=2, cut_end=n == 3) for n in range(4)]
    cut[0] = engines.half(1, 1, engines.rows(0, 10, b"c" * 80))
    producer.send(*cut)
    producer.decide(cut[-1])
    wait_until_caught_up(engine)
    engine.stop()
    engines.make_full_data_from_start(tmp_path, met_before=False)

    store, errors = Store(tmp_path / "db"), engines.Errors()
    (business,) = records.load_all(store, 60.0)
    reader.load_tail(store, business)
    everything, business.visible_offset = business.visible_offset, 10
    asked: list[Future[None]] = []

    def ask() -> None:
        asked.append(tested.checkpoint(business, tmp_path / "copy"))
        business.visible_offset = everything

    clock = Clock()
    tested = Materialiser(
        store,
        AskingBuffer(ask),
        FreeSpace(tmp_path, 0),
        monotonic=clock.monotonic,
        scavenger=Scavenger(store, forget_below=lambda _: 0, monotonic=clock.monotonic),
        scrub=Scrub(store, businesses=list, clock_us=clock.clock_us),
        on_fatal=errors,
    )
    tested.start([business])
    eventually(lambda: bool(asked))
    asked[0].result(WAIT_S)
    tested.stop()
    store.close()

    copy = Store(tmp_path / "copy", read_only=True)
    assert decode_materialised_position(copy.get(keys.STATE, keys.materialised_key(1))).offset == everything == 40
    copy.close()
    assert not errors.fatal


def test_small_commits_are_materialised_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 1))
    wait_until_caught_up(engine)
    monkeypatch.setattr(materialiser, "LINGER_S", 3600.0)
    for n in range(1, 20):
        producer.commit(engines.rows(n, 1))
    business = the_business(engine)
    assert business.materialised.offset <= 2  # the materialiser waits for more commits
    assert len(engines.full_data(engine)) == 20  # a reader ends the wait
    producer.commit(engines.rows(20, 1))
    producer.commit([(b"%08d" % 21, b"x" * SMALL_BYTES)])
    wait_until_caught_up(engine)  # so does a large commit
    monkeypatch.undo()
    producer.commit(engines.rows(22, 1))
    wait_until_caught_up(engine)
    engine.stop()


def test_businesses_are_materialised_in_the_order_of_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order each file of RocksDB spans few businesses."""
    turns: list[int] = []
    taken = MaterialiserStep.take

    def record_call(step: MaterialiserStep, business: Business, *, most: int, one_batch: bool = False) -> bool:
        turns.append(business.number)
        return taken(step, business, most=most, one_batch=one_batch)

    monkeypatch.setattr(MaterialiserStep, "take", record_call)
    monkeypatch.setattr(materialiser, "LINGER_S", 3600.0)
    engine = engines.make(tmp_path)
    producers = [Producer(engine, f"business{n}") for n in range(12)]
    for producer in reversed(producers):
        producer.commit(engines.rows(0, 1))
    assert not turns
    producers[5].commit([(b"%08d" % 1, b"x" * SMALL_BYTES)])  # the round over all businesses begins
    behind = engine.materialiser.behind_by_business
    eventually(lambda: not any(behind().values()))
    engine.stop()
    assert len(turns) >= 12
    assert turns[:12] == sorted(turns[:12])


def test_a_broker_stops_while_small_commits_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialiser, "LINGER_S", 3600.0)
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3))
    engine.stop()
    monkeypatch.undo()
    engine = engines.make(tmp_path)
    wait_until_caught_up(engine)
    assert len(stored_rows(engine)) == 3
    engine.stop()
