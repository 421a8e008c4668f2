"""After an unclean election: the losses that a broker reports, and how it continues."""

from __future__ import annotations

from pathlib import Path

import pytest
import xxhash

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Producer
from venus.adapters.under.cut_assembler import CutAssembler
from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.machine.loss import Loss
from venus.broker.pipeline.shared_log import begin_term
from venus.errors import Diverged, OffsetDiverged, ProtocolError, Unavailable
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration
EPOCH_BEFORE = engines.FIRST_EPOCH + 6  # epoch of producers that this broker never saw


def continue_as_unconfirmed_leader(core: Core, *terms: int) -> Business:
    """Let the log continue as that of a leader that may lack acknowledged entries."""
    business = core.catalogue.find(BUSINESS)
    core.commits.submit(lambda group: begin_term(group, business, terms[-1], "b", 1, doubted=terms)).result(
        engines.WAIT_S
    )
    return business


def connect(core: Core, last_batch: int) -> Producer:
    producer = Producer(core, source_last_batch=last_batch)
    assert producer.ack.in_doubt
    return producer


def decide(core: Core, producer: Producer, last_batch: int, next_sequence: int) -> broker_pb2.Decided:
    said = broker_pb2.Committed(epoch=producer.epoch, last_batch=last_batch, next_sequence=next_sequence)
    answer = core.producers.skip_lost(BUSINESS, said).result(engines.WAIT_S)
    producer.batch_no, producer.sequence = answer.batch_no, next_sequence - 1
    return answer


def test_without_an_unclean_election_a_broker_that_lost_something_is_refused(tmp_path: Path) -> None:
    core = engines.make(tmp_path)
    Producer(core).commit(engines.rows(0, 3))
    with pytest.raises(Diverged, match="the source has committed batch 4, but this broker's newest is 1"):
        Producer(core, source_last_batch=4)
    core.stop()


def test_lost_batches_have_offsets_in_the_queue_also_after_a_restart(tmp_path: Path) -> None:
    core = engines.make(tmp_path)
    before = Producer(core)
    before.commit(engines.rows(0, 3))
    business = continue_as_unconfirmed_leader(core, 2)
    producer = connect(core, 4)
    assert decide(core, producer, 4, 11).next_offset == 3 + 7 + 3
    measured = Loss(term=2, first_offset=3, end_offset=13, first_batch=2, last_batch=4, rows=7)
    assert business.committed.losses == (measured,)
    producer.commit(engines.rows(100, 2))
    core.stop()

    core = engines.make(tmp_path)
    assert core.catalogue.find(BUSINESS).committed.losses == (measured,)
    found = core.subscriptions.read(BUSINESS, 0, 1 << 20).increments
    assert [(i.base_offset, i.count) for i in found] == [(0, 3), (3, 10), (13, 2)]
    assert len(engines.full_data(core)) == 5
    assert engines.status(core).counters["lost_rows"] == 7
    assert not Producer(core, source_last_batch=5).ack.in_doubt
    core.stop()


@pytest.mark.parametrize("applied", [0, 3, 5, 10, 13])
def test_a_consumer_continues_from_any_offset_in_the_window(tmp_path: Path, applied: int) -> None:
    core = engines.make(tmp_path)
    Producer(core).commit(engines.rows(0, 3))
    continue_as_unconfirmed_leader(core, 2)
    if applied > 3:
        with pytest.raises(Unavailable, match=f"offset {applied} may be lost, 3 is the next one here"):
            core.subscriptions.check_position(BUSINESS, applied, EPOCH_BEFORE)
    producer = connect(core, 4)
    decide(core, producer, 4, 11)
    producer.commit(engines.rows(100, 2))
    core.subscriptions.check_position(BUSINESS, applied, EPOCH_BEFORE if applied > 3 else 0)
    found = core.subscriptions.read(BUSINESS, applied, 1 << 20).increments
    assembler = CutAssembler(max(applied, 3))
    for increment in found:
        if increment.base_offset == 3:  # the other increments have no real rows in this test
            assembler.on_increment(increment)
    cuts = [(cut.start, cut.end, cut.rows) for cut in assembler.take_group(100)]
    assert cuts == ([(max(applied, 3), 13, 0)] if applied < 13 else [])
    assert found[-1].base_offset == 13
    core.stop()


