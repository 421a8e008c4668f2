"""A leader that reaches etcd and its clients, and not its followers: writes continue while the cut lasts.

Each broker stands behind a relay at the address that the cluster knows; clients go to it directly.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer, bodies
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import BrokerProcess, settings
from tests.support.faults.links import Link, Links
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration
ROWS = 10
SILENCE_S = 2.0
#: Well below the ten seconds for which a follower may lag; a busy machine takes its time.
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
        cluster = {"name": self.name, "broker_id": name, "etcd": self.etcd.addresses, "lease_s": 2.0, **self._options}
        relay = self.links.relays[name]
        chosen = settings(self.folder / name, address=relay.address, free_bytes_min=1 << 20)
        chosen = chosen.model_copy(update={"cluster": type(chosen.cluster)(**cluster)})
        self.brokers[name] = broker = BrokerProcess(chosen)
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
        began = time.monotonic()
        writer.write(1, ROWS)
        took_s = time.monotonic() - began
        term = cluster.record().term
        writer.write(5, ROWS)
        assert writer.leader in others
        assert took_s < WRITES_WITHIN_S
        eventually(lambda: cluster.in_sync() == set(others))
        assert cluster.record().term == term, "the leader changed although it reached a follower"

        cluster.links.heal(reset=True)
        eventually(lambda: cluster.in_sync() == set("abc"), timeout_s=60)
        last = writer.acknowledged
        assert last == 9
        found = cluster.contents(last * ROWS)
        assert [found[name] for name in "abc"] == [bodies(last, ROWS)] * 3


def test_a_follower_that_is_cut_off_does_not_hold_up_writes_for_long(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with LinkedCluster(tmp_path, etcd_server, silence_s=SILENCE_S) as cluster:
        writer = Writer(cluster)
        writer.write(3, ROWS)
        eventually(lambda: cluster.in_sync() == set("abc"))
        leader, cut_off = writer.leader, min(set("abc") - {writer.leader})

        cluster.links.cut(_both_directions(leader, [cut_off]))
        began = time.monotonic()
        writer.write(1, ROWS)
        took_s = time.monotonic() - began
        assert cluster.in_sync() == set("abc") - {cut_off}
        assert took_s < WRITES_WITHIN_S
        assert writer.leader == leader
