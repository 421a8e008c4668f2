"""The directory of running brokers: clients know one address of one set, and are directed to the nearest set."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.certificates import HOSTS, Authority
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.networks import has, settings_of, starting
from tests.support.brokers.servers import BUSINESS, commit, fill, take
from tests.support.engines.batches import half
from tests.support.pipelines.end_to_end import EndToEnd
from tests.support.waiting import eventually
from venus import client
from venus.adapters.verify.findings import ComparisonVerdict
from venus.broker.mirrors import directory_exchange
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.cli.app import run
from venus.config import BrokerSettings
from venus.errors import Denied, ProtocolError, VenusError
from venus.network.topology import Tier
from venus.rpc import broker_selection, directory
from venus.rpc.address import CONSUMER, NONE, PRODUCER, BrokerAddress, DirectoryLookup, find_by_directory
from venus.rpc.admin import AdminClient
from venus.rpc.directory import NetworkClient, ask_where
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.wire import network_pb2

pytestmark = pytest.mark.integration

Sets = dict[str, RunningBroker]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep directory answers in a folder of the test, and exchange them often."""
    monkeypatch.setattr(directory_exchange, "EXCHANGE_S", 0.3)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(broker_selection, "_followed", {})
    monkeypatch.setattr(directory, "AGAIN_S", 0.1)


@pytest.fixture
def sets(tmp_path: Path) -> Iterator[Sets]:
    """Start a home in Berlin, and access sets in Lyon and Nice; yield them when each one knows that all are ready."""
    with starting(tmp_path) as start:
        hq = start("hq", site="berlin", near={"rome": ("nice", "lyon")})
        fill(hq.address, 1, 3)
        lyon = start("lyon", hq.address, site="lyon")
        nice = start("nice", hq.address, site="nice")
        found = {"hq": hq, "lyon": lyon, "nice": nice}
        for name in ("lyon", "nice"):
            has(found[name].address, 3)
        for broker in found.values():
            until_named(broker.address, "nice", "nice", "lyon", "hq")
        yield found


def where(address: str, role: str, site: str = "", business: str = BUSINESS) -> list[str]:
    return [one.set for one in ask_where(BrokerAddress(address), DirectoryLookup((), role, business, site)).sets]


def until_named(address: str, site: str, *names: str) -> None:
    """Wait until a broker names these sets for a consumer."""
    eventually(lambda: where(address, CONSUMER, site) == list(names))


def until_known(address: str, sets: dict[str, set[str]]) -> None:
    """Wait until a broker names these sets with these brokers."""

    def sets_there() -> dict[str, set[str]]:
        answer = ask_where(BrokerAddress(address), DirectoryLookup((), CONSUMER, BUSINESS))
        return {one.set: set(one.addresses) for one in answer.sets}

    eventually(lambda: sets_there() == sets)


def until_alarm(address: str, words: str) -> None:
    """Wait until a broker has an alarm with this beginning."""

    def is_raised() -> bool:
        with AdminClient(address) as admin:
            return any(text.startswith(words) for text in admin.status().alarms)

    eventually(is_raised)


def test_every_broker_of_every_set_names_all_sets_in_the_same_order(sets: Sets) -> None:
    for broker in sets.values():
        assert where(broker.address, PRODUCER) == ["hq"]
        assert where(broker.address, CONSUMER, "nice") == ["nice", "lyon", "hq"]
        assert where(broker.address, CONSUMER, "lyon") == ["lyon", "nice", "hq"]
        until_named(broker.address, "rome", "nice", "lyon", "hq")
        with AdminClient(broker.address) as admin:
            assert admin.status().network.sets_known == 3
    with pytest.raises(ProtocolError, match=r"role 'producers' is unknown \(did you mean producer"):
        where(sets["hq"].address, "producers")


