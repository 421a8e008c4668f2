"""Log and state machine: a proposed entry waits for the high watermark, and can be truncated until then."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Producer
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine import envelope
from venus.broker.machine.business import Business
from venus.broker.pipeline import producer_commands
from venus.broker.pipeline.producer_commands import REVIEWED_AT_ONCE_MAX
from venus.config.sections import LimitsSettings
from venus.errors import Unavailable, VenusError
from venus.model import Verdict

pytestmark = pytest.mark.integration


class Replicas:
    """Stands in for followers: the watermark stays at `held` until the test releases it."""

    def __init__(self) -> None:
        self.held: int | None = None

    def __call__(self, business: Business) -> int:
        end = business.log.end - 1
        return end if self.held is None else min(self.held, end)


def settle(engine: Core) -> None:
    """Wait until a command group has been executed."""
    engine.commits.submit(lambda _: None).result(WAIT_S)


def test_nothing_is_reported_or_read_above_the_watermark(tmp_path: Path) -> None:
    replicas = Replicas()
    engine = engines.make(tmp_path, watermark=replicas)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3))
    replicas.held = 3  # EPOCH, PREPARE, DECIDE

    message = producer.next_half(engines.rows(3, 2))
    half = engine.producers.take_halves(BUSINESS, producer.epoch, [message])
    decided = engine.producers.decide(BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.COMMIT)
    settle(engine)
    settle(engine)

    assert not half.done()
    assert not decided.done()
    assert engines.status(engine).next_offset == 3
    assert list(engines.status(engine).halves) == []
    assert len(engines.full_data(engine)) == 3

    replicas.held = 4
    engine.commits.advance()
    assert half.result(WAIT_S).through == 2
    settle(engine)
    assert not decided.done()

    replicas.held = None
    engine.commits.advance()
    assert decided.result(WAIT_S).next_offset == 5
    assert len(engines.full_data(engine)) == 5
    engine.stop()


@pytest.mark.parametrize("is_killed", [False, True])
def test_entries_above_the_watermark_are_forgotten_with_their_business(tmp_path: Path, is_killed: bool) -> None:
    """A broker whose cluster had meanwhile forgotten such a business did not restart, and only advised to try again."""
    replicas = Replicas()
    engine = engines.make(tmp_path, watermark=replicas)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3))
    replicas.held = 3  # EPOCH, PREPARE, DECIDE
    waits = engine.producers.take_halves(BUSINESS, producer.epoch, [producer.next_half(engines.rows(3, 2))])
    settle(engine)
    engine.producers.leave(BUSINESS)
    settle(engine)
    if is_killed:
        engine.stop()
        engine = engines.make(tmp_path, watermark=replicas)
        assert engine.catalogue.find(BUSINESS).pending

    engine.forget_business(BUSINESS)

    assert not engine.catalogue.has_stored(BUSINESS)
    with pytest.raises(Unavailable):
        waits.result(WAIT_S)
    engine.stop()
    engine = engines.make(tmp_path)
    assert list(engine.catalogue.list_stored()) == []
    engine.stop()


def test_a_replica_that_catches_up_requests_only_undecided_decisions(tmp_path: Path) -> None:
    """A replica applies many half messages together with their decisions; as the leader it asks about the rest."""
    replicas, clock = Replicas(), engines.Clock()
    engine = engines.make(tmp_path, clock, watermark=replicas, limits=LimitsSettings(slow_request_ms=0))
    producer = Producer(engine)
    producer.commit(engines.rows(0, 1))
    replicas.held = 3
    for n in range(REVIEWED_AT_ONCE_MAX + 6):
        message = producer.next_half(engines.rows(1 + n, 1))
        engine.producers.take_halves(BUSINESS, producer.epoch, [message])
        engine.producers.decide(BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.COMMIT)
    settle(engine)
    replicas.held = None
    engine.commits.advance()
    settle(engine)
    settle(engine)
    assert not engine.producers.has_undecided

    message = producer.next_half(engines.rows(100, 1))
    producer.send(message)
    clock.now_s += 3600
    [(_, epoch, asked)] = engine.producers.due_reviews()
    assert (epoch, [half.batch_no for half in asked]) == (producer.epoch, [message.batch_no])
    engine.stop()


def test_a_repeated_half_message_is_not_answered_before_the_first(tmp_path: Path) -> None:
    replicas = Replicas()
    engine = engines.make(tmp_path, watermark=replicas)
    producer = Producer(engine)
    replicas.held = 1
    message = producer.next_half(engines.rows(0, 1))
    asked = [engine.producers.take_halves(BUSINESS, producer.epoch, [message]) for _ in range(3)]
    settle(engine)
    settle(engine)

    assert [each.done() for each in asked] == [False] * 3
    replicas.held = 2
    engine.commits.advance()
    assert [each.result(WAIT_S).through for each in asked] == [1] * 3
    engine.stop()


def test_a_tail_is_truncated_and_another_one_replaces_it(tmp_path: Path) -> None:
    replicas = Replicas()
    engine = engines.make(tmp_path, watermark=replicas)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3))
    replicas.held = 3
    message = producer.next_half(engines.rows(3, 2))
    lost: list[Future[Any]] = [
        engine.producers.take_halves(BUSINESS, producer.epoch, [message]),
        engine.producers.decide(BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.COMMIT),
    ]
    settle(engine)

    with pytest.raises(VenusError, match="committed"):
        engine.commits.truncate(engine.catalogue.find(BUSINESS), 3).result(WAIT_S)
    engine.commits.truncate(engine.catalogue.find(BUSINESS), 4).result(WAIT_S)
    for future in lost:
        with pytest.raises(Unavailable, match="send again"):
            future.result(WAIT_S)

    replicas.held = None
    other = producer_half(2, 4, b"other")
    producer.send(other)
    assert producer.decide(other).next_offset == 4
    assert engines.full_data(engine)[b"00000009"] == b"other"
    engine.stop()

    again = engines.make(tmp_path)
    assert len(engines.full_data(again)) == 4
    assert engines.status(again).last_batch == 2
    again.stop()


def producer_half(batch_no: int, first: int, payload: bytes) -> Any:
    return engines.half(batch_no, first, engines.rows(9, 1, payload))


def test_entries_above_the_watermark_are_applied_after_a_restart(tmp_path: Path) -> None:
    replicas = Replicas()
    engine = engines.make(tmp_path, watermark=replicas)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3))
    replicas.held = 3
    message = producer.next_half(engines.rows(3, 2))
    engine.producers.take_halves(BUSINESS, producer.epoch, [message])
    engine.producers.decide(BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.COMMIT)
    settle(engine)
    engine.stop()

    engine = engines.make(tmp_path, watermark=replicas)
    assert engines.status(engine).next_offset == 3
    replicas.held = None
    engine.commits.advance()
    eventually(lambda: engines.status(engine).next_offset == 5)
    assert len(engines.full_data(engine)) == 5
    assert Producer(engine).batch_no == 2
    engine.stop()


def test_a_command_that_fails_half_way_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three half messages fails by a defect: none of the three is stored, and the broker continues."""
    errors = engines.Errors()
    engine = engines.make(tmp_path, errors=errors)
    producer = Producer(engine)
    messages = [producer.next_half(engines.rows(n, 1)) for n in range(3)]
    real = envelope.open_body

    def fail_on_second(batch_no: int, body: bytes) -> Any:
        if batch_no == 2:
            raise ZeroDivisionError("a defect")
        return real(batch_no, body)

    monkeypatch.setattr(producer_commands, "open_body", fail_on_second)
    with pytest.raises(VenusError, match="ZeroDivisionError"):
        producer.send(*messages)
    monkeypatch.undo()

    assert list(engines.status(engine).halves) == []
    producer.send(*messages)
    assert producer.decide(messages[-1]).next_offset == 3
    assert errors.fatal == []
    engine.stop()


