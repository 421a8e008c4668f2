"""TLS at the gRPC port: admission, the reasons of refusals, and certificates that are renewed while brokers run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.integration.security.conftest import StartSecure
from tests.support.brokers.certificates import EVERYTHING, Authority, get, self_signed, serial
from tests.support.brokers.servers import BUSINESS, commit
from tests.support.engines.batches import half
from tests.support.faults.proxy import Proxy
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.errors import ConfigError, Untrusted, VenusError
from venus.rpc.address import NONE, BrokerAddress, ClientCredentials
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.security.audit import SILENT_S

pytestmark = pytest.mark.integration


def refusal_reason(address: str) -> VenusError:
    with pytest.raises(VenusError) as caught:
        AdminClient(address)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_rows_are_carried_over_mutual_tls(secure: RunningBroker, authority: Authority) -> None:
    address = authority.address(secure.address, "all", *EVERYTHING)
    halves = [half(n, rows=3) for n in range(1, 4)]

    with Producer(address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        commit(sender, halves)
    with Subscriber(address, BUSINESS, "main/eu", credit_bytes=1 << 20) as reader:
        reader.open(0, 0)
        eventually(lambda: reader.increments(1.0))
    with AdminClient(address) as admin:
        assert admin.status(BUSINESS).businesses[0].next_offset == 9


def test_a_client_without_a_certificate_gets_no_information(secure: RunningBroker, authority: Authority) -> None:
    message = refusal_reason(BrokerAddress(secure.address, ClientCredentials(ca=authority.ca)))

    assert isinstance(message, Untrusted)
    assert "asks for a certificate, and this process has none" in str(message)
    with grpc.secure_channel(secure.address, grpc.ssl_channel_credentials(Path(authority.ca).read_bytes())) as channel:
        for method in ("/venus.wire.Admin/Status", "/grpc.health.v1.Health/Check", "/no.such/Method"):
            call: Any = channel.unary_unary(method)
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "not even whether the method exists"


def test_a_client_without_tls_gets_the_reason(secure: RunningBroker) -> None:
    message = refusal_reason(BrokerAddress(secure.address, NONE))

    assert f"the broker at {secure.address} speaks TLS, and security.ca is not set" in str(message)
    assert isinstance(message, Untrusted)


def test_a_broker_without_tls_is_reported_as_such(tmp_path: Path, authority: Authority) -> None:
    from tests.support.brokers.servers import settings

    broker = start_in_thread(settings(tmp_path / "plain"))
    try:
        message = refusal_reason(authority.address(broker.address, "all", *EVERYTHING))
    finally:
        broker.stop()

    assert "speaks no TLS, and security.ca is set" in str(message)


def other_host(authority: Authority) -> None:
    authority.issue("broker", hosts=("elsewhere.example",), replace=True)


@pytest.mark.parametrize(
    ("spoil", "says", "hint"),
    [
        (lambda a: a.issue("broker", hosts=("127.0.0.1",), replace=True), "", ""),
        (other_host, "is not for 127.0.0.1", "venus certs issue NAME --host 127.0.0.1"),
    ],
    ids=["good", "wrong host"],
)
def test_a_certificate_for_another_host_is_refused(
    authority: Authority, start_secure: StartSecure, spoil: Callable[[Authority], None], says: str, hint: str
) -> None:
    broker = start_secure()
    spoil(authority)
    address = authority.address(broker.address, "all", *EVERYTHING)

    if not says:
        AdminClient(address).close()
        return
    message = refusal_reason(address)
    assert says in str(message)
    assert hint in message.hint


def test_an_expired_broker_certificate_is_refused(
    authority: Authority, start_secure: StartSecure, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.issue("broker", hosts=("127.0.0.1",), replace=True, age_days=3, days=1)
    with monkeypatch.context() as patched:  # a broker whose certificate expired while it ran
        patched.setattr("venus.security.pem.check_time", lambda *_: None)
        broker = start_secure()

    message = refusal_reason(authority.address(broker.address, "all", *EVERYTHING))

    assert "certificate of the broker" in str(message)
    assert "has expired" in str(message)
    assert "venus certs issue NAME --renew" in message.hint
    address = authority.address(broker.address, "all", *EVERYTHING)
    authority.issue("broker", hosts=("127.0.0.1",), replace=True)
    with AdminClient(address) as admin:  # the renewed certificate is accepted at once
        assert not [alarm for alarm in admin.status().alarms if "expired" in alarm]


def test_a_broker_of_an_unknown_authority_is_refused(
    tmp_path: Path, secure: RunningBroker, authority: Authority
) -> None:
    stranger = Authority(tmp_path / "stranger")
    proof = authority.proof("all", *EVERYTHING)

    message = refusal_reason(
        BrokerAddress(secure.address, ClientCredentials(ca=stranger.ca, certificate=proof.certificate, key=proof.key))
    )

    assert "not signed by security.ca" in str(message)


def test_a_self_signed_broker_certificate_is_refused(
    tmp_path: Path, authority: Authority, start_secure: StartSecure
) -> None:
    certificate, key = self_signed(tmp_path / "alone")
    broker = start_secure(certificate=certificate, key=key)

    message = refusal_reason(authority.address(broker.address, "all", *EVERYTHING))

    assert "is self-signed or signed by an unknown authority" in str(message)


def test_a_client_of_an_unknown_authority_gets_the_reason(
    tmp_path: Path, secure: RunningBroker, authority: Authority
) -> None:
    stranger = Authority(tmp_path / "stranger").proof("mallory", *EVERYTHING)

    message = refusal_reason(
        BrokerAddress(
            secure.address, ClientCredentials(ca=authority.ca, certificate=stranger.certificate, key=stranger.key)
        )
    )

    assert "does not accept our certificate" in str(message)
    assert "security.ca" in message.hint


def test_an_expired_client_gets_the_reason_before_it_connects(secure: RunningBroker, authority: Authority) -> None:
    authority.issue("old", *EVERYTHING, age_days=3, days=1)

    message = refusal_reason(authority.address(secure.address, "old"))

    assert isinstance(message, ConfigError)
    assert "old.crt expired on" in str(message)


def test_streams_survive_a_renewal(secure: RunningBroker, authority: Authority) -> None:
    address = authority.address(secure.address, "all", *EVERYTHING)
    halves = [half(n) for n in range(1, 5)]
    with (
        Producer(address, BUSINESS, "p", window_bytes_max=1 << 20) as sender,
        Subscriber(address, BUSINESS, "main/eu", credit_bytes=1 << 20, transient=True) as reader,
    ):
        sender.connect(0, 0)
        commit(sender, halves[:1])
        reader.open(0, 0)
        before = serial(secure.address)
        for n in (2, 3, 4):
            authority.issue("broker", hosts=("127.0.0.1",), replace=True)
            assert serial(secure.address) != before, "a new connection gets the new certificate"
            before = serial(secure.address)
            commit(sender, halves[n - 1 : n])
        eventually(lambda: reader.increments(1.0) and reader.position == 4)
        assert sender.resends == 0


def test_a_new_authority_is_accepted_and_the_old_one_is_not(secure: RunningBroker, authority: Authority) -> None:
    old = authority.proof("old", *EVERYTHING)
    AdminClient(BrokerAddress(secure.address, old)).close()
    kept = Path(authority.ca).read_bytes()
    for name in ("ca.crt", "ca.key"):
        (authority.folder / name).unlink()
    renewed = recreate_authority(authority)

    AdminClient(renewed.address(secure.address, "new", *EVERYTHING)).close()
    both = authority.folder / "both.crt"
    both.write_bytes(kept + Path(renewed.ca).read_bytes())
    message = refusal_reason(
        BrokerAddress(secure.address, ClientCredentials(ca=str(both), certificate=old.certificate, key=old.key))
    )
    assert "does not accept our certificate" in str(message)


def recreate_authority(authority: Authority) -> Authority:
    """Recreate the authority and the broker's key pair in the same folder."""
    for name in ("broker.crt", "broker.key"):
        (authority.folder / name).unlink()
    return Authority(authority.folder)


