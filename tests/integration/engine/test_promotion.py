"""A mirror becomes the home: missing offsets are named, producers continue, and the old home is recognised as old."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engines import engines, mirrored
from tests.support.engines.engines import BUSINESS, Producer, full_data, make, queue, rows
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.loss import Loss
from venus.broker.machine.mirror import Home
from venus.broker.status.broker_status import home_alarms
from venus.errors import Diverged, IllegalTransition, NotLeader, OffsetDiverged, Refused, Unavailable
from venus.wire import broker_pb2, change_pb2

pytestmark = pytest.mark.integration
HERE = Home(set="second", term=1, addresses=("second:7400",), here=True)
THERE = Home(set="second", term=1, addresses=("second:7400",))


def wait_until_filled(above: Core, below: Core, **more: object) -> None:
    mirrored.fill(above, below, **more)
    eventually(lambda: mirrored.business_of(below).is_filled)


def promote(engine: Core, home: Home = HERE) -> None:
    engine.homes.become(BUSINESS, home).result(engines.WAIT_S)


def decide(core: Core, producer: Producer, last_batch: int, next_sequence: int) -> broker_pb2.Decided:
    said = broker_pb2.Committed(epoch=producer.epoch, last_batch=last_batch, next_sequence=next_sequence)
    answer = core.producers.skip_lost(BUSINESS, said).result(engines.WAIT_S)
    producer.batch_no, producer.sequence = answer.batch_no, next_sequence - 1
    return answer


def start_behind_home(home: Core, mirror: Core) -> Producer:
    """Let the mirror have the first two of four batches of five rows."""
    producer = Producer(home)
    producer.commit(rows(0, 5))
    wait_until_filled(home, mirror)
    for n in range(1, 4):
        producer.commit(rows(10 * n, 5))
    mirrored.take(mirror, queue(home, 5)[:1])
    return producer


def test_offsets_that_the_new_home_lacks_are_skipped_and_named(home: Core, mirror: Core, tmp_path: Path) -> None:
    producer = start_behind_home(home, mirror)
    promote(mirror)
    business = mirrored.business_of(mirror)
    assert [(w.first_offset, w.is_measured) for w in business.committed.losses] == [(10, False)]
    with pytest.raises(Unavailable, match="offset 20 may be lost"):  # a target that read from the old home waits
        mirror.subscriptions.check_position(BUSINESS, 20, producer.epoch)

    successor = Producer(mirror, source_last_batch=4)
    assert successor.ack.in_doubt
    assert decide(mirror, successor, 4, 21).next_offset == 10 + 10 + 2
    successor.commit(rows(50, 3))
    measured = Loss(term=0, home_term=1, first_offset=10, end_offset=22, first_batch=3, last_batch=4, rows=10)
    assert business.committed.losses == (measured,)
    assert home_alarms(business) == [
        "the promotion of this set to the home (home term 1) may have lost offsets 10 to 21 (10 changes in batches 3 "
        "to 4): `venus verify --repair` finds and ships them"
    ]
    mirror.subscriptions.check_position(BUSINESS, 20, producer.epoch)
    assert [(i.base_offset, i.count) for i in queue(mirror, 5)] == [(5, 5), (10, 12), (22, 3)]
    assert len(full_data(mirror)) == 13


def test_a_promotion_survives_a_restart(home: Core, tmp_path: Path) -> None:
    mirror = make(tmp_path / "promoted")
    start_behind_home(home, mirror)
    promote(mirror)
    decide(mirror, Producer(mirror, source_last_batch=4), 4, 21)
    before = mirrored.business_of(mirror).committed
    mirror.stop()

    mirror = make(tmp_path / "promoted")
    try:
        after = mirrored.business_of(mirror).committed
        assert (after.home, after.losses, after.is_mirror) == (HERE, before.losses, False)
        assert after.losses[0].is_measured
        Producer(mirror, source_last_batch=4).commit(rows(50, 1))
        with pytest.raises(IllegalTransition, match="this set has become the home"):
            mirrored.take(mirror, queue(home, 10))
    finally:
        mirror.stop()


def test_no_window_opens_if_the_mirror_had_everything(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(0, 5))
    wait_until_filled(home, mirror)
    promote(mirror)

    successor = Producer(mirror, source_last_batch=1)
    assert decide(mirror, successor, 1, 6).next_offset == 5
    assert mirrored.business_of(mirror).committed.losses == ()
    successor.commit(rows(10, 2))
    assert len(full_data(mirror)) == 7


def test_a_loss_window_is_closed_when_every_target_but_no_set_below_confirms(home: Core, mirror: Core) -> None:
    start_behind_home(home, mirror)
    for group in ("main/one", "main/two", "mirror/lyon"):
        mirror.subscriptions.detach(BUSINESS, group, mirror.subscriptions.attach(BUSINESS, group, 5))
    promote(mirror)
    with pytest.raises(Refused, match="the losses of the promotion to this home are not known yet"):
        mirror.homes.close_losses(BUSINESS, [1], "main/one").result(engines.WAIT_S)
    decide(mirror, Producer(mirror, source_last_batch=4), 4, 21)

    assert mirror.homes.close_losses(BUSINESS, [1], "main/one").result(engines.WAIT_S) == ["main/two"]
    assert [w.verified for w in mirrored.business_of(mirror).committed.losses] == [("main/one",)]
    assert mirror.homes.close_losses(BUSINESS, [2], "main/two").result(engines.WAIT_S) == []
    assert mirrored.business_of(mirror).committed.losses
    assert mirror.homes.close_losses(BUSINESS, [1], "main/two").result(engines.WAIT_S) == []
    assert mirrored.business_of(mirror).committed.losses == ()


def test_a_window_that_was_given_up_is_hidden_and_the_producer_is_still_asked(home: Core, mirror: Core) -> None:
    start_behind_home(home, mirror)
    promote(mirror)
    mirror.homes.give_up(BUSINESS, [1]).result(engines.WAIT_S)
    assert home_alarms(mirrored.business_of(mirror)) == []
    successor = Producer(mirror, source_last_batch=4)
    assert successor.ack.in_doubt
    assert decide(mirror, successor, 4, 21).next_offset == 22
    assert mirrored.business_of(mirror).committed.losses == ()


def test_a_cut_that_is_incomplete_here_ends_with_the_window(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(0, 5))
    wait_until_filled(home, mirror)
    halves = [producer.next_half(rows(10, 5), cut=2, cut_end=False), producer.next_half(rows(20, 5), cut=2)]
    producer.send(*halves)
    producer.decide(halves[-1])
    mirrored.take(mirror, queue(home, 5)[:1])
    promote(mirror)

    decide(mirror, Producer(mirror, source_last_batch=3), 3, 16)
    bodies = [change_pb2.BatchBody.FromString(increment.body) for increment in queue(mirror, 5)]
    assert [(b.batch_no, b.lost, b.cut, b.cut_end) for b in bodies] == [(2, 0, 2, False), (3, 6, 2, True)]


@pytest.mark.parametrize(
    ("more", "says"),
    [({"only": ["items"]}, r"only a part of it is mirrored here \(items\)"), ({}, "has no whole full data here")],
)
def test_a_mirror_of_a_part_is_not_promoted(home: Core, mirror: Core, more: dict[str, object], says: str) -> None:
    Producer(home).commit(rows(0, 5))
    if more:
        wait_until_filled(home, mirror, **more)
    else:
        mirrored.begin(home, mirror)
    with pytest.raises(Refused, match=says):
        promote(mirror)
    with pytest.raises(Refused, match="is mirrored here from set"):
        Producer(mirror)


def test_a_set_that_is_the_home_is_not_promoted(home: Core) -> None:
    Producer(home).commit(rows(0, 5))
    with pytest.raises(Refused, match="main is not a mirror at this set, which is its home"):
        promote(home)


def test_a_set_is_not_promoted_below_the_term_of_a_home_that_it_knows(home: Core, mirror: Core) -> None:
    """The set learned of the other home between the check and the promotion: that home would depose it at once."""
    Producer(home).commit(rows(0, 5))
    wait_until_filled(home, mirror)
    assert mirror.homes.note(BUSINESS, replace(THERE, term=2)).result(engines.WAIT_S)
    for term in (1, 2):
        with pytest.raises(Refused, match="set second at second:7400 has become the home meanwhile"):
            promote(mirror, replace(HERE, term=term))
    with pytest.raises(Refused, match="is mirrored here from set"):
        Producer(mirror)
    promote(mirror, replace(HERE, term=3))


def test_a_replaced_home_redirects_its_clients_also_after_a_restart(tmp_path: Path) -> None:
    old = make(tmp_path / "old")
    producer = Producer(old)
    producer.commit(rows(0, 5))
    assert old.homes.note(BUSINESS, THERE).result(engines.WAIT_S)
    assert not old.homes.note(BUSINESS, THERE).result(engines.WAIT_S)
    old.stop()

    old = make(tmp_path / "old")
    try:
        with pytest.raises(NotLeader, match="set second at second:7400 has become the home") as refused:
            Producer(old, source_last_batch=1)
        assert refused.value.leader == "second:7400"
        with pytest.raises(NotLeader, match="this set was replaced"):
            old.homes.refuse_consumer(BUSINESS)
        assert "this home was replaced" in home_alarms(mirrored.business_of(old))[0]
    finally:
        old.stop()


def test_a_source_of_another_home_is_refused_by_its_epoch(home: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(0, 5))
    later = producer.epoch + 8
    with pytest.raises(NotLeader, match=f"at epoch {later} and this home has assigned {producer.epoch} at most"):
        home.producers.init(BUSINESS, "late", later, 1).result(engines.WAIT_S)
    home.producers.leave(BUSINESS)
    ack = home.producers.init(BUSINESS, "late", later, 1, insists=True).result(engines.WAIT_S)
    assert ack.epoch == later + 1
    with pytest.raises(Diverged, match="the source has committed batch 2"):
        Producer(home, source_last_batch=2)


def test_an_old_home_becomes_a_mirror_of_the_new_one(home: Core, mirror: Core, tmp_path: Path) -> None:
    producer = start_behind_home(home, mirror)
    producer.send(producer.next_half(rows(90, 5)))  # no decision of this half message follows here
    promote(mirror)
    successor = Producer(mirror, source_last_batch=5)
    decide(mirror, successor, 5, 26)
    successor.commit(rows(100, 5))

    with pytest.raises(Refused, match="has been written by producers here"):
        mirrored.fill(mirror, home)
    snapshot = mirror.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS))
    mirror.full_data.close(snapshot.snapshot_id)
    assert (snapshot.home.set, snapshot.home.home_term) == ("second", 1)
    wait_until_filled(mirror, home, home=snapshot.home)
    home.stop()  # its queue is empty, and its log has an undecided half message
    home.start()
    successor.commit(rows(110, 5))
    mirrored.follow(mirror, home)
    business = mirrored.business_of(home)
    assert (business.committed.is_mirror, business.committed.home, list(business.committed.halves)) == (True, THERE, [])
    assert full_data(home) == full_data(mirror)
    home.stop()
    home.start()
    assert list(mirrored.business_of(home).committed.halves) == []


def test_a_mirror_that_is_ahead_of_the_new_home_continues_after_the_window(
    home: Core, mirror: Core, tmp_path: Path
) -> None:
    below = make(tmp_path / "below")
    try:
        start_behind_home(home, mirror)
        wait_until_filled(home, below)
        promote(mirror)
        successor = Producer(mirror, source_last_batch=4)
        decide(mirror, successor, 4, 21)
        successor.commit(rows(50, 3))
        mirrored.take(below, queue(mirror, 20))
        assert mirrored.business_of(below).committed.next_offset == 25
        with pytest.raises(OffsetDiverged):
            home.subscriptions.check_position(BUSINESS, 25, successor.epoch)
    finally:
        below.stop()
