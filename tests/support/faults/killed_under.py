"""Runs the under adapter in a process that kills itself with SIGKILL at its n-th durable step.

python -m tests.support.faults.killed_under BROKER URL KEYED_ROWS_MAX, then one input line per run:
apply|load|first N before|after GOAL
(forks.py)
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from tests.support.brokers.feed import settings_for
from tests.support.processes.forks import serve
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.relational.apply_session import ApplyReport, run_apply
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.session import Params


def kill_at(step: int, moment: str) -> None:
    """Kill the process just before or just after the `step`-th transaction is committed."""
    commits = 0
    original = TargetSession.run

    def run(self: TargetSession, text: str, params: Params = None) -> int:
        nonlocal commits
        durable = text.rstrip().endswith("COMMIT")
        commits += durable
        if durable and commits == step and moment == "before":
            original(self, text.rstrip().removesuffix("COMMIT") + "SELECT 1", params)
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(self, text, params)
        if durable and commits == step and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    TargetSession.run = run  # type: ignore[method-assign]


def run(broker: str, url: str, keyed: int, mode: str, goal: int) -> None:
    """Run until everything is applied, or until the kill."""
    settings = settings_for(broker, {"a": url}, apply={"keyed_rows_max": keyed, "cut_group_rows_max": 60})
    if mode == "load":
        full_sync(settings, "a")
        return
    if mode == "first":
        asked = iter(range(60))  # without a kill the run ends when no change has arrived for a while
        full_sync(settings, "a", fill_end=lambda: os._exit(0) if next(asked, None) is None else None)
        return
    stop = threading.Event()

    def on_report(report: ApplyReport) -> None:
        if report.offset >= goal:
            stop.set()

    run_apply(settings, "a", stop, on_report)


def main() -> None:
    """Execute runs, one for each input line."""
    broker, url, keyed = sys.argv[1:]

    def run_step(words: list[str]) -> None:
        mode, step, moment, goal = words
        kill_at(int(step), moment)
        run(broker, url, int(keyed), mode, int(goal))

    serve(run_step)


if __name__ == "__main__":
    main()
