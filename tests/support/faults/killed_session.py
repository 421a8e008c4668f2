"""Runs the under adapter of a target without COPY in a process that kills itself with SIGKILL at a durable step.

python -m tests.support.faults.killed_session BROKER TARGET URL, then one input line per run:
apply|load|ddl-apply|ddl-load N before|after GOAL
(forks.py)
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.support.brokers.feed import settings_for
from tests.support.oracle.driver import driver_folder
from tests.support.processes.forks import serve
from venus.adapters.targets.mysql.session import MysqlSession
from venus.adapters.targets.oracle.session import OracleTargetSession
from venus.adapters.targets.relational.apply_session import ApplyReport, run_apply
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.session import Params
from venus.adapters.targets.sqlite.session import SqliteSession

#: Pattern of the statements of a DDL step, including the record of its intent.
DDL = ("CREATE TABLE", "ALTER TABLE", "DROP TABLE", "INSERT INTO venus_intent", "DELETE FROM VENUS_INTENT")

SessionKind = type[MysqlSession] | type[OracleTargetSession] | type[SqliteSession]


def kill_at(step: int, moment: str, *, ddl: bool, kind: SessionKind) -> None:
    """Kill the process just before or just after the `step`-th commit, or the `step`-th statement of DDL."""
    steps = 0
    original: Any = kind.run

    def run(self: Any, text: str, params: Params = None) -> int:
        nonlocal steps
        commits = text.rstrip().endswith("COMMIT")
        durable = text.startswith(DDL) if ddl else commits
        steps += durable
        if durable and steps == step and moment == "before":
            if commits:
                original(self, text.rstrip().removesuffix("COMMIT") + "SELECT 1", params)
            os.kill(os.getpid(), signal.SIGKILL)
        result: int = original(self, text, params)
        if durable and steps == step and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    kind.run = run  # type: ignore[method-assign]


def run(broker: str, name: str, url: str, mode: str, goal: int) -> None:
    """Run until everything is applied, or until the kill."""
    settings = settings_for(broker, {name: url}, apply={"cut_group_rows_max": 60})
    if mode == "load":
        full_sync(settings, name)
        return
    stop = threading.Event()

    def on_report(report: ApplyReport) -> None:
        if report.offset >= goal:
            stop.set()

    run_apply(settings, name, stop, on_report)


def main() -> None:
    """Execute runs, one for each input line."""
    broker, name, url = sys.argv[1:]
    kinds: dict[str, SessionKind] = {"sqlite": SqliteSession, "oracle+cx_oracle": OracleTargetSession}
    kind = kinds.get(url.partition(":")[0], MysqlSession)
    if kind is OracleTargetSession:
        sys.path.insert(0, str(driver_folder(Path(tempfile.mkdtemp()))))

    def run_step(words: list[str]) -> None:
        mode, step, moment, goal = words
        kill_at(int(step), moment, ddl=mode.startswith("ddl-"), kind=kind)
        run(broker, name, url, mode.removeprefix("ddl-"), int(goal))

    serve(run_step)


if __name__ == "__main__":
    main()
