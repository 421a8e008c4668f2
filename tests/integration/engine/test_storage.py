"""The commit thread on a real store: groups, the time of each answer, errors, and replay."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Errors, Producer
from tests.support.waiting import eventually
from venus.broker.machine import machine
from venus.broker.machine.business import Business
from venus.broker.machine.records import load_all
from venus.broker.store import keys, rocks
from venus.broker.store.rocks import Store
from venus.config import LimitsSettings
from venus.errors import (
    SlowRequest,
)
from venus.model import Verdict


class CommitHold:
    """Blocks the commit thread before it writes."""

    def __init__(self) -> None:
        self.hold, self.go = threading.Event(), threading.Event()
        self.held = threading.Event()

    def __call__(self, step: str) -> None:
        if step == "before" and self.hold.is_set() and threading.current_thread().name == "venus-commit":
            self.held.set()
            self.go.wait(WAIT_S)

    def release(self) -> None:
        self.hold.clear()
        self.go.set()


def test_half_messages_that_wait_too_long_for_the_disk_are_refused_and_accepted_later(tmp_path: Path) -> None:
    stop, clock = CommitHold(), Clock()
    engine = engines.make(tmp_path, clock, on_write=stop)
    producer = Producer(engine)
    halves = [producer.next_half(engines.rows(n, 10, b"q" * 1000)) for n in range(8)]
    stop.hold.set()
    futures = [engine.producers.take_halves(BUSINESS, producer.epoch, [halves[0]])]
    assert stop.held.wait(WAIT_S)
    futures += [engine.producers.take_halves(BUSINESS, producer.epoch, [message]) for message in halves[1:]]
    clock.now_s += 0.3
    stop.release()
    assert futures[0].result(WAIT_S).through == 1
    for future in futures[1:]:
        with pytest.raises(SlowRequest, match=r"waited 0\.\d+ s for the disk"):
            future.result(WAIT_S)
    assert engine.buffer.status().unsaved_bytes == 0
    for message in halves:
        producer.send(message)
    assert producer.decide(halves[-1]).next_offset == 80
    engine.stop()


def test_a_flood_delays_the_decision_of_another_business_by_one_group_only(tmp_path: Path) -> None:
    """60 MiB of one business wait, and 20 MiB of them are ahead of the other business's decision."""
    stop, order = CommitHold(), list[int]()
    engine = engines.make(tmp_path, on_write=stop, buffer_bytes_max=256 << 20, limits=LimitsSettings(slow_request_ms=0))
    flood, small = Producer(engine), Producer(engine, business="small")
    message = small.next_half(engines.rows(0, 1))
    small.send(message)
    stop.hold.set()
    bodies = [flood.next_half(engines.rows(n, 10, b"q" * 100_000)) for n in range(60)]
    futures = [engine.producers.take_halves(BUSINESS, flood.epoch, [bodies[0]])]
    assert stop.held.wait(WAIT_S)
    futures += [engine.producers.take_halves(BUSINESS, flood.epoch, [body]) for body in bodies[1:20]]
    decided = engine.producers.decide("small", small.epoch, message.batch_no, message.digest, Verdict.COMMIT)
    futures += [engine.producers.take_halves(BUSINESS, flood.epoch, [body]) for body in bodies[20:]]
    everything: list[Future[Any]] = [*futures, decided]
    for number, future in enumerate(everything):
        future.add_done_callback(lambda _, n=number: order.append(n))  # type: ignore[misc]
    stop.release()
    assert futures[-1].result(WAIT_S).through == 60
    assert order.index(60) <= 10, "the first group was on its way, and one group may be before it"
    assert [n for n in order if n < 60] == list(range(60)), "within a business nothing overtakes anything"
    engine.stop()


def test_nothing_is_answered_before_the_fsync(tmp_path: Path) -> None:
    steps: list[str] = []
    engine = engines.make(tmp_path, on_write=steps.append)
    producer = Producer(engine)
    message = producer.next_half(engines.rows(0, 1))
    notified = threading.Event()
    at: list[int] = []

    def on_answer(_future: object) -> None:
        at.append(len(steps))
        notified.set()

    before = len(steps)
    engine.producers.take_halves(BUSINESS, producer.epoch, [message]).add_done_callback(on_answer)
    assert notified.wait(WAIT_S)

    assert steps[before : at[0]].count("flushed") == 1
    engine.stop()


