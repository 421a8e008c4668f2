"""Three etcd nodes that a test may kill, pause and start again."""

from tests.fault.coordination.conftest import etcd, three_nodes

__all__ = ["etcd", "three_nodes"]
