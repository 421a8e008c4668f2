"""An idle engine sleeps, and still does its periodic work in time."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Producer
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.pipeline.upkeep import MAINTAIN_EVERY_S, QUIET_EVERY_S
from venus.wire import broker_pb2


def idle_engine(path: Path, clock: Clock) -> Core:
    """Return an engine that has written a batch and is at rest; its time is that of `clock`."""
    engine = engines.make(path, clock)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 10))
    eventually(lambda: bool(engine.catalogue.list_stored()))

    def is_quiet() -> bool:
        clock.now_s += MAINTAIN_EVERY_S
        engine.commits.advance()
        return engine.upkeep.rest_s() > MAINTAIN_EVERY_S

    eventually(is_quiet)
    eventually(lambda: engine.commits.silent_s(clock.now_s + 1.0) == 0.0)
    return engine


def seconds_without_writes(engine: Core, clock: Clock) -> float:
    return engine.commits.silent_s(clock.now_s)


def test_an_idle_commit_thread_is_not_silent(tmp_path: Path) -> None:
    clock = Clock()
    engine = idle_engine(tmp_path, clock)
    clock.now_s += 100.0
    eventually(lambda: seconds_without_writes(engine, clock) == 0.0)  # it may be at its periodic work
    engine.stop()


def test_a_command_that_blocks_makes_the_engine_silent(tmp_path: Path) -> None:
    clock = Clock()
    engine = idle_engine(tmp_path, clock)
    began, ends = threading.Event(), threading.Event()

    def work(_: object) -> None:
        began.set()
        assert ends.wait(WAIT_S)

    engine.commits.submit(work)
    assert began.wait(WAIT_S)
    clock.now_s += 100.0
    assert seconds_without_writes(engine, clock) >= 100.0
    ends.set()
    eventually(lambda: seconds_without_writes(engine, clock) == 0.0)  # the next reading shows the idle thread
    engine.stop()


def test_a_command_that_waits_makes_the_engine_silent(tmp_path: Path) -> None:
    """As if the thread did not wake: the silence counts from the arrival of the first waiting command."""
    clock = Clock()
    engine = idle_engine(tmp_path, clock)
    clock.now_s += 50.0
    commits, answers = engine.commits, list[Future[None]]()
    with commits._ready:  # an RLock, held here, blocks the thread
        answers.append(commits.submit(lambda _: None))
        clock.now_s += 100.0
        assert seconds_without_writes(engine, clock) == 100.0
    answers[0].result(WAIT_S)
    engine.stop()


def test_an_applied_offset_is_logged_soon_although_the_engine_is_idle(tmp_path: Path) -> None:
    clock = Clock()
    engine = idle_engine(tmp_path, clock)
    attached = engine.subscriptions.attach(BUSINESS, "group", 0)
    own = engine.upkeep.rest_s
    engine.commits._rest_s = lambda: own() if engine.upkeep._dirty else 3600.0  # nothing else wakes the thread

    def is_logged() -> bool:  # the entry of the attachment
        clock.now_s += MAINTAIN_EVERY_S
        engine.commits.wake()
        return not engine.upkeep._dirty

    eventually(is_logged)
    engine.commits.submit(lambda _: None).result(WAIT_S)
    eventually(lambda: engine.commits.silent_s(clock.now_s + 1.0) == 0.0)
    clock.now_s += QUIET_EVERY_S / 2
    (business,) = engine.catalogue.list_stored()
    end = business.log.end
    engine.subscriptions.acknowledge(BUSINESS, "group", attached, 10)
    eventually(lambda: business.log.end > end)
    assert engine.upkeep.rest_s() <= MAINTAIN_EVERY_S, "it may be trimmed soon"
    engine.stop()


def test_leases_are_checked_every_second(tmp_path: Path) -> None:
    clock = Clock()
    engine = idle_engine(tmp_path, clock)
    assert engine.upkeep.rest_s() > MAINTAIN_EVERY_S
    engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS))
    assert engine.upkeep.rest_s() <= MAINTAIN_EVERY_S
    engine.stop()
