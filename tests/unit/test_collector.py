"""Garbage collection does not run during a start, and works as usual afterwards."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from venus.cli import sync
from venus.cli.invocation import Invocation
from venus.cli.supervisor import EventWriter
from venus.config import Settings

# Each test runs in a process of its own, because it concerns the whole interpreter.
STARTING = """
import gc, json, os, sys
from venus.cli import main
collections = []
gc.callbacks.append(lambda phase, _: collections.append(phase))
sys.argv = ["venus", "migrate", "--help"]
try:
    main()
except SystemExit:
    pass
import venus.adapters.targets.relational.full_sync
print()
threads = [open(f"/proc/self/task/{n}/comm").read().strip() for n in os.listdir("/proc/self/task")]
print(json.dumps([collections, [name for name in threads if name != "jemalloc_bg_thd"]]))
"""

BEHIND = """
import gc, json
from venus.process import system
usual = gc.get_threshold()
system.delay_collection()
during = gc.get_threshold()
kept = [[] for _ in range(system.START_OBJECTS + 1000)]  # as many as may be freed meanwhile, and more
print(json.dumps([during[0], gc.get_threshold() == usual, len(gc.callbacks)]))
"""

SETTLED = """
import gc, json
from venus.process import system
usual = gc.get_threshold()
system.delay_collection()
system.freeze_objects()
print(json.dumps([gc.get_threshold() == usual, len(gc.callbacks), gc.get_freeze_count() > 1000]))
"""

WORKING = """
import gc, json
from venus.process.runners import LocalRunner
if __name__ == "__main__":
    from tests.unit.test_collector import worker_state
    print(json.dumps(list(LocalRunner(2).run(worker_state, [1, 2]))))
"""


def worker_state(_: int) -> tuple[bool, int]:
    return gc.get_freeze_count() > 1000, gc.get_threshold()[0]


def _run_code(code: str) -> Any:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def test_nothing_is_collected_during_a_commands_start_and_numpy_starts_no_thread() -> None:
    collections, threads = _run_code(STARTING)
    assert collections == []
    assert len(threads) == 1  # except Arrow's own


def test_the_first_collection_restores_the_usual_settings() -> None:
    assert _run_code(BEHIND) == [200_000, True, 0]


def test_a_long_running_command_freezes_its_start() -> None:
    assert _run_code(SETTLED) == [True, 0, True]


def test_a_worker_freezes_its_start() -> None:
    assert _run_code(WORKING) == [[True, 700], [True, 700]]


def test_a_loop_of_sync_freezes_its_start_at_the_first_report(monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[int] = []
    reports: list[object] = []
    first, second = SimpleNamespace(error="", rows=1), SimpleNamespace(error="", rows=2)

    def capture(*_: object, report: Callable[[object], None], **__: object) -> None:
        settled.append(0)  # not before the loop runs
        report(first)
        report(second)

    monkeypatch.setattr("venus.adapters.upper.capture.run_capture", capture)
    monkeypatch.setattr(sync, "freeze_objects", lambda: settled.append(len(reports)))
    monkeypatch.setattr(EventWriter, "on_report", lambda _, __, found: reports.append(found))
    monkeypatch.setattr(EventWriter, "on_event", lambda *_: None)
    run = Invocation(json=False)
    monkeypatch.setattr(Invocation, "settings", Settings())
    assert sync.run_one(run, "capture", threading.Event(), None) == 0
    assert settled == [0, 0]
    assert reports == [first, second]
