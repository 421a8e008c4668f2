"""Half messages, decisions and incremental reading on a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
import xxhash

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Producer, status
from venus.broker.core import Core
from venus.broker.store.rocks import Store, StoreBatch
from venus.errors import (
    DigestMismatch,
    Diverged,
    Fenced,
    IllegalTransition,
    OffsetDiverged,
    ProtocolError,
)
from venus.model import Verdict
from venus.wire import broker_pb2, change_pb2


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> Iterator[Core]:
    opened = engines.make(tmp_path, clock)
    yield opened
    opened.stop()


def test_a_half_message_is_invisible_until_it_is_committed(engine: Core) -> None:
    seen: list[tuple[str, int]] = []
    engine.publisher.add_listener(lambda business, offset: seen.append((business, offset)))
    producer = Producer(engine)
    message = producer.next_half(engines.rows(0, 5))
    producer.send(message)

    assert engine.subscriptions.read(BUSINESS, 0, 1 << 20).increments == []
    decided = producer.decide(message)

    (increment,) = engine.subscriptions.read(BUSINESS, 0, 1 << 20).increments
    assert (increment.base_offset, increment.count, increment.epoch) == (0, 5, producer.epoch)
    assert (increment.body, increment.digest) == (message.body, message.digest)
    assert (decided.verdict, decided.batch_no, decided.next_offset) == (broker_pb2.COMMIT, 1, 5)
    assert seen == [(BUSINESS, 5)]


def test_a_half_message_is_undecided_until_its_decision_is_durable(
    engine: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that sees no undecided message, but the old end of the queue, would expect no more changes."""
    producer = Producer(engine)
    message = producer.next_half(engines.rows(0, 5))
    producer.send(message)
    writing, resume, write = Event(), Event(), Store.write

    def write_slowly(store: Store, batch: StoreBatch, *, durable: bool) -> None:
        writing.set()
        assert resume.wait(WAIT_S)
        write(store, batch, durable=durable)

    monkeypatch.setattr(Store, "write", write_slowly)
    answer = engine.producers.decide(BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.COMMIT)
    assert writing.wait(WAIT_S)
    meanwhile = status(engine)
    resume.set()
    answer.result(WAIT_S)

    assert ([ref.batch_no for ref in meanwhile.halves], meanwhile.last_batch, meanwhile.next_offset) == ([1], 0, 0)
    found = status(engine)
    assert ([ref.batch_no for ref in found.halves], found.last_batch, found.next_offset) == ([], 1, 5)


def test_a_commit_decides_everything_before_it_and_a_rollback_everything_after(engine: Core) -> None:
    producer = Producer(engine)
    halves = [producer.next_half(engines.rows(n, 1)) for n in range(5)]
    producer.send(*halves)

    assert producer.decide(halves[1]).next_offset == 2
    assert producer.decide(halves[3], Verdict.ROLLBACK).batch_no == 4

    found = status(engine)
    assert [ref.batch_no for ref in found.halves] == [3]
    assert (found.counters["rollbacks"], found.counters["rolled_back_rows"]) == (1, 2)


def test_repeated_decisions_are_answered_and_contradictory_ones_refused(engine: Core) -> None:
    producer = Producer(engine)
    message = producer.next_half(engines.rows(0, 2))
    producer.send(message)
    producer.send(message)
    first = producer.decide(message)

    producer.send(message)
    assert producer.decide(message) == first
    with pytest.raises(IllegalTransition):
        producer.decide(message, Verdict.ROLLBACK)
    other = engines.half(1, 1, engines.rows(7, 2))
    with pytest.raises(ProtocolError):
        producer.send(other)
    with pytest.raises(IllegalTransition):
        producer.decide(other)
    found = status(engine)
    assert (found.counters["duplicate_batches"], found.counters["duplicate_rows"]) == (2, 4)
    assert found.next_offset == 2


def test_a_gap_is_asked_for_again(engine: Core) -> None:
    producer = Producer(engine)
    first, second = (producer.next_half(engines.rows(n, 1)) for n in range(2))

    result = engine.producers.take_halves(BUSINESS, producer.epoch, [second]).result(WAIT_S)

    assert (result.through, result.resend_from) == (0, 1)
    producer.send(first, second)


def test_an_older_producer_is_fenced(engine: Core) -> None:
    older = Producer(engine)
    half = older.next_half(engines.rows(0, 1))
    newer = Producer(engine)

    with pytest.raises(Fenced):
        older.send(half)
    newer.send(half)
    with pytest.raises(Fenced):
        older.decide(half)


