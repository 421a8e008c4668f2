"""No server of a test outlives the process of the test run that has started it, also if that is killed.

Every process of a test run (the controller and each worker) has a folder of its own, whose name marks in the
environment whatever it starts, and a watchdog that ends all of that behind it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support.processes import watchdog

#: Not VENUS_...: an unknown variable of that name is an error of the configuration.
MARK = "TEST_LIFETIME"
#: A file system in memory, where a database is made and dropped for half the CPU, and what it needs and shall leave.
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 8 << 30


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    folder = tempfile.mkdtemp(prefix="venus-tests-", dir=_memory())
    os.environ[MARK] = folder
    _watch(folder)


def _memory() -> Path | None:
    """Return where files are kept in memory, if there is enough of it."""
    if not os.access(_MEMORY, os.W_OK) or psutil.virtual_memory().available < _ROOM_BYTES:
        return None
    return _MEMORY if shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES else None


def _watch(folder: str) -> None:
    """Start the watchdog: outside the mark, and outside the terminal's group that Ctrl-C ends."""
    assert watchdog.__file__ is not None
    subprocess.Popen(
        [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), f"{MARK}={folder}", folder],
        env={}, cwd="/", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def new_folder(prefix: str) -> Path:
    """Make a folder for a server; the watchdog removes it if the server's own end does not."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get(MARK)))
