"""What may happen to a split while it is loaded, made to happen in the worker that loads it, once."""

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
    """A split, and what shall happen to the first attempt to load it."""

    task: SplitTask
    fault: str
    folder: str

    def first(self, what: str) -> bool:
        """Whether this has not happened yet."""
        try:
            os.close(os.open(Path(self.folder) / f"{self.task.split_no} {what}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def load_faulty(faulty: FaultyTask) -> SplitResult:
    """Load a split, or come to grief."""
    fault = faulty.fault
    if not fault or not faulty.first("begun"):
        return load_split(faulty.task)
    if fault == "killed after commit":
        load_split(faulty.task)
        os.kill(os.getpid(), signal.SIGKILL)
    with _act_after_first_chunk(_ways(faulty)[fault]):
        return load_split(faulty.task)


def _ways(faulty: FaultyTask) -> dict[str, Callable[[], None]]:
    def fail() -> None:
        raise RuntimeError("planned")

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def wait() -> None:
        """Give the rival time to come, and to wait for this one's manifest row."""
        time.sleep(2)

    def wait_and_die() -> None:
        wait()
        die()

    return {"exception": fail, "killed": die, "rivals": wait, "killed rival": wait_and_die}


@contextmanager
def _act_after_first_chunk(happens: Callable[[], None]) -> Iterator[None]:
    """Let it happen when a part of the split has gone to the target and the rest has not."""
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
    """A runner under which the n-th split meets the n-th fault; rivals are two attempts of one split at once."""

    def __init__(self, runner: Runner, faults: Sequence[str], folder: Path) -> None:
        self._runner = runner
        self._faults = faults
        self._folder = folder
        self.results: list[SplitResult] = []

    def run(self, function: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        """Run the splits; of two attempts both report."""
        assert function is load_split
        faults = dict(zip((task.split_no for task in tasks), self._faults, strict=False))
        faulty = [FaultyTask(task=t, fault=faults.get(t.split_no, ""), folder=str(self._folder)) for t in tasks]
        twice = [each for f in faulty for each in ([f, f] if "rival" in f.fault else [f])]
        for result in self._runner.run(load_faulty, twice):
            self.results.append(result)
            yield result
