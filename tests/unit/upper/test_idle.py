"""Polling of an idle source: a heartbeat does not count as traffic, and the registry is read only after a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.databases.scripted_database import HEARTBEAT, ScriptedDatabase
from tests.support.databases.scripted_source import Script, ScriptedSource
from tests.support.engines.scripted_broker import ScriptedBroker, ScriptedProducer
from tests.unit.upper.runs import Run
from venus.adapters.upper import periodic
from venus.adapters.upper.batching import PollInterval
from venus.adapters.upper.capture import run_capture
from venus.errors import SourceError, Unavailable

T1 = 2


class CountingInterval(PollInterval):
    """Interval that counts the reported traffic."""

    counted: list[float]

    def on_traffic(self, now: float) -> None:
        self.counted.append(now)
        super().on_traffic(now)


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    CountingInterval.counted = []
    monkeypatch.setattr("venus.adapters.upper.capture.PollInterval", CountingInterval)
    return CountingInterval.counted


def idle_database() -> ScriptedDatabase:
    database = ScriptedDatabase("customer")
    beats = database.tables[HEARTBEAT]
    beats.schema = replace(beats.schema, namespace="venus")
    return database


def run_with_heartbeats(run: Run) -> Run:
    capture = run.settings.capture.model_copy(update={"heartbeat_s": 5.0})
    run.settings = run.settings.model_copy(update={"capture": capture})
    return run


def test_a_heartbeat_does_not_count_as_traffic(traffic: list[float]) -> None:
    database = idle_database()
    run = run_with_heartbeats(Run(database, ScriptedBroker(), deeds=[lambda db: None] * 50))
    report = run.capture()
    assert database.beats >= 9
    assert report.cuts >= 9
    assert traffic == []


def test_a_change_beside_the_heartbeat_counts_as_traffic(traffic: list[float]) -> None:
    database = idle_database()
    run = run_with_heartbeats(Run(database, ScriptedBroker(), deeds=[lambda db: db.put(T1, "k", "v")] * 20))
    run.capture()
    assert len(traffic) == 20


def test_empty_tables_are_filled_without_a_pause(traffic: list[float]) -> None:
    database = ScriptedDatabase("customer", "orders", filled=False)
    Run(database, ScriptedBroker()).capture()
    assert traffic


def test_the_registry_is_read_only_after_a_change() -> None:
    database = idle_database()
    polls = int(periodic.REFRESH_S) * 10
    run = Run(database, ScriptedBroker(), deeds=[lambda db: None] * polls)
    run.capture()
    assert run.script.trace.count("source.refresh_schemas") >= 10
    read = run.script.trace.count("source.registered")
    assert read == 1, "once for the session"


def test_a_wait_knows_when_the_next_work_is_due() -> None:
    """So the wait may occupy the connection for longer without delaying a heartbeat. The clock advances by seconds."""
    run = run_with_heartbeats(Run(idle_database(), ScriptedBroker(), deeds=[lambda db: None] * 30))
    run.capture()
    (source,) = run.sources
    assert set(source.rests) >= {0.0, 1.0, 2.0}
    assert max(source.rests) <= periodic.REFRESH_S


def test_a_table_that_continues_before_the_next_read_of_the_registry_is_reported() -> None:
    database = idle_database()

    def put_unfit_row(db: ScriptedDatabase) -> None:
        db.unfit.add(b"large")
        db.put(T1, "large", "too much")

    def correct_row(db: ScriptedDatabase) -> None:
        db.unfit.clear()
        db.put(T1, "large", "less")

    run = Run(database, ScriptedBroker(), deeds=[put_unfit_row, correct_row] + [lambda db: None] * 10)
    run.capture()
    states = [[t.state for t in condition.tables] for condition in run.broker.reports]
    assert states == [[], ["PAUSED"], []]


def test_the_estimated_number_of_rows_is_reported_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(1, 1_000))
    monkeypatch.setattr(ScriptedSource, "read_row_counts", lambda _: {T1: next(counts)})
    run = run_with_heartbeats(Run(idle_database(), ScriptedBroker(), deeds=[lambda db: None] * 150))
    run.capture()
    found = [condition.figures.rows[T1] for condition in run.broker.reports if condition.figures.rows]
    assert found == [1, 2, 3]


def test_a_source_without_a_row_estimate_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: ScriptedSource) -> dict[int, int]:
        raise SourceError("permission denied")

    monkeypatch.setattr(ScriptedSource, "read_row_counts", refuse)
    run = run_with_heartbeats(Run(idle_database(), ScriptedBroker(), deeds=[lambda db: db.put(T1, "k", "v")] * 5))
    run.capture()
    assert not any(condition.figures.rows for condition in run.broker.reports)
    assert run.broker.committed


def test_a_fill_that_another_process_has_restarted_is_done() -> None:
    database = idle_database()

    def restart(db: ScriptedDatabase) -> None:
        db.put(T1, "old", "v", logged=False)
        ScriptedSource(db, Script()).capture.restart_fill(T1)

    run = Run(database, ScriptedBroker(), deeds=[lambda db: None] * 10 + [restart] + [lambda db: None] * 10)
    run.capture()
    assert database.tables[T1].fill.done
    assert run.broker.fold() == database.contents()


def test_the_logs_are_limited_while_capture_runs() -> None:
    database = idle_database()
    Run(database, ScriptedBroker(), deeds=[lambda db: None] * 100).capture()
    assert 3 <= database.limited <= 5  # once at its start, then every 30 s


def test_the_logs_are_limited_while_the_broker_is_away() -> None:
    database = idle_database()
    run = Run(database, ScriptedBroker())

    class AwayProducer(ScriptedProducer):
        def connect(self, *_: Any, **__: Any) -> Any:
            run.now += periodic.LIMIT_S
            if run.now >= 3 * periodic.LIMIT_S:
                run.stop.set()
            raise Unavailable("no broker answers")

    outside = replace(run.dependencies, ingest=lambda settings: AwayProducer(run.broker, run.script))
    run_capture(run.settings, run.stop, outside=outside)
    assert database.limited == 3
