"""Consumer groups while the leadership moves: the log's record of a group counts, not a stream at the old leader."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Producer
from tests.support.engines.replicas import Cluster, Node
from tests.support.waiting import eventually
from venus.broker.machine.business import Business
from venus.broker.machine.records import load_all
from venus.errors import NotLeader
from venus.replication.messages import HandOverRequest

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, retain_bytes=0, consumer_ttl_s=100.0) as found:
        yield found


def business(node: Node) -> Business:
    return node.core.catalogue.find(BUSINESS)


def hand_over(cluster: Cluster, to: str) -> Node:
    """Let another broker lead; return it once it does."""
    leader = cluster.leader()
    following = cluster.nodes[to]
    cluster.settle()
    leader.post(lambda: leader.host.handle(BUSINESS, HandOverRequest(to=following.member)))
    eventually(following.leads)
    return following


def groups(node: Node) -> set[str]:
    return set(business(node).consumers)


def stored_groups(node: Node) -> set[str]:
    return {name for found in load_all(node.core.store, 6.0) for name in found.consumers}


def test_a_known_group_is_refused_while_its_position_is_not_logged(cluster: Cluster) -> None:
    leader = cluster.create()
    Producer(leader.core).commit(engines.rows(0, 10))
    leader.core.subscriptions.detach(BUSINESS, "g", leader.core.subscriptions.attach(BUSINESS, "g", 0))
    cluster.settle()
    follower = cluster.nodes["b"]
    eventually(lambda: groups(follower) == {"g"})

    for group in ("g", "unknown"):
        with pytest.raises(NotLeader, match="another broker leads"):
            follower.core.subscriptions.attach(BUSINESS, group, 10)
    assert groups(follower) == {"g"}, "it was refused, and is remembered"
    assert not business(follower).consumers["g"].is_connected
    reader = follower.core.subscriptions.attach(BUSINESS, "r", 0, transient=True)  # the group's position is not logged
    follower.core.subscriptions.detach(BUSINESS, "r", reader)


def test_a_forgotten_group_does_not_reappear_while_an_old_stream_remains(cluster: Cluster) -> None:
    """The peer of the old stream is frozen: its broker ends it, and waits long until it is gone."""
    former = cluster.create()
    Producer(former.core).commit(engines.rows(0, 10))
    left_over = former.core.subscriptions.attach(BUSINESS, "g", 0)
    leader = hand_over(cluster, "b")
    producer = Producer(leader.core)
    producer.commit(engines.rows(10, 10))
    eventually(lambda: groups(leader) == {"g"})
    leader.core.subscriptions.forget(BUSINESS, "g")
    cluster.settle()

    assert not former.core.subscriptions.acknowledge(BUSINESS, "g", left_over, 10)
    former.core.subscriptions.detach(BUSINESS, "g", left_over)
    assert [groups(node) for node in cluster.living()] == [set()] * 3
    hand_over(cluster, "a")
    for n in range(2, 5):
        Producer(former.core, source_last_batch=n).commit(engines.rows(10 * n, 10))
    eventually(lambda: business(former).log_start >= 40)  # the queue keeps nothing for the group any more
    cluster.settle()
    assert [stored_groups(node) for node in cluster.living()] == [set()] * 3


def test_a_group_that_only_a_deposed_leader_has_forgotten_reappears(cluster: Cluster) -> None:
    """Otherwise that broker would keep nothing for it as the next leader, and its consumer would load everything."""
    former, leader = cluster.create(), cluster.nodes["b"]
    Producer(former.core).commit(engines.rows(0, 10))
    former.core.subscriptions.detach(BUSINESS, "g", former.core.subscriptions.attach(BUSINESS, "g", 0))
    eventually(lambda: business(leader).consumers.get("g") == business(former).consumers["g"])
    cluster.settle()
    eventually(lambda: len(cluster.memory.leaderships[BUSINESS].in_sync) == 3)
    cluster.net.cut = {("a", "b"), ("a", "c")}
    end = business(former).log.end
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(former.core.subscriptions.forget, BUSINESS, "g")
        eventually(lambda: business(former).log.end > end)
        replace_leader(cluster, leader)
        with pytest.raises(NotLeader, match="another broker leads"):
            asked.result(engines.WAIT_S)
    cluster.net.cut = set()

    eventually(leader.leads)
    cluster.settle()
    assert [groups(node) for node in cluster.living()] == [{"g"}] * 3


def replace_leader(cluster: Cluster, node: Node) -> None:
    """Let another broker lead, although the leader still believes to lead."""
    while (known := cluster.memory.leaderships[BUSINESS]).leader != node.member:
        node.coordinator.swap(known, replace(known, term=known.term + 1, leader=node.member))


def test_acknowledgements_to_a_leader_that_cannot_write_are_logged_later(cluster: Cluster) -> None:
    leader = cluster.create()
    Producer(leader.core).commit(engines.rows(0, 10))
    token = leader.core.subscriptions.attach(BUSINESS, "g", 0)
    cluster.settle()
    for name in "bc":
        cluster.nodes[name].kill()
    eventually(lambda: not leader.leads())
    leader.core.subscriptions.acknowledge(BUSINESS, "g", token, 10)
    noticed_at = time.monotonic()
    eventually(lambda: leader.core.upkeep._acknowledged_at > noticed_at)
    assert not leader.leads()

    back = cluster.start("b")
    eventually(lambda: BUSINESS in back.host.replicas and groups(back) == {"g"})
    eventually(lambda: business(back).consumers["g"].acknowledged == 10)
