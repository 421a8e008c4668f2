"""The same random calls at a broker with TLS, from a client with roles for another business, and at its open ports.

The broker admits none of them, creates and changes nothing, uses no more memory, and its counters are right.
"""

from __future__ import annotations

import base64
import json
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fault.service.test_fuzz import FRAMES_PER_METHOD, GROWTH_BYTES_MAX, METHODS, frames, mutate
from tests.support.brokers.certificates import EVERYTHING, Authority, get, token_file
from tests.support.brokers.servers import BUSINESS, BrokerProcess, RssWatch, commit
from tests.support.engines.batches import half
from venus.errors import Denied, VenusError
from venus.rpc.address import ClientCredentials
from venus.rpc.admin import AdminClient
from venus.rpc.channel import open_channel
from venus.rpc.errors import from_rpc_error
from venus.rpc.producer import Producer
from venus.security.identity import make_token
from venus.security.roles import CALLS

pytestmark = [pytest.mark.fault, pytest.mark.integration]

CALL_TIMEOUT_S = 60.0
DOORS = 200


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
def token_line(tmp_path: Path) -> tuple[str, str]:
    token, line = make_token("grafana", "viewer")
    return token, token_file(tmp_path / "tokens", line)


@pytest.fixture
def broker(tmp_path: Path, authority: Authority, token_line: tuple[str, str]) -> Iterator[BrokerProcess]:
    with BrokerProcess(authority.settings(tmp_path / "data", token_file=token_line[1])) as running:
        running.http_address = running.line.partition("https://")[2].partition("/")[0]
        with Producer(
            authority.address(running.address, "all", *EVERYTHING), BUSINESS, "p", window_bytes_max=1 << 20
        ) as p:
            p.connect(0, 0)
            commit(p, [half(n) for n in range(1, 6)])
        yield running


def check_untouched(broker: BrokerProcess, authority: Authority) -> None:
    """Check that the business is unchanged, and that no other one exists."""
    assert broker.process.poll() is None
    with AdminClient(authority.address(broker.address, "all", *EVERYTHING)) as admin:
        (business,) = admin.status().businesses
    assert (business.business, business.next_offset, len(business.halves), len(business.consumers)) == (
        BUSINESS,
        5,
        0,
        0,
    )


def call_error(channel: grpc.Channel, method: Any, messages: list[bytes], metadata: Any = ()) -> VenusError | None:
    call: Any = channel.stream_stream(f"/{method.containing_service.full_name}/{method.name}")
    try:
        list(call(iter(messages), timeout=CALL_TIMEOUT_S, metadata=metadata))
    except grpc.RpcError as error:
        return from_rpc_error(error)
    return None


#: Calls that brokers may make for any business.
OF_BROKERS = {"StepDown"}


def names_only_a_snapshot(method: Any) -> bool:
    """Return whether a call names only a snapshot: a missing snapshot gets every client the same answer."""
    return bool(CALLS[f"/{method.containing_service.full_name}/{method.name}"].snapshot)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("calls", [FRAMES_PER_METHOD, pytest.param(20 * FRAMES_PER_METHOD, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_no_call_is_admitted_for_another_business(
    broker: BrokerProcess, authority: Authority, method: Any, calls: int
) -> None:
    chance = random.Random(f"{method.name} {calls}")
    roles = ["producer(elsewhere)", "consumer(*, elsewhere)", *([] if method.name in OF_BROKERS else ["broker"])]
    stranger = authority.address(broker.address, "stranger", *roles)
    denied = 0
    with open_channel(stranger) as channel, RssWatch(broker) as watch:
        before = watch.peak_bytes
        for _ in range(calls):
            error = call_error(channel, method, frames(chance, method))
            assert error is not None or names_only_a_snapshot(method), "answered"
            assert "the broker failed" not in str(error)
            assert "\n" not in str(error)
            denied += isinstance(error, Denied)
        assert watch.peak_bytes - before < GROWTH_BYTES_MAX
    assert denied > calls / 4 or names_only_a_snapshot(method)
    check_untouched(broker, authority)


@pytest.mark.timeout(300)
def test_no_mutated_token_is_admitted(broker: BrokerProcess, authority: Authority, token_line: tuple[str, str]) -> None:
    chance = random.Random("tokens")
    token, uncertified = token_line[0], ClientCredentials(ca=authority.ca)
    status = next(method for method in METHODS if method.name == "Status")
    with open_channel(authority.address(broker.address, "stranger")) as channel:
        for number in range(DOORS):
            other = mutate(chance, token.encode()).decode("latin-1")
            other = "".join(c for c in other if c.isprintable() and c.isascii()).strip() or "x"
            if other == token:
                continue
            assert isinstance(call_error(channel, status, [b""], [("authorization", f"Bearer {other}")]), Denied), other
            if number % 4 == 0:
                header = "Basic " + base64.b64encode(f"x:{other}".encode()).decode()
                assert get(broker.http_address, "/status.json", uncertified, header).code == 401
    assert get(broker.http_address, "/status.json", uncertified, f"Bearer {token}").code == 200
    check_untouched(broker, authority)


@pytest.mark.timeout(300)
def test_a_broker_survives_junk_in_handshakes(broker: BrokerProcess, authority: Authority) -> None:
    chance = random.Random("handshakes")
    hello = client_hello()
    with RssWatch(broker) as watch:
        before = watch.peak_bytes
        for number in range(DOORS):
            for address in (broker.address, broker.http_address):
                send_bytes(address, chance.randbytes(300) if number % 3 == 0 else mutate(chance, hello))
        assert watch.peak_bytes - before < GROWTH_BYTES_MAX
    check_untouched(broker, authority)
    found = json.loads(get(broker.http_address, "/status.json", authority.proof("all")).text)["security"]
    assert found["refused_calls"] == 0


def client_hello() -> bytes:
    """Return the first bytes of a valid TLS handshake."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


def send_bytes(address: str, data: bytes) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain:
        plain.settimeout(5)
        try:
            plain.sendall(data)
            plain.shutdown(socket.SHUT_WR)
            plain.recv(4096)
        except OSError:
            pass
