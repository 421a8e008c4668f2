"""No server of a test outlives the process that started it, even if that process is killed.

Every process of a test run (the controller and each worker) has a folder of its own. The folder's name is a mark in the
environment of every process that it starts, and a watchdog ends all marked processes after it.
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

#: No name with VENUS_, because an unknown variable with that prefix is an error of the configuration.
MARK = "TEST_LIFETIME"
#: A file system in memory, where a database costs half the CPU; the space that a run needs, and the space to leave
#: free.
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 8 << 30
_OWN_FOLDER = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)  # before pytest chooses the folder of `tmp_path`
def pytest_configure(config: pytest.Config) -> None:
    """Give the run a folder of its own for `tmp_path`.

    Otherwise all runs of a user share one, and each new run closes it to other users: the servers of a run as root,
    which have a user of their own, would lose their data directories.
    """
    if config.option.basetemp is None:
        folder = Path(tempfile.mkdtemp(prefix="venus-tmp-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        config.stash[_OWN_FOLDER] = folder
        config.option.basetemp = str(folder / "run")


@pytest.hookimpl(trylast=True)  # after the second try
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the folder of a successful run; the files of a failed one stay."""
    folder = session.config.stash.get(_OWN_FOLDER, None)
    if folder is not None and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """Start the watchdog of this process, and mark what it starts."""
    folder = tempfile.mkdtemp(prefix="venus-tests-", dir=_memory())
    os.environ[MARK] = folder
    _watch(folder)


def _memory() -> Path | None:
    """Return a folder in memory, if it has enough space."""
    if not os.access(_MEMORY, os.W_OK) or psutil.virtual_memory().available < _ROOM_BYTES:
        return None
    return _MEMORY if shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES else None


def _watch(folder: str) -> None:
    """Start the watchdog, without the mark and outside of the terminal's process group, which Ctrl-C ends."""
    assert watchdog.__file__ is not None
    subprocess.Popen(
        [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), f"{MARK}={folder}", folder],
        env={},
        cwd="/",
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def new_folder(prefix: str) -> Path:
    """Make a folder for a server; the watchdog removes it if the server's own end does not."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get(MARK)))
