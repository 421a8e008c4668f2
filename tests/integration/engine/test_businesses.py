"""Creation and removal of businesses on a real store."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.integration.engine.test_watermark import _fail_for_batch_of
from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, WAIT_S, Clock, Producer
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine import catalogue, half_messages
from venus.broker.store import keys
from venus.errors import Diverged, Overloaded, ProtocolError, Refused, SnapshotExpired, Unavailable, VenusError
from venus.wire import broker_pb2

JUNK = "no producer ships this"


def names(engine: Core) -> list[str]:
    return [entry.business for entry in engine.status().businesses]


def hold_commit_thread(engine: Core) -> threading.Event:
    """Block the commit thread in a command of its own until the returned event is set."""
    began, go = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        began.set()
        go.wait(WAIT_S)

    engine.commits.submit(wait)
    assert began.wait(WAIT_S)
    return go


def settle(engine: Core) -> None:
    engine.commits.submit(lambda _group: None).result(WAIT_S)


def test_a_name_in_a_request_alone_creates_no_business(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    request = broker_pb2.OpenSnapshotRequest(business=JUNK)
    for ask in (
        lambda: engine.subscriptions.check_position(JUNK, 0, 0),
        lambda: engine.subscriptions.read(JUNK, 0, 1),
        lambda: engine.subscriptions.attach(JUNK, "g", 0),
        lambda: engine.producers.count(JUNK, "resends"),
        lambda: engine.subscriptions.forget(JUNK, "g"),
        lambda: engine.full_data.open(request),
        lambda: engine.producers.operator_decide(JUNK, 1, 1),
    ):
        with pytest.raises(Unavailable, match="does not know business"):
            ask()
    assert names(engine) == []
    engine.stop()


def test_a_producer_that_ships_nothing_leaves_no_trace(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    with pytest.raises(Diverged):
        engine.producers.init(JUNK, "p", 0, 7).result(WAIT_S)
    engine.producers.leave(JUNK)
    assert engine.producers.init(JUNK, "p", 2**47, 0).result(WAIT_S).epoch == 2**47 + 1
    assert names(engine) == [JUNK]  # the producer is connected, and visible in the status
    engine.producers.leave(JUNK)
    settle(engine)
    assert names(engine) == []
    engine.stop()

    engine = engines.make(tmp_path)
    assert names(engine) == []
    engine.stop()


def test_the_epoch_of_a_new_business_is_logged_with_its_first_half_message(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    older = engine.producers.init(BUSINESS, "older", 8, 0).result(WAIT_S)
    producer = Producer(engine)
    assert producer.epoch == older.epoch + 1
    producer.send(producer.next_half(engines.rows(1, 2)))
    engine.producers.leave(BUSINESS)
    engine.stop()

    engine = engines.make(tmp_path)
    found = engines.status(engine)
    assert (found.epoch, found.producer, len(found.halves)) == (producer.epoch, "test", 1)
    engine.stop()


def test_a_consumer_may_attach_before_the_first_half_message(tmp_path: Path) -> None:
    clock = Clock()
    engine = engines.make(tmp_path, clock)
    producer = Producer(engine)
    token = engine.subscriptions.attach(BUSINESS, "g", 0)
    for _ in range(3):  # its acknowledgement is logged as soon as the business has a log
        clock.now_s += 1
        settle(engine)
    assert not engine.catalogue.list_stored()
    producer.commit(engines.rows(1, 2))
    engine.subscriptions.detach(BUSINESS, "g", token)
    clock.now_s += 1
    settle(engine)
    settle(engine)
    engine.stop()

    engine = engines.make(tmp_path)
    assert [consumer.group for consumer in engines.status(engine).consumers] == ["g"]
    engine.stop()


def test_the_number_of_new_businesses_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "NEW_MAX", 2)
    engine = engines.make(tmp_path)
    for name in ("a", "b"):
        engine.producers.init(name, "p", 0, 0).result(WAIT_S)
    with pytest.raises(Overloaded):
        engine.producers.init("c", "p", 0, 0)
    engine.producers.leave("a")
    settle(engine)
    engine.producers.init("c", "p", 0, 0).result(WAIT_S)
    engine.stop()


# -- forgetting ------------------------------------------------------------------------------------------------------


def fill_business(engine: Core, business: str = BUSINESS) -> Producer:
    producer = Producer(engine, business)
    for n in range(5):
        producer.commit(engines.rows(100 * n, 100))
    producer.send(producer.next_half(engines.rows(900, 3)))
    return producer


def read_all_keys(engine: Core) -> dict[str, list[bytes]]:
    """Return all keys of the store, by column family."""
    return {family: [key for key, _ in engine.store.scan(family, b"", b"")] for family in keys.FAMILIES}


def test_a_forgotten_business_never_returns(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    empty = read_all_keys(engine)
    fill_business(engine, "other")
    engine.producers.leave("other")
    settle(engine)
    eventually(lambda: engines.full_data(engine, business="other") != {})
    eventually(lambda: engine.catalogue.find("other").scrubbed_at_us > 0)
    others = {family: set(found) for family, found in read_all_keys(engine).items()}
    fill_business(engine)
    token = engine.subscriptions.attach(BUSINESS, "g", 0)
    engine.subscriptions.acknowledge(BUSINESS, "g", token, 100)
    snapshot = engine.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS))
    engine.subscriptions.detach(BUSINESS, "g", token)
    engine.producers.leave(BUSINESS)
    settle(engine)
    assert len(list((tmp_path / "snapshots").iterdir())) == 1

    engine.forget_business(BUSINESS)

    assert names(engine) == ["other"]
    assert not list((tmp_path / "snapshots").iterdir())
    with pytest.raises(SnapshotExpired):
        engine.full_data.renew(snapshot.snapshot_id)
    with pytest.raises(Unavailable, match="does not know business"):
        engine.subscriptions.read(BUSINESS, 0, 1)
    left = {family: set(found) for family, found in read_all_keys(engine).items()}
    assert {f: found - others[f] for f, found in left.items()} == {
        f: {keys.NUMBER} if f == keys.STATE else set() for f in empty
    }
    engine.stop()

    engine = engines.make(tmp_path)
    assert names(engine) == ["other"]
    assert len(engines.full_data(engine, business="other")) == 500
    again = Producer(engine)  # the name may be used again, for a business that begins empty
    assert (again.ack.last_batch, again.ack.next_offset) == (0, 0)
    again.commit(engines.rows(1, 2))
    assert sorted(b.number for b in engine.catalogue.list_stored()) == [1, 3]
    assert engines.full_data(engine) == dict(engines.rows(1, 2))
    engine.stop()


def test_a_business_in_use_is_not_forgotten(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = fill_business(engine)
    with pytest.raises(Refused, match="1 producers and consumers"):
        engine.forget_business(BUSINESS)
    token = engine.subscriptions.attach(BUSINESS, "g", 0)
    engine.producers.leave(BUSINESS)
    settle(engine)
    with pytest.raises(Refused):
        engine.forget_business(BUSINESS)
    engine.subscriptions.detach(BUSINESS, "g", token)
    settle(engine)
    assert len(engines.queue(engine)) == 5
    engine.forget_business(BUSINESS)
    with pytest.raises(Unavailable):
        engine.producers.decide(BUSINESS, producer.epoch, 6, producer.last_digest, 1)
    with pytest.raises(Unavailable, match="does not know business"):
        engine.forget_business(BUSINESS)
    engine.stop()


def test_a_stream_that_ends_in_an_aborted_group_is_released_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands of an aborted group run again; a second release would release another stream, which still exists."""
    engine = engines.make(tmp_path)
    fill_business(engine)
    engine.producers.leave(BUSINESS)
    bad = Producer(engine, "other")
    bad.commit(engines.rows(0, 1))
    ends, stays = (engine.subscriptions.attach(BUSINESS, group, 0) for group in ("ends", "stays"))
    settle(engine)
    monkeypatch.setattr("venus.broker.machine.records.encode_half", _fail_for_batch_of(77))
    go = hold_commit_thread(engine)  # the next commands share a group
    failed = engine.producers.take_halves("other", bad.epoch, [bad.next_half(engines.rows(1, 77))])
    engine.subscriptions.detach(BUSINESS, "ends", ends)
    go.set()
    with pytest.raises(VenusError, match="a defect"):
        failed.result(WAIT_S)
    settle(engine)

    with pytest.raises(Refused, match="1 producers and consumers of 'main' are connected"):
        engine.forget_business(BUSINESS)
    engine.subscriptions.detach(BUSINESS, "stays", stays)
    settle(engine)
    engine.forget_business(BUSINESS)
    engine.stop()