def test_a_consumer_beyond_everything_is_still_refused(tmp_path: Path) -> None:
    core = engines.make(tmp_path)
    Producer(core).commit(engines.rows(0, 3))
    continue_as_unconfirmed_leader(core, 2)
    decide(core, connect(core, 4), 4, 11)
    with pytest.raises(OffsetDiverged, match="offset 14 is beyond the queue's end 13"):
        core.subscriptions.check_position(BUSINESS, 14, EPOCH_BEFORE)
    core.stop()


def test_a_change_applied_before_its_decision_was_lost_keeps_its_offsets(tmp_path: Path) -> None:
    core = engines.make(tmp_path)
    before = Producer(core)
    before.commit(engines.rows(0, 3))
    message = before.next_half(engines.rows(3, 4))
    before.send(message)
    continue_as_unconfirmed_leader(core, 2)
    producer = connect(core, 2)
    assert [h.batch_no for h in producer.ack.undecided] == [2]
    producer.decide(message)
    assert decide(core, producer, 2, 8).next_offset == 7
    # a consumer had applied it in that epoch, and may continue
    assert core.subscriptions.check_position(BUSINESS, 7, before.epoch).next_offset == 7
    producer.commit(engines.rows(50, 1))
    with pytest.raises(OffsetDiverged):
        core.subscriptions.check_position(BUSINESS, 8, before.epoch)
    core.stop()


def test_no_window_opens_if_nothing_is_missing(tmp_path: Path) -> None:
    core = engines.make(tmp_path)
    Producer(core).commit(engines.rows(0, 3))
    business = continue_as_unconfirmed_leader(core, 2)
    producer = connect(core, 1)
    assert decide(core, producer, 1, 4).next_offset == 3
    assert business.committed.losses == (
        Loss(term=2, first_offset=3, end_offset=3, first_batch=2, last_batch=1, rows=0),
    )
    assert producer.commit(engines.rows(3, 1)).next_offset == 4
    core.stop()


def test_the_beginning_of_a_cut_is_removed_if_its_end_is_lost(tmp_path: Path) -> None:
    core = engines.make(tmp_path)
    before = Producer(core)
    before.send(before.next_half(engines.rows(0, 3)))
    before.send(*(before.next_half(engines.rows(3 * n, 3), cut=2, cut_end=False) for n in (1, 2)))
    continue_as_unconfirmed_leader(core, 2)
    producer = connect(core, 4)  # the source has committed the cut, of batches 2 to 4
    assert [h.batch_no for h in producer.ack.undecided] == [1]
    core.producers.decide(BUSINESS, producer.epoch, 1, producer.ack.undecided[0].digest, 1).result(engines.WAIT_S)
    assert decide(core, producer, 4, 13).next_offset == 3 + 9 + 3
    assert len(engines.full_data(core)) == 3
    core.stop()


@pytest.mark.parametrize(("last_batch", "next_sequence"), [(4, 2), (4, 1 << 40)])
def test_impossible_reports_of_a_producer_are_refused(tmp_path: Path, last_batch: int, next_sequence: int) -> None:
    core = engines.make(tmp_path)
    Producer(core).commit(engines.rows(0, 3))
    business = continue_as_unconfirmed_leader(core, 2)
    producer = connect(core, last_batch)
    with pytest.raises(ProtocolError, match="the two contradict each other"):
        decide(core, producer, last_batch, next_sequence)
    assert not business.committed.losses[0].is_measured
    assert business.committed.next_offset == 3
    core.stop()


def test_two_unclean_elections_before_the_producer_is_back_have_one_window(tmp_path: Path) -> None:
    core = engines.make(tmp_path)
    Producer(core).commit(engines.rows(0, 3))
    continue_as_unconfirmed_leader(core, 2)
    business = continue_as_unconfirmed_leader(core, 2, 3)
    decide(core, connect(core, 2), 2, 6)
    assert [(loss.term, loss.first_offset, loss.end_offset) for loss in business.committed.losses] == [
        (2, 3, 6),
        (3, 3, 6),
    ]
    core.stop()


def test_a_batch_of_a_producer_that_is_marked_lost_is_refused(tmp_path: Path) -> None:
    core = engines.make(tmp_path)
    producer = Producer(core)
    message = engines.half(1, 1, [])
    body = message.body + b"\x48\x05"  # BatchBody.lost = 5
    forged = broker_pb2.Half(batch_no=1, digest=xxhash.xxh3_64_intdigest(body), body=body)
    with pytest.raises(ProtocolError, match="which only the broker may do"):
        producer.send(forged)
    core.stop()
