"""The HTTP port with TLS requires a certificate or a token, except for the one-word answer to health probes."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.integration.security.conftest import StartSecure
from tests.support.brokers.certificates import Authority, get, serial, token_file
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.rpc.address import ClientCredentials
from venus.security.identity import make_token

pytestmark = pytest.mark.integration

PATHS = ("/", "/status.json", "/metrics", "/alarms")


def basic_header(token: str) -> str:
    return "Basic " + base64.b64encode(f"anyone:{token}".encode()).decode()


def test_pages_require_a_certificate_or_a_token(
    start_secure: StartSecure, authority: Authority, tmp_path: Path
) -> None:
    token, line = make_token("grafana", "viewer")
    weak, weak_line = make_token("eu", "consumer(eu, main)")
    broker = start_secure(token_file=token_file(tmp_path / "tokens", line, weak_line))
    uncertified = ClientCredentials(ca=authority.ca)

    for path in PATHS:
        asked = get(broker.http_address, path, uncertified)
        assert asked.code == 401
        assert asked.headers["WWW-Authenticate"].startswith("Basic "), "a browser asks for the token"
        assert asked.text == "this broker asks for a certificate or a token that it knows\n", "nothing else is learned"
        assert get(broker.http_address, path, authority.proof("ann", "viewer")).code == 200
        assert get(broker.http_address, path, authority.proof("op", "operator")).code == 200
        assert get(broker.http_address, path, uncertified, f"Bearer {token}").code == 200
        assert get(broker.http_address, path, uncertified, basic_header(token)).code == 200
        for wrong in (
            f"Bearer {weak[:-1]}",
            basic_header("x"),
            "Basic !",
            f"Digest {token}",
            "Bearer",
            basic_header(""),
        ):
            assert get(broker.http_address, path, uncertified, wrong).code == 401, wrong
        refused = get(broker.http_address, path, uncertified, f"Bearer {weak}")
        assert refused.code == 403
        assert "eu may not use" in refused.text
        assert "role operator or viewer is missing" in refused.text
        assert get(broker.http_address, path, authority.proof("stranger")).code == 403


def test_a_health_probe_gets_one_word(secure: RunningBroker, authority: Authority) -> None:
    address = authority.address(secure.address, "ann", "viewer")
    secure_status = get(secure.http_address, "/health", ClientCredentials(ca=authority.ca))

    assert (secure_status.code, secure_status.text) == (200, "ok\n")
    (authority.folder / "broker.key").write_text("damaged")
    trouble = "degraded\nrenewed files of [security] cannot be used"
    eventually(lambda: get(secure.http_address, "/health", address.proof).text.startswith(trouble))
    hidden = get(secure.http_address, "/health", ClientCredentials(ca=authority.ca))
    assert hidden.text == "ok\n"


def test_a_refused_page_is_counted(secure: RunningBroker, authority: Authority) -> None:
    for _ in range(3):
        get(secure.http_address, "/metrics", ClientCredentials(ca=authority.ca))

    viewer = authority.proof("ann", "viewer")
    metrics = get(secure.http_address, "/metrics", viewer).text
    assert "venus_refused_calls_total 3.0" in metrics
    assert "venus_refused_connections_total 0.0" in metrics
    assert json.loads(get(secure.http_address, "/status.json", viewer).text)["security"]["refused_calls"] == 3


def test_the_page_uses_a_renewed_certificate(secure: RunningBroker, authority: Authority) -> None:
    viewer = authority.proof("ann", "viewer")
    before = serial(secure.http_address)
    assert get(secure.http_address, "/status.json", viewer).code == 200

    authority.issue("broker", hosts=("127.0.0.1",), replace=True)

    assert serial(secure.http_address) != before
    answered = json.loads(get(secure.http_address, "/status.json", viewer).text)
    assert answered["security"]["certificate_renewals"] == 1


def test_a_client_of_an_unknown_authority_is_refused_in_the_handshake(
    secure: RunningBroker, tmp_path: Path, authority: Authority
) -> None:
    stranger = Authority(tmp_path / "stranger").proof("mallory", "operator")

    with pytest.raises((URLError, ssl.SSLError, ConnectionError)):
        get(
            secure.http_address,
            "/status.json",
            ClientCredentials(ca=authority.ca, certificate=stranger.certificate, key=stranger.key),
        )


def test_plain_http_gets_no_answer(secure: RunningBroker) -> None:
    from urllib.request import urlopen

    with pytest.raises((URLError, ConnectionError)):
        urlopen(f"http://{secure.http_address}/status.json", timeout=5)
