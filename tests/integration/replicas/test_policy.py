"""`venus cluster policy` on running brokers: `consistency` refuses writes, `availability` uses the living replicas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster, Writer
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.servers import business_status
from tests.support.processes import forked
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration
ROWS = 10


def policy(cluster: BrokerCluster, *arguments: str, code: int = 0) -> Any:
    config = cluster.folder / "venus.toml"
    addresses = json.dumps(list(cluster.etcd.addresses))
    config.write_text(f'[cluster]\nname = "{cluster.name}"\nbroker_id = "x"\netcd = {addresses}\n')
    command = [sys.executable, "-m", "venus.cli", "cluster", "policy", *arguments, "-c", str(config), "--json"]
    done = forked.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_policy_of_a_business_is_changed_while_it_is_in_use(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server) as cluster:
        writer = Writer(cluster)
        writer.write(2, ROWS)
        leader = cluster.brokers[writer.leader].address

        def replication() -> Any:
            return business_status(leader).replication

        eventually(lambda: replication().mode == "sync")
        for name in set("abc") - {writer.leader}:
            cluster.brokers[name].kill()
        eventually(lambda: replication().refusal == "1 of 3 replicas are in sync, 2 are needed")

        assert policy(cluster, "main", "availability") == {
            "business": "main",
            "policy": "availability",
            "min_in_sync": 1,
            "changed": True,
            "was": {"policy": "consistency", "min_in_sync": 2},
        }
        eventually(lambda: not replication().refusal)
        writer.reconnect()
        writer.write(3, ROWS)
        assert replication().policy == "availability"

        assert policy(cluster, "main", "consistency")["changed"]
        eventually(lambda: replication().refusal == "1 of 3 replicas are in sync, 2 are needed")
        assert not policy(cluster, "main", "consistency")["changed"]
        cluster.start(next(iter(set("abc") - {writer.leader})))
        writer.write(1, ROWS)
        assert writer.acknowledged == 6
        assert list(replication().losses) == []


def test_a_misspelt_policy_is_reported_in_one_line(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    with BrokerCluster(tmp_path, etcd_server, "a", replicas=1) as cluster:
        Writer(cluster).write(1, ROWS)
        said = policy(cluster, "main", "availabilitty", code=2)["error"]
        assert said["message"] == "availabilitty: invalid policy (did you mean availability?)"
        said = policy(cluster, "mian", "availability", code=2)["error"]
        assert said["message"] == "the cluster has no business 'mian' (did you mean main?)"
