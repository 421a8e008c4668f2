"""Leaders at creation, after a death and by rebalancing; replicas at different sites. Real brokers and etcd."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.support import waiting
from tests.support.brokers.broker_clusters import PATIENT, BrokerCluster, SteadyWriter, Writer, bodies
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BUSINESS, fill, take
from venus.coordination.etcd import EtcdCoordinator
from venus.replication.records import Leadership
from venus.rpc.admin import AdminClient
from venus.rpc.subscriber import Subscriber

pytestmark = pytest.mark.integration
ROWS = 10


def eventually(condition: Callable[[], bool]) -> None:
    """Wait, with longer pauses because each poll asks etcd."""
    waiting.eventually(condition, every_s=0.2)


def records(cluster: BrokerCluster) -> dict[str, Leadership]:
    with contextlib.closing(EtcdCoordinator(cluster.etcd.addresses, cluster.name, timeout_s=60.0)) as coordinator:
        return {known.business: known for known in coordinator.leaderships()}


def leader_counts(cluster: BrokerCluster) -> Counter[str]:
    return Counter(known.leader.broker for known in records(cluster).values() if known.leader is not None)


def are_in_sync(cluster: BrokerCluster) -> bool:
    return all({m.broker for m in known.in_sync} == set(known.replicas) for known in records(cluster).values())


def know_each_other(cluster: BrokerCluster) -> bool:
    """Return whether every living broker has read that the others are alive."""
    living = [broker for broker in cluster.brokers.values() if broker.is_alive]
    for broker in living:
        with AdminClient(broker.address) as admin:
            if len(admin.status().brokers) != len(living):
                return False
    return True


def create(cluster: BrokerCluster, businesses: Iterable[str], rows: int = 1) -> None:
    """Let a producer of each business write a batch; each producer asks the first broker first."""
    eventually(lambda: know_each_other(cluster))
    reach = cluster.reach(broker.address for broker in cluster.brokers.values() if broker.is_alive)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda business: fill(reach, 1, 1, rows=rows, business=business), businesses))


def are_spread_without_c(cluster: BrokerCluster) -> bool:
    """Kill a broker that leads 8 of 24 and start it again; return whether both others led as many meanwhile.

    On a busy machine a broker may be too slow for its elections and lead fewer: then balance, and return False.
    """
    cluster.brokers["c"].kill()
    eventually(lambda: {*leader_counts(cluster)} == {"a", "b"} and leader_counts(cluster).total() == 24)
    are_spread = leader_counts(cluster) == {"a": 12, "b": 12}
    cluster.start("c")
    eventually(lambda: are_in_sync(cluster))
    if not are_spread:
        cluster.venus("cluster", "balance")
    return are_spread


def test_leaders_are_spread_and_balanced_after_a_broker_was_away(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        create(cluster, [BUSINESS, *(f"x{n:02}" for n in range(23))])
        eventually(lambda: leader_counts(cluster) == {"a": 8, "b": 8, "c": 8})
        eventually(lambda: are_in_sync(cluster))
        assert "as many businesses as it can" in cluster.venus("cluster", "balance", "--dry-run")[0]

        waiting.eventually(
            partial(are_spread_without_c, cluster), "a death behind which leaders are even", timeout_s=150.0
        )
        before = records(cluster)
        planned = json.loads(cluster.venus("cluster", "balance", "--dry-run", "--json")[0])
        assert len(planned["moves"]) == 8
        assert {move["target"] for move in planned["moves"]} == {"c"}
        assert "a leads 12, c 0, the mean is 8" in {move["reason"] for move in planned["moves"]}
        assert {name: known.leader for name, known in records(cluster).items()} == {
            name: known.leader for name, known in before.items()
        }, "a dry run moves nothing"

        writer = Writer(cluster)
        with SteadyWriter(writer, ROWS) as steady:
            done = json.loads(cluster.venus("cluster", "balance", "--json")[0])
        assert len(done["moves"]) == 8
        assert leader_counts(cluster) == {"a": 8, "b": 8, "c": 8}
        moved = [move for move in done["moves"] if move["business"] == BUSINESS]
        assert len(moved) == 1, "the business of the writer has moved too"
        assert steady.refusals == []
        assert max(steady.took_s) < PATIENT["lease_s"], "it waited for a lease"
        shown = json.loads(cluster.venus("cluster", "status", "--json")[0])["brokers"]
        assert {one["broker"]: (one["leads"], one["follows"]) for one in shown} == dict.fromkeys("abc", (8, 16))
        assert all(0 < one["load"]["memory"] <= 1 for one in shown)
        columns = cluster.venus("cluster", "status")[0].splitlines()[0]
        assert all(name in columns for name in ("CPU", "memory", "disk", "network", "leads", "follows"))


def has_rows(address: str, business: str) -> bool:
    with AdminClient(address) as admin:
        return [found.next_offset for found in admin.status(business).businesses] == [ROWS]


def start_at(cluster: BrokerCluster, **sites: str) -> None:
    for name, site in sites.items():
        cluster.configure(site=site)
        cluster.start(name)


def sites_of(known: Leadership, **sites: str) -> list[str]:
    return sorted(sites[name] for name in known.replicas)


def test_replicas_are_at_different_sites_and_move_to_a_new_site(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    where = {"a": "east", "b": "east", "c": "west", "d": "north"}
    with BrokerCluster(tmp_path, etcd_server, "") as cluster:
        start_at(cluster, a="east", b="east", c="west")
        create(cluster, [BUSINESS])
        assert sites_of(cluster.record(), **where) == ["east", "east", "west"]
        writer = Writer(cluster)
        with SteadyWriter(writer, ROWS) as steady:
            start_at(cluster, d="north")
            eventually(lambda: sites_of(cluster.record(), **where) == ["east", "north", "west"])
        assert steady.refusals == []
        create(cluster, [f"x{n}" for n in range(4)])
        for known in records(cluster).values():
            assert sites_of(known, **where) == ["east", "north", "west"]
        eventually(lambda: are_in_sync(cluster))
        assert [one["site"] for one in json.loads(cluster.venus("cluster", "status", "--json")[0])["brokers"]] == [
            *where.values()
        ]


def test_no_business_has_all_replicas_in_one_room(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    """Scenario 117: two brokers of three are gone with their room, and each business has a replica elsewhere."""
    businesses = [f"x{n}" for n in range(6)]
    with BrokerCluster(tmp_path, etcd_server, "", replicas=2) as cluster:
        start_at(cluster, a="room 1", b="room 1", c="room 2")
        create(cluster, businesses, ROWS)
        for business in businesses:  # what a follower has is shown once it knows that it is acknowledged
            eventually(partial(has_rows, cluster.address("c"), business))
        for name in "ab":
            cluster.brokers[name].kill()
        for business in businesses:
            with Subscriber(cluster.address("c"), business, "look", credit_bytes=1 << 20, transient=True) as subscriber:
                subscriber.open(0, 0)
                assert [increment.body for increment in take(subscriber, ROWS)] == bodies(1, ROWS)
