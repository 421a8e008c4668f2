"""Tasks on Spark's executors: each task's result comes once, errors keep their type, lost workers are replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.pipelines.runnable import Square, square
from venus.errors import TargetError, WorkerLost
from venus.spark.runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HANDLER = """
import signal, threading
from venus.cli.sync import stop_on_signals
from venus.config import Settings
from venus.spark.session import open_session
stop = threading.Event()
stop_on_signals(stop)
with open_session(Settings(), app="signals"):
    signal.raise_signal(signal.SIGINT)
    print("in order" if stop.wait(60) else "continues")
"""
pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_every_task_yields_once_from_another_process(spark_session: SparkSession) -> None:
    results = list(SparkRunner(spark_session.sparkContext).run(square, [Square(n) for n in range(9)]))

    assert sorted((n, s) for n, s, _ in results) == [(n, n * n) for n in range(9)]
    assert os.getpid() not in {pid for _, _, pid in results}
    assert list(SparkRunner(spark_session.sparkContext).run(square, [])) == []


def test_the_signal_handler_of_the_command_stays_in_force(tmp_path: Path) -> None:
    """PySpark's handler cancels all jobs and raises KeyboardInterrupt, so that `venus sync` would not stop in order."""
    found = subprocess.run([sys.executable, "-c", HANDLER], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (found.stdout, found.returncode) == ("in order\n", 0), found.stderr


def test_a_worker_that_dies_is_replaced_and_its_task_repeated(spark_session: SparkSession, tmp_path: Path) -> None:
    tasks = [Square(n, dies_unless=str(tmp_path / "died") if n == 2 else "") for n in range(4)]

    results = list(SparkRunner(spark_session.sparkContext).run(square, tasks))

    assert sorted(n for n, _, _ in results) == [0, 1, 2, 3]
    assert (tmp_path / "died").exists()


def test_the_error_of_a_task_is_raised_with_its_hint(spark_session: SparkSession) -> None:
    with pytest.raises(TargetError, match=r"^no square of 1$") as caught:
        list(SparkRunner(spark_session.sparkContext).run(square, [Square(0), Square(1, fails=True)]))
    assert caught.value.hint == "take another"


def test_workers_that_always_die_end_the_run(spark_session: SparkSession) -> None:
    with pytest.raises(WorkerLost):
        list(SparkRunner(spark_session.sparkContext).run(square, [Square(1, dies=True)]))
