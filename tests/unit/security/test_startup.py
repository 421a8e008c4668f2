"""Security options with which a broker refuses to start: one line names the file or option, and the remedy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.certificates import Authority, token_file
from venus.config import BrokerSettings, SecuritySettings, Settings
from venus.errors import ConfigError
from venus.security import certificate_files
from venus.security.certificate_files import open_files


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs") / "certs"
    authority = Authority(folder, hosts=("broker.example", "*.site.example", "10.0.0.5"))
    authority.issue("other", hosts=("broker.example",))
    authority.issue("old", hosts=("broker.example",), age_days=5, days=1)
    authority.issue("early", hosts=("broker.example",), age_days=-3)
    return folder


def start(security: SecuritySettings, *, address: str = "", listen: str = "127.0.0.1:7400", http: str = "") -> None:
    settings = Settings(broker=BrokerSettings(listen=listen, address=address, http=http), security=security)
    certificate_files.check_listeners(settings)
    if security.certificate:
        open_files(security, address or listen, lambda: datetime.now(UTC))


def refusal(security: SecuritySettings, **where: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        start(security, **where)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert "BEGIN" not in str(caught.value)
    return f"{caught.value} | {caught.value.hint}"


def security_settings(folder: Path, name: str = "broker", **options: Any) -> SecuritySettings:
    own = {"certificate": str(folder / f"{name}.crt"), "key": str(folder / f"{name}.key"), "ca": str(folder / "ca.crt")}
    return SecuritySettings(**(own | options))


def test_a_complete_configuration_starts(certificates: Path) -> None:
    for address in ("broker.example:1", "a.site.example:1", "10.0.0.5:1", "0.0.0.0:1", "[::]:1", "BROKER.example:1"):
        start(security_settings(certificates), address=address)


def loose_settings(folder: Path, path: Path) -> SecuritySettings:
    key = path / "loose.key"
    key.write_bytes((folder / "broker.key").read_bytes())
    key.chmod(0o640)
    return security_settings(folder, key=str(key))


def encrypt_key(folder: Path, path: Path) -> SecuritySettings:
    key = path / "locked.key"
    command = ["openssl", "pkey", "-in", str(folder / "broker.key"), "-aes256", "-passout", "pass:x", "-out", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    key.chmod(0o600)
    return security_settings(folder, key=str(key))


@pytest.mark.parametrize(
    ("configured", "address", "says"),
    [
        (
            lambda f, p: security_settings(f, certificate=str(p / "no.crt")),
            "",
            "no.crt: no such file | correct it, or make a",
        ),
        (lambda f, p: security_settings(f, key=str(p / "no.key")), "", "security.key"),
        (lambda f, p: security_settings(f, key=""), "", "security.certificate is set and security.key is not"),
        (lambda f, p: security_settings(f, key=str(f / "other.key")), "", "does not belong to security.certificate"),
        (lambda f, p: security_settings(f, "old"), "", "old.crt expired on"),
        (lambda f, p: security_settings(f, "early"), "", "early.crt is not valid before"),
        (loose_settings, "", "can be read by others (mode 0640) | chmod 600"),
        (encrypt_key, "", "is encrypted; VENUS needs it without a passphrase"),
        (lambda f, p: security_settings(f, certificate=str(f / "broker.key")), "", "holds no certificate in PEM form"),
        (
            lambda f, p: security_settings(f, ca=""),
            "",
            "security.client_auth is certificate, and security.ca is not set",
        ),
        (lambda f, p: security_settings(f, ca=str(f / "broker.key")), "", "holds no certificate in PEM form"),
        (
            lambda f, p: security_settings(f),
            "elsewhere.example:1",
            "is for broker.example, *.site.example, 10.0.0.5, and clients ask",
        ),
        (lambda f, p: security_settings(f), "site.example:1", "and clients ask for site.example"),
        (lambda f, p: security_settings(f), "a.b.site.example:1", "and clients ask for a.b.site.example"),
        (
            lambda f, p: security_settings(f, client_auth="token"),
            "",
            "client_auth is token, and security.token_file is not set",
        ),
        (
            lambda f, p: security_settings(f, roles={"ann": ("opertor",)}),
            "",
            "role 'opertor' does not exist (did you mean operator?)",
        ),
        (lambda f, p: SecuritySettings(roles={"ann": ("viewer",)}), "", "security.roles is set, and the broker has no"),
        (lambda f, p: SecuritySettings(token_file=str(p / "t")), "", "security.token_file is set, and the broker has"),
    ],
)
def test_a_wrong_security_option_is_named(
    certificates: Path, tmp_path: Path, configured: Callable[[Path, Path], SecuritySettings], address: str, says: str
) -> None:
    assert says in refusal(configured(certificates, tmp_path), address=address or "broker.example:7400")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ann viewer", "tokens:2: not a line of a token file"),
        (f"ann sha256:{'0' * 63} viewer", "tokens:2: not a line of a token file"),
        (f"ann sha256:{'0' * 64} viewr", "tokens:2: role 'viewr' does not exist (did you mean viewer?)"),
        (f"ann sha256:{'0' * 64} viewer; producer", "tokens:2: role ' producer' does not exist: it is written"),
    ],
)
def test_a_wrong_token_file_is_named(certificates: Path, tmp_path: Path, line: str, says: str) -> None:
    assert says in refusal(
        security_settings(certificates, token_file=token_file(tmp_path / "tokens", line)), address="broker.example:1"
    )


def test_a_token_file_that_others_can_read_is_refused(certificates: Path, tmp_path: Path) -> None:
    path = token_file(tmp_path / "tokens")
    Path(path).chmod(0o644)

    assert "can be read by others (mode 0644) | chmod 600" in refusal(
        security_settings(certificates, token_file=path), address="broker.example:1"
    )


@pytest.mark.parametrize("option", ["listen", "http"])
@pytest.mark.parametrize("address", ["0.0.0.0:7400", "[::]:7400", "10.0.0.5:7400", "no.such.host.invalid:7400"])
def test_a_listener_beyond_loopback_needs_tls_or_an_explicit_option(option: str, address: str) -> None:
    message = refusal(SecuritySettings(), **{option: address})

    assert f"broker.{option} {address} can be reached from other machines, without TLS" in message
    assert "venus certs init" in message
    assert "insecure = true" in message
    start(SecuritySettings(insecure=True), **{option: address})


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1"])
def test_a_loopback_listener_needs_no_tls(address: str) -> None:
    start(SecuritySettings(), listen=address, http=address)


def test_a_broker_without_tls_does_not_import_the_certificate_library() -> None:
    """The library takes 9 MiB, and longer to import than all of VENUS."""
    text = "import sys, venus.broker.service.process; print('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, check=True).stdout.split() == [b"False"]
