"""Faults that happen once to a split while it is loaded, inside the worker that loads it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from venus.adapters.targets.postgresql.split_writer import CopyLines
from venus.adapters.targets.relational.load_task import SplitResult, SplitTask, load_split
from venus.process.runners import Runner

FAULTS = ("exception", "killed", "killed after commit", "rivals", "killed rival")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyTask:
    """A split, and the fault of the first attempt to load it."""

    task: SplitTask
    fault: str
    folder: str

    def is_first_attempt(self, what: str) -> bool:
        """Return whether the fault has not happened yet."""
        try:
            os.close(os.open(Path(self.folder) / f"{self.task.split_no} {what}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def load_faulty(faulty: FaultyTask) -> SplitResult:
    """Load a split, or fail as planned."""
    fault = faulty.fault
    if not fault or not faulty.is_first_attempt("begun"):
        return load_split(faulty.task)
    if fault == "killed after commit":
        load_split(faulty.task)
        os.kill(os.getpid(), signal.SIGKILL)
    with _act_after_first_chunk(_ways(faulty)[fault]):
        return load_split(faulty.task)


def _ways(faulty: FaultyTask) -> dict[str, Callable[[], None]]:
    """Return the function that causes each fault, by the name of the fault."""

    def fail() -> None:
        raise RuntimeError("planned")

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait() -> None:
        """Wait until the rival attempt has started and waits for this attempt's manifest row."""
        time.sleep(2)

    def wait_and_die() -> None:
        wait()
        die()

    return {"exception": fail, "killed": die, "rivals": wait, "killed rival": wait_and_die}


@contextmanager
def _act_after_first_chunk(happens: Callable[[], None]) -> Iterator[None]:
    """Cause the fault when one part of the split has been sent to the target."""
    original = CopyLines.read
    reads = 0

    def read(self: CopyLines, size: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 2:
            happens()
        return original(self, size)

    CopyLines.read = read  # type: ignore[method-assign]
    try:
        yield
    finally:
        CopyLines.read = original  # type: ignore[method-assign]


class FaultyRunner:
    """A runner in which the n-th split has the n-th fault; two concurrent attempts of one split are rivals."""

    def __init__(self, runner: Runner, faults: Sequence[str], folder: Path) -> None:
        self._runner = runner
        self._faults = faults
        self._folder = folder
        self.results: list[SplitResult] = []

    def run(self, function: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        """Run the splits; each attempt of a split yields a result."""
        assert function is load_split
        faults = dict(zip((task.split_no for task in tasks), self._faults, strict=False))
        faulty = [FaultyTask(task=t, fault=faults.get(t.split_no, ""), folder=str(self._folder)) for t in tasks]
        twice = [each for f in faulty for each in ([f, f] if "rival" in f.fault else [f])]
        for result in self._runner.run(load_faulty, twice):
            self.results.append(result)
            yield result