def test_a_broker_that_lost_its_data_refuses_the_producer(engine: Core) -> None:
    with pytest.raises(Diverged) as refused:
        Producer(engine, source_last_batch=7)

    assert "venus uninstall-triggers" in refused.value.hint
    assert engine.status(BUSINESS).businesses[0].epoch == 0


def test_a_source_that_was_set_back_in_time_is_refused(engine: Core) -> None:
    producer = Producer(engine)
    producer.commit(engines.rows(0, 10))

    with pytest.raises(Diverged, match="back in time"):
        producer.send(engines.half(2, 5, engines.rows(0, 1)))


def test_an_operator_decides_a_half_message_and_fences_the_producer(engine: Core) -> None:
    producer = Producer(engine)
    halves = [producer.next_half(engines.rows(n, 1)) for n in range(3)]
    producer.send(*halves)

    assert engine.producers.operator_decide(BUSINESS, 1, Verdict.COMMIT).result(WAIT_S).next_offset == 1
    assert engine.producers.operator_decide(BUSINESS, 2, Verdict.ROLLBACK).result(WAIT_S).batch_no == 2

    with pytest.raises(Fenced):
        producer.decide(halves[1])
    with pytest.raises(IllegalTransition, match="no undecided half message 2"):
        engine.producers.operator_decide(BUSINESS, 2, Verdict.COMMIT).result(WAIT_S)
    assert status(engine).halves == []


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda m: m.tables[0].MergeFrom(change_pb2.TableChanges(row_sizes=b"\x00\x00\x00\x00")), ProtocolError),
        (lambda m: setattr(m.tables[0], "rows", b"short"), ProtocolError),
        (lambda m: setattr(m, "count", 9), ProtocolError),
        (lambda m: setattr(m.tables[0], "is_deleted", b"\x01"), ProtocolError),
        (lambda m: setattr(m.tables[0], "kind", 17), ProtocolError),
        (lambda m: setattr(m, "batch_no", 2), DigestMismatch),
    ],
)
def test_a_body_with_a_wrong_checksum_is_never_acknowledged(engine: Core, damage: object, error: type) -> None:
    message = change_pb2.BatchBody.FromString(engines.body(1, 1, engines.rows(0, 3, b"row")))
    damage(message)  # type: ignore[operator]
    content = message.SerializeToString()
    producer = Producer(engine)

    with pytest.raises(error):
        producer.send(broker_pb2.Half(batch_no=1, digest=1, body=content))

    assert status(engine).halves == []


def test_an_empty_batch_has_a_place_in_the_queue(engine: Core) -> None:
    producer = Producer(engine)
    producer.commit(engines.rows(0, 2))
    producer.commit([])
    producer.commit(engines.rows(0, 2))

    assert [(i.base_offset, i.count) for i in engines.queue(engine)] == [(0, 2), (2, 1), (3, 2)]
    assert status(engine).last_sequence == 4


def test_reading_in_small_pieces_from_memory_and_from_disk_is_the_same(tmp_path: Path) -> None:
    engine = engines.make(tmp_path, buffer_bytes_max=20_000)
    producer = Producer(engine)
    halves = [producer.next_half(engines.rows(n, 10, b"p" * 100)) for n in range(60)]
    for message in halves:
        producer.send(message)
        producer.decide(message)
    small: list[bytes] = []
    offset = 0
    while offset < 600:
        result = engine.subscriptions.read(BUSINESS, offset, 1)
        assert len(result.increments) == 1
        small.append(result.increments[0].body)
        offset = result.next_offset
    assert small == [message.body for message in halves]
    assert engine.subscriptions.read(BUSINESS, 595, 1).increments[0].base_offset == 590
    assert engine.status().buffer_bytes <= 20_000
    engine.stop()

    engine = engines.make(tmp_path)
    assert [i.body for i in engines.queue(engine)] == small
    engine.stop()


def test_the_filter_skips_other_tables_but_ends_their_cuts(engine: Core) -> None:
    producer = Producer(engine)
    producer.commit(engines.rows(0, 1), table_id=1)
    producer.commit(engines.rows(0, 1), table_id=2)
    first = producer.next_half(engines.rows(0, 1), table_id=2, cut=3, cut_end=False)
    last = producer.next_half(engines.rows(0, 1), table_id=3, cut=3)
    producer.send(first, last)
    producer.decide(last)
    producer.commit(engines.rows(0, 1), table_id=1)

    result = engine.subscriptions.read(BUSINESS, 0, 1 << 20, [2])

    assert [i.base_offset for i in result.increments] == [1, 2, 3]
    assert result.next_offset == 5


