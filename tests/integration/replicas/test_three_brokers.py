"""Three `venus broker` processes and an etcd: kill -9 of the leader in the middle of writes."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import FAIL_OVER_S, BrokerCluster, SteadyWriter, Writer, bodies, totals
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, BrokerProcess, business_status, fill, settings, take
from tests.support.engines.batches import half
from tests.support.pipelines.pipeline import slowdown_by_others
from tests.support.waiting import eventually
from venus.client import Changes, connect
from venus.config import ClusterSettings
from venus.errors import NotLeader, Refused, Unavailable, VenusError
from venus.model import Verdict
from venus.rpc.admin import AdminClient
from venus.rpc.channel import open_channel
from venus.rpc.compression import BODY_BYTES_MAX
from venus.rpc.producer import Producer
from venus.rpc.sealed import ask
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, replica_pb2

pytestmark = pytest.mark.integration
ROWS = 10
#: With processes that stop and clients that look for the leader; a lease that is left behind lasts longer.
HAND_OVER_S = 45.0
#: An election, and half a second of patience; a follower that is only silent is waited for longer.
REFUSED_S = 6.0
#: Two keepalives of 3 s and the client's search for the next leader; one keepalive of 20 s must not suffice.
SILENT_S = 15.0
#: A write waits for less than a second while a broker stops. Beside other work, one broker of three has to be as quick.
RESTART_S = 3.0
#: Scenario 45 on an otherwise idle machine; a busy one may take longer by the factor that a computation takes.
WRITES_CONTINUE_S = 5.0
FORGET_DONE = "the broker has forgotten business main"


def test_the_leader_is_killed_in_the_middle_of_writes(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(20, ROWS)
        for _ in range(2):
            killed, term = writer.leader, cluster.record().term
            killer = threading.Thread(
                target=_kill_after, args=(cluster.brokers[killed], writer, writer.acknowledged + 10)
            )
            killer.start()
            writer.write(60, ROWS)
            killer.join()
            writer.write(5, ROWS)
            assert writer.leader != killed
            address = cluster.brokers[writer.leader].address
            shown = business_status(address).replication
            assert (shown.leader, shown.term > term) == (writer.leader, True)
            eventually(lambda at=address, old=killed: missing_brokers(at) == [old], "the old leader, named as gone")  # type: ignore[misc]
            cluster.start(killed)
        last = writer.acknowledged
        found = cluster.contents(last * ROWS)
        assert set(found) == set("abc")
        for name, contents in found.items():
            assert contents == bodies(last, ROWS), name


def _kill_after(broker: BrokerProcess, writer: Writer, batch: int) -> None:
    eventually(lambda: writer.acknowledged >= batch, "writes before the kill")
    broker.kill()


@pytest.mark.slow
def test_writes_continue_within_five_seconds_of_a_kill(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    """With brokers' default lease; a write is what a client sees, from its first attempt on."""
    with BrokerCluster(tmp_path, etcd_server, lease_s=ClusterSettings().lease_s) as cluster:
        writer = Writer(cluster)
        eventually(lambda: cluster.in_sync() == set("abc"))
        crowded, killed = slowdown_by_others(), writer.leader
        with SteadyWriter(writer, ROWS) as steady:
            eventually(lambda: len(steady.took_s) >= 20, "a steady load")
            cluster.brokers[killed].kill()
            eventually(lambda: writer.leader != killed, "another leader")
            seen = len(steady.took_s)
            eventually(lambda: len(steady.took_s) >= seen + 20, "writes at the next leader")
        crowded = max(crowded, slowdown_by_others())
        print(f"kill -9 of the leader: the longest write took {max(steady.took_s):.2f} s")  # noqa: T201
        assert max(steady.took_s) < WRITES_CONTINUE_S * crowded
        assert steady.refusals == []
        contents = cluster.contents(writer.acknowledged * ROWS)
        assert list(contents.values()) == [bodies(writer.acknowledged, ROWS)] * 2


