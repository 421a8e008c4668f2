"""The pool of processes behind `--engine local`: every task once, whatever dies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.pipelines.runnable import Square, square
from venus.errors import TargetError, WorkerLost
from venus.process.runners import LocalRunner

pytestmark = pytest.mark.integration


def test_one_worker_is_this_process() -> None:
    assert list(LocalRunner().run(square, [Square(2), Square(3)])) == [(2, 4, os.getpid()), (3, 9, os.getpid())]


def test_a_lost_worker_is_replaced_and_every_task_yields_once(tmp_path: Path) -> None:
    tasks = [Square(n, dies_unless=str(tmp_path / "died") if n == 5 else "") for n in range(12)]

    results = list(LocalRunner(2).run(square, tasks))

    assert sorted(n for n, _, _ in results) == list(range(12))
    assert os.getpid() not in {pid for _, _, pid in results}
    assert (tmp_path / "died").exists()


def test_the_error_of_a_task_comes_through_with_its_hint() -> None:
    with pytest.raises(TargetError, match="no square of 1") as caught:
        list(LocalRunner(2).run(square, [Square(0), Square(1, fails=True), Square(2)]))
    assert caught.value.hint == "take another"


def test_workers_that_always_die_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("venus.process.runners.POOLS_MAX", 2)
    with pytest.raises(WorkerLost):
        list(LocalRunner(2).run(square, [Square(0, dies=True), Square(1, dies=True)]))
