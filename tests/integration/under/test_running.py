"""The process pool of `--engine local`: each task's result comes once, whichever process dies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.pipelines.runnable import Square, square
from tests.support.waiting import eventually
from venus.errors import TargetError, WorkerLost
from venus.process.runners import LocalRunner

pytestmark = pytest.mark.integration


def test_a_single_worker_is_this_process() -> None:
    assert list(LocalRunner().run(square, [Square(2), Square(3)])) == [(2, 4, os.getpid()), (3, 9, os.getpid())]


def test_a_lost_worker_is_replaced_and_every_task_yields_once(tmp_path: Path) -> None:
    tasks = [Square(n, dies_unless=str(tmp_path / "died") if n == 5 else "") for n in range(12)]

    results = list(LocalRunner(2).run(square, tasks))

    assert sorted(n for n, _, _ in results) == list(range(12))
    assert os.getpid() not in {pid for _, _, pid in results}
    assert (tmp_path / "died").exists()


def test_the_error_of_a_task_is_raised_with_its_hint() -> None:
    with pytest.raises(TargetError, match="no square of 1") as caught:
        list(LocalRunner(2).run(square, [Square(0), Square(1, fails=True), Square(2)]))
    assert caught.value.hint == "take another"


def test_workers_that_always_die_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("venus.process.runners.POOLS_MAX", 2)
    with pytest.raises(WorkerLost):
        list(LocalRunner(2).run(square, [Square(0, dies=True), Square(1, dies=True)]))


def test_workers_end_if_their_parent_is_killed() -> None:
    code = (
        "import time; from venus.process.runners import LocalRunner; list(LocalRunner(2).run(time.sleep, [600, 600]))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        try:
            workers = eventually(lambda: find_workers(parent.pid), "the workers")
        finally:
            parent.kill()
    eventually(lambda: not any(map(is_alive, workers)), "the end of the workers")


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def find_workers(pid: int) -> list[psutil.Process]:
    """Return the workers of a pool, or none before all have started."""
    found = [child for child in psutil.Process(pid).children() if "spawn_main" in " ".join(child.cmdline())]
    return found if len(found) == 2 else []
