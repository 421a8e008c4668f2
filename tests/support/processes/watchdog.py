"""Waits for the end of one process, then ends all processes that it started: python watchdog.py PID MARK FOLDER.

Started processes are found by their environment, which daemons and processes with a session of their own keep. It uses
only the standard library, because it starts with every test process.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

#: Seconds to wait after each signal. SIGTERM lets servers remove their shared memory; for PostgreSQL, SIGQUIT does too.
_GRACES_S = ((signal.SIGTERM, 2.0), (signal.SIGQUIT, 1.0), (signal.SIGKILL, 10.0))


def find_marked(mark: str) -> list[int]:
    """Return the processes that were started with `mark` (NAME=value) in their environment."""
    sought, found = mark.encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:  # the process has ended, or belongs to another user
            continue
        if sought in environ.split(b"\0"):
            found.append(int(entry.name))
    return found


def end_all(mark: str) -> None:
    """End the marked processes, including those that start during this."""
    for number, grace_s in _GRACES_S:
        until = time.monotonic() + grace_s
        named: set[int] = set()
        while left := find_marked(mark):
            for pid in set(left) - named:
                named.add(pid)
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            if time.monotonic() > until:
                break
            time.sleep(0.05)


def main() -> None:
    """Wait for the end of the process by its pidfd, which stays valid if its number is reused."""
    pid, mark, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    watched = os.pidfd_open(pid)
    if os.getppid() == pid:  # otherwise it has ended before the wait
        select.select([watched], [], [])
    end_all(mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
