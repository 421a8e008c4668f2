"""The upper adapter between real sources and a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fault.upper.watched import watched_source
from tests.integration.upper.shop import Shop
from tests.support.brokers.ledger import Ledger, read_ledger
from tests.support.brokers.servers import business_status, settings
from tests.support.waiting import eventually
from venus.adapters.dialects.registry import open_source
from venus.adapters.upper.capture import CaptureDependencies, run_capture, run_capture_fill
from venus.adapters.upper.periodic import CaptureReport
from venus.broker.service.process import RunningBroker
from venus.config import CaptureSettings, Settings, SourceSettings
from venus.errors import Fenced, Held, Unavailable

pytestmark = pytest.mark.integration


def _settings(shop: Shop, broker: RunningBroker, **capture: Any) -> Settings:
    chosen = settings(Path("unused"), address=broker.address)
    return chosen.model_copy(
        update={
            "source": SourceSettings.model_validate({"url": shop.url}),
            "capture": CaptureSettings.model_validate(capture),
        }
    )


class RunningAdapter:
    """An upper adapter in a thread."""

    def __init__(self, chosen: Settings, *, take_over: bool = False) -> None:
        self.settings = chosen
        self.take_over = take_over
        self.stop = threading.Event()
        self.reports: list[CaptureReport] = []
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            run_capture(self.settings, self.stop, report=self.reports.append, take_over=self.take_over)
        except BaseException as e:
            self.errors.append(e)


@contextmanager
def running(chosen: Settings, *, take_over: bool = False) -> Iterator[RunningAdapter]:
    adapter = RunningAdapter(chosen, take_over=take_over)
    adapter.thread.start()
    try:
        yield adapter
    finally:
        adapter.stop.set()
        adapter.thread.join(60)
        assert not adapter.thread.is_alive()
    assert not adapter.errors


def _until_equal(shop: Shop, broker: RunningBroker, also: Callable[[Ledger], bool] = lambda ledger: True) -> Ledger:
    def find_equal_ledger() -> Ledger | None:
        try:
            ledger = read_ledger(broker.address)
        except Unavailable:  # no rows have arrived yet
            return None
        for table in ("customer", "line"):
            if table not in ledger.schemas or ledger.values(table) != shop.values(table):
                return None
        return ledger if also(ledger) else None

    ledger = eventually(find_equal_ledger)
    assert isinstance(ledger, Ledger)
    return ledger


def test_existing_rows_and_changes_arrive_exactly(shop: Shop, broker: RunningBroker) -> None:
    chosen = _settings(shop, broker, fill_chunk_rows=20, batch_rows_max=10)
    shop.fill(100)
    shop.install(chosen)
    filled = run_capture_fill(chosen, threading.Event())
    assert filled.complete
    assert {name.rpartition(".")[2]: n for name, n in filled.rows.items()}.items() >= {
        "customer": 100,
        "line": 100,
    }.items()
    shop.assert_equal(read_ledger(broker.address))
    with running(chosen) as adapter:
        for _ in range(30):
            shop.write()
        _until_equal(shop, broker)
    assert adapter.reports[-1].state == "stopped"
    assert adapter.reports[-1].connections == 1
    assert not business_status(broker.address).halves


def test_the_fill_runs_while_the_application_writes(shop: Shop, broker: RunningBroker) -> None:
    chosen = _settings(shop, broker, fill_chunk_rows=10)
    shop.fill(300)
    shop.install(chosen)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            shop.write()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert run_capture_fill(chosen, threading.Event()).complete
    finally:
        done.set()
        writer.join()
    with running(chosen):
        _until_equal(shop, broker)


def test_a_new_fill_removes_rows_that_were_deleted_without_triggers(shop: Shop, broker: RunningBroker) -> None:
    chosen = _settings(shop, broker, fill_chunk_rows=20)
    shop.fill(60)
    shop.install(chosen)
    run_capture_fill(chosen, threading.Event())
    source = open_source(chosen)
    try:
        table_id = next(
            t.schema.table_id for t in source.registry.read_registered_tables() if t.schema.name == "customer"
        )
        _delete_unseen(shop, table_id)
        assert read_ledger(broker.address).values("customer") != shop.values("customer")
        source.capture.restart_fill(table_id)
    finally:
        source.close()
    with running(chosen):
        _until_equal(shop, broker)


def _delete_unseen(shop: Shop, table_id: int) -> None:
    """Delete rows and their log entries, as if the triggers had been disabled."""
    if shop.engine.dialect.name == "postgresql":
        shop.run(
            "ALTER TABLE customer DISABLE TRIGGER USER; DELETE FROM customer WHERE id % 4 = 0; "
            "ALTER TABLE customer ENABLE TRIGGER USER"
        )
        return
    with shop.engine.begin() as connection:
        names = connection.exec_driver_sql(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'customer'"
        ).all()
        for name, _ in names:
            connection.exec_driver_sql(f'DROP TRIGGER "{name}"')
        connection.exec_driver_sql("DELETE FROM customer WHERE id % 4 = 0")
        for _, text in names:
            connection.exec_driver_sql(text)


def test_a_table_that_is_installed_later_joins_without_a_restart(shop: Shop, broker: RunningBroker) -> None:
    chosen = _settings(shop, broker)
    shop.fill(10)
    shop.install(chosen)
    with running(chosen) as adapter:
        _until_equal(shop, broker)
        shop.run("CREATE TABLE late (id INTEGER NOT NULL PRIMARY KEY, v TEXT)")
        shop.run("INSERT INTO late VALUES (1, 'before')")
        shop.install(chosen)
        shop.run("INSERT INTO late VALUES (2, 'after')")
        wanted = {("1",): ("before",), ("2",): ("after",)}
        _until_equal(shop, broker, lambda ledger: "late" in ledger.schemas and ledger.values("late") == wanted)
    assert adapter.reports[-1].connections == 1


def test_a_new_column_arrives_while_streaming(shop: Shop, broker: RunningBroker) -> None:
    chosen = _settings(shop, broker)
    shop.fill(20)
    shop.install(chosen)
    with running(chosen) as adapter:
        _until_equal(shop, broker)
        shop.run("ALTER TABLE customer ADD COLUMN rank INTEGER DEFAULT 7")
        shop.run("UPDATE customer SET rank = 8 WHERE id = 3")
        ledger = _until_equal(shop, broker)
    assert ledger.values("customer")["3",][-1] == "8"
    assert ledger.values("customer")["4",][-1] == "7"
    assert not adapter.errors


def test_a_second_adapter_is_refused_unless_it_asks_to_take_over(shop: Shop, broker: RunningBroker) -> None:
    chosen = _settings(shop, broker, heartbeat_s=0.1)
    shop.fill(20)
    shop.install(chosen)
    old = RunningAdapter(chosen)
    old.thread.start()
    _until_equal(shop, broker)
    started = time.monotonic()
    with pytest.raises(Held, match=r"business main is held by .*:\d+, connected since 20.* UTC, last heard from"):
        run_capture(chosen, threading.Event())
    assert time.monotonic() - started < 25, "the one at work speaks with every heartbeat"
    shop.write()
    _until_equal(shop, broker)
    assert not old.errors
    with running(chosen, take_over=True):
        old.thread.join(60)
        assert not old.thread.is_alive()
        assert [type(e) for e in old.errors] == [Fenced]
        shop.write()
        _until_equal(shop, broker)


def test_the_heartbeat_keeps_an_idle_source_up_to_date(shop: Shop, broker: RunningBroker) -> None:
    chosen = _settings(shop, broker, heartbeat_s=0.2)
    shop.fill(5)
    shop.install(chosen)
    with running(chosen):
        _until_equal(shop, broker)
        before = business_status(broker.address).last_captured_at_us
        eventually(lambda: business_status(broker.address).last_captured_at_us > before + 600_000)


def test_the_adapter_stops_at_once(shop: Shop, broker: RunningBroker) -> None:
    chosen = _settings(shop, broker, poll_max_ms=600_000, poll_min_ms=600_000)
    shop.fill(5)
    shop.install(chosen)
    with running(chosen) as adapter:
        _until_equal(shop, broker)
        adapter.stop.set()
        adapter.thread.join(60)
        assert not adapter.thread.is_alive()
    assert not business_status(broker.address).halves


def test_a_new_fill_requested_during_a_fill_is_not_forgotten(shop: Shop, broker: RunningBroker) -> None:
    chosen = _settings(shop, broker, fill_chunk_rows=10)
    shop.fill(60)
    shop.install(chosen)
    asked = threading.Event()

    def hook(step: str) -> None:
        if step != "cut.commit.after" or asked.is_set():
            return
        with closing(open_source(chosen)) as source:
            table = next(t for t in source.registry.read_registered_tables() if t.schema.name == "customer")
            if 0 < table.fill.rows_done < 60:
                _delete_unseen(shop, table.schema.table_id)
                source.capture.restart_fill(table.schema.table_id)
                asked.set()

    outside = CaptureDependencies(source=lambda s: watched_source(open_source(s), hook))
    run_capture_fill(chosen, threading.Event(), outside=outside)
    assert asked.is_set()
    with running(chosen):
        _until_equal(shop, broker)
