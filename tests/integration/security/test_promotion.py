"""A promotion with certificates for every broker, producer and operator, and what each role allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.brokers import networks
from tests.support.brokers.certificates import EVERYTHING, HOSTS, Authority
from tests.support.brokers.servers import BUSINESS, commit
from tests.support.engines.batches import half
from tests.support.ports import free_port
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.cli.app import run
from venus.rpc.address import BrokerAddress
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.text.alarm_rules import classify_sentence
from venus.wire import broker_pb2

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
StartCore = Callable[..., RunningBroker]
SURE_S = 60.0


class Sites:
    """A head office with three batches of five rows, and a core set that mirrors it; both require certificates."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder, self.authority = folder, authority
        self.at = {name: f"127.0.0.1:{free_port()}" for name in ("hq", "second")}
        self.running: dict[str, RunningBroker] = {}

    def start(self, name: str, *roles: str, upstream: str = "") -> None:
        """Start a set with a certificate for these roles."""
        if not (self.authority.folder / f"{name}.crt").exists():
            self.authority.issue(name, *roles, hosts=HOSTS)
        above = [self.at[upstream]] if upstream else []
        chosen = networks.settings_of(self.folder / name, above, tier="core", level=0, listen=self.at[name])
        self.running[name] = start_in_thread(chosen.model_copy(update={"security": self.authority.security(name)}))

    def start_both(self, *roles: str) -> None:
        """Start both sets, and wait until the second has everything."""
        self.start("hq", "broker", "consumer(mirror/hq, *)")
        with self.producer("hq") as found:
            found.connect(0, 0)
            commit(found, [half(n, rows=5) for n in range(1, 4)])
        self.start("second", *roles, upstream="hq")
        eventually(lambda: self.status("second").mirror.state == "following", timeout_s=SURE_S)  # with its full data
        eventually(lambda: self.status("second").materialised_offset == 15, timeout_s=SURE_S)

    def address_of(self, name: str) -> BrokerAddress:
        return self.authority.address(self.at[name], "all", *EVERYTHING)

    def producer(self, name: str) -> Producer:
        return Producer(self.address_of(name), BUSINESS, "source", window_bytes_max=1 << 20)

    def status(self, name: str) -> broker_pb2.BusinessStatus:
        with AdminClient(self.address_of(name)) as admin:
            found = admin.status().businesses
        return found[0] if found else broker_pb2.BusinessStatus()

    def alarms(self, name: str) -> list[str]:
        with AdminClient(self.address_of(name)) as admin:
            return list(admin.status().alarms)

    def promote(self, who: str, *roles: str) -> int:
        """Run the command as a user; return its exit code."""
        proof = self.authority.proof(who, *roles)
        file = self.folder / "console.toml"
        file.write_text(
            f'[broker]\naddresses = ["{self.at["second"]}"]\n[security]\nca = "{proof.ca}"\n'
            f'certificate = "{proof.certificate}"\nkey = "{proof.key}"\naudit_file = "{self.folder}/audit"\n'
        )
        return run(["cluster", "promote", "--yes", "-c", str(file)])

    def close(self) -> None:
        for broker in self.running.values():
            broker.stop()


@pytest.fixture
def sites(tmp_path: Path, authority: Authority) -> Iterator[Sites]:
    made = Sites(tmp_path, authority)
    yield made
    made.close()


def test_a_set_is_promoted_and_the_old_home_steps_down(sites: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    sites.start_both("broker", "viewer", "consumer(mirror/second, *)")
    assert sites.promote("operator", "operator") == 3
    assert "the home is not gone, set hq at" in capsys.readouterr().err
    sites.running["hq"].stop()
    assert sites.promote("reader", "viewer") == 3
    assert "role operator is missing" in capsys.readouterr().err
    assert not sites.status("second").HasField("home")
    assert sites.promote("operator") == 0

    with sites.producer("second") as source:
        epoch = source.connect(1, 4).epoch
        source.report_committed(4, 21)
        source.wait_until_decided(4)
        commit(source, [half(5, rows=5)])
    (window,) = sites.status("second").losses
    assert (window.first_offset, window.first_batch, window.last_batch) == (15, 4, 4)

    sites.start("hq")
    eventually(lambda: sites.status("hq").replaced, timeout_s=SURE_S)
    with sites.producer("hq") as late:
        late.connect(epoch, 5)
        assert late.address == sites.at["second"]
    sites.running["hq"].stop()
    sites.start("hq", upstream="second")
    eventually(lambda: sites.status("hq").mirror.state == "following", timeout_s=SURE_S)
    eventually(lambda: sites.status("hq").next_offset == sites.status("second").next_offset)


def test_a_new_home_without_the_role_reports_that_it_cannot_inform_the_old_one(sites: Sites) -> None:
    sites.start_both("consumer(mirror/second, *)")
    sites.running["hq"].stop()
    assert sites.promote("operator", "operator") == 0
    sites.start("hq")

    (said,) = eventually(lambda: [text for text in sites.alarms("second") if "as well" in text], timeout_s=SURE_S)
    assert said.startswith(f"set hq at {sites.at['hq']} is a home of main as well: it cannot be asked to step down: ")
    assert "second may not use StepDown: role broker or operator is missing" in said
    assert classify_sentence(said)[0].name == "two_homes"
    assert not sites.status("hq").replaced

    sites.authority.issue("second", "broker", "consumer(mirror/second, *)", hosts=HOSTS, replace=True)
    sites.running["second"].stop()
    sites.start("second", upstream="hq")
    eventually(lambda: sites.status("hq").replaced, timeout_s=SURE_S)
    eventually(lambda: not [text for text in sites.alarms("second") if "as well" in text])


def test_a_home_that_refuses_status_requests_counts_as_alive(sites: Sites, capsys: pytest.CaptureFixture[str]) -> None:
    sites.start_both("consumer(mirror/second, *)")
    sites.running["second"].stop()
    sites.authority.issue("second", "broker", hosts=HOSTS, replace=True)
    sites.start("second", upstream="hq")
    assert sites.promote("operator", "operator") == 3
    said = capsys.readouterr().err
    assert f"the home is not gone, a broker at {sites.at['hq']} answers (second may not use Status" in said
    assert sites.status("second").HasField("mirror")
