"""Runs a lake's load or loop in processes that kill themselves with SIGKILL at their n-th durable step.

python -m tests.support.faults.killed_lake BROKER ROOT, then a line a run: load|follow N before|after GOAL (forks.py)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.pipelines.lakes import load, settings_of
from tests.support.processes.forks import serve
from venus.adapters.targets.parquet.lake_stream import LakeReport, run_lake


def kill_at(step: int, moment: str) -> None:
    """Kill the process just before or just after the `step`-th durable call."""
    lock, steps = threading.Lock(), 0

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal steps
            with lock:
                steps += 1
                mine = steps == step
            if mine and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*arguments, **options)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    os.fsync, os.link = watch(os.fsync), watch(os.link)
    for name in ("rename", "replace", "unlink"):
        setattr(Path, name, watch(getattr(Path, name)))


def run(broker: str, root: Path, mode: str, goal: int) -> None:
    """Run until every change is applied, or until the kill."""
    settings = settings_of(broker, root)
    if mode == "load":
        load(settings)
        return
    stop = threading.Event()

    def on_report(report: LakeReport) -> None:
        if report.offset >= goal and report.refreshed:
            stop.set()

    run_lake(settings, "lake", stop, on_report)


def main() -> None:
    """Execute runs, one for each input line."""
    broker, root = sys.argv[1:]

    def run_step(words: list[str]) -> None:
        mode, step, moment, goal = words
        kill_at(int(step), moment)
        run(broker, Path(root), mode, int(goal))

    serve(run_step)


if __name__ == "__main__":
    main()
