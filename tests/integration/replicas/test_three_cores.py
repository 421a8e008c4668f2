"""Three broker cores in one process: every broker has each acknowledged batch; a killed one returns and catches up."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.support.engines import engines, replicas
from tests.support.engines.engines import BUSINESS, Producer
from tests.support.engines.replicas import Cluster, Node
from tests.support.waiting import eventually
from venus.broker.pipeline.upkeep import MAINTAIN_EVERY_S
from venus.broker.replicas import broker_load, host
from venus.broker.replicas.placement import Rebalancer
from venus.errors import NotLeader, Unavailable
from venus.replication.messages import SendFetch
from venus.replication.records import Leadership, LiveBroker

pytestmark = pytest.mark.integration


def contents(cluster: Cluster) -> list[dict[bytes, bytes]]:
    """Return the full data of every living node, once all have everything that was committed."""
    cluster.settle()
    return [engines.full_data(node.core) for node in cluster.living()]


def test_every_replica_has_what_the_leader_acknowledges(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        leader = cluster.create()
        producer = Producer(leader.core)
        for n in range(5):
            producer.commit(engines.rows(10 * n, 10))

        found = contents(cluster)
        assert [len(rows) for rows in found] == [50, 50, 50]
        assert found[0] == found[1] == found[2]
        logs = [
            list(node.core.catalogue.find(BUSINESS).log.read_entries(node.core.store, 1, 100))
            for node in cluster.living()
        ]
        assert logs[0] == logs[1] == logs[2]


def test_a_follower_refuses_writes_and_names_the_leader(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.create()
        eventually(lambda: BUSINESS in cluster.nodes["b"].host.replicas)
        with pytest.raises(NotLeader, match="another broker leads") as refused:
            Producer(cluster.nodes["b"].core)
        assert refused.value.leader == "a:1"


def test_no_batch_is_acknowledged_without_a_majority(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        leader = cluster.create()
        producer = Producer(leader.core)
        producer.commit(engines.rows(0, 3))
        cluster.net.cut = {("b", "a"), ("c", "a")}  # the leader has not noticed yet that they are gone
        message = producer.next_half(engines.rows(3, 1))
        waiting = leader.core.producers.take_halves(BUSINESS, producer.epoch, [message])
        cluster.nodes["b"].kill()
        cluster.nodes["c"].kill()
        cluster.net.cut = set()
        with pytest.raises(Unavailable, match="1 of 3 replicas are in sync, 2 are needed"):
            waiting.result(engines.WAIT_S)
        with pytest.raises(Unavailable, match="1 of 3 replicas are in sync, 2 are needed"):
            Producer(leader.core)
        assert len(engines.full_data(leader.core)) == 3

        cluster.start("b")
        eventually(leader.leads)
        again = Producer(leader.core)
        assert [half.batch_no for half in again.ack.undecided] == [message.batch_no]
        again.decide(message)
        assert [len(rows) for rows in contents(cluster)] == [4, 4]


def test_a_write_that_waits_for_a_silent_follower_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "PATIENCE", replace(replicas.PATIENCE, lag_s=60.0, silent_s=2.0))
    with Cluster(tmp_path, "ab") as cluster:
        leader = cluster.create()
        producer = Producer(leader.core)
        producer.commit(engines.rows(0, 3))
        cluster.net.cut = {("a", "b"), ("b", "a")}
        message = producer.next_half(engines.rows(3, 1))
        waiting = leader.core.producers.take_halves(BUSINESS, producer.epoch, [message])
        with pytest.raises(Unavailable, match="no answer from b for 2 s: 1 of 2 replicas is in sync without it"):
            waiting.result(engines.WAIT_S)
        cluster.net.cut = set()
        eventually(leader.leads)
        again = Producer(leader.core)
        assert [half.batch_no for half in again.ack.undecided] == [message.batch_no]
        again.decide(message)
        assert [len(rows) for rows in contents(cluster)] == [4, 4]


def test_the_leader_is_killed_and_no_acknowledged_batch_is_lost(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        rows = 0
        cluster.create()
        for _ in range(3):
            leader = cluster.leader()
            producer = Producer(leader.core)
            for _ in range(3):
                producer.commit(engines.rows(rows, 5))
                rows += 5
            message = producer.next_half(engines.rows(rows, 5))
            leader.core.producers.take_halves(BUSINESS, producer.epoch, [message])
            leader.kill()
            following = cluster.leader()
            assert following.name != leader.name
            again = Producer(following.core)
            assert again.ack.last_sequence == rows
            cluster.start(leader.name)
            if again.ack.undecided:
                again.decide(message)
                rows += 5
            found = contents(cluster)
            assert [len(each) for each in found] == [rows] * 3
            assert found[0] == found[1] == found[2]
        assert [node.errors.fatal for node in cluster.living()] == [[], [], []]


def fill_without_replica(cluster: Cluster, name: str) -> Node:
    """Commit batches that the missing replica does not have until the leader trims its log; return the leader."""
    leader = cluster.create()
    producer = Producer(leader.core)
    producer.commit(engines.rows(0, 10))
    cluster.settle()
    cluster.nodes[name].kill()
    for n in range(1, 31):
        producer.commit(engines.rows(10 * n, 10, b"x" * 1000))
    log, end = leader.core.catalogue.find(BUSINESS).log, cluster.nodes[name].core.catalogue.find(BUSINESS).log.end
    eventually(lambda: log.start > (3 if cluster.backlog_bytes else end))
    return leader


def test_a_log_is_kept_for_a_follower_that_is_away(tmp_path: Path) -> None:
    with Cluster(tmp_path, retain_bytes=0) as cluster:
        leader = fill_without_replica(cluster, "c")
        time.sleep(2 * MAINTAIN_EVERY_S)
        assert leader.core.catalogue.find(BUSINESS).log.start <= 5  # EPOCH, PREPARE, DECIDE after TERM: all that c has

        cluster.start("c")
        assert [len(rows) for rows in contents(cluster)] == [310] * 3
        assert cluster.nodes["c"].host.troubles == {}


def test_a_follower_that_was_away_prefetches_large_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[int] = []
    fetch = replicas.MemoryTransport.fetch

    def record(self: replicas.MemoryTransport, to: LiveBroker, business: str, wanted: SendFetch) -> None:
        starts.append(wanted.start)
        fetch(self, to, business, wanted)

    with Cluster(tmp_path) as cluster:
        producer = Producer(cluster.create().core)
        producer.commit(engines.rows(0, 10))
        cluster.settle()
        cluster.nodes["c"].kill()
        for n in range(1, 31):
            producer.commit(engines.rows(10 * n, 10, b"x" * 20_000))
        monkeypatch.setattr(replicas.MemoryTransport, "fetch", record)
        cluster.start("c")
        found = contents(cluster)
        assert [len(rows) for rows in found] == [310] * 3
        assert found[0] == found[1] == found[2]
        assert len(set(starts)) > 3, "0 and the entries behind large frames"


def test_a_follower_that_is_too_far_behind_starts_over(tmp_path: Path) -> None:
    with Cluster(tmp_path, retain_bytes=0, backlog_bytes=0) as cluster:
        leader = fill_without_replica(cluster, "c")
        cluster.start("c")
        assert [len(rows) for rows in contents(cluster)] == [310] * 3
        assert leader.core.catalogue.find(BUSINESS).log.start > 5
        Producer(leader.core).commit(engines.rows(1000, 10))
        assert [len(rows) for rows in contents(cluster)] == [320] * 3
        assert cluster.nodes["c"].host.troubles == {}


def test_a_broker_whose_disk_is_lost_returns_empty_and_becomes_whole_again(tmp_path: Path) -> None:
    with Cluster(tmp_path, retain_bytes=0, backlog_bytes=0) as cluster:
        leader = fill_without_replica(cluster, "c")
        undecided = Producer(leader.core)
        undecided.send(undecided.next_half(engines.rows(2000, 1)))
        cluster.start("c", store="s2")
        found = contents(cluster)
        assert found[0] == found[1] == found[2]
        assert [h.batch_no for h in engines.status(cluster.nodes["c"].core).halves] == [undecided.batch_no]

        cluster.nodes["a"].kill()
        successor = cluster.leader()
        assert [h.batch_no for h in Producer(successor.core).ack.undecided] == [undecided.batch_no]


def test_replicas_move_to_a_new_broker_while_producers_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "Rebalancer", partial(Rebalancer, uneven_s=0.5))
    monkeypatch.setattr(replicas, "LEASE_S", 9.0)  # brokers tell each other of their load when they renew their leases
    names = [f"x{n}" for n in range(4)]
    with Cluster(tmp_path, "ab", rebalance=True) as cluster:
        producers = {name: Producer(cluster.create(business=name).core, name) for name in names}
        leaders = {name: cluster.leader(name).name for name in names}
        node = cluster.start("c")

        def records() -> list[Leadership]:
            return [one for one in node.ask(lambda own: list(own.records.values())) if one.business in names]

        def has_moved() -> bool:
            for producer in producers.values():
                producer.commit(engines.rows(10 * producer.batch_no, 10))
            return Counter(name for one in records() for name in one.replicas)["c"] >= 2

        eventually(has_moved, "two of four businesses at the new broker", timeout_s=120, every_s=0.05)
        eventually(lambda: not any(one.leaving for one in records()))
        assert {one.business: one.leader.broker for one in records() if one.leader is not None} == leaders
        for one in records():
            assert len(one.replicas) == 2
            rows = 10 * producers[one.business].batch_no
            for name in one.replicas:
                core = cluster.nodes[name].core
                eventually(lambda at=core, of=one.business, n=rows: len(engines.full_data(at, business=of)) == n)  # type: ignore[misc]


@pytest.mark.parametrize("at", [1, 3, 6])  # with the log, the rows and part of the state
def test_an_installation_that_is_interrupted_continues_and_is_not_served_before_its_end(
    tmp_path: Path, at: int
) -> None:
    with Cluster(tmp_path, retain_bytes=0, backlog_bytes=0) as cluster:
        leader = fill_without_replica(cluster, "c")
        reached = threading.Event()

        def kill_at(node: Node, n: int) -> None:
            if n == at and not reached.is_set():
                node.core.commits.submit(lambda _: None).result(engines.WAIT_S)  # received data is in the store
                node.killed = True
                reached.set()

        cluster.piece_came = kill_at
        cluster.start("c")
        assert reached.wait(engines.WAIT_S)
        cluster.nodes["c"].kill()

        cluster.net.cut = {("c", "a"), ("c", "b")}
        shown: list[tuple[int, int]] = []  # records received and records expected, as the other brokers see them

        def progress() -> list[tuple[int, int]]:
            others = leader.ask(lambda host: list(host.brokers.live.values()))
            return [(one.records, one.records_expected) for broker in others for one in broker.installing]

        def show(_node: Node, n: int) -> None:
            eventually(lambda: progress() != shown[-1:], "progress")
            shown.extend(progress())

        cluster.piece_came = show
        node = cluster.start("c")
        eventually(lambda: BUSINESS in node.host.replicas)
        assert not node.host.replicas[BUSINESS].position.whole
        assert node.core.catalogue.find(BUSINESS).log.end == 1
        cluster.net.cut = set()
        assert [len(rows) for rows in contents(cluster)] == [310] * 3
        (first, before), (second, came) = cluster.copied
        assert (first, before) == (second, 0), "it continued with the same copy"
        assert came > 0
        records = [received for received, _ in shown]
        assert records == sorted(records)
        assert records[-1] > records[0], "other brokers see the progress"
        eventually(lambda: not list((leader.core.data_dir / "snapshots").glob("copy-*")))
        assert engines.full_data(node.core) == engines.full_data(leader.core)


def test_an_installation_starts_over_if_the_leaders_copy_is_gone(tmp_path: Path) -> None:
    with Cluster(tmp_path, retain_bytes=0, backlog_bytes=0) as cluster:
        leader = fill_without_replica(cluster, "c")

        def fail_midway(node: Node, n: int) -> None:
            if n == 3 and len(cluster.copied) == 1:
                raise Unavailable("the line broke")

        cluster.piece_came = fail_midway
        copies = leader.copies
        cluster.start("c")
        eventually(lambda: len(cluster.copied) == 1)
        eventually(lambda: copies.active_copies() == [(cluster.copied[0][0], 0)])
        copies.close()
        assert [len(rows) for rows in contents(cluster)] == [310] * 3
        assert [came for _, came in cluster.copied] == [0, 0]


def all_in_sync(node: Node) -> bool:
    known = node.host.replicas[BUSINESS].known
    return known is not None and len(known.in_sync) == 3


def knows_an_unhealthy_broker(node: Node) -> bool:
    return any(broker.unhealthy for broker in node.host.brokers.live.values())


def test_a_leader_whose_disk_is_nearly_full_is_not_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_load, "SLOW_SYNC_S", 60.0)  # other tests may fill this disk too
    room = {"a": 10 << 30, "b": 600 << 20, "c": 10 << 30}
    with Cluster(tmp_path, free_bytes=lambda path: room[path.name[0]], free_bytes_min=512 << 20) as cluster:
        leader = cluster.create()
        Producer(leader.core).commit(engines.rows(0, 3))
        cluster.settle()
        eventually(lambda: all_in_sync(leader))
        eventually(lambda: "less than 1024 MiB free" in cluster.nodes["b"].host.me.unhealthy)
        eventually(lambda: all(map(knows_an_unhealthy_broker, cluster.nodes.values())))
        leader.kill()
        said = {name: (node.host.me.unhealthy, list(node.host.brokers.live)) for name, node in cluster.nodes.items()}
        assert cluster.leader().name == "c", f"b comes first by its name, and has as much: {said}"
