"""The status of one business, for a client with a role for it alone, contains nothing of other businesses."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.machine.mirror import Home
from venus.broker.mirrors import topology_position
from venus.broker.mirrors.home_succession import HomeSuccession
from venus.broker.mirrors.mirror_status import MirrorStatuses
from venus.broker.mirrors.session_requests import MirrorState, ReplicatorStatus
from venus.broker.mirrors.topology_position import SetPosition
from venus.broker.mirrors.upstream_selection import AwayFromNearest, FitnessKind
from venus.broker.replicas.replication_status import ReplicationStatus, business_of
from venus.broker.service.metrics import build_registry
from venus.broker.service.service_status import ServiceStatus
from venus.broker.service.traffic_status import TrafficStatus
from venus.config import ClusterSettings
from venus.coordination.etcd import EtcdCoordinator
from venus.flow.admission import Limiter, LimiterRecord
from venus.network.row_filters import RowFilter
from venus.network.scheduling import Load
from venus.replication.records import InstallationProgress, Leadership, LiveBroker, Member
from venus.rpc.address import ClientCredentials
from venus.wire import broker_pb2

OWN, OTHER = "main", "payroll"


WELL: Any = SimpleNamespace(trouble="")


def host_of(
    live: tuple[LiveBroker, ...] = (), records: tuple[Leadership, ...] = (), troubles: dict[str, str] | None = None
) -> Any:
    return SimpleNamespace(
        me=SimpleNamespace(member=SimpleNamespace(broker="a")),
        troubles=troubles or {},
        replicas={},
        brokers=SimpleNamespace(live={one.member: one for one in live}),
        records={known.business: known for known in records},
    )


def status() -> broker_pb2.BrokerStatus:
    return broker_pb2.BrokerStatus(businesses=[broker_pb2.BusinessStatus(business=OWN)])


@pytest.mark.parametrize(("business", "shown"), [(OWN, [OWN]), ("", [OWN, OTHER])])
def test_installations_of_other_businesses_are_left_out(business: str, shown: list[str]) -> None:
    host = host_of(troubles={OTHER: "its log has diverged"})
    coordination: Any = SimpleNamespace(unreachable="", invalid=())
    installing = tuple(
        InstallationProgress(business=name, leader="b", records=7, records_expected=9, nbytes=70, bytes_per_s=7)
        for name in (OWN, OTHER)
    )
    shared: Any = None
    found = status()
    ReplicationStatus("cluster", host, shared, coordination, lambda: installing, WELL).add_to_status(found, business)

    assert [one.business for one in found.installations] == shown
    assert [OTHER in text for text in found.alarms] == [name == OTHER for name in shown]


@pytest.mark.parametrize(("business", "shown"), [(OWN, ["", OWN]), ("", ["", OWN, OTHER])])
def test_throttled_clients_of_other_businesses_are_left_out(business: str, shown: list[str]) -> None:
    record = LimiterRecord()
    for name in ("", OWN, OTHER):
        record.record_delay(Limiter.ROWS, name, "a producer", 1.0, 10.0)
    traffic: Any = SimpleNamespace(monotonic=lambda: 10.0, admission=SimpleNamespace(record=record))
    nothing: Any = None
    found = TrafficStatus(traffic, nothing, nothing, nothing, nothing, nothing)._limiter_metrics(10.0, 0, business)

    assert [one.business for one in found] == shown


@pytest.mark.parametrize(("business", "shown"), [(OWN, [OWN]), ("", [OWN, OTHER, "wages"])])
def test_mirrors_and_refusals_of_other_businesses_are_left_out(business: str, shown: list[str]) -> None:
    away = AwayFromNearest(at="t2", nearest="t1", kind=FitnessKind.SILENT, why="it is gone", since=0.0, checked_at=9.0)
    follows, refused = (
        ReplicatorStatus(state=MirrorState.FOLLOWING),
        ReplicatorStatus(state=MirrorState.REFUSED, reason="it is of another network"),
    )
    pulls: dict[str, Any] = {
        name: SimpleNamespace(business=name, status=found_status, absence=lambda found=found: found)
        for name, found_status, found in ((OWN, follows, away), (OTHER, follows, away), ("wages", refused, None))
    }
    some: Any = SimpleNamespace(all=tuple(pulls.values()), get=lambda _: None)
    rows: Any = SimpleNamespace(alarms=lambda *_: [], find_absent=lambda *_: [])
    found = status()
    own: Any = SimpleNamespace(committed=SimpleNamespace(is_mirror=False))
    core: Any = SimpleNamespace(clock_us=lambda: 0, catalogue=SimpleNamespace(find=lambda _: own))
    here = SetPosition(set="eu", tier="access", level=2)
    statuses = MirrorStatuses(core, ClusterSettings(), {}, here, rows, some, lambda: 10.0)
    statuses.add_to_status(found, "t2", {}, "", [], [], business)

    said = " ".join(found.alarms)
    assert [name for name in (OWN, OTHER, "wages") if name in said] == shown


@pytest.mark.parametrize("business", [OWN, ""])
def test_each_part_of_the_status_gets_the_requested_business(business: str) -> None:
    asked: list[Any] = []
    core: Any = SimpleNamespace(status=lambda *_: status())

    def add(_: broker_pb2.BrokerStatus, business: str = "") -> None:
        asked.append(business)

    adds: Any = SimpleNamespace(add_to_status=add)
    network: Any = SimpleNamespace(add_to_status=add)
    service = ServiceStatus(core)
    service.replication = service.traffic = adds
    service.network = network
    service.status(business)

    assert asked == [business] * 3


@pytest.mark.parametrize(("business", "shown"), [(OWN, [OWN]), ("", [OWN, OTHER])])
def test_unusable_records_of_other_businesses_are_left_out(business: str, shown: list[str]) -> None:
    host = host_of()
    lines = tuple(f"/venus/c/businesses/{name} cannot be used: it is not JSON" for name in (OWN, OTHER))
    coordination: Any = SimpleNamespace(
        unreachable="", invalid=("/venus/c/brokers/b cannot be used: it is not JSON", *lines)
    )
    shared: Any = None
    found = status()
    ReplicationStatus("cluster", host, shared, coordination, lambda: (), WELL).add_to_status(found, business)

    said = " ".join(found.alarms)
    assert "/brokers/b" in said
    assert [name for name in (OWN, OTHER) if name in said] == shown


def test_a_record_of_a_business_with_any_name_is_found_by_it() -> None:
    key = EtcdCoordinator(["127.0.0.1:1"], "c")._key("businesses", "a/b c")
    assert business_of(f"{key} cannot be used: it is not JSON") == "a/b c"


@pytest.mark.parametrize(("business", "shown"), [(OWN, [OWN]), ("", [OWN, OTHER]), ("wages", [])])
@pytest.mark.parametrize("upstream", [(), ("10.0.0.1:7411",)])
def test_moved_homes_of_other_businesses_are_left_out(
    business: str, shown: list[str], upstream: tuple[str, ...]
) -> None:
    homes = {name: Home(set="eu", term=2, addresses=(), here=True) for name in (OWN, OTHER)}
    stored = [SimpleNamespace(name=name, committed=SimpleNamespace(home=home)) for name, home in homes.items()]
    core: Any = SimpleNamespace(catalogue=SimpleNamespace(list_stored=lambda: stored))
    succession = HomeSuccession(core, SetPosition(set="eu", tier="core", level=0), upstream, ClientCredentials())
    succession._former.found_problems = {
        "10.0.0.1:7411": {name: f"set hq at 10.0.0.1:7411 is a home of {name} as well: it is old" for name in homes},
        "10.0.0.2:7411": {"": "a broker at 10.0.0.2:7411 answers, and may take writes as the former home: it is odd"},
    }

    said = " ".join(succession.alarms(business))
    assert [name for name in (OWN, OTHER) if name in said] == shown
    assert ("10.0.0.2" in said) == (bool(shown) or not upstream)


@pytest.mark.parametrize(("business", "shown"), [(OWN, [OWN]), ("", [OWN, OTHER])])
def test_labels_and_predicates_of_other_businesses_are_left_out(business: str, shown: list[str]) -> None:
    labels = {"eu": [f"business:{OWN}", f"business:{OTHER}"]}
    where = {name: (RowFilter(table="shop.orders", predicate="id < 5"),) for name in (OWN, OTHER)}
    said = [
        *topology_position.find_absent_labels(labels, ["eu"], [], [], business),
        *topology_position.find_unmatched_predicates(topology_position.items_of_business(where, business), {}, "hq"),
        *topology_position.format_filters(topology_position.items_of_business(where, business)),
    ]
    assert len(said) == 3 * len(shown)
    assert [name for name in (OWN, OTHER) if name in " ".join(said)] == shown


def test_the_load_of_all_brokers_is_shown_and_a_broker_counts_its_own() -> None:
    a, b = Member(broker="a", store="s"), Member(broker="b", store="s")
    load = Load(cpu=0.25, memory=0.5, disk=0.75, network=0.05)
    live = (
        LiveBroker(member=b, address="b:1", unhealthy="lane 4 (details) is degraded"),
        LiveBroker(member=a, address="a:1", site="east", load=load),
    )
    records = tuple(
        Leadership(business=f"x{n}", term=1, leader=(a, b)[n > 1], in_sync=frozenset({a, b}), replicas=("a", "b"))
        for n in range(3)
    )
    coordination: Any = SimpleNamespace(unreachable="", invalid=())
    found = broker_pb2.BrokerStatus()
    shared: Any = None
    replication = ReplicationStatus("cluster", host_of(live, records), shared, coordination, lambda: (), WELL)
    replication.add_to_status(found, OWN)
    assert not found.brokers, "a role for one business does not show how many brokers there are"
    replication.add_to_status(found)

    assert [(one.broker, one.site, one.leads, one.follows, one.reported) for one in found.brokers] == [
        ("a", "east", 2, 1, True),
        ("b", "", 1, 2, False),
    ]
    assert found.brokers[1].unhealthy == "lane 4 (details) is degraded"
    registry = build_registry(found, 0)
    shares = {name: registry.get_sample_value("venus_load", {"resource": name}) for name in asdict(load)}
    assert shares == asdict(load)
    assert registry.get_sample_value("venus_businesses", {"role": "leads"}) == 2
    assert registry.get_sample_value("venus_businesses", {"role": "follows"}) == 1


def test_a_broker_without_a_cluster_shows_no_brokers() -> None:
    assert build_registry(status(), 0).get_sample_value("venus_businesses", {"role": "leads"}) is None
