"""kill -9 of capture while it compares a table: the next process compares it again, and ships only the differences."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.verify.test_compared_fills import ROWS, PostgresParted
from tests.support.pipelines.end_to_end import end_to_end
from venus.adapters.upper.capture import run_capture
from venus.adapters.verify import differences
from venus.adapters.verify.differences import ComparedFill
from venus.config import Settings

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.timeout(300)]

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.fault.verify.test_killed_comparison"])
LIFE_S = 120
#: Steps of a comparison: a portion of keys is logged; just before and just after the fill is declared complete.
STEPS = ("after a portion", "before the end", "after the end")
LOST = 1


def capture_until(settings: Settings, step: str) -> None:
    """Capture, and kill this process at a step of the first comparison."""
    ship, advance = ComparedFill._ship, ComparedFill._advance

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def ship_and_die(self: ComparedFill, source: Any, reader: Any, *args: Any) -> None:
        ends, subject, suspects = args
        ship(self, source, reader, ends, subject, suspects[: len(suspects) // 2])
        die()

    def end_and_die(self: ComparedFill, source: Any, *, after: str, done: bool = False) -> bool:
        if done and step == "before the end":
            die()
        is_stored = advance(self, source, after=after, done=done)
        if done:
            die()
        return is_stored

    differences.KEYS_AT_ONCE = 3  # type: ignore[attr-defined]
    if step == "after a portion":
        ComparedFill._ship = ship_and_die  # type: ignore[assignment, method-assign]
    else:
        ComparedFill._advance = end_and_die  # type: ignore[method-assign]
    run_capture(settings, threading.Event())


@pytest.fixture
def parted_table(tmp_path: Path, database: str, second_database: str) -> Iterator[PostgresParted]:
    parted_table = PostgresParted(database)
    parted_table.create()
    with end_to_end(tmp_path, database, second_database, tables=["t"]) as e2e:
        parted_table.e2e = e2e
        e2e.install()
        e2e.load()
        e2e.start()
        e2e.wait_until_caught_up()
        yield parted_table


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_comparison_starts_again(parted_table: PostgresParted, step: str) -> None:
    e2e, before = parted_table.e2e, parted_table.versions()
    assert len(before) == ROWS
    e2e.stop("capture")
    parted_table.lose(LOST, random.Random(1))
    capture = PROCESSES.Process(target=capture_until, args=(e2e.settings, step))
    capture.start()
    capture.join(LIFE_S)
    assert capture.exitcode == -signal.SIGKILL
    table = parted_table.read_registration()
    assert table.is_compared == (step != "after the end")
    assert table.fill.done == (step == "after the end")

    e2e.start("capture")
    parted_table.wait_until_compared()

    parted_table.assert_equal()
    now = parted_table.versions()
    assert now == {key: version for key, version in before.items() if key[1] != LOST}, "other rows travelled"
    assert parted_table.read_registration().reason == ""
