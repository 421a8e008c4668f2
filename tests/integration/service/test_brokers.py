"""Several brokers: a client skips one that cannot be reached, and one that does not lead names the leader."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.integration.service.conftest import is_probing
from tests.support.brokers.servers import BUSINESS, business_status, commit, fill, settings, take
from tests.support.engines.batches import half
from tests.support.faults.not_leader import NotLeading
from tests.support.ports import free_port
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.errors import NotLeader, SnapshotExpired, Unavailable
from venus.model import Verdict
from venus.rpc import broker_selection, connection
from venus.rpc.admin import AdminClient
from venus.rpc.channel import open_channel
from venus.rpc.connection import BrokerConnection
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[RunningBroker]:
    running = start_in_thread(settings(tmp_path / "leader"))
    yield running
    running.stop()


@pytest.fixture
def other_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    running = start_in_thread(settings(tmp_path / "other"))
    yield running
    running.stop()


@pytest.fixture
def follower(leader: RunningBroker, other_broker: RunningBroker) -> Iterator[NotLeading]:
    """Start a follower in front of a real broker, `leader`, which leads."""
    with NotLeading(other_broker.address, follows=leader.address) as front:
        yield front


#: What does not wait for the end of such a time takes less than this on any machine.
SOON_S = 60.0
NEVER_S = 600.0


def unused_address() -> str:
    return f"127.0.0.1:{free_port()}"


def test_a_producer_is_redirected_to_the_leader_and_the_next_one_connects_there_at_once(
    leader: RunningBroker, follower: NotLeading
) -> None:
    reach = f"{follower.address},{leader.address}"

    fill(reach, 1, 3)
    assert follower.refused == 1
    assert business_status(leader.address).next_offset == 3
    with Producer(reach, BUSINESS, "again", window_bytes_max=1 << 20) as producer:
        assert producer.connect(0, 3).last_batch == 3
        commit(producer, [half(4)])

    assert follower.refused == 1, "the follower named the leader once"


def test_one_address_is_enough_to_find_the_leader(leader: RunningBroker, follower: NotLeading) -> None:
    """The configuration names one broker of a cluster, or does not list the leader yet."""
    fill(follower.address, 1, 2)

    assert business_status(leader.address).next_offset == 2


def test_a_subscriber_is_redirected_to_the_leader(leader: RunningBroker, follower: NotLeading) -> None:
    fill(leader.address, 1, 5)

    with Subscriber(f"{follower.address},{leader.address}", BUSINESS, "g", credit_bytes=1 << 20) as reader:
        reader.open(0, 0)
        assert len(take(reader, 5)) == 5
    assert follower.refused == 1


def test_a_refused_stream_takes_no_frame_of_the_next_one(leader: RunningBroker, follower: NotLeading) -> None:
    """The writer of the first stream may wake late: a frame that it took then would be lost."""
    with (
        ThreadPoolExecutor(2) as pool,
        Producer(follower.address, BUSINESS, "p", window_bytes_max=1 << 20) as producer,
        Subscriber(follower.address, BUSINESS, "g", credit_bytes=1 << 20) as reader,
    ):
        producer.connect(0, 0)
        reader.open(0, 0)

        assert pool.submit(producer.next_frame, 1).result(60.0) == (None, None, True)
        assert pool.submit(reader.next_frame, 1).result(60.0) == (None, None, True)
        commit(producer, [half(1)])
        assert len(take(reader, 1)) == 1


def test_an_operators_decision_is_sent_to_the_leader(leader: RunningBroker, follower: NotLeading) -> None:
    with Producer(leader.address, BUSINESS, "p", window_bytes_max=1 << 20) as producer:
        producer.connect(0, 0)
        producer.send_half(half(1))
        producer.wait_until_persisted(1)

    with AdminClient(f"{follower.address},{leader.address}") as admin:
        assert admin.decide(BUSINESS, 1, Verdict.ROLLBACK).batch_no == 1
    assert business_status(leader.address).halves == []


def test_any_client_with_its_id_reads_a_snapshot_where_it_was_made(
    leader: RunningBroker, follower: NotLeading, other_broker: RunningBroker
) -> None:
    """A load plans in one process and reads in others, each of which connects to the first broker that answers."""
    fill(leader.address, 1, 10, rows=50)
    fill(other_broker.address, 1, 1)  # the same business with other rows: a read at this broker would be noticed
    reach = f"{follower.address},{leader.address}"

    with SnapshotClient(reach) as planner:
        snapshot = pickle.loads(pickle.dumps(planner.open(BUSINESS, splits=2)))
        elsewhere = f"{follower.address},{other_broker.address}"
        with SnapshotClient(elsewhere) as reader:
            rows = sum(
                len(chunk.rows) for split in snapshot.splits for chunk in reader.read_split(snapshot.snapshot_id, split)
            )
            assert reader.renew(snapshot.snapshot_id).snapshot_id == snapshot.snapshot_id
            assert sum(total.rows for total in reader.totals(snapshot.snapshot_id).values()) == rows == 500
        planner.close(snapshot.snapshot_id)
        with pytest.raises(SnapshotExpired):
            planner.renew(snapshot.snapshot_id)


def test_a_snapshot_of_a_broker_that_is_gone_is_reported_as_gone(
    leader: RunningBroker, other_broker: RunningBroker
) -> None:
    """An interrupted load starts over at another broker, and does not wait for one that may never return."""
    fill(leader.address, 1, 2)
    fill(other_broker.address, 1, 2)
    reach = f"{leader.address},{other_broker.address}"
    with SnapshotClient(reach) as planner:
        snapshot = planner.open(BUSINESS)
    leader.stop()

    with SnapshotClient(reach) as again:
        with pytest.raises(SnapshotExpired, match="gone with its broker"):
            again.renew(snapshot.snapshot_id)
        assert again.open(BUSINESS).offset == 2


def test_with_one_address_a_snapshot_id_is_used_unchanged(leader: RunningBroker) -> None:
    fill(leader.address, 1, 1)
    with SnapshotClient(leader.address) as snapshots:
        assert "/" not in snapshots.open(BUSINESS).snapshot_id


def test_an_unreachable_broker_is_skipped_at_once(leader: RunningBroker) -> None:
    reach = f"{unused_address()},{unused_address()},{leader.address}"

    started = time.monotonic()
    BrokerConnection(reach, timeout_s=NEVER_S).close()
    assert time.monotonic() - started < SOON_S
    fill(reach, 1, 1)
    assert broker_selection.shared_selector(reach).in_order(BUSINESS)[0] == leader.address


def test_a_silent_broker_costs_its_share_of_the_time_once(
    leader: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    open_one = open_channel

    def record(address: str, **options: float) -> grpc.Channel:
        if not is_probing():
            asked.append(str(address))
        return open_one(address, **options)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
        reach = f"{silent},{leader.address}"

        BrokerConnection(reach).close()  # the other broker is asked within the time for all
        monkeypatch.setattr(connection, "open_channel", record)
        BrokerConnection(reach).close()
        assert asked[0] == leader.address


def test_if_no_broker_can_be_reached_all_are_named_in_limited_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [unused_address(), f"127.0.0.1:{silent.getsockname()[1]}", unused_address()]

        started = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            AdminClient(",".join(addresses))
        assert time.monotonic() - started < SOON_S

    refused, silence, refused_too = addresses
    assert str(caught.value) == (
        f"none of the brokers can be reached: {refused} (Connection refused), {silence} (no answer), "
        f"{refused_too} (Connection refused); is `venus run` or `venus broker` running?"
    )
    assert caught.value.hint == "check [broker] addresses"


def test_a_client_waits_for_a_leader_that_is_not_known_yet(leader: RunningBroker, follower: NotLeading) -> None:
    """The client asks both in turn until one of them leads, because an election takes time."""
    follower.follows = ""
    with NotLeading(leader.address, follows="") as second:
        elected = threading.Timer(1.0, lambda: setattr(second, "follows", None))
        elected.start()
        fill(f"{follower.address},{second.address}", 1, 1)
        assert elected.finished.is_set()
        assert follower.refused > 1 < second.refused
        elected.join()


def test_brokers_that_name_each_other_are_given_up_in_limited_time(
    leader: RunningBroker, other_broker: RunningBroker
) -> None:
    with NotLeading(leader.address) as first, NotLeading(other_broker.address) as second:
        first.follows, second.follows = second.address, first.address
        with Producer(f"{first.address},{second.address}", BUSINESS, "p", window_bytes_max=1) as producer:
            started = time.monotonic()
            with pytest.raises(NotLeader) as caught:
                producer.connect(0, 0)
            took_s = time.monotonic() - started
            assert took_s < SOON_S

        assert str(caught.value) == (
            f"no broker leads after 5 s, asked {first.address}, {second.address}: this broker follows"
        )
        assert first.refused + second.refused < 24 * took_s, "it asks ten times a second, not as fast as it can"


def test_a_dead_leader_that_is_still_named_delays_no_client(leader: RunningBroker) -> None:
    """Followers name the old leader until they have elected another one."""
    with NotLeading(leader.address, follows=unused_address()) as first:
        elected = threading.Timer(1.0, lambda: setattr(first, "follows", None))
        started = time.monotonic()
        elected.start()
        fill(first.address, 1, 1)
        elected.join()
        took_s = time.monotonic() - started
        assert first.refused < 30 * took_s, "it asks ten times a second, not as fast as it can"
    assert business_status(leader.address).next_offset == 1


def test_a_leader_lost_in_the_middle_is_replaced_by_the_one_that_followers_name(
    leader: RunningBroker, other_broker: RunningBroker
) -> None:
    """The next connection of this process remembers which leader broke the stream."""
    with NotLeading(leader.address, follows=None) as first:
        reach = f"{first.address},{other_broker.address}"
        with Producer(reach, BUSINESS, "p", window_bytes_max=1 << 20) as producer:
            producer.connect(0, 0)
            commit(producer, [half(1)])
            leader.stop()
            with pytest.raises(Unavailable):
                producer.wait_until_decided(2)
        assert broker_selection.shared_selector(reach).in_order(BUSINESS)[0] == other_broker.address
        fill(reach, 1, 1)
    assert business_status(other_broker.address).next_offset == 1


def test_eight_concurrent_clients_find_the_leader(leader: RunningBroker, follower: NotLeading) -> None:
    fill(leader.address, 1, 1)
    reach = f"{follower.address},{leader.address}"

    def read(number: int) -> int:
        with Subscriber(reach, BUSINESS, f"g{number}", credit_bytes=1 << 20) as reader:
            reader.open(0, 0)
            return len(take(reader, 1))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(8))) == [1] * 8
