"""A slow connection between two brokers: a large entry that takes long to arrive does not make the leader silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.etcd import EtcdCluster
from tests.support.engines.batches import half
from tests.support.faults.proxy import Proxy
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.broker.replicas.connections import SILENT_S
from venus.model import Verdict

pytestmark = pytest.mark.integration

BYTES_PER_S = 1 << 20
ENTRY_BYTES = 8 << 20


def test_a_follower_accepts_an_entry_that_takes_longer_than_the_limit_for_a_silent_leader(
    tmp_path: Path, etcd_server: EtcdCluster
) -> None:
    assert ENTRY_BYTES / BYTES_PER_S > 1.5 * SILENT_S
    port = free_port()
    with (
        Proxy(f"127.0.0.1:{port}") as line,
        BrokerCluster(
            tmp_path, etcd_server, "a", listen={"a": port}, broker={"address": line.address}, policy="availability"
        ) as cluster,
    ):
        _, producer, _ = cluster.connect_producer()
        with producer:
            message = half(1, payload="x" * ENTRY_BYTES)
            producer.send_half(message)
            producer.wait_until_persisted(1)
            producer.decide(1, message.digest, Verdict.COMMIT)
            producer.wait_until_decided(1)
        line.bytes_per_s = BYTES_PER_S
        cluster.reconfigure(address="")
        cluster.start("b")
        eventually(lambda: cluster.in_sync() == {"a", "b"}, "the follower has the entry", timeout_s=60.0)
        assert cluster.contents_at("b", 1) == {"b": [message.body]}
