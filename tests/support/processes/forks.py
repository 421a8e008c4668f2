"""Test runs in processes that kill themselves, one after the other, without a new interpreter for each.

A server imports everything; each run is a fork of it, and the fork's exit code is the answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

GIVE_UP_S = 120


def serve(run: Callable[[list[str]], None]) -> None:
    """Answer line by line: a fork runs the words of a line."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(GIVE_UP_S)  # a run that never ends must not block its caller
            run(line.split())
            os._exit(0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


class ForkedModule:
    """The caller's side of a module that forks a process for each run, which may kill itself."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, *words: object) -> bool:
        """Return whether the process was killed before the end of its run."""
        code = self.code(*words)
        assert code in (0, -signal.SIGKILL), code
        return code != 0

    def code(self, *words: object) -> int:
        """Return the exit code of a run, or minus the number of the signal that ended it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def __enter__(self) -> ForkedModule:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)
