"""Connections that never begin anything: closed after a bounded time, bounded in number, in nobody's way."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.integration.security.conftest import StartSecure
from tests.support.brokers import wait_for
from tests.support.certificates import EVERYTHING, Authority, get
from venus.broker.service import server
from venus.broker.service.http_guard import HANDSHAKES_MAX
from venus.broker.service.process import RunningBroker
from venus.rpc.admin import Admin

pytestmark = pytest.mark.integration

#: What else the process opens and closes meanwhile.
SLACK = 10


class Idle:
    """Connections that say nothing."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def open(self, address: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        for _ in range(count):
            self.sockets.append(socket.create_connection((host, int(port)), timeout=10.0))
            self.sockets[-1].setblocking(False)

    def closed(self) -> int:
        """Return how many of them the broker has closed."""
        return sum(map(is_closed, self.sockets))

    def served(self, before: int) -> int:
        """Return how many the broker has open: both ends are of this process."""
        return psutil.Process().num_fds() - before - len(self.sockets)


def is_closed(one: socket.socket) -> bool:
    try:
        while one.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.fixture
def idle() -> Iterator[Idle]:
    made = Idle()
    yield made
    for one in made.sockets:
        with suppress(OSError):
            one.close()


def test_https_closes_them_keeps_few_and_serves_others(secure: RunningBroker, authority: Authority, idle: Idle) -> None:
    """Asyncio waits for a handshake for 60 s, for any number of them."""
    viewer = authority.proof("all", *EVERYTHING)
    assert get(secure.http_address, "/health", viewer).text
    before = psutil.Process().num_fds()
    idle.open(secure.http_address, 150)
    wait_for(lambda: idle.closed() >= 150 - HANDSHAKES_MAX - SLACK, 10.0)
    assert idle.served(before) <= HANDSHAKES_MAX + SLACK
    assert get(secure.http_address, "/health", viewer).text
    wait_for(lambda: idle.closed() == 150, 20.0)
    assert idle.served(before) <= SLACK


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
def test_grpc_closes_them_and_keeps_few(
    tls: bool, start_secure: StartSecure, authority: Authority, idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "connections_max", lambda *_: 40)
    monkeypatch.setattr(server, "HANDSHAKE_TIMEOUT_MS", 3_000)
    broker = start_secure() if tls else start_secure(certificate="", key="", ca="")
    before = psutil.Process().num_fds()
    idle.open(broker.address, 150)
    wait_for(lambda: idle.closed() >= 110, 10.0)
    assert idle.served(before) <= 40 + SLACK
    wait_for(lambda: idle.closed() == 150, 20.0)
    assert idle.served(before) <= SLACK
    address = authority.address(broker.address, "all", *EVERYTHING) if tls else broker.address
    with Admin(address) as admin:
        assert not admin.status().alarms


@pytest.mark.parametrize(("streams", "files", "most"), [(20_000, 1 << 20, 21_000), (20_000, 1024, 768), (10, 32, 64)])
def test_connections_leave_descriptors_for_the_store(streams: int, files: int, most: int) -> None:
    assert server.connections_max(streams, files) == most
