"""Broker sets with TLS: a mirror presents a certificate with a role to the set above, or reports what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.certificates import EVERYTHING, HOSTS, Authority
from tests.support.brokers.servers import BUSINESS, commit, take
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.config import SecuritySettings
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration
StartMirror = Callable[[SecuritySettings], RunningBroker]


@pytest.fixture
def home(tmp_path: Path, authority: Authority) -> Iterator[RunningBroker]:
    settings = networks.settings_of(tmp_path / "hq", ()).model_copy(update={"security": authority.security()})
    broker = start_in_thread(settings)
    with producer(broker, authority, 0) as found:
        commit(found, [half(1, rows=5)])
    yield broker
    broker.stop()


@pytest.fixture
def start(tmp_path: Path, home: RunningBroker) -> Iterator[StartMirror]:
    running: list[RunningBroker] = []

    def start_broker(security: SecuritySettings) -> RunningBroker:
        settings = networks.settings_of(tmp_path / "eu", [home.address])
        running.append(start_in_thread(settings.model_copy(update={"security": security})))
        return running[-1]

    yield start_broker
    for broker in running:
        broker.stop()


def producer(broker: RunningBroker, authority: Authority, after: int) -> Producer:
    found = Producer(authority.address(broker.address, "all", *EVERYTHING), BUSINESS, "p", window_bytes_max=1 << 20)
    found.connect(0, after)
    return found


def mirror_of(address: BrokerAddress) -> broker_pb2.MirrorStatus:
    with AdminClient(address) as admin:
        return next((b.mirror for b in admin.status().businesses), broker_pb2.MirrorStatus())


def wait_for_message(address: BrokerAddress | str, words: str) -> None:
    """Wait until the mirror is not following and its status has this text as its only line."""

    def is_reported() -> bool:
        with AdminClient(address) as admin:
            status = admin.status()
        return [alarm for alarm in status.alarms if "until" not in alarm] == [words] and not status.businesses

    eventually(is_reported)


@pytest.mark.parametrize("role", ["consumer(*, *)", "consumer(mirror/eu, *)"])
def test_a_certificate_with_the_role_is_enough(
    home: RunningBroker, authority: Authority, start: StartMirror, role: str
) -> None:
    authority.issue("eu", role, hosts=HOSTS)
    mirror = start(authority.security("eu"))
    reader = authority.address(mirror.address, "reader", "consumer(*, *)")

    eventually(lambda: mirror_of(reader).state == "following")
    with producer(home, authority, 1) as more:
        commit(more, [half(2, rows=5)])
    with Subscriber(reader, BUSINESS, "main/eu", credit_bytes=1 << 20) as subscriber:
        subscriber.open(5, 0)
        assert sum(increment.count for increment in take(subscriber, 10)) == 5


@pytest.mark.parametrize("roles", [(), ("broker",), ("consumer(*, main)",), ("consumer(mirror/asia, *)",)])
def test_a_certificate_without_the_role_is_refused_with_the_missing_role(
    home: RunningBroker, authority: Authority, start: StartMirror, roles: tuple[str, ...]
) -> None:
    authority.issue("eu", *roles, hosts=HOSTS)
    mirror = start(authority.security("eu"))
    seen = authority.address(mirror.address, "ann", "operator")

    if roles == ("consumer(mirror/asia, *)",):  # its role lets it read the status, but not pull
        eventually(lambda: mirror_of(seen).state == "refused")
        assert "role consumer(mirror/eu, main) is missing" in mirror_of(seen).reason
    else:
        wait_for_message(seen, "this set mirrors nothing new: eu has no role consumer(mirror/eu, *) at the set above")


def test_a_mirror_without_tls_names_what_to_set(home: RunningBroker, start: StartMirror) -> None:
    mirror = start(SecuritySettings())
    wait_for_message(
        mirror.address,
        f"this set mirrors nothing new: the broker at {home.address} speaks TLS, and security.ca is not set",
    )


def test_a_set_above_with_an_unknown_certificate_is_refused(
    home: RunningBroker, tmp_path: Path, start: StartMirror
) -> None:
    other = Authority(tmp_path / "other")
    other.issue("eu", "consumer(*, *)", hosts=HOSTS)
    mirror = start(other.security("eu"))
    unsigned = f"the certificate of the broker at {home.address} is not signed by security.ca {other.ca}"
    wait_for_message(other.address(mirror.address, "ann", "operator"), f"this set mirrors nothing new: {unsigned}")


def test_a_mirror_certificate_of_an_unknown_authority_is_refused_above(
    home: RunningBroker, authority: Authority, tmp_path: Path, start: StartMirror
) -> None:
    other = Authority(tmp_path / "other")
    other.issue("eu", "consumer(*, *)", hosts=HOSTS)
    both = tmp_path / "both.crt"
    both.write_text(Path(authority.ca).read_text() + Path(other.ca).read_text())
    mirror = start(other.security("eu", ca=str(both)))
    ann = other.proof("ann", "operator")
    seen = BrokerAddress(mirror.address, ClientCredentials(ca=str(both), certificate=ann.certificate, key=ann.key))
    with AdminClient(seen) as admin:
        eventually(lambda: any("this set mirrors nothing new" in alarm for alarm in admin.status().alarms))
        (said,) = [alarm for alarm in admin.status().alarms if "mirrors nothing" in alarm]
    certificate = other.folder / "eu.crt"
    assert said.endswith(f"the broker at {home.address} does not accept our certificate {certificate}")


def test_a_revoked_role_stops_pulling_but_existing_data_is_served(
    home: RunningBroker, authority: Authority, start: StartMirror
) -> None:
    authority.issue("eu", "consumer(mirror/eu, *)", hosts=HOSTS)
    mirror = start(authority.security("eu"))
    reader = authority.address(mirror.address, "reader", "consumer(*, *)", "viewer")
    eventually(lambda: mirror_of(reader).state == "following")

    authority.issue("eu", hosts=HOSTS, replace=True)
    mirror.stop()
    again = start(authority.security("eu"))
    reader = authority.address(again.address, "reader", "consumer(*, *)", "viewer")
    with AdminClient(reader) as admin:
        eventually(lambda: any("has no role consumer(mirror/eu, *)" in alarm for alarm in admin.status().alarms))
        assert admin.status().businesses[0].materialised_offset == 5
