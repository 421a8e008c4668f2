"""The status of one business, for somebody who has a role for it alone, says nothing of what another one does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.mirrors.mirror_status import MirrorStatuses
from venus.broker.mirrors.place import Place
from venus.broker.mirrors.progress import State, Told
from venus.broker.mirrors.uppers import Away, Kind
from venus.broker.service.replication_status import ReplicationStatus
from venus.broker.service.service_status import ServiceStatus
from venus.broker.service.traffic_status import TrafficStatus
from venus.config import Cluster
from venus.flow.braking import Brake, Record
from venus.replication.records import Installing
from venus.wire import broker_pb2

OWN, OTHER = "main", "payroll"


def status() -> broker_pb2.BrokerStatus:
    return broker_pb2.BrokerStatus(businesses=[broker_pb2.BusinessStatus(business=OWN)])


@pytest.mark.parametrize(("business", "shown"), [(OWN, [OWN]), ("", [OWN, OTHER])])
def test_whose_copies_are_being_installed(business: str, shown: list[str]) -> None:
    member: Any = SimpleNamespace(member=SimpleNamespace(broker="a"), unhealthy="")
    host: Any = SimpleNamespace(me=member, troubles={OTHER: "its log has diverged"}, replicas={})
    coordination: Any = SimpleNamespace(unreachable="", invalid=())
    installing = tuple(
        Installing(business=name, leader="b", records=7, records_expected=9, nbytes=70, bytes_per_s=7)
        for name in (OWN, OTHER)
    )
    shared: Any = None
    found = status()
    ReplicationStatus("cluster", host, shared, coordination, lambda: installing).lay_over(found, business)

    assert [one.business for one in found.installations] == shown
    assert [OTHER in text for text in found.alarms] == [name == OTHER for name in shown]


@pytest.mark.parametrize(("business", "shown"), [(OWN, ["", OWN]), ("", ["", OWN, OTHER])])
def test_who_is_braked(business: str, shown: list[str]) -> None:
    record = Record()
    for name in ("", OWN, OTHER):
        record.told(Brake.ROWS, name, "a producer", 1.0, 10.0)
    traffic: Any = SimpleNamespace(monotonic=lambda: 10.0, admission=SimpleNamespace(record=record))
    nothing: Any = None
    found = TrafficStatus(traffic, nothing, nothing, nothing, nothing)._brakes(10.0, 0, business)

    assert [one.business for one in found] == shown


@pytest.mark.parametrize(("is_whole", "shown"), [(False, [OWN]), (True, [OWN, OTHER, "wages"])])
def test_whose_mirrors_come_from_elsewhere_or_are_refused(is_whole: bool, shown: list[str]) -> None:
    away = Away(at="t2", nearest="t1", kind=Kind.SILENT, why="it is gone", since=0.0, looked_at=9.0)
    follows, refused = Told(state=State.FOLLOWING), Told(state=State.REFUSED, reason="it is of another network")
    pulls: dict[str, Any] = {
        name: SimpleNamespace(business=name, told=told, away=lambda found=found: found)
        for name, told, found in ((OWN, follows, away), (OTHER, follows, away), ("wages", refused, None))
    }
    some: Any = SimpleNamespace(all=tuple(pulls.values()), get=lambda _: None)
    rows: Any = SimpleNamespace(alarms=lambda *_: [], absent=lambda *_: [])
    found = status()
    own: Any = SimpleNamespace(committed=SimpleNamespace(is_mirror=False))
    core: Any = SimpleNamespace(clock_us=lambda: 0, catalogue=SimpleNamespace(known=lambda _: own))
    place = Place(set="eu", tier="access", level=2)
    statuses = MirrorStatuses(core, Cluster(), {}, place, rows, some, lambda: 10.0)
    statuses.lay_over(found, "t2", {}, "", [], [], is_whole=is_whole)

    said = " ".join(found.alarms)
    assert [name for name in (OWN, OTHER, "wages") if name in said] == shown


@pytest.mark.parametrize("business", [OWN, ""])
def test_everybody_who_adds_to_it_knows_what_was_asked_for(business: str) -> None:
    asked: list[Any] = []
    core: Any = SimpleNamespace(status=lambda *_: status())
    adds: Any = SimpleNamespace(lay_over=lambda _, business="", *, is_whole=True: asked.append(business or is_whole))
    service = ServiceStatus(core)
    service.replication = service.traffic = service.network = adds
    service.status(business)

    assert asked == ([OWN, False, OWN] if business else [True, True, True])
