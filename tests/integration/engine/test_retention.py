"""How much of the queue is kept, and for which consumers, on a real store."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Producer, status
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.pipeline.shared_log import StandaloneLog
from venus.errors import (
    OffsetTrimmed,
)
from venus.wire import broker_pb2


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tick(engine: Core, clock: Clock, seconds: float = 2.0) -> None:
    """Run the commit thread's work of each second."""
    eventually(lambda: is_caught_up(engine))
    clock.now_s += seconds
    for _ in range(2):  # the upkeep is part of a command group, which is written before its commands are answered
        engine.commits.submit(lambda _group: None).result(WAIT_S)


def is_caught_up(engine: Core) -> bool:
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
    assert status(engine).log_start == 0  # a transient reader counts while it is attached
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


def test_the_configured_number_of_bytes_is_kept_below_what_is_needed(tmp_path: Path, clock: Clock) -> None:
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


def test_the_queue_for_readers_without_a_group_grows_with_rate_and_absence(tmp_path: Path, clock: Clock) -> None:
    """Half a KB is written each second. An absence of 60 s is too long until one of that length was measured."""
    engine = engines.make(
        tmp_path, clock, retain="measured", retain_bytes=0, retain_bytes_min=6000, retain_bytes_max=1 << 20
    )
    producer = Producer(engine)
    subscriptions, batches = engine.subscriptions, itertools.count()

    def write(seconds: int) -> None:
        for _ in range(seconds // 10):
            producer.commit(engines.rows(next(batches), 300))
            tick(engine, clock, 10.0)

    def attach_briefly(offset: int) -> int:
        """Attach at an offset for a moment; return the end of the queue."""
        subscriptions.serving_business(BUSINESS, offset)
        token = subscriptions.attach(BUSINESS, "peek", offset, transient=True)
        subscriptions.detach(BUSINESS, "peek", token)
        return status(engine).next_offset

    write(60)
    first = status(engine).retention
    assert (first.bytes, first.absences) == (6000, 0), "nothing is known of absences"
    assert first.bytes_per_s > 500
    place = attach_briefly(status(engine).next_offset)
    write(60)
    with pytest.raises(OffsetTrimmed):
        attach_briefly(place)
    token = subscriptions.attach(BUSINESS, "peek", status(engine).next_offset, transient=True)
    write(60)
    measured = status(engine).retention
    assert (measured.absences, measured.mean_absence_ms) == (1, 60_000)
    assert measured.bytes == pytest.approx(60 * measured.bytes_per_s, rel=0.05)
    subscriptions.detach(BUSINESS, "peek", token)
    place = status(engine).next_offset
    write(60)
    attach_briefly(place)
    tick(engine, clock, 24 * 3600.0)
    assert status(engine).retention.bytes == 6000, "it is halved each hour"
    engine.stop()


def test_a_restart_keeps_the_queue_and_a_follower_keeps_the_fixed_size(tmp_path: Path, clock: Clock) -> None:
    options: dict[str, Any] = {"retain": "measured", "retain_bytes_min": 1000, "retain_bytes_max": 1 << 20}
    engine = engines.make(tmp_path, clock, retain="bytes", retain_bytes=1 << 20)
    producer = Producer(engine)
    for n in range(20):
        producer.commit(engines.rows(n, 300))
    engine.stop()
    engine = engines.make(tmp_path, clock, retain_bytes=0, **options)
    tick(engine, clock)
    found = status(engine)
    assert found.log_start == 0
    assert found.retention.bytes > 10 * 1000
    engine.stop()

    following = FollowerLog()
    engine = engines.make(tmp_path, clock, retain_bytes=5000, shared=following, **options)
    tick(engine, clock)
    assert not status(engine).HasField("retention")
    business = engine.catalogue.find(BUSINESS)
    assert status(engine).log_start > 0, "5,000 bytes are kept, and not all that are there"
    assert business.nbytes - business.nbytes_trimmed >= 5000
    engine.stop()


class FollowerLog(StandaloneLog):
    """A log that another broker leads."""

    def leads(self, business: Business) -> bool:
        """Return False."""
        return False
