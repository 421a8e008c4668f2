"""A mirror has the home's data at the same offsets, whatever happens to it on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.engines import mirrored
from tests.support.engines.engines import BUSINESS, Producer, full_data, make, queue, rows
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.mirror import Mirror
from venus.broker.pipeline.shared_log import begin_term
from venus.broker.store import keys
from venus.codec.batch import digest
from venus.errors import IllegalTransition, OffsetDiverged, OffsetTrimmed, ProtocolError, Refused, Unavailable
from venus.wire import broker_pb2, change_pb2


def wait_until_filled(mirror: Core) -> None:
    eventually(lambda: mirrored.business_of(mirror).is_filled)


def mirror_of(engine: Core) -> Mirror:
    found = mirrored.business_of(engine).committed.mirror
    assert found is not None
    return found


def check_same_queue(home: Core, mirror: Core) -> None:
    """Check that home and mirror have the same full data, and the same bytes wherever both keep the queue."""
    wait_until_filled(mirror)
    there, here = mirrored.business_of(home), mirrored.business_of(mirror)
    assert here.committed.next_offset == there.committed.next_offset
    assert (here.committed.last_batch, here.committed.last_sequence) == (
        there.committed.last_batch,
        there.committed.last_sequence,
    )
    start = max(there.log_start, here.log_start)
    assert queue(mirror, start) == queue(home, start)
    assert full_data(mirror) == full_data(home)


def test_it_has_the_full_data_and_continues_at_the_same_offsets(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    for n in range(5):
        producer.commit(rows(n * 10, 10))
    producer.commit([(b"%08d" % 3, None)])
    mirrored.fill(home, mirror)
    for n in range(5):
        producer.commit(rows(n * 7, 9, b"later"))

    mirrored.follow(home, mirror)

    check_same_queue(home, mirror)
    assert mirrored.business_of(mirror).log_start == 51
    assert len(queue(mirror, 51)) == 5
    with pytest.raises(OffsetTrimmed):
        mirror.subscriptions.check_position(BUSINESS, 50, 0)


def test_a_mirror_of_an_empty_home_begins_at_offset_0(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit([])
    mirrored.fill(home, mirror)
    producer.commit(rows(1, 3))
    mirrored.follow(home, mirror)

    check_same_queue(home, mirror)


def test_an_empty_mirror_gives_no_verdict_on_a_position(home: Core, mirror: Core) -> None:
    """A mirror that lost its disk is empty at first; its consumers have not diverged."""
    Producer(home).commit(rows(1, 50))
    business = mirror.mirrors.enter(BUSINESS)
    with pytest.raises(Unavailable, match="this mirror is loading the full data"):
        mirror.subscriptions.check_position(BUSINESS, 50, 1)
    mirror.mirrors.leave(business)
    with pytest.raises(Unavailable):
        mirror.subscriptions.check_position(BUSINESS, 50, 1)
    mirrored.fill(home, mirror)
    wait_until_filled(mirror)

    assert mirror.subscriptions.check_position(BUSINESS, 50, 0).next_offset == 50
    assert not mirrored.business_of(mirror).awaits_full_data


def test_a_mirror_is_not_served_before_its_full_data_is_whole(home: Core, mirror: Core) -> None:
    Producer(home).commit(rows(1, 50))
    business, index, snapshot = mirrored.begin(home, mirror)
    mirrored.rows(home, mirror, business, index, snapshot)

    for ask in (
        lambda: mirror.subscriptions.check_position(BUSINESS, 50, 0),
        lambda: mirror.subscriptions.read(BUSINESS, 50, 1 << 20),
        lambda: mirror.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS)),
    ):
        with pytest.raises(
            Unavailable, match=r"loading the full data from set head-office, 50 rows of about 4. so far"
        ):
            ask()
    with pytest.raises(IllegalTransition, match="no full data yet"):
        mirrored.take(mirror, [])

    mirror.mirrors.end_full_data(business, index, 50).result(30)
    check_same_queue(home, mirror)


def test_increments_that_arrive_twice_are_dropped(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(1, 5))
    mirrored.fill(home, mirror)
    producer.commit(rows(1, 5, b"a"))
    producer.commit(rows(1, 5, b"b"))
    increments = queue(home, 5)

    assert mirrored.take(mirror, increments) == 15
    assert mirrored.take(mirror, increments) == 15
    assert mirrored.take(mirror, increments[1:]) == 15

    assert mirrored.business_of(mirror).counters["duplicate_batches"] == 3
    check_same_queue(home, mirror)


def damage(increment: broker_pb2.Increment, **fields: object) -> broker_pb2.Increment:
    copy = broker_pb2.Increment()
    copy.CopyFrom(increment)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def test_increments_that_do_not_fit_are_refused_before_they_are_logged(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(1, 5))
    mirrored.fill(home, mirror)
    producer.commit(rows(1, 5, b"a"))
    producer.commit(rows(1, 5, b"b"), described=False)
    first, second = queue(home, 5)
    end = mirrored.business_of(mirror).log.end
    undescribed = change_pb2.BatchBody.FromString(first.body)
    undescribed.tables[0].schema_version = 9
    body = undescribed.SerializeToString()
    otherwise = change_pb2.BatchBody.FromString(first.body)
    otherwise.schemas[0].name = "t2"
    other = otherwise.SerializeToString()

    for increments, says in (
        ([second], "offset 10 came where 5 is the next one: something is missing"),
        ([damage(first, body=first.body[:-1])], "not a batch|hash"),
        ([damage(first, digest=1)], "does not hash to its digest"),
        ([damage(first, count=4, base_offset=4)], "offset"),
        ([damage(first, count=6)], "takes 6 offsets and has 5"),
        ([damage(first, epoch=0)], "is of epoch 0, behind one of epoch 1"),
        ([damage(second, base_offset=5), damage(first, base_offset=10)], "begins at Sequence 6, behind batch 3"),
        ([damage(first, body=body, digest=digest(body))], "table 1 in version 9"),
        ([damage(first, body=other, digest=digest(other))], "describes version 1 of table 1 in another way"),
    ):
        with pytest.raises((ProtocolError, OffsetDiverged), match=says):
            mirrored.take(mirror, increments)
        assert mirrored.business_of(mirror).log.end == end

    mirrored.take(mirror, [first, second])
    check_same_queue(home, mirror)


def test_full_data_from_after_its_cut_is_refused(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(1, 5))
    business, index, _ = mirrored.begin(home, mirror)
    producer.commit(rows(1, 5, b"newer"))
    later = home.full_data.open(broker_pb2.OpenSnapshotRequest(business=BUSINESS, splits=1, lease_s=100))
    assert later.offset == 5, "a snapshot is shared"
    eventually(lambda: mirrored.business_of(home).materialised.offset == 10)
    home.full_data.close(later.snapshot_id)

    with pytest.raises(IllegalTransition, match="begun again"):
        mirror.mirrors.take_full_rows(business, index + 1, 0, b"").result(30)


def test_full_data_that_is_taken_again_replaces_all_rows(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(1, 50))
    mirrored.fill(home, mirror)
    wait_until_filled(mirror)
    for n in range(20):
        producer.commit([(b"%08d" % (n + 1), None)])
    eventually(lambda: mirrored.business_of(home).materialised.offset == 70)

    mirrored.fill(home, mirror, reason="offset 50 is gone above")
    producer.commit(rows(100, 2))
    mirrored.follow(home, mirror)

    check_same_queue(home, mirror)
    assert len(full_data(mirror)) == 32
    assert mirrored.business_of(mirror).log_start == 70
    assert mirror_of(mirror).reason == "offset 50 is gone above"


def test_a_consumer_that_is_ahead_waits_and_one_that_diverged_does_not(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(1, 5))
    mirrored.fill(home, mirror)
    wait_until_filled(mirror)

    with pytest.raises(Unavailable, match="offset 7 has not reached this mirror yet, it has those below 5"):
        mirror.subscriptions.check_position(BUSINESS, 7, producer.epoch)
    later = Producer(home, source_last_batch=1)
    later.commit(rows(1, 1))
    mirrored.follow(home, mirror)
    with pytest.raises(OffsetDiverged, match=f"offset 9 in epoch {producer.epoch}, which ended at 5 here"):
        mirror.subscriptions.check_position(BUSINESS, 9, producer.epoch)
    assert mirror.subscriptions.check_position(BUSINESS, 6, later.epoch).next_offset == 6


def test_a_mirror_reports_that_the_home_has_another_history(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(1, 5))
    mirrored.fill(home, mirror)
    producer.commit(rows(1, 5))
    mirrored.follow(home, mirror)
    wait_until_filled(mirror)

    later = producer.epoch + 1
    assert mirror.subscriptions.check_position(BUSINESS, 10, later).next_offset == 10
    with pytest.raises(Unavailable, match="it has a history that the home has left"):
        mirror.subscriptions.check_position(BUSINESS, 9, later)


def test_a_consumer_in_an_older_epoch_at_the_cut_of_a_mirror_has_diverged(home: Core, mirror: Core) -> None:
    before = Producer(home)
    before.commit(rows(1, 5))
    later = Producer(home, source_last_batch=1)
    later.commit(rows(1, 5))
    mirrored.fill(home, mirror)
    wait_until_filled(mirror)

    assert mirror.subscriptions.check_position(BUSINESS, 10, later.epoch).next_offset == 10
    later.commit(rows(1, 5))
    mirrored.follow(home, mirror)
    with pytest.raises(OffsetDiverged, match=f"offset 10 in epoch {before.epoch}"):
        mirror.subscriptions.check_position(BUSINESS, 10, before.epoch)


def test_offsets_of_tables_that_this_set_does_not_take_are_skipped(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(1, 5))
    mirrored.fill(home, mirror, only=["t1"])
    producer.commit(rows(1, 3), table_id=2)
    first = producer.next_half(rows(1, 2), cut_end=False)
    second = producer.next_half(rows(1, 2), table_id=2, cut=first.batch_no, cut_end=False)
    third = producer.next_half(rows(3, 2), cut=first.batch_no)
    producer.send(first, second, third)
    producer.decide(third)
    wanted = [i for i in queue(home, 5) if i.base_offset in (8, 12)]

    assert mirrored.take(mirror, wanted, 20, sparse=True) == 20

    wait_until_filled(mirror)
    found = queue(mirror, 5)
    assert [(i.base_offset, i.count) for i in found] == [(5, 3), (8, 2), (10, 2), (12, 2), (14, 6)]
    bodies = [change_pb2.BatchBody.FromString(i.body) for i in found]
    assert [(b.left_out, b.cut_end) for b in bodies] == [(3, True), (0, False), (2, False), (0, True), (6, True)]
    assert bodies[2].cut == first.batch_no
    assert full_data(mirror) == full_data(home)


def test_a_business_with_a_producer_is_not_overwritten(home: Core, mirror: Core) -> None:
    Producer(home).commit(rows(1, 5))
    Producer(mirror).commit(rows(1, 5))

    with pytest.raises(Refused, match="has been written by producers here"):
        mirrored.fill(home, mirror)


def test_the_log_entries_of_the_full_data_are_released(home: Core, mirror: Core) -> None:
    Producer(home).commit(rows(1, 500))
    business = mirrored.fill(home, mirror)
    wait_until_filled(mirror)
    mirror.commits.submit(lambda group: mirror.upkeep._trim(group, business)).result(30)

    assert business.log.start == mirror_of(mirror).end + 1
    assert (
        len(list(mirror.store.scan_prefix(keys.RLOG, keys.number_prefix(business.number))))
        == business.log.end - business.log.start
    )


def test_changes_that_an_election_above_lost_are_skipped_if_the_mirror_has_them(tmp_path: Path, mirror: Core) -> None:
    before = make(tmp_path / "before")
    Producer(before).commit(rows(1, 5))
    before.stop()
    shutil.copytree(tmp_path / "before", tmp_path / "elected")
    before = make(tmp_path / "before")
    mirrored.fill(before, mirror)
    wait_until_filled(mirror)
    producer = Producer(before, source_last_batch=1)
    lost = producer.epoch
    producer.commit(rows(10, 5))
    producer.commit(rows(20, 5))
    mirrored.take(mirror, queue(before, 5)[:1])
    before.stop()
    elected = make(tmp_path / "elected")
    try:
        business = mirrored.business_of(elected)
        elected.commits.submit(lambda group: begin_term(group, business, 2, "b", 1, doubted=[2])).result(30)
        with pytest.raises(Unavailable, match="offset 10 may be lost"):
            elected.subscriptions.check_position(BUSINESS, 10, lost)
        producer = Producer(elected, source_last_batch=3)
        said = broker_pb2.Committed(epoch=producer.epoch, last_batch=3, next_sequence=16)
        answer = elected.producers.skip_lost(BUSINESS, said).result(30)
        producer.batch_no, producer.sequence = answer.batch_no, 15
        producer.commit(rows(30, 5))
        assert elected.subscriptions.check_position(BUSINESS, 10, lost).next_offset == 22

        mirrored.take(mirror, queue(elected, 10))

        found = queue(mirror, 5)
        assert [(i.base_offset, i.count) for i in found] == [(5, 5), (10, 7), (17, 5)]
        assert change_pb2.BatchBody.FromString(found[1].body).lost == 7
        assert mirrored.business_of(mirror).committed.last_batch == 4
    finally:
        elected.stop()


def test_a_mirror_takes_the_state_of_a_restored_home(tmp_path: Path) -> None:
    mirror = make(tmp_path / "mirror")
    before = make(tmp_path / "before")
    Producer(before).commit(rows(1, 5))
    before.stop()
    shutil.copytree(tmp_path / "before", tmp_path / "restored")
    before = make(tmp_path / "before")
    mirrored.fill(before, mirror)
    producer = Producer(before, source_last_batch=1)
    for n in range(4):
        producer.commit(rows(10 * n, 5))
    mirrored.follow(before, mirror)
    check_same_queue(before, mirror)
    before.stop()
    restored = make(tmp_path / "restored")
    try:
        mirrored.fill(restored, mirror, reason="offset 25 is beyond the queue's end 5")
        producer = Producer(restored, source_last_batch=1)
        producer.commit(rows(500, 7))
        mirrored.follow(restored, mirror)
        check_same_queue(restored, mirror)
        mirror.stop()
        mirror = make(tmp_path / "mirror")  # the store must be right, not only the memory
        check_same_queue(restored, mirror)
        assert [i.base_offset for i in queue(mirror, 5)] == [5]
        mirror.stop()
    finally:
        restored.stop()


def test_a_consumer_in_an_older_epoch_at_the_cut_has_diverged_after_any_epochs(home: Core, mirror: Core) -> None:
    first = Producer(home)
    first.commit(rows(1, 5))
    Producer(home).commit(rows(1, 5, b"of the second epoch"))
    mirrored.fill(home, mirror)
    wait_until_filled(mirror)
    for n in range(3):
        with pytest.raises(OffsetDiverged, match="ended at 9 here"):
            mirror.subscriptions.check_position(BUSINESS, 10, first.epoch)
        Producer(home).commit(rows(1, 5, b"%d" % n))
        mirrored.follow(home, mirror)


def test_increments_after_ones_that_were_not_taken_are_not_taken_either(home: Core, mirror: Core) -> None:
    producer = Producer(home)
    producer.commit(rows(1, 5))
    mirrored.fill(home, mirror)
    for n in range(3):
        producer.commit(rows(1, 5, b"%d" % n))
    found = home.subscriptions.read(BUSINESS, 5, 1 << 20).increments
    business = mirrored.business_of(mirror)
    with pytest.raises(Unavailable, match="the increments before offset 10 are missing"):
        mirror.mirrors.take_increments(business, found[1:2], 15, sparse=True, follows=10).result(60)
    assert business.committed.next_offset == 5
    assert mirror.mirrors.take_increments(business, found[:2], 15, sparse=True, follows=5).result(60) == 15
