"""The status page in a real browser: its view of a pipeline, and how it puts errors first."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from tests.support.brokers.broker_clusters import BrokerCluster
from tests.support.brokers.etcd import EtcdCluster
from tests.support.brokers.page_brokers import HALTED, NOT_KNOWN, REASON, ROWS, PageBroker
from tests.support.brokers.servers import BUSINESS, commit, take
from tests.support.browsers import open_page
from tests.support.engines.batches import half, other_table
from tests.support.waiting import eventually
from venus.broker.store.files import FreeSpace
from venus.config import DegradeSettings, LimitsSettings
from venus.config.sections import HealthSettings
from venus.rpc.conditions import AdapterCondition, AdapterFigures, LastComparison, TableCondition, TableFillFigures
from venus.rpc.snapshots import SnapshotClient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
DELAYED = "rows: delays shop-db of business main since"


def test_a_healthy_pipeline_is_shown_by_one_green_sentence_a_picture_and_charts(
    place: PageBroker, browser: Browser
) -> None:
    with open_page(browser, place.url) as seen:
        page = seen.page
        page.wait_for_selector(".verdict.is-good")
        assert page.get_by_role("status").inner_text() == "Nothing needs you"
        page.locator(".hop h3", has_text="up to date").wait_for()  # its acknowledgement may come after the first status
        hops = page.locator(f"[aria-label='Business {BUSINESS}'] .hop h3").all_inner_texts()
        assert [" ".join(hop.split()) for hop in hops] == ["Source captured", "Broker serves", "Target eu up to date"]
        for _ in range(4):
            place.commit_more(2)
            place.follow()
            time.sleep(0.3)
        page.wait_for_selector("figure svg[aria-label^='Rows per second']")
        label = page.locator("figure svg[aria-label^='Rows per second']").get_attribute("aria-label")
        assert label is not None
        assert re.search(r"in: now .*, at most [\d,]+.*; eu: now", label)
        assert page.locator("figure path.series").count() >= 3
        assert page.locator("table[aria-label=Tables] tbody tr").all_inner_texts()
        assert seen.complaints == []
        assert {url.split("/")[2] for url in seen.asked} == {place.broker.http_address}


def test_errors_come_first_with_their_time_and_a_command(place: PageBroker, browser: Browser) -> None:
    with open_page(browser, place.url, width=400) as seen:
        page = seen.page
        page.wait_for_selector(".verdict.is-good")
        place.target.report(HALTED)
        page.wait_for_selector("[role=alert]")
        assert page.get_by_role("alert").inner_text() == "1 alarm at: target"
        assert page.title() == "(1) VENUS broker"
        (alarm,) = seen.alarms()
        assert REASON in alarm, "a text from outside is shown as text"
        assert page.locator(".alarms .type").all_inner_texts() == ["venus quarantine list --target eu"]
        assert page.locator(".alarms li .soft").inner_text().startswith("since ")
        box = page.locator(".alarms li").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 700, "it is not on the first screen of a phone"
        (hop,) = page.locator(".hop.is-bad h3").all_inner_texts()
        assert " ".join(hop.split()) == "Target eu 1 table held · 1 alarm"
        assert "HALTED at eu, 1 row in quarantine: " in page.locator("table[aria-label=Tables]").inner_text()
        place.target.report(AdapterCondition.of([], quarantined=2))
        page.locator(".hop.is-bad h3", has_text="2 rows in quarantine").wait_for()

        place.target.report(AdapterCondition())
        page.wait_for_selector(".verdict.is-good")
        assert page.title() == "VENUS broker"
        assert seen.complaints == []


def test_the_page_shows_database_addresses_row_counts_and_the_last_comparison(
    place: PageBroker, browser: Browser
) -> None:
    place.commit_more_tables(1)
    place.follow()
    heartbeat = replace(other_table(9), namespace="venus", name="heartbeat")
    commit(place.producer, [half(3, rows=ROWS, table=heartbeat)])
    take(place.target, ROWS)
    place.target.acknowledge(3 * ROWS)
    source = AdapterFigures(place="<b>shop</b> at db:1521", rows={1: 3_000_000}, counted_at_us=1)
    compared = LastComparison(ended_at_us=time.time_ns() // 1000 - 7_200_000_000, verdict="same", rows=3, tables=1)
    target = AdapterFigures(place="shop at pg:5432", rows={1: 2_999_999}, counted_at_us=1, compared=compared)
    place.producer.report(AdapterCondition(figures=source))
    place.target.report(AdapterCondition(figures=target))
    with open_page(browser, place.url) as seen:
        page = seen.page
        page.locator(".hop", has_text="Target eu").get_by_text("same, 2 h ago").wait_for()
        page.locator(".hop", has_text="Source").get_by_text("<b>shop</b> at db:1521").wait_for()
        page.locator(".hop", has_text="Target eu").get_by_text("shop at pg:5432").wait_for()
        heads, *rows = page.locator("table[aria-label=Tables] tr").all_inner_texts()
        assert heads.split("\t") == ["Table", "State", "Rows at source, about", "Rows at eu, about", "Changes"]
        assert [row.split("\t") for row in rows] == [
            ["shop.items", "follows", "~3,000,000", "~2,999,999", str(ROWS)],
            ["shop.others2", "follows", NOT_KNOWN, NOT_KNOWN, str(ROWS)],
        ]
        assert "heartbeat" not in page.locator("main").inner_text(), "a table of VENUS's own"
        assert seen.complaints == []

        different = replace(compared, verdict="different", different=2)
        place.target.report(AdapterCondition(figures=replace(target, compared=different)))
        page.wait_for_selector("[role=alert]")
        assert page.locator(".alarms .type").all_inner_texts() == ["venus verify --target eu --repair"]
        page.locator(".hop.is-bad dd.bad", has_text="different, 2 rows, 2 h ago").wait_for()


def test_a_load_in_progress_shows_its_rows_and_the_time_left(place: PageBroker, browser: Browser) -> None:
    place.commit_more(100)
    place.follow()

    def fill(rows: int) -> AdapterCondition:
        reading = TableFillFigures(table_id=1, name="shop.items", rows=rows, rows_expected=1_000_000)
        return AdapterCondition(figures=AdapterFigures(place="shop at db", fills=(reading,)))

    with open_page(browser, place.url, width=390) as seen, SnapshotClient(place.broker.address) as snapshots:
        page, loads = seen.page, seen.page.get_by_role("list", name="Loads under way")
        assert loads.count() == 0
        snapshot = snapshots.open(BUSINESS, holder=f"{BUSINESS}/us")
        rows = sum(
            len(chunk.rows)
            for split in snapshot.splits[:1]
            for chunk in snapshots.read_split(snapshot.snapshot_id, split)
        )
        page.locator(".loads li", has_text=f"us is loaded{rows:,} of about ").wait_for()
        place.producer.report(fill(10_000))
        page.get_by_text("10,000 of about 1,000,000 rows", exact=True).wait_for()
        place.producer.report(fill(20_000))
        page.get_by_text(re.compile(r"^20,000 of about 1,000,000 rows, about .+ left$")).wait_for()
        assert page.locator("progress").first.get_attribute("value") == "20000"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        snapshots.close(snapshot.snapshot_id)
        place.producer.report(AdapterCondition())
        loads.wait_for(state="detached")
        assert seen.complaints == []


def test_traffic_figures_are_collapsed(place: PageBroker, browser: Browser) -> None:
    with open_page(browser, place.url) as seen:
        figure = seen.page.get_by_text("full data behind", exact=True)
        figure.wait_for(state="attached")
        assert not figure.is_visible()
        seen.page.get_by_text("Limits, lanes and limiters").click()
        figure.wait_for(state="visible")
        time.sleep(2.5)
        assert figure.is_visible(), "what a person has opened stays open"


def test_no_part_is_green_while_one_is_away_even_before_an_alarm(place: PageBroker, browser: Browser) -> None:
    with open_page(browser, place.url) as seen:
        verdict = seen.page.locator(".verdict.is-warn [role=status]")
        seen.page.wait_for_selector(".verdict.is-good")
        place.producer.close()
        verdict.filter(has_text=f"No producer captures {BUSINESS}").wait_for()
        place.target.close()
        verdict.filter(has_text=f"No producer captures {BUSINESS}, target eu is away").wait_for()
        assert seen.alarms() == []
        assert seen.complaints == []


def test_a_table_that_was_removed_from_capture_is_no_error(place: PageBroker, browser: Browser) -> None:
    out = TableCondition(table_id=1, name="shop.items", state="RELEASED", reason="taken out by an operator")
    place.producer.report(AdapterCondition.of([out]))
    with open_page(browser, place.url) as seen:
        said = seen.page.locator("table[aria-label=Tables] td .soft")
        said.filter(has_text="not captured any more at source: taken out by an operator").wait_for()
        seen.page.wait_for_selector(".verdict.is-good")
        assert seen.complaints == []


def test_a_target_that_was_cut_over_is_no_error(place: PageBroker, browser: Browser) -> None:
    place.target.report(AdapterCondition.of([], paused=True, cut_over="2026-11-25 19:27:48 UTC"))
    with open_page(browser, place.url) as seen:
        hop = seen.page.locator(".hop.is-soft", has_text="cut over")
        hop.wait_for()
        assert "2026-11-25 19:27:48 UTC" in hop.inner_text()
        seen.page.wait_for_selector(".verdict.is-good")
        place.target.close()
        place.commit_more(1)
        seen.page.get_by_text("captured; every target was cut over").wait_for()
        seen.page.wait_for_selector(".verdict.is-good")
        assert seen.page.locator(".verdict small").inner_text() == "1 business", "it is not behind"
        assert seen.alarms() == []
        assert seen.complaints == []


def test_many_healthy_tables_are_collapsed_below_the_others(place: PageBroker, browser: Browser) -> None:
    place.commit_more_tables(35)
    place.follow()
    place.target.report(HALTED)
    with open_page(browser, place.url) as seen:
        page = seen.page
        page.wait_for_selector("summary:has-text('35 tables follow')")
        (row,) = page.locator("table[aria-label=Tables] tbody tr").all_inner_texts()
        assert "HALTED at eu" in row
        folded = page.locator("table[aria-label='Tables that follow']")
        assert not folded.is_visible()
        page.locator("summary:has-text('35 tables follow')").click()
        assert folded.locator("tbody tr").count() == 35
        place.commit_more(1)
        page.wait_for_selector(f"text={36 * ROWS + ROWS}")
        assert folded.is_visible(), "a refresh folds what a user has opened"
        assert seen.complaints == []


def test_throttled_clients_are_named_with_the_limiter_above_the_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, browser: Browser
) -> None:
    free = {"bytes": 1 << 40}
    monkeypatch.setattr(FreeSpace, "read_free", lambda self: free["bytes"])
    degrade = DegradeSettings(cpu_percent=0, memory_percent=0, lag_ms=0, sustain_s=1, restore_s=1)
    chosen: dict[str, Any] = {
        "limits": LimitsSettings(rows_per_s=10, burst_s=1),
        "degrade": degrade,
        "free_bytes_min": 1 << 20,
        "health": HealthSettings(cpu_percent=0, memory_percent=0, disk_percent=0, clients_max=1),
    }
    place = PageBroker(tmp_path, **chosen)
    try:
        with open_page(browser, place.url, width=400) as seen:
            page = seen.page
            now, delayed = page.get_by_label("Traffic now"), page.get_by_text(DELAYED)

            def is_delayed() -> bool:
                place.commit_more(1)  # also over the limit
                return delayed.count() > 0

            eventually(is_delayed)
            now.get_by_text("sub-healthy: 2 producers and consumers are connected").wait_for()
            free["bytes"] = 3 << 19
            page.get_by_text(re.compile(r"^lane 4 \(details\) is degraded since")).wait_for()
            page.locator(".hop.is-bad h3", has_text="Broker").wait_for()
            page.get_by_text("Limits, lanes and limiters").click()
            lane = page.locator("table[aria-label=Lanes] tbody tr").last.inner_text()
            assert " ".join(lane.split()).startswith("4 details degraded for ")
            assert "shop-db" in page.locator("table[aria-label=Limiters]").inner_text()
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
            free["bytes"] = 1 << 40
            now.locator("li.bad").first.wait_for(state="detached", timeout=60_000)
            assert seen.complaints == []
    finally:
        place.close()


def test_a_replica_that_starts_over_is_shown_before_its_business_exists(place: PageBroker, browser: Browser) -> None:
    installed = {
        "business": "main",
        "leader": "b1",
        "reason": "its disk was empty",
        "records": "1200",
        "records_expected": "5000",
        "bytes": "9",
        "bytes_per_s": "2097152",
        "seconds_left": "3",
    }

    def answer(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "businesses": [], "installations": [installed]})

    with open_page(browser, place.url) as seen:
        seen.page.route("**/status.json", answer)
        row = seen.page.locator("table[aria-label='Replicas being installed'] tbody tr")
        row.wait_for()
        assert row.inner_text().split("\t") == [
            "main",
            "b1",
            "its disk was empty",
            "1,200 of about 5,000",
            "2.0 MiB/s",
            "3.0 s",
        ]
        assert seen.page.get_by_text("No business yet").count() == 0


def test_ages_use_the_brokers_clock(place: PageBroker, browser: Browser) -> None:
    """The browser's clock may be off by hours."""

    def answer(route: Route) -> None:
        status = route.fetch().json()
        route.fulfill(json={**status, "now_us": str(int(status["started_at_us"]) + 3 * 3_600_000_000)})

    with open_page(browser, place.url) as seen:
        seen.page.route("**/status.json", answer)
        seen.page.get_by_text("3 h", exact=True).wait_for()


