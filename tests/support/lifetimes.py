"""No server of a test outlives the process of the test run that has started it, also if that is killed.

Every process of a test run (the controller and each worker) has a folder of its own, whose name marks in the
environment whatever it starts, and a watchdog that ends all of that behind it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import watchdog

#: Not VENUS_...: an unknown variable of that name is an error of the configuration.
MARK = "TEST_LIFETIME"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    folder = tempfile.mkdtemp(prefix="venus-tests-")
    os.environ[MARK] = folder
    _watch(folder)


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