def test_a_business_is_forgotten_while_its_full_data_lags(tmp_path: Path) -> None:
    disk = engines.Disk()
    engine = engines.make(tmp_path, errors=(errors := engines.Errors()), free_bytes=disk)
    disk.holds_full_data = True
    fill_business(engine)
    engine.producers.leave(BUSINESS)
    settle(engine)
    engine.forget_business(BUSINESS)
    disk.holds_full_data = False
    fill_business(engine, "other")
    assert len(engines.full_data(engine, business="other")) == 500
    assert not errors.fatal
    assert all(key[:4] == keys.number_prefix(2) for key in read_all_keys(engine)[keys.ROW])
    engine.stop()


def test_a_forgotten_business_has_no_snapshot_for_a_reader_that_found_it_earlier(tmp_path: Path) -> None:
    disk = engines.Disk()
    engine = engines.make(tmp_path, free_bytes=disk)
    disk.holds_full_data = True
    fill_business(engine)
    engine.producers.leave(BUSINESS)
    settle(engine)
    found = engine.catalogue.find(BUSINESS)
    waiting = engine.materialiser.checkpoint(found, tmp_path / "waiting")
    engine.forget_business(BUSINESS)
    late = engine.materialiser.checkpoint(found, tmp_path / "late")
    disk.holds_full_data = False

    for asked in (waiting, late):
        with pytest.raises(Unavailable, match="is being forgotten"):
            asked.result(WAIT_S)
    fill_business(engine, "other")
    assert len(engines.full_data(engine, business="other")) == 500
    assert {key[:4] for key in read_all_keys(engine)[keys.ROW]} == {keys.number_prefix(2)}
    engine.stop()


