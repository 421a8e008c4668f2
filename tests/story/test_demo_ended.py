"""A demo that is ended from outside leaves neither processes nor files."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def find_processes(folder: Path) -> list[psutil.Process]:
    """Return the processes whose working folder is the demo's."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_sigterm_ends_the_servers_too(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo = subprocess.Popen(
        [sys.executable, "-m", "venus.cli", "demo", "--folder", str(folder)], stdout=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 120
    while len(find_processes(folder)) < 3:  # the demo itself, PostgreSQL, venus run
        assert demo.poll() is None
        assert time.monotonic() < end
        time.sleep(0.1)
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=60)
    assert demo.returncode == 128 + signal.SIGTERM
    end = time.monotonic() + 60
    while left := find_processes(folder):
        assert time.monotonic() < end, left
        time.sleep(0.1)
    assert not folder.exists()
