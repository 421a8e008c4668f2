"""Idle and endless connections do not use up the broker's file descriptors for other clients."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from tests.support.brokers.servers import BUSINESS, BrokerProcess, fill, settings
from tests.support.waiting import eventually
from venus.broker.service.http_guard import ANSWER_S, CONNECTIONS_MAX, HEAD_S
from venus.rpc.admin import AdminClient

pytestmark = [pytest.mark.fault, pytest.mark.integration]

SOFT, HARD = 256, 1024
HALF_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: broker\r\nX-Slow: "


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(settings(tmp_path / "data"), descriptors=(SOFT, HARD)) as running:
        yield running


def descriptors(broker: BrokerProcess) -> int:
    return int(psutil.Process(broker.process.pid).num_fds())


@contextmanager
def connections(address: str, count: int, first: bytes) -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=60)))
            made[-1].sendall(first)
        yield made


def check_serving(broker: BrokerProcess) -> None:
    with urlopen(f"http://{broker.http_address}/health", timeout=60) as answer:
        assert answer.status == 200
    with AdminClient(broker.address, timeout_s=60) as admin:
        assert [found.business for found in admin.status().businesses] == [BUSINESS]


def test_the_limit_of_descriptors_is_raised(broker: BrokerProcess) -> None:
    assert psutil.Process(broker.process.pid).rlimit(psutil.RLIMIT_NOFILE) == (HARD, HARD)


@pytest.mark.parametrize("first", [b"", HALF_REQUEST], ids=["silent", "half a request"])
def test_half_open_http_connections_do_not_block_other_clients(broker: BrokerProcess, first: bytes) -> None:
    fill(broker.address, 1, 1)
    before = descriptors(broker)
    with connections(broker.http_address, 400, first) as half_open:
        eventually(lambda: descriptors(broker) <= before + CONNECTIONS_MAX + 10)
        check_serving(broker)
        end = time.monotonic() + HEAD_S + 60
        while descriptors(broker) > before + 10 and time.monotonic() < end:
            for each in half_open[-CONNECTIONS_MAX:]:  # a single byte now and then does not extend the time limit
                try:
                    each.sendall(b"x")
                except OSError:
                    continue
            time.sleep(0.5)
        assert descriptors(broker) <= before + 10
        check_serving(broker)


def test_a_client_that_does_not_read_its_answers_is_disconnected(broker: BrokerProcess) -> None:
    fill(broker.address, 1, 1)
    before = descriptors(broker)
    pipelined = b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n" * 400
    with connections(broker.http_address, 20, b"") as deaf:
        for each in deaf:
            each.setblocking(False)
            try:
                each.send(pipelined)
            except BlockingIOError:
                continue
        eventually(lambda: descriptors(broker) <= before + 5, timeout_s=ANSWER_S + HEAD_S + 60)
        check_serving(broker)


def test_half_open_grpc_connections_end(broker: BrokerProcess) -> None:
    fill(broker.address, 1, 1)
    before = descriptors(broker)
    with connections(broker.address, 300, b"PRI * HTT"):
        check_serving(broker)
        eventually(lambda: descriptors(broker) <= before + 10)
        check_serving(broker)
