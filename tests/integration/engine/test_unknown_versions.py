"""Changes of a table version without a description are refused, but tolerated if an older broker accepted them."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Errors, Producer
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.records import load_all
from venus.broker.pipeline import producer_commands
from venus.broker.snapshot import materialiser, offline
from venus.broker.snapshot.scrub import Scrub
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import Corruption, ProtocolError
from venus.model import ChangeKind, Verdict
from venus.wire import broker_pb2, change_pb2

pytestmark = pytest.mark.integration
DAY_S = 86_400.0


def is_refused(producer: Producer, version: int, table_id: int = 1) -> bool:
    """Return whether the next half message is refused because its version has no description; it stores nothing."""
    message = engines.half(
        producer.batch_no + 1,
        producer.sequence + 1,
        engines.rows(0, 1),
        version=version,
        table_id=table_id,
        described=False,
    )
    try:
        producer.engine.producers.take_halves(BUSINESS, producer.epoch, [message]).result(WAIT_S)
    except ProtocolError as error:
        return str(error) == (
            f"batch {message.batch_no} has changes of table {table_id} in version {version}, "
            "which neither it nor any batch before it describes"
        )
    producer.engine.producers.decide(
        BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.ROLLBACK
    ).result(WAIT_S)
    return False


def test_a_version_without_a_description_is_refused_and_the_broker_continues(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    assert is_refused(producer, 1)
    assert engines.status(engine).halves == []
    producer.commit(engines.rows(0, 3))
    assert not is_refused(producer, 1)
    assert is_refused(producer, 2)
    assert is_refused(producer, 1, table_id=2)
    producer.commit(engines.rows(3, 3), described=False)
    with pytest.raises(ProtocolError, match="table 2 in version 1"):
        producer.send(producer.next_half([], markers=[(ChangeKind.TRUNCATE, 0)], table_id=2, described=False))
    assert len(engines.full_data(engine)) == 6
    engine.stop()


def test_a_half_message_may_rely_on_the_description_in_an_undecided_one(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    first = producer.next_half(engines.rows(0, 3))
    producer.send(first)
    assert not is_refused(producer, 1)
    engine.stop()

    engine = engines.make(tmp_path)
    producer = Producer(engine)
    producer.batch_no, producer.sequence = 1, 3
    assert not is_refused(producer, 1)
    producer.decide(first, Verdict.ROLLBACK)
    producer.batch_no, producer.sequence = 0, 0
    assert is_refused(producer, 1)
    engine.stop()


def test_a_description_in_the_same_command_group_counts(tmp_path: Path) -> None:
    gate = engines.Gate()
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    held = engine.commits.submit(lambda _: gate.held.wait(WAIT_S))
    futures: list[Future[Any]] = []
    for n in range(3):
        message = producer.next_half(engines.rows(n, 1), described=not n)
        futures.append(engine.producers.take_halves(BUSINESS, producer.epoch, [message]))
        futures.append(
            engine.producers.decide(BUSINESS, producer.epoch, message.batch_no, message.digest, Verdict.COMMIT)
        )
    gate.held.set()
    held.result(WAIT_S)
    for future in futures:
        future.result(WAIT_S)
    assert len(engines.full_data(engine)) == 3
    engine.stop()


def make_older_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a store as an older broker made it, which stored producers' versions unchecked."""
    with monkeypatch.context() as patched:
        patched.setattr(producer_commands, "_require_described", lambda *_: None)
        patched.setattr(Scrub, "step", lambda *_, **__: None)
        engine = engines.make(path)
        producer = Producer(engine)
        producer.commit(engines.rows(0, 5))
        producer.commit(engines.rows(5, 5), version=7, described=False)
        producer.commit(engines.rows(0, 5), table_id=3, described=False)
        eventually(lambda: engines.status(engine).materialised_offset == 15)
        engine.stop()
    store = Store(path / "db")
    key = keys.core_key(1)
    record = json.loads(store.get(keys.STATE, key) or b"")
    del record["described_from"]
    batch = store.batch()
    batch.put(keys.STATE, key, json.dumps(record).encode())
    store.write(batch, durable=True)
    store.close()


def alarms(engine: Core) -> list[str]:
    return [alarm for alarm in engines.status(engine).alarms if "whose columns no producer sent" in alarm]


def wait_for_scrub(engine: Core, clock: Clock) -> None:
    before = engines.status(engine).last_scrub_at_us
    clock.now_s += 2 * DAY_S
    eventually(lambda: engines.status(engine).last_scrub_at_us > before)