def test_a_subscription_continues_at_the_next_leader_and_no_change_is_lost_or_doubled(
    tmp_path: Path, etcd_server: EtcdCluster
) -> None:
    with BrokerCluster(tmp_path, etcd_server, lease_s=2.0) as cluster, ThreadPoolExecutor(1) as pool:
        writer = Writer(cluster)
        writer.write(5, ROWS)
        with connect(cluster.reach(broker.address for broker in cluster.brokers.values())) as broker:
            changes = broker.changes("shop.items")
            keys = read_keys(changes, 5 * ROWS)
            killed = writer.leader
            reading = pool.submit(read_keys, changes, 45 * ROWS)
            writer.write(20, ROWS)
            cluster.brokers[killed].kill()
            writer.write(20, ROWS)
            assert writer.leader != killed
            assert sorted(keys + reading.result(FAIL_OVER_S)) == list(range(1, 45 * ROWS + 1))


def read_keys(changes: Changes, offset: int) -> list[int]:
    """Read up to a position; return the keys of all changes."""
    keys: list[int] = []
    while changes.position is None or changes.position.offset < offset:
        batch = changes.poll(FAIL_OVER_S)
        assert batch is not None, f"no change after {changes.position}"
        keys += [row["id"] for row in batch.rows()]
    return keys


