"""The scrub reads everything, finds damage that a start does not look for, and keeps the broker from serving it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Clock, Errors, Producer
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.snapshot import materialiser, scavenger, scrub
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import Corruption
from venus.model import ChangeKind

pytestmark = pytest.mark.integration
DAY_S = 86_400.0
PREFIX = keys.row_prefix(1, 1)
Damage = Callable[[Store, Any], None]


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "RUN_ROWS_MAX", 5)
    monkeypatch.setattr(materialiser, "IDLE_S", 0.005)


def wait_for_scrub(engine: Core, clock: Clock) -> None:
    """Wait until a pass that begins now has ended."""
    before = engines.status(engine).last_scrub_at_us
    clock.now_s += 2 * DAY_S
    eventually(lambda: engines.status(engine).last_scrub_at_us > before)


def fill_store(path: Path, clock: Clock) -> Core:
    """Fill a store whose queue is then trimmed, so that only the checksums can reveal a wrong row."""
    engine = engines.make(path, clock, retain_bytes=0)
    producer = Producer(engine)
    for n in range(10):
        producer.commit(engines.rows(n * 10, 10, b"first"))
    producer.commit(engines.rows(0, 40, b"second"))

    def is_trimmed() -> bool:
        clock.now_s += 1
        return engines.status(engine).log_start == 140

    eventually(is_trimmed)
    return engine


def delete_row(store: Store, batch: Any) -> None:
    batch.delete(keys.ROW, PREFIX + b"%08d" % 77)


def restore_older_row(store: Store, batch: Any) -> None:
    key = PREFIX + b"%08d" % 3
    batch.put(keys.ROW, key, (4).to_bytes(8, "big") + (store.get(keys.ROW, key) or b"")[8:])


def move_row(store: Store, batch: Any) -> None:
    batch.put(keys.ROW, PREFIX + b"%08d" % 55, store.get(keys.ROW, PREFIX + b"%08d" % 56) or b"")


def put_later_row(store: Store, batch: Any) -> None:
    key = PREFIX + b"%08d" % 3
    batch.put(keys.ROW, key, (4000).to_bytes(8, "big") + (store.get(keys.ROW, key) or b"")[8:])


def delete_all_rows(store: Store, batch: Any) -> None:
    batch.delete_range(keys.ROW, PREFIX, keys.after_prefix(PREFIX))


@pytest.mark.parametrize("damage", [delete_row, restore_older_row, move_row, put_later_row, delete_all_rows])
def test_rows_that_changed_without_a_batch_are_found(tmp_path: Path, damage: Damage) -> None:
    clock, errors = Clock(), Errors()
    fill_store(tmp_path, clock).stop()
    engine = engines.make(tmp_path, clock, errors, retain_bytes=0)
    wait_for_scrub(engine, clock)
    batch = engine.store.batch()
    damage(engine.store, batch)
    engine.store.write(batch, durable=True)

    clock.now_s += 2 * DAY_S
    eventually(lambda: bool(errors.fatal))
    engine.stop()

    assert isinstance(errors.fatal[0], Corruption)
    assert "main, table 1" in str(errors.fatal[0])
    with pytest.raises(Corruption, match="main, table 1"):
        engines.make(tmp_path, clock)  # a restart alone does not make it serve again


def test_a_damaged_body_and_a_row_that_contradicts_the_queue_are_found(tmp_path: Path) -> None:
    for harm in ("body", "row"):
        clock, errors = Clock(), Errors()
        path = tmp_path / harm
        engine = engines.make(path, clock, errors)
        producer = Producer(engine)
        for n in range(40):
            producer.commit(engines.rows(n * 10, 10, b"payload"))
        wait_for_scrub(engine, clock)
        batch = engine.store.batch()
        if harm == "body":
            key = keys.log_key(1, 30)
            content = bytearray(engine.store.get(keys.RLOG, key) or b"")
            content[-1] ^= 1
            batch.put(keys.RLOG, key, bytes(content))
        else:
            batch.delete(keys.ROW, PREFIX + b"%08d" % 155)
        engine.store.write(batch, durable=True)
        clock.now_s += 2 * DAY_S
        eventually(lambda errors=errors: bool(errors.fatal))  # type: ignore[misc]
        assert isinstance(errors.fatal[0], Corruption)
        engine.stop()


def test_changes_of_every_kind_are_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scavenger, "PASS_EVERY_S", 60.0)
    clock, errors = Clock(), Errors()
    engine = fill_store(tmp_path, clock)
    for life in range(3):
        producer = Producer(engine, source_last_batch=engines.status(engine).last_batch)
        wait_for_scrub(engine, clock)
        producer.commit([(b"%08d" % n, None) for n in range(life * 3, 60, 7)])
        producer.commit(engines.rows(5 * life, 30, b"life"))
        wait_for_scrub(engine, clock)
        producer.commit(engines.rows(300 + life, 120, b"more"))
        begin = producer.sequence + 1
        producer.commit([], markers=[(ChangeKind.SWEEP_BEGIN, 0)])
        producer.commit(engines.rows(0, 50, b"swept"))
        producer.commit([], markers=[(ChangeKind.SWEEP_END, begin)])
        wait_for_scrub(engine, clock)
        if life == 1:
            producer.commit(engines.rows(10, 20, b"new"), markers=[(ChangeKind.TRUNCATE, 0)])
        wait_for_scrub(engine, clock)
        wait_for_scrub(engine, clock)
        assert engines.status(engine).counters["scavenged_rows"] > 0
        engine.stop()
        engine = engines.make(tmp_path, clock, errors, retain_bytes=0)
    assert engine.status(BUSINESS).businesses[0].last_scrub_at_us
    assert errors.fatal == []
    engine.stop()
