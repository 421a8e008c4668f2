"""Connections that never begin anything: closed after a bounded time, bounded in number, in nobody's way."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.integration.security.conftest import StartSecure
from tests.support.brokers.certificates import EVERYTHING, Authority, get
from tests.support.waiting import eventually
from venus.broker.service.http_guard import HANDSHAKES_MAX
from venus.broker.service.process import RunningBroker
from venus.rpc import event_loop
from venus.rpc.admin import AdminClient

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


def test_https_closes_them_soon(secure: RunningBroker, idle: Idle) -> None:
    """Asyncio waits for a handshake for 60 s."""
    before = psutil.Process().num_fds()
    idle.open(secure.http_address, 20)
    eventually(lambda: idle.closed() == 20)
    eventually(lambda: idle.served(before) <= SLACK, timeout_s=10.0)


def test_https_keeps_few_and_serves_others(
    start_secure: StartSecure, authority: Authority, idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "TLS_HANDSHAKE_S", 600.0)
    secure = start_secure()
    viewer = authority.proof("all", *EVERYTHING)
    before = psutil.Process().num_fds()
    idle.open(secure.http_address, 150)
    eventually(lambda: idle.closed() >= 150 - HANDSHAKES_MAX)
    eventually(lambda: idle.served(before) <= HANDSHAKES_MAX + SLACK, timeout_s=10.0)
    assert get(secure.http_address, "/health", viewer).text
    assert idle.closed() < 150, "only as many as must make room"


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
def test_grpc_closes_them(tls: bool, start_secure: StartSecure, authority: Authority, idle: Idle) -> None:
    broker = start_secure() if tls else start_secure(certificate="", key="", ca="")
    before = psutil.Process().num_fds()
    idle.open(broker.address, 150)
    eventually(lambda: idle.closed() == 150)
    eventually(lambda: idle.served(before) <= SLACK, timeout_s=10.0)
    address = authority.address(broker.address, "all", *EVERYTHING) if tls else broker.address
    with AdminClient(address) as admin:
        assert not admin.status().alarms
