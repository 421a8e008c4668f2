"""The connection to the broker is cut, or goes silent, at each step of the protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from tests.fault.upper.watched import Hook, watched_producer, watched_source
from tests.support.brokers.ledger import read_ledger
from tests.support.brokers.servers import business_status, settings
from tests.support.databases.scripted_database import ScriptedDatabase
from tests.support.databases.scripted_source import Script, ScriptedSource
from tests.support.faults.proxy import Proxy
from venus.adapters.upper.capture import CaptureDependencies, connect_producer, run_capture
from venus.adapters.upper.periodic import CaptureReport
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.config import CaptureSettings, Settings

pytestmark = [pytest.mark.fault, pytest.mark.integration]

T = 2
AT_ONCE = 8
#: The broker limits how many snapshots are open at the same time.
_ONE_LOOKS = threading.Lock()
#: Each run has its own business, because all runs share one broker.
_RUNS = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    fatal: list[BaseException] = []
    running = start_in_thread(settings(tmp_path_factory.mktemp("broker")), on_fatal=fatal.append)
    yield running
    running.stop()
    assert not fatal


def _database() -> ScriptedDatabase:
    database = ScriptedDatabase("customer", filled=False)
    for n in range(5):
        database.put(T, f"filled{n}", "1", logged=False)
        database.put(T, f"logged{n}", "1")
    return database


def _run(chosen: Settings, database: ScriptedDatabase, hook: Hook, said: Callable[[CaptureReport], None]) -> None:
    """Capture to the end: act once when capture is idle first, and stop when it is idle again."""
    stop, deeds = threading.Event(), [lambda: database.put(T, "late", "1"), lambda: database.delete(T, "filled0")]

    def on_idle() -> None:
        if deeds:
            deeds.pop()()
        elif all(t.fill.done for t in database.tables.values()):
            stop.set()

    outside = CaptureDependencies(
        source=lambda _: watched_source(ScriptedSource(database, Script(), idle=on_idle), hook),
        ingest=lambda s: watched_producer(connect_producer(s), hook),
    )
    run_capture(chosen, stop, report=said, outside=outside)


def _settings(address: str, business: str, *, cut_timeout_s: float = 60.0) -> Settings:
    return Settings.model_validate(
        {
            "business": {"name": business},
            "broker": {"address": address, "data_dir": Path("unused")},
            "capture": CaptureSettings(batch_rows_max=3, heartbeat_s=3600, cut_timeout_s=cut_timeout_s),
        }
    )


@pytest.fixture(scope="module")
def steps(broker: RunningBroker) -> list[str]:
    """Return the steps of a run without faults."""
    seen: list[str] = []
    _run(_settings(broker.address, "steps"), _database(), seen.append, lambda report: None)
    return seen


def _check(broker: RunningBroker, database: ScriptedDatabase, business: str) -> None:
    ledger = read_ledger(broker.address, business)
    found = {k: row for k, (_, row) in ledger.tables[T].items()}
    assert found == database.tables[T].rows
    assert not business_status(broker.address, business).halves


def _disturb_at(broker: RunningBroker, at: int, disturb: Callable[[Proxy], None]) -> None:
    """Cut or silence the connection at one step of a run; the next start decides all batches left undecided."""
    business, database, passed = f"{disturb.__name__}{at}-{next(_RUNS)}", _database(), 0
    with Proxy(broker.address) as proxy:

        def hook(step: str) -> None:
            nonlocal passed
            if passed == at:
                disturb(proxy)
            passed += 1

        def on_report(report: CaptureReport) -> None:
            if report.last_error:
                proxy.resume()

        _run(_settings(proxy.address, business, cut_timeout_s=0.5), database, hook, on_report)
    assert passed > at
    _run(_settings(broker.address, business), database, lambda step: None, lambda report: None)
    with _ONE_LOOKS:
        _check(broker, database, business)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_cut_connection_at_any_step_loses_and_doubles_nothing(
    broker: RunningBroker, steps: list[str], stride: int
) -> None:
    assert steps.count("cut.commit.after") >= 4
    for at in range(0, len(steps), stride):
        _disturb_at(broker, at, Proxy.cut)


ONE_OF_EACH = (
    "producer.send_half.before",
    "producer.wait_until_persisted.before",
    "cut.commit.before",
    "cut.commit.after",
)


@pytest.mark.parametrize("wanted", [ONE_OF_EACH, pytest.param(("",), marks=pytest.mark.slow)], ids=["few", "all"])
def test_a_connection_that_goes_silent_at_any_step_loses_and_doubles_nothing(
    broker: RunningBroker, steps: list[str], wanted: tuple[str, ...]
) -> None:
    """Frames still in the old stream arrive after the new one has taken over: they are fenced."""
    second = [[n for n, step in enumerate(steps) if step == name][1:2] for name in wanted if name]
    chosen = [n for found in second for n in found] or range(len(steps))
    assert len(chosen) >= 4
    with ThreadPoolExecutor(AT_ONCE) as pool:  # each run waits nearly three seconds for an answer that does not come
        for _ in pool.map(lambda at: _disturb_at(broker, at, Proxy.silence), chosen):
            pass