def test_a_command_that_cannot_be_applied_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applying the half message of one business fails by a defect: the other one's is stored, the broker continues."""
    errors = engines.Errors()
    engine = engines.make(tmp_path, errors=errors, group_commit_ms=50)
    good, bad = Producer(engine), Producer(engine, "other")
    good.commit(engines.rows(0, 1))
    bad.commit(engines.rows(0, 1))
    monkeypatch.setattr("venus.broker.machine.records.encode_half", _fail_for_batch_of(77))
    first, second = good.next_half(engines.rows(1, 1)), bad.next_half(engines.rows(1, 77))
    kept = engine.producers.take_halves(good.business, good.epoch, [first])
    failed = engine.producers.take_halves(bad.business, bad.epoch, [second])

    assert kept.result(WAIT_S).through == 2
    with pytest.raises(VenusError, match="a defect"):
        failed.result(WAIT_S)
    monkeypatch.undo()

    bad.send(second)
    assert bad.decide(second).next_offset == 78
    assert good.decide(first).next_offset == 2
    assert errors.fatal == []
    engine.stop()
    again = engines.make(tmp_path)
    assert len(engines.full_data(again, business="other")) == 78
    again.stop()


def _fail_for_batch_of(count: int) -> Any:
    from venus.broker.machine.records import encode_half

    def encode(found: Any) -> bytes:
        if found.count == count:
            raise ZeroDivisionError("a defect")
        return encode_half(found)

    return encode


def test_entries_applied_in_a_group_are_visible_though_it_proposes_more(tmp_path: Path) -> None:
    """The watermark passes a decision in the same group that proposes the next half message, which stays above it."""
    replicas = Replicas()
    engine = engines.make(tmp_path, watermark=replicas)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3))
    replicas.held = 3
    message = producer.next_half(engines.rows(3, 2))
    engine.producers.take_halves(BUSINESS, producer.epoch, [message])
    decided = engine.producers.decide(BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.COMMIT)
    settle(engine)
    replicas.held = 5
    engine.producers.take_halves(BUSINESS, producer.epoch, [producer.next_half(engines.rows(5, 1))])

    assert decided.result(WAIT_S).next_offset == 5
    assert engine.catalogue.find(BUSINESS).visible_offset == 5
    assert len(engines.full_data(engine)) == 5
    engine.stop()


def test_a_proposal_that_is_truncated_in_its_own_group_is_refused(tmp_path: Path) -> None:
    """Otherwise its caller would be answered as soon as another entry has its index."""
    replicas = Replicas()
    engine = engines.make(tmp_path, watermark=replicas, group_commit_ms=100)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3))
    replicas.held = 3
    message = producer.next_half(engines.rows(3, 2))
    lost = engine.producers.take_halves(BUSINESS, producer.epoch, [message])
    taken = engine.commits.truncate(engine.catalogue.find(BUSINESS), 4)
    taken.result(WAIT_S)

    with pytest.raises(Unavailable, match="send again"):
        lost.result(WAIT_S)
    assert engine.catalogue.find(BUSINESS).log.end == 4
    engine.stop()
