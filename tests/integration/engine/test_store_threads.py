"""RocksDB's compaction threads have a low priority on a busy core, and no other thread has."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from tests.support.engines import engines
from venus.broker.store import keys, options
from venus.broker.store.options import DELAYING_FILES
from venus.broker.store.rocks import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")


def nice_of(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def find_threads(prefix: str) -> list[int]:
    """Return the threads of this process whose names begin with `name`."""
    tasks = Path("/proc/self/task").iterdir()
    return [int(task.name) for task in tasks if (task / "comm").read_text().startswith(prefix)]


def test_compaction_threads_alone_have_a_low_priority(tmp_path: Path) -> None:
    own = nice_of(os.getpid())
    engine = engines.make(tmp_path)
    try:
        assert {nice_of(each) for each in find_threads("rocksdb:low")} == {own + options.NICER_MERGES}
        assert {nice_of(each) for each in find_threads("rocksdb:high")} == {own}
        found = engine.commits.submit(lambda _: nice_of(threading.get_native_id())).result(60)
        assert found == nice_of(threading.get_native_id()) == own
    finally:
        engine.stop()


def test_a_system_that_hides_its_threads_causes_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_TASKS", tmp_path / "nothing")
    options.lower_merge_priority()


def test_unmerged_files_delay_writes_of_the_log_later_than_those_of_the_full_data(tmp_path: Path) -> None:
    """Writes of rows wait for merges by themselves; a delayed write of the log would delay every client."""
    store = Store(tmp_path / "db")
    store.close()
    chosen = max((tmp_path / "db").glob("OPTIONS-*")).read_text()
    found = {}
    for part in chosen.split("[CFOptions ")[1:]:
        name = part.split('"')[1]
        found[name] = int(part.split("level0_slowdown_writes_trigger=")[1].split()[0])
    assert found.pop(keys.ROW) == DELAYING_FILES
    assert set(keys.FAMILIES) - {keys.ROW} <= set(found)
    assert min(found[name] for name in keys.FAMILIES if name != keys.ROW) >= 2 * DELAYING_FILES
