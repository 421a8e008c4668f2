"""Runs the under adapter in a process of its own that kills itself with SIGKILL at its n-th durable step.

python -m tests.support.killed_under apply|load N before|after BROKER URL GOAL [KEYED_ROWS_MAX]
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from tests.support.feed import settings_for
from venus.adapters.dialects.postgresql.target.session import Params, Session
from venus.adapters.under.apply import ApplyReport, run_apply
from venus.adapters.under.load import full_sync


def kill_at(step: int, moment: str) -> None:
    """Die just before or just after the `step`-th transaction is committed."""
    commits = 0
    original = Session.run

    def run(self: Session, text: str, params: Params = None) -> int:
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

    Session.run = run  # type: ignore[method-assign]


def main() -> None:
    """Run until everything is applied, or until the kill."""
    mode, step, moment, broker, url, goal, keyed = sys.argv[1:]
    kill_at(int(step), moment)
    settings = settings_for(broker, {"a": url}, apply={"keyed_rows_max": int(keyed), "cut_group_rows_max": 60})
    if mode == "load":
        full_sync(settings, "a")
        return
    stop = threading.Event()

    def look(report: ApplyReport) -> None:
        if report.offset >= int(goal):
            stop.set()

    run_apply(settings, "a", stop, look)


if __name__ == "__main__":
    main()