def test_a_client_is_sent_to_the_nearest_set_and_continues_when_its_address_is_gone(
    sets: Sets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 100: the client knows one address, that of Lyon."""
    seed = sets["lyon"].address
    writer = find_by_directory([seed], PRODUCER, BUSINESS, "nice", NONE)
    reader = find_by_directory([seed], CONSUMER, BUSINESS, "nice", NONE)
    with Producer(writer, BUSINESS, "p", window_bytes_max=1 << 20) as producer:
        assert producer.address == sets["hq"].address
        producer.connect(0, 3)
        with Subscriber(reader, BUSINESS, "main/t", credit_bytes=1 << 20) as subscriber:
            assert subscriber.address == sets["nice"].address
            subscriber.open(3, 0)
            sets["lyon"].stop()
            commit(producer, [half(4)])
            assert sum(increment.count for increment in take(subscriber, 4)) == 1
    sets["nice"].stop()
    with Subscriber(reader, BUSINESS, "main/t", credit_bytes=1 << 20) as subscriber:
        assert subscriber.address == sets["hq"].address
        subscriber.open(4, 0)
    monkeypatch.setattr(broker_selection, "_followed", {})  # a new process, and its configured address is gone
    with Subscriber(reader, BUSINESS, "main/t", credit_bytes=1 << 20) as subscriber:
        assert subscriber.address == sets["hq"].address


def test_commands_and_programs_need_one_address_of_any_set(
    sets: Sets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "venus.toml"
    file.write_text(f'[broker]\ndirectory = ["{sets["nice"].address}"]\n[cluster]\nsite = "lyon"\n')
    assert run(["half", "list", "-c", str(file)]) == 0, "the home is asked"
    capsys.readouterr()
    assert run(["status", "-c", str(file), "--json"]) == 1, "no source is configured"
    assert json.loads(capsys.readouterr().out)["broker"]["address"] == sets["hq"].address
    assert run(["cluster", "topology", "-c", str(file), "--json"]) == 0
    named = {one["set"] for one in json.loads(capsys.readouterr().out)["sets"] if one["asked"]}
    assert named == {"hq", "lyon", "nice"}, "from a lower set all others are found"
    with client.connect(directory=sets["nice"].address, site="lyon") as broker:
        assert broker.status()["network"]["set"] == "lyon"


def test_the_whole_pipeline_needs_one_address(tmp_path: Path, database: str) -> None:
    source = tmp_path / "app.db"
    with sqlite3.connect(source) as app:
        app.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        app.executemany("INSERT INTO item VALUES (?, ?)", [(n, f"item {n}") for n in range(100)])
    app.close()
    e2e = EndToEnd(tmp_path, f"sqlite:///{source}", database)
    try:
        found = BrokerSettings(directory=(e2e.broker.address,))
        e2e.settings = e2e.settings.model_copy(update={"broker": found})
        e2e.install()
        e2e.load()
        e2e.start()
        with sqlite3.connect(source) as app:
            app.execute("INSERT INTO item VALUES (100, 'new')")
        app.close()
        e2e.wait_until_caught_up()
        assert e2e.verify().verdict is ComparisonVerdict.SAME
        assert {lookup.role for lookup, _ in broker_selection._followed} == {PRODUCER, CONSUMER}
        e2e.stop()
    finally:
        e2e.close()


def test_false_reports_of_a_set_about_others_are_ignored(sets: Sets) -> None:
    hq = sets["hq"].address
    evil = network_pb2.ReportedSet(set="evil", set_id="e", tier=Tier.ACCESS, level=1, addresses=["127.0.0.1:9"])
    lies = [
        network_pb2.ReportedSet(set="lyon", set_id="e", tier=Tier.ACCESS, level=2, addresses=["127.0.0.1:9"]),
        network_pb2.ReportedSet(set="hq", set_id="e", tier=Tier.CORE, level=0, home=True, addresses=["127.0.0.1:9"]),
    ]
    reporter = NetworkClient(hq)
    try:
        reporter.report(network_pb2.NetworkReport(group="mirror/evil", sets=[evil, *lies]))
        assert where(hq, PRODUCER) == ["hq"]
        addresses = {
            one.set: list(one.addresses)
            for one in ask_where(BrokerAddress(hq), DirectoryLookup((), CONSUMER, BUSINESS)).sets
        }
        assert addresses["lyon"] == [sets["lyon"].address]
        assert addresses["hq"] == [hq]
        until_alarm(hq, "two sets are called lyon")
        for group in ("mirror/lyon", "evil", ""):
            with pytest.raises(ProtocolError, match="reports another set than its own"):
                reporter.report(network_pb2.NetworkReport(group=group, sets=[evil]))
        wrong = network_pb2.ReportedSet(set="evil", set_id="e", tier="access", level=1, addresses=["no address"])
        with pytest.raises(ProtocolError, match=r"ReportedSet\.addresses is 'no address'"):
            reporter.report(network_pb2.NetworkReport(group="mirror/evil", sets=[wrong]))
    finally:
        reporter.close()


def test_two_sets_of_one_name_are_an_alarm_at_the_set_above_and_at_the_second(sets: Sets, tmp_path: Path) -> None:
    twin = start_in_thread(settings_of(tmp_path / "twin", [sets["hq"].address], set_name="lyon"))
    try:
        for address in (sets["hq"].address, twin.address):
            until_alarm(address, "two sets are called lyon")
        assert where(sets["hq"].address, CONSUMER, "lyon") == ["lyon", "nice", "hq"], "the first one keeps the name"
    finally:
        twin.stop()


def test_brokers_of_a_cluster_share_what_sets_below_report(tmp_path: Path, etcd_server: EtcdCluster) -> None:
    """Lyon knows one broker of the cluster; the other one lists Lyon as well, and the cluster with both brokers."""
    with BrokerCluster(tmp_path, etcd_server, "ab", set="hq") as cluster:
        first, second = (broker.address for broker in cluster.brokers.values())
        lyon = start_in_thread(settings_of(tmp_path / "lyon", [first]))
        try:
            for address in (first, second, lyon.address):
                until_known(address, {"hq": {first, second}, "lyon": {lyon.address}})
        finally:
            lyon.stop()


def test_with_tls_a_set_reports_only_itself_and_clients_ask_with_any_role(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    hq = settings_of(tmp_path / "hq", ()).model_copy(update={"security": authority.security()})
    home = start_in_thread(hq)
    try:
        authority.issue("eu", "consumer(mirror/eu, *)", hosts=HOSTS)
        eu = settings_of(tmp_path / "eu", [home.address]).model_copy(update={"security": authority.security("eu")})
        mirror = start_in_thread(eu)
        try:
            reader = authority.address(home.address, "reader", f"reader({BUSINESS})")
            lookup = DirectoryLookup((), CONSUMER, BUSINESS)
            eventually(lambda: {one.set for one in ask_where(reader, lookup).sets} == {"hq", "eu"})
            with pytest.raises(Denied):
                ask_where(reader, replace(lookup, business="other"))
            own = BrokerAddress(home.address, authority.proof("eu"))
            asia = network_pb2.ReportedSet(set="asia", set_id="a", tier="access", level=1, addresses=["127.0.0.1:9"])
            for address in (own, reader):
                stranger = NetworkClient(address)
                with pytest.raises(Denied):
                    stranger.report(network_pb2.NetworkReport(group="mirror/asia", sets=[asia]))
                with pytest.raises(Denied):
                    stranger.share()
                stranger.close()
        finally:
            mirror.stop()
    finally:
        home.stop()


def test_a_broker_of_an_older_version_is_reported_by_name(sets: Sets, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed without the directory service, such as version 0.1.0: its addresses must be configured."""

    def answer_without(*_: object) -> network_pb2.WhereAnswer:
        raise ProtocolError("the peer does not implement this call", hint="is it a VENUS broker?")

    following = directory.DirectoryFollower(
        DirectoryLookup(("a:1",), CONSUMER, BUSINESS), NONE, broker_selection.BrokerSelector, where=answer_without
    )
    with pytest.raises(VenusError, match="a:1: the peer does not implement this call") as failure:
        following.selector()
    assert "[broker] addresses" in failure.value.hint
