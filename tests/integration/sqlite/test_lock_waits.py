"""Every statement waits while the application holds the file's lock repeatedly (no WAL)."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.databases.sqlite import Shop, application, open_shop
from venus.adapters.dialects.sqlite.connection import translate_errors
from venus.adapters.dialects.sqlite.source import SqliteSource
from venus.adapters.dialects.sqlite.verify import SqliteReader
from venus.adapters.dialects.verify_contract import Subject
from venus.errors import DatabaseUnavailable
from venus.model import BatchNo, Epoch

pytestmark = pytest.mark.integration

DDL = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT); CREATE TABLE u (id INTEGER PRIMARY KEY);"
HELD_S, FREE_S = 0.03, 0.003


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with open_shop(tmp_path / "a.db", DDL, wal=False) as shop:
        shop.app.executemany("INSERT INTO t VALUES (?, 'x')", ((n,) for n in range(50)))
        shop.copy.catch_up()
        shop.source.registry.set_table_state(shop.copy.id_of("u"), "PAUSED", "by hand")
        yield shop


@pytest.fixture
def lock_out_others(shop: Shop) -> Iterator[None]:
    """Lock all other sessions out, as an application does, for nine tenths of the time."""
    done = threading.Event()

    def write() -> None:
        writer = application(shop.file)
        while not done.is_set():
            writer.execute("BEGIN EXCLUSIVE")
            time.sleep(HELD_S)
            writer.execute("COMMIT")
            time.sleep(FREE_S)
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    yield
    done.set()
    thread.join()


SOURCE: dict[str, Callable[[Shop], object]] = {
    "open": lambda shop: SqliteSource(shop.file).close(),
    "refresh_schemas": lambda shop: shop.source.capture.refresh_schemas(),
    "open_cut": lambda shop: shop.source.capture.open_cut([]),
    "registered": lambda shop: shop.source.registry.read_registered_tables(),
    "state": lambda shop: shop.source.registry.read_state(),
    "raise_epoch": lambda shop: shop.source.registry.raise_epoch(Epoch(9)),
    "batches": lambda shop: shop.source.registry.read_batches([BatchNo(1)]),
    "beat": lambda shop: shop.source.capture.write_heartbeat(),
    "backlog": lambda shop: shop.source.capture.read_backlog(),
    "restart_fill": lambda shop: shop.source.capture.restart_fill(shop.copy.id_of("t")),
    "set_table_state": lambda shop: shop.source.registry.set_table_state(shop.copy.id_of("u"), "PAUSED", "by hand"),
    "halt": lambda shop: shop.source.registry.halt(
        shop.source.registry.read_state().epoch, shop.copy.id_of("u"), "no matter"
    ),
    "tables": lambda shop: shop.source.dictionary.read_tables(["*"], []),
    "numberings": lambda shop: shop.source.dictionary.read_numberings(),
    "other_objects": lambda shop: shop.source.dictionary.read_other_objects(),
    "check": lambda shop: shop.source.installer.check(["*"], []),
    "install_plan": lambda shop: shop.source.installer.plan_install(["*"], []),
    "install": lambda shop: shop.source.installer.install(["*"], []),
    "uninstall_plan": lambda shop: shop.source.installer.plan_uninstall(),
    "released": lambda shop: shop.source.registry.read_released_tables(),
    "release_plan": lambda shop: shop.source.installer.plan_release([shop.copy.id_of("u")]),
    "release": lambda shop: shop.source.installer.release([shop.copy.id_of("u")]),
    "drop_logs": lambda shop: (
        shop.source.installer.release([shop.copy.id_of("u")]),
        shop.source.installer.drop_logs({shop.copy.id_of("u"): "by hand"}),
    ),
}


@pytest.mark.parametrize("name", SOURCE)
def test_a_source_waits_for_the_application(shop: Shop, lock_out_others: None, name: str) -> None:
    for _ in range(10):
        cut = SOURCE[name](shop)
        if name == "open_cut" and cut is not None:
            cut.rollback()  # type: ignore[attr-defined]


def test_a_comparison_waits_for_the_application(shop: Shop, lock_out_others: None) -> None:
    reader = SqliteReader(shop.file)
    try:
        for _ in range(10):
            (table,) = [t for t in reader.read_tables() if t.schema.name == "t"]
            subject = Subject(schema=table.schema)
            assert reader.estimate_rows(subject) >= 50
            assert reader.read_split_points(subject, 10)
            reader.begin(subject)
            reader.end()
            assert reader.read_next_sequence() > 0
    finally:
        reader.close()


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "small.db")
    connection.execute("CREATE TABLE t (v)")
    connection.execute("PRAGMA max_page_count = 2")
    with pytest.raises(DatabaseUnavailable, match="full") as full, translate_errors("source small.db"):
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert full.value.hint == "make room on the disk"
    connection.close()
