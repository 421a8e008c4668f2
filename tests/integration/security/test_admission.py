"""Admission by roles: each call is made with its own role, and with every other role."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from pydantic import SecretStr

from tests.integration.security.conftest import StartSecure
from tests.support.brokers.certificates import EVERYTHING, Authority, token_file
from tests.support.brokers.servers import BUSINESS, commit
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.service.access import FIRST_FRAME_S
from venus.broker.service.process import RunningBroker
from venus.errors import ConfigError, Denied, Unavailable, Unproven, VenusError
from venus.model import Verdict
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.rpc.admin import AdminClient
from venus.rpc.channel import open_channel
from venus.rpc.errors import from_rpc_error
from venus.rpc.producer import Producer
from venus.rpc.sealed import seal
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.security.identity import make_token
from venus.security.roles import CALLS, Call
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

METHODS = [method for service in broker_pb2.DESCRIPTOR.services_by_name.values() for method in service.methods]
#: Roles for another business, and each kind of role that does not allow the call.
ELSEWHERE = {
    "producer": "producer(other)",
    "consumer": "consumer(*, other)",
    "viewer": "viewer",
    "operator": "operator",
    "broker": "broker",
}


@pytest.fixture
def filled_snapshot(secure: RunningBroker, authority: Authority) -> Iterator[str]:
    """Write a row and an undecided half message; yield the id of a snapshot."""
    address = authority.address(secure.address, "all", *EVERYTHING)
    with Producer(address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        commit(sender, [half(1)])
        sender.send_half(half(2))
        sender.wait_until_persisted(2)
    with SnapshotClient(address) as snapshots:
        yield eventually(lambda: open_snapshot(snapshots))


def open_snapshot(snapshots: SnapshotClient) -> str:
    try:
        return str(snapshots.open(BUSINESS).snapshot_id)
    except Unavailable:
        return ""


def request_of(method: Any, snapshot: str) -> bytes:
    """Return a request of this method, or its first frame, that names the business."""
    message: Any = GetMessageClass(method.input_type)()
    if method.name == "Produce":
        message.init.business, message.init.producer = BUSINESS, "p"
    elif method.name == "Subscribe":
        message.open.business, message.open.group, message.open.credit_bytes = BUSINESS, f"{BUSINESS}/eu", 1000
    elif method.name == "Listen":
        message.open.business, message.open.credit_bytes = BUSINESS, 1000
    else:
        names = method.input_type.fields_by_name
        for name, value in (("business", BUSINESS), ("group", "gone"), ("snapshot_id", snapshot)):
            if name in names:
                setattr(message, name, value)
        if method.name == "Decide":
            message.batch_no, message.verdict = 2, broker_pb2.ROLLBACK
    return seal(message)


def call_error(address: BrokerAddress, method: Any, request: bytes) -> VenusError | None:
    """Make the call; return its error, or None."""
    with open_channel(address) as channel:
        call: Any = channel.stream_stream(f"/{method.containing_service.full_name}/{method.name}")
        try:
            list(call(iter([request]), timeout=60))
        except grpc.RpcError as error:
            return from_rpc_error(error)
    return None


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_call_is_refused_without_its_role_and_answered_with_it(
    secure: RunningBroker, authority: Authority, filled_snapshot: str, method: Any
) -> None:
    call = CALLS[f"/{method.containing_service.full_name}/{method.name}"]
    names_something = bool(call.business or call.snapshot)
    others = [text for kind, text in ELSEWHERE.items() if kind not in call.kinds or (names_something and "(" in text)]
    request = request_of(method, filled_snapshot)

    denial = call_error(authority.address(secure.address, "others", *others), method, request)

    assert isinstance(denial, Denied), denial
    assert f"others may not use {method.name}: role" in str(denial)
    wanted = str(denial).partition(": role ")[2].removesuffix(" is missing").split(" or ")
    enough = call_error(authority.address(secure.address, "enough", wanted[-1]), method, request)
    assert not isinstance(enough, Denied), enough


def test_a_certificate_without_roles_allows_only_health(secure: RunningBroker, authority: Authority) -> None:
    with AdminClient(authority.address(secure.address, "stranger")) as admin, pytest.raises(Denied) as caught:
        admin.status()

    assert "role operator or viewer is missing" in str(caught.value)
    assert "its roles are: none" in caught.value.hint


def test_an_adapter_of_another_business_cannot_read(
    secure: RunningBroker, authority: Authority, filled_snapshot: str
) -> None:
    other = authority.address(secure.address, "other", "producer(other)", "consumer(*, other)")

    with (
        Producer(other, BUSINESS, "p", window_bytes_max=1000) as sender,
        pytest.raises(Denied, match=r"producer\(main\)"),
    ):
        sender.connect(0, 0)
    with (
        Subscriber(other, BUSINESS, "main/eu", credit_bytes=1000) as reader,
        pytest.raises(Denied, match=r"role consumer\(eu, main\) is missing"),
    ):
        reader.open(0, 0)
    with SnapshotClient(other) as snapshots:
        with pytest.raises(Denied):
            snapshots.open(BUSINESS)
        with pytest.raises(Denied):
            snapshots.totals(filled_snapshot)
        with pytest.raises(Denied):
            snapshots.close(filled_snapshot)
    with SnapshotClient(authority.address(secure.address, "all", *EVERYTHING)) as snapshots:
        assert snapshots.totals(filled_snapshot), "and the snapshot is still there"


def test_a_consumer_cannot_decide_and_the_refusal_is_audited(
    secure: RunningBroker, authority: Authority, filled_snapshot: str, tmp_path: Path
) -> None:
    consumer = authority.address(secure.address, "eu", "consumer(eu, main)")
    operator = authority.address(secure.address, "ann", "operator")

    with AdminClient(consumer) as admin, pytest.raises(Denied, match="eu may not use Decide: role operator is missing"):
        admin.decide(BUSINESS, 2, Verdict.ROLLBACK)
    with AdminClient(operator) as admin:
        admin.decide(BUSINESS, 2, Verdict.ROLLBACK)
        with pytest.raises(VenusError):
            admin.forget("no such business", "g")

    log = tmp_path / "data0" / "audit.jsonl"  # the caller gets an error before the refusal is written
    lines = eventually(lambda: found if len(found := log.read_text().splitlines()) == 3 else None)
    refused, decided, failed = map(json.loads, lines)
    assert (refused["who"], refused["what"], refused["result"]) == ("eu", "/venus.wire.Admin/Decide", "refused")
    assert "role operator is missing" in refused["error"]
    assert refused["where"].startswith("ipv4:127.0.0.1:")
    assert (decided["who"], decided["result"]) == ("ann", "done")
    assert decided["request"] == {"business": BUSINESS, "batch_no": 2, "verdict": "ROLLBACK"}
    assert (failed["who"], failed["what"], failed["result"]) == ("ann", "/venus.wire.Admin/Forget", "failed")
    assert "no such business" in failed["error"]


def test_commands_are_audited_without_tls_too(tmp_path: Path) -> None:
    from tests.support.brokers.servers import settings
    from venus.broker.service.process import start_in_thread

    broker = start_in_thread(settings(tmp_path / "plain"))
    try:
        with AdminClient(broker.address) as admin, pytest.raises(VenusError):
            admin.forget("nothing", "g")
    finally:
        broker.stop()

    line = json.loads((tmp_path / "plain" / "audit.jsonl").read_text())
    assert (line["who"], line["what"], line["result"]) == ("nobody", "/venus.wire.Admin/Forget", "failed")


def test_tokens_instead_of_certificates(tmp_path: Path, start_secure: StartSecure, authority: Authority) -> None:
    good, line = make_token("grafana", "viewer")
    other, other_line = make_token("eu", "consumer(eu, main); producer(main)")
    broker = start_secure(client_auth="token", ca="", token_file=token_file(tmp_path / "tokens", line, other_line))

    def address_at(token: str) -> BrokerAddress:
        (tmp_path / "token").write_text(token + "\n")
        (tmp_path / "token").chmod(0o600)
        return BrokerAddress(broker.address, ClientCredentials(ca=authority.ca, token_file=str(tmp_path / "token")))

    with AdminClient(address_at(good)) as admin:
        admin.status()
        with pytest.raises(Denied, match="grafana may not use Forget"):
            admin.forget(BUSINESS, "g")
    with Producer(address_at(other), BUSINESS, "p", window_bytes_max=1000) as sender:
        sender.connect(0, 0)
    for wrong in ("", "x" * 43, "x" * 2000, good[:-1]):
        with pytest.raises(Unproven, match="asks for a certificate or a token that it knows"):
            AdminClient(address_at(wrong))
    (tmp_path / "tokens").write_text(other_line + "\n")
    with pytest.raises(Unproven):
        AdminClient(address_at(good))


def test_a_wrong_token_is_refused_despite_a_good_certificate(secure: RunningBroker, authority: Authority) -> None:
    proof = replace(authority.proof("ann", "operator"), token=SecretStr("x" * 43))

    with pytest.raises(Unproven):
        AdminClient(BrokerAddress(secure.address, proof))


def test_a_method_that_is_not_listed_is_refused(
    secure: RunningBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = authority.address(secure.address, "everything", *EVERYTHING, "viewer", "broker")
    for method in ("Status", "Forget"):
        monkeypatch.delitem(cast("dict[str, Call]", CALLS), f"/venus.wire.Admin/{method}")

    with AdminClient(address) as admin:
        with pytest.raises(Denied, match="role none that exists is missing"):
            admin.status()
        with pytest.raises(Denied):
            admin.forget(BUSINESS, "g")


def test_a_token_is_not_sent_without_tls(secure: RunningBroker) -> None:
    with pytest.raises(ConfigError, match=r"a token is set and security\.ca is not"):
        AdminClient(BrokerAddress(secure.address, ClientCredentials(token=SecretStr("abc"))))


def test_roles_by_name_replace_those_in_the_certificate(start_secure: StartSecure, authority: Authority) -> None:
    broker = start_secure(roles={"ann": ("viewer",), "left the company": ()})

    with AdminClient(authority.address(broker.address, "ann", "operator")) as admin:
        admin.status()
        with pytest.raises(Denied):
            admin.forget(BUSINESS, "g")
    with AdminClient(authority.address(broker.address, "left the company", "operator")) as admin, pytest.raises(Denied):
        admin.status()


def test_a_stream_that_names_no_business_ends(secure: RunningBroker, authority: Authority) -> None:
    silent = threading.Event()

    def frames() -> Iterator[bytes]:
        silent.wait(300)
        yield from ()

    with open_channel(authority.address(secure.address, "all", *EVERYTHING)) as channel:
        call: Any = channel.stream_stream("/venus.wire.Ingest/Produce")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(frames(), timeout=300))
    silent.set()

    assert f"no first frame within {FIRST_FRAME_S:.0f} s" in str(from_rpc_error(caught.value))


def test_a_refused_call_changes_nothing(secure: RunningBroker, authority: Authority) -> None:
    other = authority.address(secure.address, "other", "producer(other)")
    for number in range(20):
        with Producer(other, f"business {number}", "p", window_bytes_max=1000) as sender, pytest.raises(Denied):
            sender.connect(0, 0)

    with AdminClient(authority.address(secure.address, "all", *EVERYTHING)) as admin:
        assert not admin.status().businesses
