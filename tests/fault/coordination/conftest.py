"""Three etcd nodes that a test may kill, pause and start again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.support.brokers.etcd import EtcdCluster, running_etcd
from venus.coordination.etcd import EtcdCoordinator

Connect = Callable[..., EtcdCoordinator]


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[EtcdCluster]:
    """Start three etcd nodes once for a module."""
    with running_etcd(3) as cluster:
        yield cluster


@pytest.fixture
def etcd(three_nodes: EtcdCluster) -> Iterator[EtcdCluster]:
    """Return the three nodes, and restart those that are down afterwards."""
    yield three_nodes
    for node in three_nodes.nodes:
        if node.is_alive:
            node.resume()
        else:
            node.start()
    three_nodes.wait()


@pytest.fixture
def connect(etcd: EtcdCluster) -> Iterator[Connect]:
    """Return a function that connects a coordinator of one cluster to all nodes, or to the addresses given."""
    name = etcd.new_name()
    with contextlib.ExitStack() as stack:

        def connect(addresses: list[str] | None = None, *, timeout_s: float = 60.0) -> EtcdCoordinator:
            found = EtcdCoordinator(etcd.addresses if addresses is None else addresses, name, timeout_s=timeout_s)
            return stack.enter_context(contextlib.closing(found))

        yield connect
