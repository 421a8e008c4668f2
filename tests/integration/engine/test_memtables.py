"""Pending flushes and compactions of RocksDB are measured, and the materialiser waits for them within a limit."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import WAIT_S, Producer, the_business, wait_until_caught_up
from tests.support.waiting import eventually
from venus.broker.snapshot import materialiser
from venus.broker.store import keys
from venus.broker.store.options import DELAYING_FILES, DELAYING_MEMTABLES
from venus.broker.store.rocks import Store


def test_new_files_of_rows_are_merged_eight_at_a_time(tmp_path: Path) -> None:
    """Each merge reads and writes all rows in the key range of the files."""
    store = Store(tmp_path / "db")

    def commit_one_more() -> int:
        batch = store.batch()
        batch.put_many(keys.ROW, [b"first", b"last"], [b"1", b"2"])
        store.write(batch, durable=False)
        store._views[keys.ROW].flush(True)
        return len(store.list_files())

    assert [commit_one_more() for _ in range(7)] == list(range(1, 8))
    time.sleep(0.2)
    assert len(store.list_files()) == 7
    commit_one_more()
    eventually(lambda: len(store.list_files()) == 1)
    store.close()


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("count_full_memtables", DELAYING_MEMTABLES - 1),
        ("count_unmerged_files", DELAYING_FILES - materialiser.FILES_BEFORE),
    ],
)
def test_pending_work_of_rocksdb_is_noticed_and_waited_for(
    what: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise RocksDB would delay the write, while rocksdict holds the interpreter's lock."""
    found = {"now": most}
    looks = threading.Semaphore(0)

    def read_size(_store: Store, family: str) -> int:
        looks.release()
        return found["now"] if family == keys.ROW else 0

    monkeypatch.setattr(Store, what, read_size)
    monkeypatch.setattr(materialiser, "FLUSH_LOOKS_MAX", 10**9)
    engine = engines.make(tmp_path)
    Producer(engine).commit(engines.rows(0, 3))
    for _ in range(5):
        assert looks.acquire(timeout=WAIT_S)
    assert the_business(engine).materialised.offset == 0
    found["now"] -= 1
    wait_until_caught_up(engine)
    engine.stop()


def test_memtables_that_are_never_flushed_block_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "count_full_memtables", lambda _store, _family: DELAYING_MEMTABLES)
    monkeypatch.setattr(materialiser, "FLUSH_LOOKS_MAX", 3)
    engine = engines.make(tmp_path)
    Producer(engine).commit(engines.rows(0, 3))
    wait_until_caught_up(engine)
    engine.stop()


def test_a_store_counts_its_full_memtables(tmp_path: Path) -> None:
    store = Store(tmp_path / "db", cache_bytes=8 << 20)
    found = {store.count_full_memtables(keys.ROW)}
    for n in range(60):
        batch = store.batch()
        batch.put_many(keys.ROW, [b"%08d" % (1000 * n + i) for i in range(1000)], [b"x" * 1000] * 1000)
        store.write(batch, durable=False)
        found.add(store.count_full_memtables(keys.ROW))
    store.close()
    assert 0 in found
    assert max(found) >= 1


def test_a_store_counts_its_unmerged_files(tmp_path: Path) -> None:
    store = Store(tmp_path / "db", cache_bytes=8 << 20)
    assert store.count_unmerged_files(keys.ROW) == 0
    for n in range(3):
        batch = store.batch()
        batch.put(keys.ROW, b"key", b"%d" % n)
        store.write(batch, durable=False)
        store.checkpoint(tmp_path / f"checkpoint{n}")
    assert store.count_unmerged_files(keys.ROW) == 3
    store.close()
