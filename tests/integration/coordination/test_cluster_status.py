"""`venus cluster status` against a real etcd: leaders, living brokers, and what an operator must do."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import SILENT_ETCD
from tests.support.brokers.etcd import EtcdCluster
from tests.support.processes import forked
from venus.coordination.etcd import EtcdCoordinator
from venus.replication.records import Leadership, LiveBroker, Member

pytestmark = pytest.mark.integration

A, B, C = (Member(broker=name, store=f"s-{name}") for name in "abc")
MAIN = Leadership(
    business="main", term=4, leader=A, in_sync=frozenset({A, B, C}), replicas=("a", "b", "c"), min_in_sync=2
)


class Cluster:
    """A cluster's records as its brokers would leave them in etcd, and the command to test."""

    def __init__(self, etcd: EtcdCluster, folder: Path) -> None:
        self.name = etcd.new_name()
        self.config = folder / "venus.toml"
        addresses = json.dumps(["127.0.0.1:1", *etcd.addresses])
        self.config.write_text(f'[cluster]\nname = "{self.name}"\nbroker_id = "x"\netcd = {addresses}\n')
        self.coordinators = [EtcdCoordinator(etcd.addresses, self.name, lease_s=60, timeout_s=60.0) for _ in "abc"]

    def register_brokers(self, *members: Member) -> None:
        for coordinator, member in zip(self.coordinators, members, strict=False):
            coordinator.register(LiveBroker(member=member, address=f"{member.broker}.example:7400", site="n"))

    def venus(self, *arguments: str, code: int) -> tuple[str, str]:
        command = [sys.executable, "-m", "venus.cli", "cluster", "status", *arguments, "-c", str(self.config)]
        own = dict(os.environ)  # GNU readline puts its width into COLUMNS, which a child process would inherit
        end = time.monotonic() + 60
        while True:
            done = forked.run(command, capture_output=True, text=True, timeout=60, check=False, env=own)
            if code == 75 or SILENT_ETCD not in done.stderr or time.monotonic() > end:
                break
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def cluster(etcd_server: EtcdCluster, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(etcd_server, tmp_path)
    yield made
    for coordinator in made.coordinators:
        with closing(coordinator):
            coordinator.leave()


def test_a_cluster_at_work_is_shown_and_nothing_is_wrong(cluster: Cluster) -> None:
    cluster.coordinators[0].identity(create=True)
    cluster.register_brokers(A, B, C)
    cluster.coordinators[0].create(MAIN)

    out, _ = cluster.venus(code=0)
    assert [line.split() for line in out.splitlines() if line.startswith("main")] == [
        ["main", "a", "4", "a,", "b,", "c", "(needs", "2)", "a,", "b,", "c", "consistency"]
    ]
    assert "!" not in out

    found = json.loads(cluster.venus("--json", code=0)[0])
    assert found["healthy"]
    assert [broker["broker"] for broker in found["brokers"]] == ["a", "b", "c"]
    assert found["businesses"] == [
        {
            "business": "main",
            "leader": "a",
            "term": 4,
            "in_sync": ["a", "b", "c"],
            "last_in_sync": [],
            "replicas": ["a", "b", "c"],
            "policy": "consistency",
            "min_in_sync": 2,
            "unclean_terms": [],
            "leaving": [],
            "successor": "",
            "losses": [],
        }
    ]


def test_states_that_need_an_operator_are_reported(cluster: Cluster) -> None:
    cluster.coordinators[0].identity(create=True)
    cluster.register_brokers(B)
    cluster.coordinators[0].create(replace(MAIN, in_sync=frozenset({A, B}), unclean_terms=(3,)))

    out, _ = cluster.venus(code=1)
    assert [line for line in out.splitlines() if line.startswith("!")] == [
        "! main is led by a, which is not alive: b/s-b can take over within seconds",
        "! main has 1 of the 2 replicas in sync that a write needs: writes are refused until one more has caught up",
        "! main is not in sync at c",
        "! main: the unclean election of term 3 may have lost changes that were acknowledged before it: "
        "`venus verify --repair` closes it",
    ]
    assert not json.loads(cluster.venus("--json", code=1)[0])["healthy"]


def test_a_cluster_without_living_brokers_names_those_that_must_return(cluster: Cluster) -> None:
    cluster.coordinators[0].identity(create=True)
    cluster.coordinators[0].create(replace(MAIN, leader=None, in_sync=frozenset({A}), last_in_sync=frozenset({B})))

    out, _ = cluster.venus(code=1)
    assert out.startswith("no broker is alive\n")
    assert "! main has no leader, and no complete replica is alive: start one of a/s-a, b/s-b" in out


def test_a_cluster_that_is_unknown_to_etcd_is_refused(cluster: Cluster) -> None:
    _, err = cluster.venus(code=2)

    assert f"has no cluster '{cluster.name}'" in err
    assert "[cluster] name" in err


def test_a_missing_cluster_or_etcd_is_reported_in_one_line(cluster: Cluster) -> None:
    cluster.config.write_text('[cluster]\nname = "shop"\nbroker_id = "x"\netcd = ["127.0.0.1:1"]\n')
    _, err = cluster.venus(code=75)
    assert "etcd does not answer within 5 s (127.0.0.1:1: Connection refused)" in err

    cluster.config.write_text("")
    _, err = cluster.venus(code=2)
    assert "there is no cluster: [cluster] name is not set" in err