def test_clients_leave_a_leader_that_no_longer_answers(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    """Like a machine without power: no connection ends, and no call is answered.

    Once is enough: beside other work, a client and an election may wait for the machine.
    """
    with BrokerCluster(tmp_path, etcd_server, lease_s=2.0) as cluster:
        writer = Writer(cluster)
        writer.write(5, ROWS)

        def leave_soon() -> bool:
            silent = cluster.brokers[writer.leader]
            name, end = writer.leader, writer.acknowledged * ROWS
            reach = cluster.reach(broker.address for broker in cluster.brokers.values())
            with Subscriber(reach, BUSINESS, "g", credit_bytes=1 << 20, transient=True) as reader:
                reader.open(0, 0)
                take(reader, end)
                time.sleep(1.0)  # gRPC's own probes, which would also notice the silence, have ended
                silent.process.send_signal(signal.SIGSTOP)
                began = time.monotonic()
                del cluster.brokers[name]
                reader_leaves = _ends(reader)
                writer.write(1, ROWS)
                took_s = time.monotonic() - began
            silent.process.send_signal(signal.SIGCONT)
            cluster.brokers[name] = silent
            return reader_leaves and took_s < SILENT_S and writer.leader != name

        eventually(leave_soon, "clients that leave soon", timeout_s=150.0)


def _ends(reader: Subscriber) -> bool:
    """Return whether a stream ends soon."""
    with contextlib.suppress(VenusError):
        reader.increments(SILENT_S)
        return False
    return True


@pytest.mark.parametrize("leader_too", [True, False], ids=["leader and follower", "both followers"])
def test_writers_are_refused_soon_without_a_majority(
    tmp_path: Path, etcd_server: EtcdCluster, leader_too: bool
) -> None:
    """Once is enough: beside other work, a client and an election may wait for the machine."""
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(3, ROWS)

        def are_refused_soon() -> bool:
            eventually(lambda: cluster.in_sync() == set("abc"))
            last, others = writer.acknowledged, sorted(set("abc") - {writer.leader})
            gone = [writer.leader, others[0]] if leader_too else others
            reach = cluster.reach(broker.address for broker in cluster.brokers.values())
            writer.producer.close()
            began = time.monotonic()
            for name in gone:
                cluster.brokers[name].kill()
            with pytest.raises(Unavailable, match=r"1 of 3 replicas are (alive|in sync), 2 are needed"):
                _write_without_leader(reach, last)
            took_s = time.monotonic() - began
            for name in gone:
                cluster.start(name)
            writer.reconnect()
            assert writer.acknowledged in (last, last + 1), "what was refused may have been written"
            return took_s < REFUSED_S

        eventually(are_refused_soon, "a refusal that comes soon", timeout_s=120.0)


def _write_without_leader(reach: str, last: int) -> None:
    """Write behind batch `last`; until the brokers notice which one is gone, look for the leader."""
    while True:
        with (
            contextlib.suppress(NotLeader),
            Producer(reach, BUSINESS, "test", window_bytes_max=1 << 20) as producer,
        ):
            producer.connect(0, last, owner="test", take_over=True)
            producer.send_half(half(last + 1, rows=ROWS))
            producer.wait_until_persisted(last + 1)


def test_a_leader_that_stops_hands_over(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(5, ROWS)
        began = time.monotonic()
        before = writer.leader
        assert cluster.brokers[before].stop() == 0
        writer.write(1, ROWS)
        assert writer.leader != before
        assert time.monotonic() - began < HAND_OVER_S


def test_any_one_broker_is_enough_to_find_the_leader(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(1, ROWS)
        writer.producer.close()
        leads = cluster.brokers[writer.leader].address
        for name, broker in cluster.brokers.items():
            with Producer(broker.address, BUSINESS, name, window_bytes_max=1 << 20) as producer:
                assert producer.connect(0, 1, owner="test", take_over=True).last_batch == 1
                assert producer.address == leads, name
            with Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20) as reader:
                reader.open(0, 0)
                assert len(take(reader, ROWS)) == 1


def test_status_and_metrics_show_the_replicas(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(2, ROWS)
        leader = cluster.brokers[writer.leader]

        def is_even() -> broker_pb2.ReplicationStatus | None:
            found = business_status(leader.address).replication
            return found if found.mode == "sync" and found.high == found.log_end - 1 else None

        found = eventually(is_even)
        assert (found.leader, found.policy, found.min_in_sync, found.refusal) == (writer.leader, "consistency", 2, "")
        assert {replica.broker for replica in found.replicas} == set("abc")

        gone = next(name for name in "abc" if name != writer.leader)
        cluster.brokers[gone].kill()
        eventually(
            lambda: [r.broker for r in business_status(leader.address).replication.replicas if not r.alive] == [gone]
        )
        eventually(lambda: f"its replica at broker {gone} is gone" in business_status(leader.address).alarms)
        shown = (
            'venus_leads{business="main"} 1.0',
            f'venus_replica_behind_entries{{broker="{writer.leader}",business="main"}} 0.0',
        )

        def has_metrics() -> bool:
            with urllib.request.urlopen(f"http://{leader.http_address}/metrics") as answer:
                metrics = answer.read().decode()
            return all(line in metrics for line in shown)

        eventually(has_metrics, f"metrics {shown}", every_s=0.2)


def test_a_client_without_a_certificate_is_refused(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        address = cluster.brokers[writer.leader].address
        file = tmp_path / writer.leader / "cluster.json"
        own = json.loads(file.read_text())
        identity = next(value for key, value in own.items() if key != "format")
        stranger, receiver = (
            replica_pb2.ClusterMember(broker="x", store="s"),
            replica_pb2.ClusterMember(broker="y", store="s"),
        )
        with open_channel(address) as channel:
            for cluster_id, message in (("other", "another cluster"), (identity, "this is broker")):
                greeting = replica_pb2.Greeting(cluster=cluster_id, sender=stranger, receiver=receiver)
                request = replica_pb2.BallotRequest(greeting=greeting, business="main", term=99)
                with pytest.raises(Refused, match=message):
                    ask(channel, "Replica/Ballot", request, replica_pb2.BallotAnswer, timeout_s=60)
        writer.write(1, ROWS)
        assert business_status(address).replication.term == 1


def test_a_broker_whose_disk_is_lost_installs_itself(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    options = {"retain_bytes": 0}
    with BrokerCluster(tmp_path, etcd_server, broker=options, follower_backlog_bytes=0) as cluster:
        writer = Writer(cluster)
        lost = next(name for name in "abc" if name != writer.leader)
        writer.write(5, ROWS)
        cluster.brokers[lost].kill()
        shutil.rmtree(tmp_path / lost)
        writer.write(20, 100)
        leader = cluster.brokers[writer.leader]
        eventually(lambda: business_status(leader.address).log_start > 0)
        eventually(
            lambda: (
                not business_status(leader.address).replication.replicas or missing_brokers(leader.address) == [lost]
            )
        )
        broker = cluster.start(lost)
        eventually(
            lambda: [r.broker for r in business_status(leader.address).replication.replicas if not r.in_sync] == []
        )
        writer.write(1, 100)
        last = business_status(leader.address).next_offset
        eventually(lambda: business_status(broker.address).next_offset == last)
        assert totals(broker.address) == totals(leader.address)
        assert list((tmp_path / writer.leader / "snapshots").glob("copy-*")) == []


def missing_brokers(address: str) -> list[str]:
    return [replica.broker for replica in business_status(address).replication.replicas if not replica.alive]


def test_a_business_is_forgotten_by_every_broker(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(5, ROWS)
        eventually(lambda: cluster.in_sync() == set("abc"))
        _, err = cluster.venus("forget", "--business", BUSINESS, "--yes", code=3)
        assert "producers and consumers of 'main' are connected" in err
        away = next(name for name in "abc" if name != writer.leader)
        cluster.brokers[away].kill()
        writer.producer.close()
        eventually(lambda: forget(cluster))
        assert (
            "the broker knows no business 'main'" in cluster.venus("forget", "--business", BUSINESS, "--yes", code=2)[1]
        )
        assert json.loads(cluster.venus("cluster", "status", "--json")[0])["businesses"] == []
        living = [broker for name, broker in cluster.brokers.items() if name != away]
        eventually(lambda: not any(statuses(broker.address) for broker in living))
        back = cluster.start(away)
        assert not statuses(back.address), "what it had was removed before it served"

        again = Writer(cluster)
        assert again.acknowledged == 0
        again.write(3, ROWS)
        assert cluster.record().term > 1
        eventually(lambda: cluster.in_sync() == set("abc"))
        found = cluster.contents(3 * ROWS)
        assert [found[name] for name in "abc"] == [bodies(3, ROWS)] * 3


def forget(cluster: BrokerCluster) -> bool:
    """Forget the business as soon as no client is connected to it."""
    return FORGET_DONE in cluster.venus("forget", "--business", BUSINESS, "--yes", code=None)[0]


def statuses(address: str) -> list[str]:
    """Return the businesses that a broker has."""
    with AdminClient(address) as admin:
        return [found.business for found in admin.status().businesses]


def test_a_rolling_restart_refuses_no_write(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(5, ROWS)
        cluster.venus("cluster", "status", "--wait", "60")
        longest: list[float] = []
        with SteadyWriter(writer, ROWS) as steady:
            for name in "abc":
                first = len(steady.took_s)
                assert cluster.brokers[name].stop() == 0
                cluster.start(name)
                cluster.venus("cluster", "status", "--wait", "60")
                longest.append(steady.longest_s(first))
        print(f"rolling restart: {len(steady.took_s)} writes, the longest of each broker {longest} s")  # noqa: T201
        assert steady.refusals == []
        assert min(longest) < RESTART_S
        found = cluster.contents(writer.acknowledged * ROWS)
        assert found["a"] == found["b"] == found["c"] == bodies(writer.acknowledged, ROWS)


def test_a_store_with_another_history_is_refused(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerProcess(settings(tmp_path / "c")) as alone:
        fill(alone.address, 1, 1)
        alone.stop()
    with BrokerCluster(tmp_path, etcd_server, "ab") as cluster:
        Writer(cluster).write(1, ROWS)
        with pytest.raises(AssertionError, match="both have a business 'main', each with its own history"):
            cluster.start("c")


def largest(batch_no: int) -> broker_pb2.Half:
    """Return a half message with a body of the maximum size."""
    nbytes = BODY_BYTES_MAX - 1000
    while (found := half(batch_no, payload="x" * nbytes)) and len(found.body) != BODY_BYTES_MAX:
        nbytes += BODY_BYTES_MAX - len(found.body)
    return found


def has_one_row(address: str) -> bool:
    return business_status(address).next_offset == 1


def test_the_largest_half_message_reaches_every_replica(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        message = largest(1)
        writer.producer.send_half(message)
        writer.producer.wait_until_persisted(1)
        writer.producer.decide(1, message.digest, Verdict.COMMIT)
        writer.producer.wait_until_decided(1)
        for broker in cluster.brokers.values():
            eventually(partial(has_one_row, broker.address))


def test_a_load_is_sent_to_the_leader_and_status_is_answered_by_any_broker(
    tmp_path: Path, etcd_server: EtcdCluster
) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(1, ROWS)
        cluster.contents(ROWS)
        follower = next(broker for name, broker in cluster.brokers.items() if name != writer.leader)
        request = broker_pb2.OpenSnapshotRequest(business="main", holder="main/target")
        with open_channel(follower.address) as channel:
            with pytest.raises(NotLeader) as refused:
                ask(channel, "Delivery/OpenSnapshot", request, broker_pb2.Snapshot, timeout_s=60)
            assert refused.value.leader == cluster.brokers[writer.leader].address
            request.holder = ""
            assert ask(channel, "Delivery/OpenSnapshot", request, broker_pb2.Snapshot, timeout_s=60).offset == ROWS
