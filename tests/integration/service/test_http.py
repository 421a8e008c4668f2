"""Status page, metrics and health of a running broker."""

from __future__ import annotations

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.integration.service.conftest import StartBroker
from tests.support.brokers.servers import BUSINESS, fill, take
from tests.support.engines.batches import half
from tests.support.waiting import eventually
from venus.broker.pipeline.subscriptions import FullDataService
from venus.broker.service import http
from venus.broker.service.http import PARTS as PAGE_PARTS
from venus.broker.service.process import RunningBroker
from venus.broker.service.service_status import HealthCheck
from venus.errors import ProtocolError, Unavailable
from venus.flow.degradation import THREADS, Lane
from venus.rpc.conditions import AdapterCondition, TableCondition
from venus.rpc.producer import Producer
from venus.rpc.snapshots import SnapshotClient
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration


def get(broker: RunningBroker, path: str) -> str:
    with urlopen(f"http://{broker.http_address}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def metric(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is not in\n{text}"
    return float(found[1])


def test_metrics_show_commits_and_lagging_consumers(broker: RunningBroker) -> None:
    fill(broker.address, 1, 10, rows=7)
    with (
        Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20) as reader,
        Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender,
    ):
        reader.open(0, 0)
        take(reader, 70)
        reader.acknowledge(21)
        sender.connect(0, 0)
        sender.send_half(half(11, rows=7))
        sender.wait_until_persisted(11)
        labels = f'{{business="{BUSINESS}",group="g"}}'
        eventually(lambda: metric(get(broker, "/metrics"), f"venus_consumer_acknowledged{labels}") == 21)
        text = get(broker, "/metrics")
        assert metric(text, f'venus_next_offset{{business="{BUSINESS}"}}') == 70
        assert metric(text, f"venus_consumer_backlog_rows{labels}") == 49
        assert metric(text, f"venus_consumer_backlog_bytes{labels}") > 0
        assert metric(text, f"venus_consumer_backlog_age_seconds{labels}") > 0
        assert metric(text, f"venus_consumer_connected{labels}") == 1
        assert metric(text, f'venus_halves{{business="{BUSINESS}"}}') == 1
        assert metric(text, f'venus_oldest_half_age_seconds{{business="{BUSINESS}"}}') >= 0
        assert metric(text, f'venus_producer_connected{{business="{BUSINESS}"}}') == 1
        assert metric(text, f'venus_table_changes_total{{business="{BUSINESS}",table="shop.items"}}') == 70
        assert metric(text, f'venus_received_rows_total{{business="{BUSINESS}"}}') == 77
        assert metric(text, "venus_resident_bytes") > 10 << 20
        assert metric(text, "venus_free_bytes") > 0


