"""Runs every test here against the coordinator in memory and against a real etcd."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support.brokers.etcd import EtcdCluster
from tests.support.engines.memory_coordinator import MemoryCluster, MemoryCoordinator
from venus.coordination.etcd import EtcdCoordinator

#: Of a lease whose end a test waits for, and of all others: no test may depend on when it is scheduled.
SHORT_LEASE_S, LEASE_S = 2.0, 600.0

AnyCoordinator = EtcdCoordinator | MemoryCoordinator


@dataclass(slots=True)
class Cluster:
    """A cluster whose brokers each have a coordinator."""

    shared: MemoryCluster | None
    etcd: EtcdCluster | None
    name: str = ""
    opened: list[AnyCoordinator] = field(default_factory=list)

    def coordinator(self, lease_s: float = LEASE_S) -> AnyCoordinator:
        """Connect as another process would."""
        opened: AnyCoordinator
        if self.shared is not None:
            opened = MemoryCoordinator(self.shared, lease_s=lease_s)
        else:
            assert self.etcd is not None
            opened = EtcdCoordinator(self.etcd.addresses, self.name, lease_s=lease_s, timeout_s=60.0)
        self.opened.append(opened)
        return opened


@pytest.fixture(params=["memory", "etcd"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Make a cluster with an unused name."""
    if request.param == "memory":
        found = Cluster(MemoryCluster(time.monotonic), None)
    else:
        etcd: EtcdCluster = request.getfixturevalue("etcd_server")
        found = Cluster(None, etcd, etcd.new_name())
    yield found
    for coordinator in found.opened:
        coordinator.close()


@pytest.fixture
def coordinator(cluster: Cluster) -> AnyCoordinator:
    """Connect one coordinator to the cluster."""
    return cluster.coordinator()
