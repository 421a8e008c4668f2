"""Memory freed by one piece of a cut is used for the next one: its pages are not faulted in again."""

from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np
import pytest

from venus.cli import sync
from venus.cli.invocation import Invocation
from venus.process.runners import LocalRunner

COUNTED = """
import sys
from tests.unit.test_allocation import faults
from venus.process import system
if sys.argv[1] == "kept":
    system.keep_freed_memory()
print(faults(0))
"""


def faults(_: int) -> int:
    """Count the page faults of ten pieces of four 12 MB arrays, after three others."""
    for _ in range(3):
        _piece()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        _piece()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _piece() -> None:
    arrays = [np.ones(12 << 17) for _ in range(4)]
    del arrays


def _measure(how: str) -> int:
    command = [sys.executable, "-c", COUNTED, how]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


def test_freed_pages_are_used_again() -> None:
    assert _measure("kept") < 100
    assert _measure("as usual") > 1000  # or the setting is no longer needed


def test_a_worker_reuses_pages() -> None:
    assert max(LocalRunner(2).run(faults, [1, 2])) < 100


def test_a_loop_of_sync_reuses_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise RuntimeError("kept")

    monkeypatch.setattr(sync, "keep_freed_memory", stop)
    with pytest.raises(RuntimeError, match="kept"):
        sync.run_one(Invocation(json=False), "capture", None, None)  # type: ignore[arg-type]
