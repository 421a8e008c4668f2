"""Alarms of a broker are sent when they are raised and cleared, and are kept while no recipient can be reached."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.brokers.servers import BUSINESS, commit, settings
from tests.support.engines.batches import half
from tests.support.listeners import HttpListener, MailListener, drip, run_hanging_server
from tests.support.waiting import eventually
from venus.alarms import alarm_state, notifier
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.config import AlarmsSettings
from venus.rpc.conditions import AdapterCondition, TableCondition
from venus.rpc.producer import Producer

pytestmark = pytest.mark.integration

HALTED = AdapterCondition.of([TableCondition(table_id=2, name="shop.items", state="RESYNC", reason="<why>")])
SENTENCE = "source: shop.items is RESYNC (<why>); `venus resync shop.items` reads it again"
StartAlarmed = Callable[..., RunningBroker]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartAlarmed]:
    monkeypatch.setattr(alarm_state, "SETTLING_S", 0.0)
    monkeypatch.setattr(notifier, "RETRY_MIN_S", 0.2)
    running: list[RunningBroker] = []

    def begin(to: dict[str, Any], **options: Any) -> RunningBroker:
        alarms = AlarmsSettings.model_validate({"check_s": 0.1, "clear_s": 0.3, "to": to} | options)
        chosen = settings(tmp_path / "data").model_copy(update={"alarms": alarms})
        running.append(start_in_thread(chosen, on_fatal=lambda error: None))
        return running[-1]

    yield begin
    for broker in running:
        broker.stop()


def fetch(broker: RunningBroker, path: str) -> str:
    try:
        with urlopen(f"http://{broker.http_address}{path}", timeout=30) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        with error:
            return error.read().decode()


def metric(broker: RunningBroker, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", fetch(broker, "/metrics"), re.MULTILINE)
    return float(found[1]) if found else -1.0


def connect_sender(broker: RunningBroker) -> Producer:
    made = Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20)
    made.connect(0, 0)
    return made


def test_a_halted_table_is_shown_everywhere_and_so_is_its_recovery(start: StartAlarmed) -> None:
    with HttpListener() as hook, MailListener() as mails:
        mail = {"mail": ["dba@b.c"], "mail_from": "v@b.c", "smtp": mails.address, "smtp_security": "none"}
        broker = start({"chat": {"webhook": hook.url}, "dba": mail})
        with connect_sender(broker) as producer:
            commit(producer, [half(1, rows=2)])
            producer.report(HALTED)
            eventually(lambda: ("raised", "table_halted") in hook.events())
            eventually(lambda: mails.taken)
            (raised,) = json.loads(fetch(broker, "/status.json"))["raised"]
            assert (raised["text"], raised["rule"], raised["hop"]) == (SENTENCE, "table_halted", "source")
            assert raised["commands"] == ["venus resync shop.items"]
            assert abs(int(raised["since_us"]) / 1e6 - time.time()) < 60
            assert fetch(broker, "/alarms") == f"business {BUSINESS}: {SENTENCE}\n"
            assert SENTENCE in fetch(broker, "/health")
            gauge = f'venus_alarms_standing{{business="{BUSINESS}",rule="table_halted"}}'
            assert metric(broker, gauge) == 1
            eventually(lambda: metric(broker, 'venus_alarm_messages_total{result="sent",to="chat"}') == 1)

            producer.report(AdapterCondition())
            eventually(lambda: ("recovered", "table_halted") in hook.events())
            assert metric(broker, gauge) == 0
            eventually(lambda: len(mails.taken) == 2)
    assert "ALARM" in mails.taken[0][1]
    assert "OVER" in mails.taken[1][1]


def test_rules_choose_the_recipients(start: StartAlarmed) -> None:
    with HttpListener() as everything, HttpListener() as replicas:
        to = {"a": {"webhook": everything.url}, "b": {"webhook": replicas.url, "rules": ["replica_*"]}}
        rules = {"table_paused": {"send": False}, "table_halted": {"repeat_s": 0.3}}
        broker = start(to, rules=rules)
        with connect_sender(broker) as producer:
            commit(producer, [half(1, rows=2)])
            paused = TableCondition(table_id=1, name="shop.other", state="PAUSED")
            producer.report(AdapterCondition.of([*HALTED.tables, paused]))
            eventually(lambda: everything.events().count(("stands", "table_halted")) >= 2)
            assert metric(broker, f'venus_alarms_standing{{business="{BUSINESS}",rule="table_paused"}}') == 1
    assert {rule for _, rule in everything.events()} == {"table_halted"}
    assert replicas.events() == []


def test_undeliverable_alarms_raise_an_alarm_and_data_continues(start: StartAlarmed) -> None:
    """One webhook answers byte by byte for ever, one is down, a third gets all of them; data is not delayed."""
    with HttpListener() as well, HttpListener() as broken, run_hanging_server(drip) as address:
        broken.status = 500
        to = {
            "slow": {"webhook": f"http://{address}/", "timeout_s": 1},
            "broken": {"webhook": f"{broken.url}/planted"},
            "well": {"webhook": well.url},
        }
        broker = start(to)
        with connect_sender(broker) as producer:
            producer.report(HALTED)
            commit(producer, [half(1, rows=2)])
            for name in ("slow", "broken"):
                eventually(lambda name=name: f"alarms cannot be sent to {name}: " in fetch(broker, "/alarms"))  # type: ignore[misc]
            took_s = sorted(_commit_s(producer, number) for number in range(2, 13))
            assert took_s[5] < 1.0, "commits waited for a webhook"
            shown = fetch(broker, "/alarms")
            assert f"alarms cannot be sent to slow: http://{address}: no answer within 1 s" in shown
            assert f"alarms cannot be sent to broken: {broken.url} answers 500" in shown
            assert "planted" not in shown
            assert "`venus alarms test --to broken`" in shown
            assert metric(broker, 'venus_alarm_unsent{to="slow"}') == 1
            assert metric(broker, 'venus_alarm_unsent{to="well"}') == 0
            eventually(lambda: well.events().count(("raised", "alarm_unsent")) == 2)
            broken.status = 200
            eventually(lambda: ("raised", "table_halted") in broken.events())
            eventually(lambda: ("recovered", "alarm_unsent") in well.events())
        began = time.monotonic()
        broker.stop()
        assert time.monotonic() - began < 60, "a broker that stops does not wait for recipients"


def _commit_s(producer: Producer, number: int) -> float:
    began = time.monotonic()
    commit(producer, [half(number, rows=2)])
    return time.monotonic() - began


def test_a_source_that_goes_away_is_reported_after_a_delay(
    start: StartAlarmed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("venus.text.alarm_rules._LASTS_S", {"capture_away": 1.0})
    with HttpListener() as hook:
        broker = start({"chat": {"webhook": hook.url}}, late_s=1e9)  # the timestamps of test batches are years old
        with connect_sender(broker) as producer:
            commit(producer, [half(1, rows=2)])
            assert fetch(broker, "/alarms") == "none\n"
        eventually(lambda: ("raised", "capture_away") in hook.events())
        assert "capture is not connected" in fetch(broker, "/alarms")
        with connect_sender(broker) as producer:
            eventually(lambda: ("recovered", "capture_away") in hook.events())


def test_the_history_fills(start: StartAlarmed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("venus.broker.status.history.STEP_S", 0.2)
    broker = start({})
    with connect_sender(broker) as producer:
        for number in range(1, 6):
            commit(producer, [half(number, rows=100)])
            time.sleep(0.2)

        def rates() -> list[float]:
            series = json.loads(fetch(broker, "/history.json"))["series"]
            found = [s["values"] for s in series if (s["business"], s["figure"]) == (BUSINESS, "in_per_s")]
            return [value for values in found for value in values if value]

        assert eventually(rates)
        document = json.loads(fetch(broker, "/history.json"))
        assert all(len(s["values"]) == len(document["times"]) for s in document["series"])
