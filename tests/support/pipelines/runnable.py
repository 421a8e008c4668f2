"""Tasks for tests of runners, whose worker processes import this module."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from venus.errors import TargetError


@dataclass(frozen=True, slots=True)
class Square:
    """A number, and the fault of the worker that gets it."""

    number: int
    #: The worker kills itself unless this file exists; it creates the file first.
    dies_unless: str = ""
    #: The worker always kills itself.
    dies: bool = False
    #: The task fails.
    fails: bool = False


def square(task: Square) -> tuple[int, int, int]:
    """Return the number, its square, and the id of the process."""
    if task.dies_unless and not Path(task.dies_unless).exists():
        Path(task.dies_unless).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if task.dies:
        os.kill(os.getpid(), signal.SIGKILL)
    if task.fails:
        raise TargetError(f"no square of {task.number}", hint="take another")
    return task.number, task.number**2, os.getpid()
