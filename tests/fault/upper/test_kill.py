"""kill -9 of the upper adapter at every step, and of the broker between a half message, its commit and the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.fault.upper.process import Zombie, run_until_killed
from tests.fault.upper.watched import Hook, watched_producer, watched_source
from tests.integration.upper.shop import Shop
from tests.support.brokers.ledger import read_ledger
from tests.support.brokers.servers import BrokerProcess, business_status, settings
from tests.support.ports import free_port
from venus.adapters.dialects.registry import open_source
from venus.adapters.upper.capture import CaptureDependencies, connect_producer, run_capture
from venus.adapters.upper.periodic import CaptureReport
from venus.config import CaptureSettings, Settings, SourceSettings
from venus.rpc.channel import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S

pytestmark = [pytest.mark.fault, pytest.mark.integration]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(settings(tmp_path / "broker")) as process:
        yield process


def _settings(shop: Shop, address: str, **capture: Any) -> Settings:
    chosen = settings(Path("unused"), address=address)
    options = {"heartbeat_s": 3600, "fill_chunk_rows": 8, "batch_rows_max": 4, **capture}
    return chosen.model_copy(
        update={
            "source": SourceSettings.model_validate({"url": shop.url}),
            "capture": CaptureSettings.model_validate(options),
        }
    )


@pytest.mark.parametrize("shop", [pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"], indirect=True)
def test_a_kill_at_every_step_loses_and_doubles_nothing(shop: Shop, broker: BrokerProcess) -> None:
    chosen = _settings(shop, broker.address)
    shop.fill(10)
    shop.install(chosen)
    killed: list[str] = []
    ended, n = False, 0
    while not ended:
        shop.write_alike()
        ended, at = run_until_killed(chosen, n)
        killed.append(at)
        n += 1
        # the next process, without faults, leaves source and broker equal
        assert run_until_killed(chosen)[0]
        ledger = read_ledger(broker.address)
        shop.assert_equal(ledger)
        status = business_status(broker.address)
        assert (len(status.halves), status.last_batch) == (0, len(ledger.batches)), at
    wanted = {
        "source.raise_epoch",
        "producer.send_half",
        "producer.wait_until_persisted",
        "cut.commit",
        "producer.decide",
    }
    assert {f"{step}.{when}" for step in wanted for when in ("before", "after")} <= set(killed)


@pytest.mark.slow
def test_a_kill_at_every_step_of_a_cut_that_halts_its_table_shows_no_half_of_it(
    tmp_path: Path, broker: BrokerProcess
) -> None:
    shop = Shop.sqlite(tmp_path)
    chosen = _settings(shop, broker.address)
    shop.install(chosen)
    assert run_until_killed(chosen)[0]
    killed: list[str] = []
    ended, n = False, 0

    def lines(order: int) -> list[object]:
        return [key for key in read_ledger(broker.address).values("line") if key[0] == str(order)]

    while not ended:
        order = 100 + n
        shop.write_order(order, "'cannot be carried'")
        ended, at = run_until_killed(chosen, n)
        killed.append(at)
        assert not lines(order), f"half a transaction after a kill at {at}"
        # the next process halts the table as well, and captures all others
        assert run_until_killed(chosen)[0]
        ledger = read_ledger(broker.address)
        assert not lines(order)
        assert ledger.values("customer") == shop.values("customer")
        shop.run("UPDATE line SET amount = 1 WHERE pos = 6")
        assert run_until_killed(chosen)[0]
        shop.assert_equal(read_ledger(broker.address))
        n += 1
    assert {"source.halt.before", "source.halt.after", "cut.rollback.after", "producer.decide.before"} <= set(killed)


# -- the broker is killed ------------------------------------------------------------------------------------------


def _capture(
    chosen: Settings, hook: Hook, until: Callable[[CaptureReport], bool], *, take_over: bool = False
) -> CaptureReport:
    """Capture in this thread until `on_report` stops it."""
    stop, reports = threading.Event(), list[CaptureReport]()

    def on_report(report: CaptureReport) -> None:
        reports.append(report)
        if until(report):
            stop.set()

    outside = CaptureDependencies(
        source=lambda s: watched_source(open_source(s), hook),
        ingest=lambda s: watched_producer(connect_producer(s), hook),
    )
    run_capture(chosen, stop, report=on_report, outside=outside, take_over=take_over)
    return reports[-1]


@pytest.mark.parametrize(
    ("step", "time"),
    [
        ("producer.send_half.after", 2),
        ("cut.commit.before", 1),
        ("cut.commit.after", 1),
        ("producer.decide.after", 1),
        ("producer.decide.after", 2),
    ],
)
def test_a_broker_killed_around_half_and_commit_has_every_batch_once_when_it_is_back(
    tmp_path: Path, step: str, time: int
) -> None:
    chosen = settings(tmp_path / "broker", listen=f"127.0.0.1:{free_port()}", http="")
    brokers = [BrokerProcess(chosen)]
    shop = Shop.sqlite(tmp_path)
    capture = _settings(shop, brokers[0].address)
    shop.fill(30)
    shop.install(capture)
    passed = 0

    def hook(at: str) -> None:
        nonlocal passed
        passed += at == step
        if at == step and passed == time:
            brokers[-1].kill()
            brokers.append(BrokerProcess(chosen))

    try:
        report = _capture(capture, hook, lambda r: len(brokers) > 1 and r.state == "capturing" and r.cuts > 4)
        assert report.connections >= 2
        assert run_until_killed(capture)[0]
        shop.assert_equal(read_ledger(brokers[-1].address))
        found = business_status(brokers[-1].address)
        assert not found.halves
        if step == "cut.commit.after":  # the half message is on disk, and was undecided when the broker was killed
            assert found.counters["reviews_sent"] >= 1
    finally:
        brokers[-1].kill()


# -- the source's connection is killed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step", ["producer.send_half.after", "producer.wait_until_persisted.after", "cut.commit.after"]
)
def test_a_source_connection_that_the_server_ends_during_a_cut_is_opened_again(
    database: str, broker: BrokerProcess, step: str
) -> None:
    shop = Shop(database)
    chosen = _settings(shop, broker.address)
    shop.fill(30)
    shop.install(chosen)
    killed = 0

    def hook(at: str) -> None:
        nonlocal killed
        if at == step and not killed:
            with shop.engine.begin() as connection:
                query = (
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'venus capture'"
                )
                killed = len(connection.execute(sa.text(query)).all())

    report = _capture(chosen, hook, lambda r: r.state == "capturing" and r.cuts > 4)
    assert killed == 1
    assert report.connections >= 2
    assert run_until_killed(chosen)[0]
    shop.assert_equal(read_ledger(broker.address))


# -- zombies -------------------------------------------------------------------------------------------------------


def test_an_adapter_frozen_before_its_local_transaction_is_fenced_when_it_thaws(
    shop: Shop, broker: BrokerProcess
) -> None:
    chosen = _settings(shop, broker.address)
    shop.fill(10)
    shop.install(chosen)
    assert run_until_killed(chosen)[0]
    shop.write_alike()
    with Zombie(chosen, "cut.commit.before") as old:
        old.wait_frozen()
        epoch = business_status(broker.address).epoch
        thawed = threading.Event()

        def hook(step: str) -> None:
            # on PostgreSQL the frozen transaction still holds the log rows, which the next adapter can read only when
            # it has ended
            if step == "source.raise_epoch.after" and not thawed.is_set():
                old.thaw()
                thawed.set()

        _capture(chosen, hook, lambda r: r.cuts > 0, take_over=True)
        assert old.error() == "Fenced"
    assert business_status(broker.address).epoch > epoch
    assert run_until_killed(chosen)[0]
    shop.assert_equal(read_ledger(broker.address))


@pytest.mark.slow
@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_an_adapter_that_stays_frozen_is_replaced_within_the_documented_time(shop: Shop, broker: BrokerProcess) -> None:
    chosen = _settings(shop, broker.address)
    shop.install(chosen)
    assert run_until_killed(chosen)[0]
    shop.write_alike()
    with Zombie(chosen, "producer.wait_until_persisted.before") as old:
        old.wait_frozen()
        started = time.monotonic()
        _capture(chosen, lambda step: None, lambda r: r.cuts > 0)
        assert time.monotonic() - started < KEEPALIVE_S + KEEPALIVE_TIMEOUT_S + 5
        old.thaw()
        assert old.error() == "Fenced"
    shop.assert_equal(read_ledger(broker.address))