def test_an_error_of_the_store_stops_the_engine(tmp_path: Path) -> None:
    errors = Errors()
    broken = threading.Event()

    def on_write(step: str) -> None:
        if broken.is_set():
            raise OSError("the disk is gone")

    engine = engines.make(tmp_path, errors=errors, on_write=on_write)
    producer = Producer(engine)
    broken.set()
    with pytest.raises(Exception, match="disk is gone"):
        producer.commit(engines.rows(0, 1))
    broken.clear()

    with pytest.raises(Exception, match="stopped"):
        producer.commit(engines.rows(0, 1))
    eventually(lambda: len(errors.fatal) == 1)
    engine.stop()


def test_no_client_gets_an_error_of_the_store_before_the_broker_has_ended(tmp_path: Path) -> None:
    """A producer that got this error would give up; it must try another broker, or this one again."""
    notified, answered = threading.Event(), list[bool]()
    broken = threading.Event()

    def on_write(step: str) -> None:
        if broken.is_set():
            raise OSError("the disk is gone")

    def on_fatal(_error: BaseException) -> None:
        answered.append(notified.wait(0.2))

    engine = engines.make(tmp_path, errors=on_fatal, on_write=on_write)
    producer = Producer(engine)
    broken.set()
    future = engine.producers.take_halves(BUSINESS, producer.epoch, [producer.next_half(engines.rows(0, 1))])
    future.add_done_callback(lambda _: notified.set())
    with pytest.raises(Exception, match="disk is gone"):
        future.result(WAIT_S)
    assert answered == [False]
    engine.stop()


def test_queue_and_state_are_functions_of_the_log(tmp_path: Path) -> None:
    """Drop all derived data, replay the log into it, and find the same."""
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    for n in range(5):
        producer.commit(engines.rows(n, 3))
    gone = producer.next_half(engines.rows(9, 3))
    producer.send(gone)
    producer.decide(gone, Verdict.ROLLBACK)
    producer = Producer(engine)
    producer.commit(engines.rows(9, 3), version=2)
    producer.send(producer.next_half(engines.rows(10, 3)))
    engine.subscriptions.attach(BUSINESS, "target", 6)
    engine.stop()
    store = Store(tmp_path / "db")
    wanted = derived_data(store)
    (business,) = load_all(store, 6.0)

    blank = Business(business.number, business.name, business.reviews)
    batch = store.batch()
    batch.delete_range(keys.QUEUE, b"", b"\xff")
    for prefix in (keys.HALF, keys.TABLE, keys.SCHEMA, keys.CONSUMER, keys.CORE):
        batch.delete_range(keys.STATE, prefix, keys.after_prefix(prefix))
    store.write(batch, durable=True)
    blank.log.find_end(store)
    blank.log.committed = blank.log.end - 1
    assert machine.replay(store, blank) == business.log.end - 1

    assert derived_data(store) == wanted
    store.close()


def derived_data(store: Store) -> dict[str, list[tuple[bytes, bytes]]]:
    found = {
        prefix.decode(): list(store.scan_prefix(keys.STATE, prefix))
        for prefix in (keys.HALF, keys.TABLE, keys.SCHEMA, keys.CONSUMER, keys.CORE)
    }
    found["queue"] = list(store.scan(keys.QUEUE, b"", b""))
    return found


class DatabaseRecorder:
    """Wrapper of the database that records each call."""

    def __init__(self, inner: Any, steps: list[str]) -> None:
        self._inner = inner
        self._steps = steps

    def write(self, batch: Any) -> None:
        self._inner.write(batch)
        self._steps.append("write")

    def flush_wal(self, sync: bool) -> None:
        self._inner.flush_wal(sync)
        self._steps.append(f"flush_wal({sync})")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_an_answer_comes_after_the_log_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(rocks, "Rdict", lambda *given, **options: DatabaseRecorder(Rdict(*given, **options), steps))
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    message = producer.next_half(engines.rows(0, 1))

    for ask in (
        lambda: engine.producers.take_halves(BUSINESS, producer.epoch, [message]),
        lambda: engine.producers.decide(BUSINESS, producer.epoch, 1, message.digest, Verdict.COMMIT),
        lambda: engine.producers.init(BUSINESS, "next", 0, 1),
    ):
        steps.clear()
        future: Future[Any] = ask()
        future.add_done_callback(lambda _done: steps.append("answer"))
        future.result(WAIT_S)
        eventually(lambda: "answer" in steps)
        assert "flush_wal(True)" in steps[: steps.index("answer")]
    engine.stop()


def test_a_listener_that_fails_stops_nothing(tmp_path: Path) -> None:
    errors = Errors()
    engine = engines.make(tmp_path, errors=errors)

    def fail_in_listener(_business: str, _offset: int) -> None:
        raise RuntimeError("the loop is closed")

    engine.publisher.add_listener(fail_in_listener)

    assert Producer(engine).commit(engines.rows(0, 1)).next_offset == 1
    assert errors.fatal == []
    engine.stop()
