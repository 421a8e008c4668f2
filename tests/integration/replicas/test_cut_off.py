"""A leader reaches etcd and its clients, but not its followers: writes continue while the cut lasts.

A relay at the address that the cluster knows is in front of each broker; clients connect directly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.broker_clusters import CAREFREE, BrokerCluster, Writer, bodies
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BrokerProcess, settings
from tests.support.faults.links import Link, Links
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration
ROWS = 10
SILENCE_S = 2.0
#: Well below the ten seconds for which a follower may lag, but long enough for a busy machine.
WRITES_WITHIN_S = 9.0


class LinkedCluster(BrokerCluster):
    """Brokers whose links to each other can be cut, one direction at a time."""

    def __init__(self, folder: Path, etcd: EtcdCluster, **cluster: Any) -> None:
        self.links = Links(lambda: {name: broker.process.pid for name, broker in self.brokers.items()})
        for name in "abc":
            self.links.relay(name)
        super().__init__(folder, etcd, **cluster)

    def start(self, name: str) -> BrokerProcess:
        """Start a broker behind its relay."""
        relay = self.links.relays[name]
        broker = self.start_with(name, settings(self.folder / name, address=relay.address, **CAREFREE))
        relay.target, broker.address = broker.address, relay.address
        return broker

    def __enter__(self) -> LinkedCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.links.heal()
        super().__exit__(*error)
        self.links.close()


def _both_directions(a: str, others: list[str]) -> list[Link]:
    return [link for other in others for link in ((a, other), (other, a))]


def _outgoing_links(a: str, others: list[str]) -> list[Link]:
    return [(a, other) for other in others]


def _incoming_links(a: str, others: list[str]) -> list[Link]:
    return [(other, a) for other in others]


@pytest.mark.parametrize(
    "links",
    [_both_directions, _outgoing_links, _incoming_links],
    ids=["both ways", "it is not heard", "it hears nothing"],
)
def test_a_leader_that_reaches_none_of_its_followers_lets_another_one_lead(
    tmp_path: Path, etcd_server: EtcdCluster, links: Callable[[str, list[str]], list[Link]]
) -> None:
    with LinkedCluster(tmp_path, etcd_server, silence_s=SILENCE_S) as cluster:
        writer = Writer(cluster)
        writer.write(3, ROWS)
        eventually(lambda: cluster.in_sync() == set("abc"))
        cut_off, others = writer.leader, sorted(set("abc") - {writer.leader})

        cluster.links.cut(links(cut_off, others))
        writer.write(6, ROWS)
        assert writer.leader in others
        eventually(lambda: cluster.in_sync() == set(others))

        def keeps_leading() -> bool:
            term = cluster.record().term
            time.sleep(3 * SILENCE_S)
            writer.write(1, ROWS)
            return cluster.record().term == term

        eventually(keeps_leading, "a leader that stays, because it reaches a follower")

        cluster.links.heal(reset=True)
        eventually(lambda: cluster.in_sync() == set("abc"))
        last = writer.acknowledged
        found = cluster.contents(last * ROWS)
        assert [found[name] for name in "abc"] == [bodies(last, ROWS)] * 3


def test_a_follower_that_is_cut_off_does_not_delay_writes_for_long(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    """One write of several is enough: beside other work, any of them may wait for the machine."""
    with LinkedCluster(tmp_path, etcd_server, silence_s=SILENCE_S) as cluster:
        writer = Writer(cluster)
        writer.write(3, ROWS)

        def continues_soon() -> bool:
            eventually(lambda: cluster.in_sync() == set("abc"))
            leader, cut_off = writer.leader, min(set("abc") - {writer.leader})
            cluster.links.cut(_both_directions(leader, [cut_off]))
            began = time.monotonic()
            writer.write(1, ROWS)
            took_s = time.monotonic() - began
            in_sync = cluster.in_sync()
            cluster.links.heal(reset=True)
            return took_s < WRITES_WITHIN_S and in_sync == set("abc") - {cut_off} and writer.leader == leader

        eventually(continues_soon, "a write that continues soon at the same leader", timeout_s=120.0)
