"""Connections that never begin a call are closed after a limited time, are limited in number, and block no other."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import grpc
import psutil
import pytest

from tests.integration.security.conftest import StartSecure
from tests.support.brokers.certificates import EVERYTHING, Authority, get
from tests.support.waiting import eventually
from venus.broker.service.http_guard import HANDSHAKES_MAX
from venus.broker.service.process import RunningBroker
from venus.config import Settings
from venus.rpc import event_loop
from venus.rpc.admin import AdminClient
from venus.security.certificate_files import grpc_credentials, open_files

pytestmark = pytest.mark.integration

#: Descriptors that the rest of the process opens and closes meanwhile.
SLACK = 10


class IdleConnections:
    """Connections that send nothing."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def open(self, address: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        for _ in range(count):
            self.sockets.append(socket.create_connection((host, int(port)), timeout=60.0))
            self.sockets[-1].setblocking(False)

    def count_closed(self) -> int:
        """Return how many of these connections the broker has closed."""
        return sum(map(is_closed, self.sockets))

    def count_open(self, before: int) -> int:
        """Return how many connections the broker has open; this process has both ends."""
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
def idle_connections() -> Iterator[IdleConnections]:
    made = IdleConnections()
    yield made
    for one in made.sockets:
        with suppress(OSError):
            one.close()


def test_https_closes_idle_connections_soon(secure: RunningBroker, idle_connections: IdleConnections) -> None:
    """By default asyncio waits for a handshake for 60 s."""
    before = psutil.Process().num_fds()
    idle_connections.open(secure.http_address, 20)
    eventually(lambda: idle_connections.count_closed() == 20)
    eventually(lambda: idle_connections.count_open(before) <= SLACK)


def test_https_keeps_few_idle_connections_and_serves_other_clients(
    start_secure: StartSecure, authority: Authority, idle_connections: IdleConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "TLS_HANDSHAKE_S", 600.0)
    secure = start_secure()
    viewer = authority.proof("all", *EVERYTHING)
    before = psutil.Process().num_fds()
    idle_connections.open(secure.http_address, 150)
    eventually(lambda: idle_connections.count_closed() >= 150 - HANDSHAKES_MAX)
    eventually(lambda: idle_connections.count_open(before) <= HANDSHAKES_MAX + SLACK)
    assert get(secure.http_address, "/health", viewer).text
    assert idle_connections.count_closed() < 150, "only as many as must make room"


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "plain"])
def test_grpc_closes_idle_connections(
    tls: bool, start_secure: StartSecure, authority: Authority, idle_connections: IdleConnections
) -> None:
    broker = start_secure() if tls else start_secure(certificate="", key="", ca="")
    before = psutil.Process().num_fds()
    idle_connections.open(broker.address, 150)
    eventually(lambda: idle_connections.count_closed() == 150)
    eventually(lambda: idle_connections.count_open(before) <= SLACK)
    address = authority.address(broker.address, "all", *EVERYTHING) if tls else broker.address
    with AdminClient(address) as admin:
        assert not admin.status().alarms


def interrupt_handshakes(settings_json: str) -> None:
    """Serve only handshakes, with the broker's credentials, and let many of them time out at once."""
    security = Settings.model_validate_json(settings_json).security
    credentials = grpc_credentials(open_files(security, "", lambda: datetime.now(UTC)), lambda: None)

    async def serve() -> None:
        server = grpc.aio.server(options=[("grpc.server_handshake_timeout_ms", 300)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        idle = IdleConnections()
        for _ in range(10):
            idle.open(f"127.0.0.1:{port}", 150)
            await asyncio.to_thread(eventually, lambda: idle.count_closed() == len(idle.sockets))
        await server.stop(0)

    asyncio.run(serve())


def test_handshakes_that_time_out_together_do_not_stop_the_broker(tmp_path: Path, authority: Authority) -> None:
    program = f"import sys; from {__name__} import interrupt_handshakes; interrupt_handshakes(sys.argv[1])"
    settings = authority.settings(tmp_path / "data").model_dump_json()
    run = subprocess.run([sys.executable, "-c", program, settings], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
