"""An upper adapter that is refused before it shipped anything is reported, although the broker lacks its business."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from venus.broker.service import service_status
from venus.broker.service.service_status import ServiceStatus
from venus.rpc.conditions import AdapterCondition, own_table_condition
from venus.rpc.reports import SOURCE, encode
from venus.text.alarm_rules import SOURCE as AT_SOURCE
from venus.text.alarm_rules import classify_sentence, hop_of
from venus.wire import broker_pb2

NOW_US = 1_800_000_000 * 10**6
GRANT = "GRANT SELECT ON venus.batch TO capture"


def refused_status(monkeypatch: pytest.MonkeyPatch, *names: str) -> ServiceStatus:
    """Return the status of a broker that has `main`, after reports of adapters for these businesses."""
    monkeypatch.setattr(service_status, "now_us", lambda: NOW_US)
    known = [broker_pb2.BusinessStatus(business="main")]
    core: Any = SimpleNamespace(
        status=lambda business, _: broker_pb2.BrokerStatus(businesses=[e for e in known if business in ("", "main")])
    )
    found = ServiceStatus(core)
    report = encode(AdapterCondition.of([own_table_condition("venus.batch", GRANT)]))
    for name in names:
        found.reports.record(name, SOURCE, report, NOW_US)
    return found


@pytest.mark.parametrize(("business", "shown"), [("", ["new", "payroll"]), ("new", ["new"]), ("main", [])])
def test_the_refusal_is_in_the_status_but_not_for_another_business(
    monkeypatch: pytest.MonkeyPatch, business: str, shown: list[str]
) -> None:
    found = refused_status(monkeypatch, "new", "payroll")

    said = list(found.status(business).alarms)

    assert said == [
        f"source: {name}: venus.batch is HALTED (may not be used: nothing is captured until `{GRANT}`; then capture "
        "continues by itself)"
        for name in shown
    ]
    assert {(classify_sentence(text)[0].name, hop_of(classify_sentence(text)[0], text)) for text in said} <= {
        ("table_halted", AT_SOURCE)
    }
    assert len({classify_sentence(text)[1] for text in said}) == len(shown), "an alarm each"


def test_the_refusal_stays_for_a_while_after_the_adapter_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = refused_status(monkeypatch, "new")
    found.reports.record_disconnect("new", SOURCE, NOW_US - 60 * 10**6)
    (said,) = found.status().alarms
    assert said.endswith("(as it was 60 s ago: its adapter has been away since)")

    found.reports.record_disconnect("new", SOURCE, NOW_US)
    monkeypatch.setattr(service_status, "now_us", lambda: NOW_US + int((service_status.APART_S + 60) * 1e6))
    assert list(found.status().alarms) == []


def test_the_refusal_is_reported_once_if_the_business_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    status = refused_status(monkeypatch, "main").status()
    assert list(status.alarms) == []
    assert len(status.businesses[0].alarms) == 1


@pytest.mark.parametrize(("business", "shown"), [("", 2), ("new", 1), ("main", 0)])
def test_other_clients_do_not_see_alarms_of_the_wire_either(
    monkeypatch: pytest.MonkeyPatch, business: str, shown: int
) -> None:
    found = refused_status(monkeypatch)
    for name in ("new", "payroll"):
        found.raise_alarm(name, "3 damaged half messages in a row from p")
    assert len(found.status(business).alarms) == shown
