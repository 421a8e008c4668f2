"""The upper adapter over a real broker, with the scripted source, whose state is known at every step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.ledger import read_ledger
from tests.support.brokers.servers import business_status, settings
from tests.support.databases.scripted_database import ScriptedDatabase
from tests.support.databases.scripted_source import Script, ScriptedSource
from tests.support.waiting import eventually
from tests.unit.upper.runs import Deed
from venus.adapters.upper.capture import CaptureDependencies, run_capture, run_capture_fill
from venus.adapters.upper.periodic import CaptureReport
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.config import CaptureSettings, Settings
from venus.errors import DatabaseUnavailable, Diverged, Fenced

pytestmark = pytest.mark.integration

T1, T2 = 2, 3


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    fatal: list[BaseException] = []
    running = start_in_thread(settings(tmp_path, review_after_s=0.2), on_fatal=fatal.append)
    yield running
    running.stop()
    assert not fatal


def _settings(broker: RunningBroker, **capture: Any) -> Settings:
    chosen = settings(Path("unused"), address=broker.address)
    return chosen.model_copy(
        update={"capture": CaptureSettings(**{"batch_rows_max": 3, "heartbeat_s": 3600, **capture})}
    )


def _capture(
    broker: RunningBroker,
    database: ScriptedDatabase,
    script: Script | None = None,
    deeds: list[Deed] | None = None,
    *,
    take_over: bool = False,
) -> CaptureReport:
    """Capture until the source is idle and all its scripted actions are done."""
    stop, left, reports = threading.Event(), list(deeds or ()), list[CaptureReport]()

    def on_idle() -> None:
        if left:
            left.pop(0)(database)
        elif all(t.fill.done for t in database.tables.values()):
            stop.set()

    outside = CaptureDependencies(source=lambda _: ScriptedSource(database, script or Script(), idle=on_idle))
    run_capture(_settings(broker), stop, report=reports.append, outside=outside, take_over=take_over)
    return reports[-1]


def _assert_equal(broker: RunningBroker, database: ScriptedDatabase) -> None:
    ledger = read_ledger(broker.address)
    found = {t: {k: row for k, (_, row) in rows.items()} for t, rows in ledger.tables.items() if rows}
    assert found == {t: rows for t, rows in database.contents().items() if rows}
    status = business_status(broker.address)
    assert not status.halves
    assert status.last_batch == database.state.last_batch


def _shop() -> ScriptedDatabase:
    database = ScriptedDatabase("customer", "orders", filled=False)
    for n in range(7):
        database.put(T1, f"c{n}", f"Customer {n}", logged=False)
    for n in range(11):
        database.put(T2, f"o{n}", "new")
    return database


def test_fill_changes_and_truncate_arrive_and_the_full_data_equals_the_source(broker: RunningBroker) -> None:
    database = _shop()
    deeds: list[Deed] = [
        lambda db: db.delete(T1, "c1"),
        lambda db: db.truncate(T2),
        lambda db: db.put(T2, "o1", "again"),
    ]
    report = _capture(broker, database, deeds=deeds)
    _assert_equal(broker, database)
    assert report.batches == len(read_ledger(broker.address).batches)


def test_a_second_first_fill_after_capture_ships_nothing(broker: RunningBroker) -> None:
    database = _shop()
    outside = CaptureDependencies(source=lambda _: ScriptedSource(database, Script()))
    report = run_capture_fill(_settings(broker), threading.Event(), outside=outside)
    assert report.complete
    assert report.rows == {"app.heartbeat": 0, "app.customer": 7, "app.orders": 11}
    _assert_equal(broker, database)
    epoch = business_status(broker.address).epoch
    assert run_capture_fill(_settings(broker), threading.Event(), outside=outside) == report
    assert business_status(broker.address).epoch == epoch


@pytest.mark.parametrize("step", ["sections.more", "commit.before", "commit.after", "raise_epoch.after", "open_cut"])
def test_a_broken_connection_is_reopened_and_no_change_is_lost_or_doubled(broker: RunningBroker, step: str) -> None:
    class BreakingScript(Script):
        """Breaks the connection at the second occurrence of this step."""

        def step(self, name: str) -> None:
            super().step(name)
            if name == f"source.{step}" and self.trace.count(name) == 2:
                raise DatabaseUnavailable("cut off")

    database = _shop()
    _capture(broker, database, BreakingScript())
    database.put(T2, "o1", "after")
    _capture(broker, database, BreakingScript())
    _assert_equal(broker, database)


def test_the_older_of_two_running_adapters_is_fenced(broker: RunningBroker) -> None:
    database = _shop()
    stop, errors = threading.Event(), list[BaseException]()
    running = threading.Event()

    def run_old_adapter() -> None:
        outside = CaptureDependencies(source=lambda _: ScriptedSource(database, Script(), idle=running.set))
        try:
            run_capture(_settings(broker), stop, outside=outside)
        except Fenced as e:
            errors.append(e)

    thread = threading.Thread(target=run_old_adapter)
    thread.start()
    assert running.wait(60)
    _capture(broker, database, take_over=True)
    thread.join(60)
    assert not thread.is_alive()
    assert len(errors) == 1
    database.put(T1, "c0", "by the new one")
    _capture(broker, database)
    _assert_equal(broker, database)


def test_a_slow_local_transaction_is_reviewed_and_answered_on_the_live_stream(broker: RunningBroker) -> None:
    """The reviews arrive while the cut is still being read: the answer is UNKNOWN, and the half message stays."""
    database = _shop()

    class SlowScript(Script):
        """Continues to read only after the broker has sent a review."""

        def step(self, name: str) -> None:
            super().step(name)
            if name == "source.sections.more" and self.trace.count(name) == 2:
                _wait_until_reviewed(broker)

    report = _capture(broker, database, SlowScript())
    assert report.reviews_answered >= 1
    assert business_status(broker.address).counters["reviews_sent"] >= 1
    _assert_equal(broker, database)


def _wait_until_reviewed(broker: RunningBroker) -> None:
    eventually(lambda: business_status(broker.address).counters["reviews_sent"], "a review", every_s=0.01)


def test_a_broker_with_another_history_is_refused(broker: RunningBroker, tmp_path: Path) -> None:
    database = _shop()
    _capture(broker, database)
    other = start_in_thread(settings(tmp_path / "other"))
    try:
        with pytest.raises(Diverged):
            _capture(other, database)
    finally:
        other.stop()