def test_a_consumer_of_another_history_gets_the_reason(engine: Core) -> None:
    first = Producer(engine)
    first.commit(engines.rows(0, 4))
    second = Producer(engine)
    second.commit(engines.rows(0, 4))

    assert engine.subscriptions.check_position(BUSINESS, 4, first.epoch).epoch == second.epoch
    assert engine.subscriptions.check_position(BUSINESS, 8, second.epoch).next_offset == 8
    with pytest.raises(OffsetDiverged):
        engine.subscriptions.check_position(BUSINESS, 5, first.epoch)  # its first epoch ended at 4
    with pytest.raises(OffsetDiverged):
        engine.subscriptions.check_position(BUSINESS, 9, 2)
    with pytest.raises(OffsetDiverged):
        engine.subscriptions.read(BUSINESS, 9, 1)


def test_reviews_are_sent_by_the_clock_and_only_delivered_ones_count(engine: Core, clock: Clock) -> None:
    producer = Producer(engine)
    message = producer.next_half(engines.rows(0, 1))
    producer.send(message)
    assert engine.producers.due_reviews() == []
    clock.now_s += 6.1
    for _ in range(3):
        ((business, epoch, refs),) = engine.producers.due_reviews()
        assert (business, epoch, refs[0].batch_no, refs[0].reviews) == (BUSINESS, producer.epoch, 1, 0)
    engine.producers.count_delivered_reviews(BUSINESS, [1])
    assert engine.producers.due_reviews() == []
    clock.now_s += 12.1
    assert engine.producers.due_reviews()[0][2][0].reviews == 1
    for _ in range(14):
        engine.producers.count_delivered_reviews(BUSINESS, [1])

    found = status(engine)
    assert found.counters["reviews_sent"] == 15
    assert any("asked about 15 times" in alarm for alarm in found.alarms)
    clock.now_s += 3600
    assert [ref.batch_no for ref in status(engine).halves] == [1]  # half messages are never discarded
    assert any("undecided for" in alarm for alarm in status(engine).alarms)
    producer.decide(message)
    assert engine.producers.due_reviews() == []
    assert list(status(engine).alarms) == []


def test_status_shows_all_waiting_messages(engine: Core, clock: Clock) -> None:
    producer = Producer(engine)
    token = engine.subscriptions.attach(BUSINESS, "target", 0)
    producer.commit(engines.rows(0, 10))
    clock.now_s += 5
    producer.commit(engines.rows(0, 10), table_id=2)
    engine.subscriptions.acknowledge(BUSINESS, "target", token, 10)
    engine.producers.count(BUSINESS, "digest_mismatches", 2)

    found = status(engine)

    (consumer,) = found.consumers
    assert (consumer.acknowledged, consumer.backlog_rows, consumer.connected) == (10, 10, True)
    assert 100 < consumer.backlog_bytes < 1000
    assert consumer.oldest_unacknowledged_us == found.last_committed_at_us == clock.clock_us()
    assert [(t.table_id, t.name, t.committed_changes, t.last_sequence) for t in found.tables] == [
        (1, "t1", 10, 10),
        (2, "t2", 10, 20),
    ]
    assert found.counters["digest_mismatches"] == 2
    assert (found.counters["received_rows"], found.counters["committed_rows"]) == (20, 20)
    assert found.last_captured_at_us == 1_700_000_000_000_002


def test_several_businesses_do_not_see_each_other(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    one, two = Producer(engine, "one"), Producer(engine, "two")
    one.commit(engines.rows(0, 3, b"one"))
    two.commit(engines.rows(0, 5, b"two"))
    one.commit(engines.rows(5, 3, b"one"))

    assert [i.count for i in engines.queue(engine, business="one")] == [3, 3]
    assert [i.count for i in engines.queue(engine, business="two")] == [5]
    assert set(engines.full_data(engine, business="two").values()) == {b"two"}
    engine.stop()

    engine = engines.make(tmp_path)
    assert {found.business: found.next_offset for found in engine.status().businesses} == {"one": 6, "two": 5}
    assert [i.count for i in engines.queue(engine, business="two")] == [5]
    engine.stop()


def test_the_estimate_of_rows_follows_what_the_source_announces(engine: Core) -> None:
    producer = Producer(engine)
    message = change_pb2.BatchBody.FromString(engines.body(1, 1, engines.rows(0, 30)))
    message.tables[0].inserts_only = True
    content = message.SerializeToString()
    first = broker_pb2.Half(batch_no=1, digest=xxhash.xxh3_64_intdigest(content), body=content)
    producer.send(first)
    producer.decide(first)
    producer.send(engines.half(2, 31, [(b"%08d" % n, None) for n in range(4)]))
    producer.decide(engines.half(2, 31, [(b"%08d" % n, None) for n in range(4)]))

    assert [table.rows_estimate for table in status(engine).tables] == [26]
