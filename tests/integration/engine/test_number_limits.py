"""Numbers from outside so large that no larger one could follow are refused, and the business continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from tests.support.engines import engines, mirrored
from tests.support.engines.engines import BUSINESS, WAIT_S, Producer, make
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.half_messages import COUNTER_LIMITS
from venus.broker.machine.mirror import Home
from venus.broker.pipeline.shared_log import begin_term
from venus.errors import ProtocolError
from venus.rpc import limits
from venus.wire import broker_pb2, change_pb2, mirror_pb2

pytestmark = pytest.mark.integration
END = limits.NUMBER_MAX
TOO_FAR = r"must be (from \d+ to )?\d+( at most)?"


def set_first_batch_to_the_last(core: Core) -> None:
    producer = Producer(core)
    core.producers.take_halves(BUSINESS, producer.epoch, [engines.half(1, END, engines.rows(1, 1))]).result(WAIT_S)


def set_first_batch_too_high(core: Core) -> None:
    producer, first = Producer(core), COUNTER_LIMITS["Sequence"].largest(0) + 1
    core.producers.take_halves(BUSINESS, producer.epoch, [engines.half(1, first, engines.rows(1, 1))]).result(WAIT_S)


def set_table_version_to_the_last(core: Core) -> None:
    producer = Producer(core)
    message = engines.half(1, 1, engines.rows(1, 1), version=limits.UINT32_MAX)
    core.producers.take_halves(BUSINESS, producer.epoch, [message]).result(WAIT_S)


def set_epoch_to_the_last(core: Core) -> None:
    core.producers.init(BUSINESS, "p", limits.EPOCH_MAX, 0).result(WAIT_S)


def set_committed_to_the_last(core: Core) -> None:
    business = core.catalogue.find(BUSINESS)
    core.commits.submit(lambda group: begin_term(group, business, 2, "b", 1, doubted=(2,))).result(WAIT_S)
    producer = Producer(core)
    said = broker_pb2.Committed(epoch=producer.epoch, last_batch=producer.batch_no, next_sequence=END)
    core.producers.skip_lost(BUSINESS, said).result(WAIT_S)


@pytest.mark.parametrize(
    "ask",
    [
        set_first_batch_to_the_last,
        set_first_batch_too_high,
        set_table_version_to_the_last,
        set_epoch_to_the_last,
    ],
)
def test_a_new_business_continues_after_such_a_number_of_a_producer(
    tmp_path: Path, ask: Callable[[Core], None]
) -> None:
    core = make(tmp_path)
    with pytest.raises(ProtocolError, match=TOO_FAR):
        ask(core)
    assert Producer(core).commit(engines.rows(1, 3)).next_offset == 3
    core.stop()


def test_a_business_continues_after_such_a_number_in_a_report_of_commits(tmp_path: Path) -> None:
    core = make(tmp_path)
    Producer(core).commit(engines.rows(1, 3))
    with pytest.raises(ProtocolError, match=TOO_FAR):
        set_committed_to_the_last(core)
    producer = Producer(core)
    core.producers.skip_lost(
        BUSINESS, broker_pb2.Committed(epoch=producer.epoch, last_batch=1, next_sequence=4)
    ).result(WAIT_S)
    assert producer.commit(engines.rows(4, 1)).next_offset >= 4
    core.stop()


# -- from a set above ------------------------------------------------------------------------------------------------


def changed_body(increment: broker_pb2.Increment, **fields: int) -> broker_pb2.Increment:
    """Return the increment with other numbers in its body."""
    message = change_pb2.BatchBody.FromString(increment.body)
    for name, value in fields.items():
        setattr(message, name, value)
    body = message.SerializeToString()
    found = broker_pb2.Increment()
    found.CopyFrom(increment)
    found.body, found.digest = body, xxhash.xxh3_64_intdigest(body)
    return found


def change_increment(increment: broker_pb2.Increment, **fields: int) -> broker_pb2.Increment:
    """Return the increment with other numbers in its fields, beside its body."""
    found = broker_pb2.Increment()
    found.CopyFrom(increment)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda found: changed_body(found, batch_no=END), id="batch"),
        pytest.param(lambda found: changed_body(found, first_sequence=END), id="Sequence"),
        pytest.param(lambda found: change_increment(found, epoch=limits.EPOCH_MAX), id="epoch"),
        pytest.param(lambda found: change_increment(found, base_offset=END), id="offset"),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_mirror_continues_after_such_a_number_of_the_set_above(
    home: Core, mirror: Core, edit: Callable[[broker_pb2.Increment], broker_pb2.Increment], sparse: bool
) -> None:
    producer = Producer(home)
    producer.commit(engines.rows(1, 3))
    mirrored.fill(home, mirror)
    producer.commit(engines.rows(4, 2))
    (increment,) = home.subscriptions.read(BUSINESS, 3, 1 << 20).increments

    with pytest.raises(ProtocolError, match=TOO_FAR):
        mirrored.take(mirror, [edit(increment)], sparse=sparse)
    with pytest.raises(ProtocolError, match=TOO_FAR):
        mirrored.take(mirror, [], END, sparse=True)
    assert mirrored.take(mirror, [increment]) == 5


@pytest.mark.parametrize("field", ["offset", "epoch", "sequence", "last_batch"])
def test_full_data_is_refused_at_a_cut_that_nothing_could_follow(home: Core, mirror: Core, field: str) -> None:
    Producer(home).commit(engines.rows(1, 3))
    business = mirror.mirrors.enter(BUSINESS)
    with pytest.raises(ProtocolError, match=f"MirrorBegin.{field} is {END}"):
        mirror.mirrors.begin_full_data(business, begin_at(home, **{field: END})).result(WAIT_S)
    mirror.mirrors.leave(business)
    assert mirrored.business_of(mirrored_fill(home, mirror)).is_filled


def mirrored_fill(home: Core, mirror: Core) -> Core:
    mirrored.fill(home, mirror)
    eventually(lambda: mirrored.business_of(mirror).is_filled)
    return mirror


def begin_at(home: Core, **fields: int) -> mirror_pb2.MirrorBegin:
    said = mirror_pb2.MirrorBegin(set=mirrored.SET, network="n1", offset=3, epoch=7, sequence=3, last_batch=1)
    for name, value in fields.items():
        setattr(said, name, value)
    return said


def test_a_home_term_that_no_promotion_could_exceed_is_refused(home: Core) -> None:
    Producer(home).commit(engines.rows(1, 3))
    with pytest.raises(ProtocolError, match=TOO_FAR):
        home.homes.note(BUSINESS, Home(set="far", term=limits.HOME_TERM_MAX, addresses=("far:1",))).result(WAIT_S)
    assert home.homes.note(BUSINESS, Home(set="far", term=2, addresses=("far:1",))).result(WAIT_S)