def test_a_half_finished_renewal_is_not_used(secure: RunningBroker, authority: Authority) -> None:
    address = authority.address(secure.address, "all", *EVERYTHING)
    before, key = serial(secure.address), (authority.folder / "broker.key").read_bytes()
    authority.issue("broker", hosts=("127.0.0.1",), replace=True)
    new_key = (authority.folder / "broker.key").read_bytes()
    (authority.folder / "broker.key").write_bytes(key)

    with AdminClient(address) as admin:
        assert any("renewed files of [security] cannot be used" in alarm for alarm in admin.status().alarms)
    assert serial(secure.address) == before
    (authority.folder / "broker.key").write_bytes(new_key)
    assert serial(secure.address) != before
    with AdminClient(address) as admin:
        assert not admin.status().alarms


def test_connections_without_a_certificate_are_counted(
    secure: RunningBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    import venus.security.audit

    monkeypatch.setattr(venus.security.audit, "SILENT_S", 1.0)
    assert SILENT_S > 10
    proof = authority.proof("all", *EVERYTHING)
    with Proxy(secure.address) as proxy:
        for _ in range(7):
            with pytest.raises(Untrusted):
                AdminClient(BrokerAddress(proxy.address, ClientCredentials(ca=authority.ca)))
        tried = proxy.accepted

    def count_refused() -> int:
        return int(json.loads(get(secure.http_address, "/status.json", proof).text)["security"]["refused_connections"])

    with AdminClient(authority.address(secure.address, "all", *EVERYTHING)):
        eventually(lambda: count_refused() >= 14, "each was tried once by gRPC, and once more to find out why")
        assert count_refused() <= tried
