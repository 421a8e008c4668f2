"""An address without an etcd is refused in one line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from venus.coordination.etcd import EtcdCoordinator
from venus.errors import ConfigError, Refused


def test_another_grpc_server_is_not_taken_for_an_etcd() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    coordinator = EtcdCoordinator([f"127.0.0.1:{port}"], "shop")

    with pytest.raises(Refused, match=f"127.0.0.1:{port} is not an etcd") as caught:
        coordinator.brokers()

    assert caught.value.hint == "correct [cluster] etcd"
    coordinator.close()
    server.stop(None).wait()


def test_an_empty_list_of_addresses_is_refused() -> None:
    with pytest.raises(ConfigError, match="no address of etcd"):
        EtcdCoordinator([], "shop")