def test_the_page_loads_nothing_from_other_servers(broker: RunningBroker) -> None:
    assert "VENUS broker" in get(broker, "/")
    page = "".join(get(broker, path) for path in ("/", *(f"/page/{name}" for name in PAGE_PARTS)))
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\(""", page)
    assert "rows_estimate" not in page  # a lower limit that the source was sure of, not the number of rows
    status = json.loads(get(broker, "/status.json"))
    assert status["businesses"] == []
    fill(broker.address, 1, 2)
    business = json.loads(get(broker, "/status.json"))["businesses"][0]
    assert (business["business"], business["next_offset"]) == (BUSINESS, "2")
    for name in set(re.findall(r"\b(?:b|s|c|h|t|l)\.([a-z]+(?:_[a-z]+)+)\b", page)):
        assert f'"{name}"' in get(broker, "/status.json") or name in PARTS, f"the page reads {name}"


PARTS = {  # lists of consumers and half messages, which are empty here
    *("backlog_rows", "backlog_bytes", "updated_at_us", "oldest_unacknowledged_us"),
    *("batch_no", "received_at_us"),
    *("table_id", "unknown_since_us", "broker_id"),
    *("rows_read", "rows_expected", "reading_s"),
    *("unaccounted_rows", "left_s", "window_bytes", "slow_since_us"),
}


def test_health_says_ok_or_the_reason(start_broker: StartBroker) -> None:
    assert get(start_broker(), "/health") == "ok\n"


def test_a_state_that_needs_an_operator_makes_health_degraded_and_alarms_503(broker: RunningBroker) -> None:
    fill(broker.address, 1, 2)
    standing = AdapterCondition.of([TableCondition(table_id=2, name="shop.items", state="RESYNC", reason="<why>")])
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        sender.report(standing)
        eventually(lambda: get(broker, "/health").startswith("degraded\n"))
        with pytest.raises(HTTPError) as caught:
            get(broker, "/alarms")
        assert caught.value.code == 503
        sentence = "source: shop.items is RESYNC (<why>); `venus resync shop.items` reads it again"
        assert caught.value.read().decode() == f"business {BUSINESS}: {sentence}\n"
        caught.value.close()
        gauge = f'venus_tables_not_following{{business="{BUSINESS}",place="source",state="RESYNC"}}'
        assert metric(get(broker, "/metrics"), gauge) == 1
        sender.report(AdapterCondition())
        eventually(lambda: get(broker, "/health") == "ok\n")
        assert metric(get(broker, "/metrics"), gauge) == 0
        assert get(broker, "/alarms") == "none\n"


def test_another_clients_reader_is_not_taken_for_the_group(broker: RunningBroker) -> None:
    fill(broker.address, 1, 2)
    with (
        Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20) as reader,
        Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20, transient=True) as guest,
    ):
        for one in (reader, guest):
            one.open(0, 0)
        reader.report(AdapterCondition(paused=True))
        eventually(lambda: "target g: paused" in get(broker, "/health"))
        guest.report(AdapterCondition())
        guest.acknowledge(1)
        guest.close()
        assert "target g: paused; `venus resume --target g` resumes it\n" in get(broker, "/health")


def test_a_report_that_breaks_the_rules_ends_the_stream(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(broker.address, 1, 1)
    wrong = broker_pb2.AdapterReport(tables=[broker_pb2.TableReport(table_id=1, name="x" * 10_000, state="HALTED")])
    monkeypatch.setattr("venus.rpc.producer.encode", lambda _: wrong)
    with Producer(broker.address, BUSINESS, "p", window_bytes_max=1 << 20) as sender:
        sender.connect(0, 0)
        sender.report(AdapterCondition())
        with pytest.raises(ProtocolError, match="must have 1 to 300"):
            eventually(lambda: sender.take_reviews() and None)
    assert get(broker, "/health") == "ok\n"


def test_health_is_503_when_the_disk_is_nearly_full(start_broker: StartBroker) -> None:
    broker = start_broker(free_bytes_min=1 << 60)
    with pytest.raises(HTTPError) as caught:
        get(broker, "/health")
    assert caught.value.code == 503
    said = caught.value.read().decode()
    assert re.match(
        r"too little free space: /\S+ has only [\d]+ MiB free, \d+ MiB are needed: writes are refused", said
    )
    assert "free some space there" in said
    caught.value.close()


def test_a_slow_status_does_not_delay_frequent_probes(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    go, look = threading.Event(), HealthCheck.check
    monkeypatch.setattr(http, "FRESH_S", 600.0)
    assert get(broker, "/health") == "ok\n"

    def wait_first(self: HealthCheck) -> tuple[str, list[str]]:
        assert go.wait(300)
        return look(self)

    monkeypatch.setattr(HealthCheck, "check", wait_first)
    try:
        assert get(broker, "/health") == "ok\n"
        assert not go.is_set()
    finally:
        go.set()


def test_http_can_be_switched_off(start_broker: StartBroker) -> None:
    broker = start_broker(http="")
    assert broker.http_address == ""
    fill(broker.address, 1, 1)


def test_health_does_not_wait_behind_full_data(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads for loaders wait for snapshots; a health probe, a decision and an increment do not wait for them."""
    fill(broker.address, 1, 3)
    go, waiting = threading.Event(), threading.Semaphore(0)

    def wait_first(*_: object) -> broker_pb2.Snapshot:
        waiting.release()
        go.wait(300)
        raise Unavailable("too late")

    monkeypatch.setattr(FullDataService, "open", wait_first)
    with ThreadPoolExecutor(8) as loaders, SnapshotClient(broker.address) as snapshots:
        asked = [loaders.submit(snapshots.open, BUSINESS) for _ in range(8)]
        for _ in range(THREADS[Lane.FULL_DATA]):
            assert waiting.acquire(timeout=60)
        try:
            began = time.monotonic()
            assert get(broker, "/health").startswith("ok")
            with Subscriber(broker.address, BUSINESS, "g", credit_bytes=1 << 20) as reader:
                reader.open(0, 0)
                take(reader, 3)
            assert time.monotonic() - began < 150
        finally:
            go.set()
        for each in asked:
            with pytest.raises(Unavailable):
                each.result(60)


def test_an_answer_has_the_time_and_no_thread_wakes_without_a_request(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[int] = []
    monkeypatch.setattr("uvicorn.Server.on_tick", lambda *_: ticks.append(1))
    for _ in range(2):
        before = time.time()
        with urlopen(f"http://{broker.http_address}/health", timeout=60) as answer:
            said = parsedate_to_datetime(answer.headers["date"]).timestamp()
        assert before - 2 < said < time.time() + 2
        threading.Event().wait(1.1)  # another second without a request
    assert not ticks