def test_undescribed_changes_of_an_older_broker_are_an_alarm_until_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialiser, "IDLE_S", 0.005)
    make_older_store(tmp_path, monkeypatch)
    clock, errors = Clock(), Errors()
    checked = [found for found in offline.check_directory(tmp_path) if "described" in found.seen + found.finding]
    assert [(c.what, c.seen, c.finding) for c in checked] == [
        ("main shop.t1", "some of version 7, which no producer has described", ""),
        ("main .", "some of version 1, which no producer has described", ""),
    ]

    engine = engines.make(tmp_path, clock, errors)
    wait_for_scrub(engine, clock)
    assert [alarm.partition(",")[0] for alarm in alarms(engine)] == [
        "shop.t1 has rows of version 7",
        "table 3 has rows of version 1",
    ]
    engine.stop()
    engine = engines.make(tmp_path, clock, errors)  # the next pass is a day away
    assert len(alarms(engine)) == 2
    producer = Producer(engine, source_last_batch=3)
    assert is_refused(producer, 7)
    producer.commit(engines.rows(5, 5), version=8)
    producer.commit(engines.rows(0, 1), table_id=3)
    wait_for_scrub(engine, clock)
    assert alarms(engine) == []
    assert errors.fatal == []
    engine.stop()


def test_a_description_that_vanished_from_the_store_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialiser, "IDLE_S", 0.005)
    make_older_store(tmp_path, monkeypatch)
    clock, errors = Clock(), Errors()
    engine = engines.make(tmp_path, clock, errors)
    Producer(engine, source_last_batch=3).commit(engines.rows(20, 5), version=9)
    eventually(lambda: engines.status(engine).materialised_offset == 20)
    engine.stop()
    store = Store(tmp_path / "db")
    (business,) = load_all(store, 6.0)
    assert business.described_from == 15
    batch = store.batch()
    batch.delete(keys.STATE, keys.schema_key(1, 1, 9))
    store.write(batch, durable=True)
    store.close()

    engine = engines.make(tmp_path, clock, errors)
    clock.now_s += 2 * DAY_S
    eventually(lambda: bool(errors.fatal))
    assert isinstance(errors.fatal[0], Corruption)
    assert "a row is of version 9, whose columns are not known" in str(errors.fatal[0])
    engine.stop()


def test_a_version_with_another_description_than_the_stored_one_is_refused(tmp_path: Path) -> None:
    """Triggers that were installed again number tables and versions from the start."""
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3))
    for change in ("name", "key", "columns"):
        message = producer.next_half(engines.rows(3, 1))
        content = change_pb2.BatchBody.FromString(message.body)
        if change == "name":
            content.schemas[0].name = "other"
        elif change == "key":
            content.schemas[0].key.append("v")
        else:
            content.schemas[0].columns.add(number=1, name="w")
        said = content.SerializeToString()
        other = broker_pb2.Half(batch_no=message.batch_no, digest=xxhash.xxh3_64_intdigest(said), body=said)
        with pytest.raises(ProtocolError, match="describes version 1 of table 1 in another way") as refused:
            producer.send(other)
        assert f"forget --business {BUSINESS} --yes" in refused.value.hint
        producer.batch_no, producer.sequence = producer.batch_no - 1, producer.sequence - 1
    producer.commit(engines.rows(3, 1))
    assert len(engines.full_data(engine)) == 4
    engine.stop()


def describe_as(producer: Producer, name: str, version: int, dialect: str) -> broker_pb2.Half:
    """Build the next half message, in which a database of one kind describes the table."""
    message = producer.next_half(engines.rows(version, 1))
    content = change_pb2.BatchBody.FromString(message.body)
    content.schemas[0].name, content.schemas[0].version, content.schemas[0].source_dialect = name, version, dialect
    for section in content.tables:
        section.schema_version = version
    said = content.SerializeToString()
    return broker_pb2.Half(batch_no=message.batch_no, digest=xxhash.xxh3_64_intdigest(said), body=said)


def test_another_table_under_a_known_number_is_refused_with_any_version(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 3))
    with pytest.raises(ProtocolError, match="describes version 2 of table 1 in another way"):
        producer.send(describe_as(producer, "other", 2, ""))
    engine.stop()


def test_a_successor_database_of_another_kind_may_spell_names_differently(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    for version, (name, dialect) in enumerate(
        (("CUSTOMER", "oracle"), ("customer", "postgresql"), ("CUSTOMER", "oracle"), ("CUSTOMER", "oracle")), 1
    ):
        message = describe_as(producer, name, version, dialect)
        producer.send(message)
        producer.decide(message)
    with pytest.raises(ProtocolError, match="describes version 5 of table 1 in another way"):
        producer.send(describe_as(producer, "CLIENT", 5, "oracle"))
    engine.stop()