# -- numbers that no source sends -------------------------------------------------------------------------------------


def test_an_epoch_that_leaves_no_room_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = fill_business(engine)
    for epoch in (2**64 - 2, 2**62, half_messages.EPOCH_MAX + 1):
        with pytest.raises(ProtocolError, match=f"epoch is {epoch}: it must be from 0 to {half_messages.EPOCH_MAX}"):
            engine.producers.init(BUSINESS, "p", epoch, 0).result(WAIT_S)
    highest = engine.producers.init(BUSINESS, "p", half_messages.EPOCH_MAX, 0, insists=True).result(WAIT_S).epoch
    assert highest == half_messages.EPOCH_MAX + 1
    assert (
        engine.producers.init(BUSINESS, "p", highest, 0).result(WAIT_S).epoch == highest + 1
    )  # the broker assigned this epoch itself
    again = Producer(engine)
    again.decide(engines.half(6, 501, engines.rows(900, 3)))
    assert producer.epoch < again.epoch == highest + 2
    engine.stop()


def test_a_sequence_far_beyond_the_last_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    producer.commit(engines.rows(1, 2))
    for first in (2**64 - 5, 2**63, 2**62, 3 + half_messages.JUMP_MAX):
        with pytest.raises(ProtocolError, match=r"must be from \d+ to \d+"):
            engine.producers.take_halves(BUSINESS, producer.epoch, [engines.half(2, first, engines.rows(1, 2))]).result(
                WAIT_S
            )
    assert engines.status(engine).next_offset == 2
    assert producer.commit(engines.rows(3, 2)).next_offset == 4
    engine.stop()