def test_quiet_traffic_is_shown_by_one_sentence(tmp_path: Path, browser: Browser) -> None:
    quiet = HealthSettings(cpu_percent=0, memory_percent=0, disk_percent=0, clients_max=0, latency_s=0, silent_s=0)
    place = PageBroker(tmp_path, health=quiet, degrade=DegradeSettings(cpu_percent=0, memory_percent=0, lag_ms=0))
    try:
        with open_page(browser, place.url) as seen:
            seen.page.get_by_text("No client is delayed, every lane is served fully.").wait_for()
            assert seen.page.get_by_label("Traffic now").count() == 0
    finally:
        place.close()


def test_the_leaders_page_shows_a_lost_broker_of_the_cluster(
    tmp_path: Path, etcd_server: EtcdCluster, browser: Browser
) -> None:
    with BrokerCluster(tmp_path, etcd_server, lease_s=8.0) as cluster:  # the leader stays the leader on a busy machine
        leader, producer, _ = cluster.connect_producer()
        with producer:
            commit(producer, [half(n, rows=2) for n in range(1, 4)])
            lost = next(name for name in cluster.brokers if name != leader)
            with open_page(browser, f"http://{cluster.brokers[leader].http_address}/", width=400) as seen:
                page = seen.page
                page.get_by_text("leads, sync").wait_for(timeout=60_000)
                rows = page.locator("table[aria-label='Brokers of this business'] tbody tr")
                assert rows.count() == 3
                assert f"{leader} (leads)" in "".join(rows.all_inner_texts())
                cluster.brokers[lost].kill()
                page.get_by_text(f"its replica at broker {lost} is gone").wait_for(timeout=60_000)
                assert page.evaluate("document.documentElement.scrollWidth") <= 400
            follower = next(name for name in cluster.brokers if name not in (leader, lost))
            with open_page(browser, f"http://{cluster.brokers[follower].http_address}/") as seen:
                page = seen.page
                page.get_by_text(f"Broker {lost} gone").wait_for(timeout=60_000)
                assert page.locator(".verdict.is-good").count() == 0, "green, and a broker is lost"
                assert f"main at {leader}" in page.locator(".verdict small").inner_text()
                shown = [" ".join(hop.split()) for hop in page.locator(".hop h3").all_inner_texts()]
                assert shown == ["Source at the leader", f"Broker {follower} follows {leader}", "Targets at the leader"]
                assert page.locator(".hop.is-warn").count() == 0, "who speaks with the leader is not judged here"
                assert seen.complaints == []
