"""The error of a failed connection names only known causes: a reset connection does not suggest TLS."""

from __future__ import annotations

import select
import socket
import struct
from pathlib import Path

import pytest

from tests.support.brokers.certificates import Authority
from venus.rpc import channel
from venus.rpc.address import ClientCredentials


@pytest.fixture
def reset(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address whose connections are already reset when they are used."""
    listener = socket.create_server(("127.0.0.1", 0))
    connect = socket.create_connection

    def connect_too_late(address: tuple[str, int], timeout: float) -> socket.socket:
        found = connect(address, timeout)
        end, _ = listener.accept()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)  # as of a server that closes in order, and then finds unread bytes
        end.close()
        poll = select.poll()
        poll.register(found, 0)
        assert poll.poll(10_000), "a reset"
        return found

    monkeypatch.setattr(socket, "create_connection", connect_too_late)
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_reset_connection_is_not_reported_as_a_tls_problem(reset: str) -> None:
    assert channel.explain_failure(reset, ClientCredentials(), 5.0) is None


def test_a_reset_connection_is_not_reported_as_a_refused_certificate(reset: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    assert channel.explain_failure(reset, ClientCredentials(ca=authority.ca), 5.0) is None
