"""Tasks for tests of runners: what runs them imports this module in a process of its own."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from venus.errors import TargetError


@dataclass(frozen=True, slots=True)
class Square:
    """A number, and what shall happen to the worker that gets it."""

    number: int
    #: The worker kills itself unless this file is there, which it makes first.
    dies_unless: str = ""
    #: The worker kills itself whenever it gets this.
    dies: bool = False
    #: The task fails.
    fails: bool = False


def square(task: Square) -> tuple[int, int, int]:
    """Return the number, its square, and who made it."""
    if task.dies_unless and not Path(task.dies_unless).exists():
        Path(task.dies_unless).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if task.dies:
        os.kill(os.getpid(), signal.SIGKILL)
    if task.fails:
        raise TargetError(f"no square of {task.number}", hint="take another")
    return task.number, task.number**2, os.getpid()
