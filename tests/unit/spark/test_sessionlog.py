"""The log of Spark's output: kept if something fails, otherwise removed."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from venus.errors import SparkFailed
from venus.spark.sessionlog import LOGS_KEPT, SessionLog, failures, last_cause

SAID = """\
26/11/21 17:52:34 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or start with spark
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)
"""


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_the_cause_is_found_among_warnings_and_stack_traces() -> None:
    with SessionLog() as log:
        assert log.last_cause() == ""
        log.path.write_text(SAID)
        assert log.last_cause() == "org.apache.spark.SparkException: Master must either be yarn or start with spark"


def test_the_last_lines_of_a_jvm_are_its_reason() -> None:
    with SessionLog() as log:
        log.path.write_text(
            "Invalid maximum heap size: -Xmxlots\nError: Could not create the Java Virtual Machine.\n"
            "Error: A fatal exception has occurred. Program will exit.\n"
        )
        assert log.last_words() == "Invalid maximum heap size: -Xmxlots"


def test_an_exception_of_the_jvm_is_the_cause() -> None:
    raised = Exception(
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": org.apache.spark.SparkException: Asked to run locally with 0 threads\n"
        "\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:1)\n"
    )

    assert last_cause(raised) == "org.apache.spark.SparkException: Asked to run locally with 0 threads"


def test_a_log_is_kept_if_something_fails_and_named_in_the_hint() -> None:
    with pytest.raises(SparkFailed, match="no workers") as caught, SessionLog() as log, failures(log):
        raise SparkFailed("no workers")

    assert str(log.path) in caught.value.hint
    assert log.path.exists()


def test_the_log_of_a_successful_session_is_removed_and_old_ones_do_not_accumulate(tmp_path: Path) -> None:
    (tmp_path / "venus").mkdir()
    for number in range(LOGS_KEPT + 5):
        (tmp_path / "venus" / f"spark-20260101-0000{number:02d}-1.log").touch()

    with SessionLog() as log:
        assert log.path.exists()

    assert not log.path.exists()
    assert len(list((tmp_path / "venus").iterdir())) == LOGS_KEPT - 1


def test_the_log_is_in_another_folder_if_the_home_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    with SessionLog() as log:
        assert log.path.exists()

    assert not log.path.parent.exists()


def test_a_session_that_runs_for_months_does_not_fill_the_disk(tmp_path: Path) -> None:
    numbers = itertools.count()
    with SessionLog(bytes_max=10_000, look_every_s=0.01) as log:
        log.path.write_text(SAID)
        jvm = os.open(log.path, os.O_WRONLY | os.O_APPEND)

        def is_cut() -> bool:
            os.write(jvm, b"%08d INFO TaskSetManager: without a reader\n" % next(numbers) * 30)
            return log.path.stat().st_size < 1_500

        eventually(is_cut)
        assert log.older.stat().st_size <= 10_000
        eventually(is_cut)
        os.write(jvm, SAID.encode())
        os.close(jvm)
        assert log.last_cause() == "org.apache.spark.SparkException: Master must either be yarn or start with spark"
        assert sum(part.stat().st_size for part in log.path.parent.iterdir()) < 40_000
        log.older.write_bytes(log.older.read_bytes() + SAID.encode())
        log.path.write_text("an INFO line\n")
        assert log.last_cause().endswith("start with spark"), "the older part is read as well"

    assert not list(log.path.parent.iterdir())


def test_old_logs_are_removed_with_their_older_parts(tmp_path: Path) -> None:
    (tmp_path / "venus").mkdir()
    for number in range(LOGS_KEPT + 5):
        for suffix in ("log", "older"):
            (tmp_path / "venus" / f"spark-20260101-0000{number:02d}-1.{suffix}").touch()

    with SessionLog():
        pass

    assert len(list((tmp_path / "venus").iterdir())) == 2 * (LOGS_KEPT - 1)
