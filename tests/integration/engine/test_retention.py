"""What the queue keeps, and for whom, on a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Producer, status
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.errors import (
    OffsetTrimmed,
)
from venus.wire import broker_pb2


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tick(engine: Core, clock: Clock, seconds: float = 2.0) -> None:
    """Let the commit thread do what it does each second."""
    eventually(lambda: caught_up(engine))
    clock.now_s += seconds
    for _ in range(2):  # the upkeep is done with a group, which is written before its commands are answered
        engine.commits.submit(lambda _group: None).result(WAIT_S)


def caught_up(engine: Core) -> bool:
    found = status(engine)
    return found.materialised_offset == found.next_offset


def test_the_queue_is_kept_for_consumers_and_snapshots_and_no_longer(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock, retain_bytes=0, consumer_ttl_s=1000)
    producer = Producer(engine)
    slow = engine.subscriptions.attach(BUSINESS, "slow", 0)
    engine.subscriptions.detach(BUSINESS, "gone", engine.subscriptions.attach(BUSINESS, "gone", 0))
    peek = engine.subscriptions.attach(BUSINESS, "peek", 0, transient=True)
    for n in range(10):
        producer.commit(engines.rows(n, 10))
    engine.subscriptions.acknowledge(BUSINESS, "slow", slow, 45)
    tick(engine, clock)
    assert status(engine).log_start == 0
    engine.subscriptions.forget(BUSINESS, "gone")
    tick(engine, clock)
    assert status(engine).log_start == 0  # a transient reader counts while it is there
    engine.subscriptions.detach(BUSINESS, "peek", peek)
    tick(engine, clock)

    assert status(engine).log_start == 40
    with pytest.raises(OffsetTrimmed):
        engine.subscriptions.read(BUSINESS, 39, 1)
    assert [i.base_offset for i in engines.queue(engine, 40)] == list(range(40, 100, 10))

    snapshot = engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS))
    producer.commit(engines.rows(0, 10))
    engine.subscriptions.acknowledge(BUSINESS, "slow", slow, 110)
    tick(engine, clock)
    assert status(engine).log_start == snapshot.offset == 100
    engine.full_data.close(snapshot.snapshot_id)
    tick(engine, clock)
    assert status(engine).log_start == 110
    assert status(engine).log_bytes == 0
    engine.stop()

    engine = engines.make(tmp_path, clock, consumer_ttl_s=100)
    assert status(engine).log_start == 110
    assert [(c.group, c.acknowledged, c.connected) for c in status(engine).consumers] == [("slow", 110, False)]
    tick(engine, clock, 60)
    tick(engine, clock, 60)
    assert list(status(engine).consumers) == []
    engine.stop()


def test_so_many_bytes_are_kept_below_what_is_needed(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock, retain_bytes=10_000)
    producer = Producer(engine)
    for n in range(50):
        producer.commit(engines.rows(n, 10, b"k" * 100))
    tick(engine, clock)

    assert 9_000 < status(engine).log_bytes < 13_000
    engine.stop()


def test_undecided_half_messages_are_never_trimmed(tmp_path: Path, clock: Clock) -> None:
    engine = engines.make(tmp_path, clock, retain_bytes=0)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 10))
    message = producer.next_half(engines.rows(0, 10))
    producer.send(message)
    tick(engine, clock, 86_400 * 30)
    engine.stop()

    engine = engines.make(tmp_path, clock, retain_bytes=0)
    producer = Producer(engine)
    assert [ref.batch_no for ref in producer.ack.undecided] == [2]
    producer.decide(message)
    assert engine.subscriptions.read(BUSINESS, 10, 1).increments[0].body == message.body
    engine.stop()
