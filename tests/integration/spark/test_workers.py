"""Workers that cannot run VENUS: a cluster without the package reports that and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ROOT = Path(__file__).parents[3]
#: Runs in a process of its own: in this one Spark would reuse the existing session.
_CODE = """
from venus.config import Settings
from venus.errors import VenusError
from venus.spark.tasks import describe_worker
from venus.spark.runner import open_runner
try:
    with open_runner(Settings.model_validate({"spark": {"master": "local[1]"}})) as runner:
        print(list(runner.run(describe_worker, [0.0])))
except VenusError as error:
    print(f"{type(error).__name__}: {error}; {error.hint}")
"""
#: A Python with Spark's own modules and the standard library only.
_BARE = """#!/bin/sh
cd /
exec {python} -S "$@"
"""


def probe_error(python: Path, state: Path) -> str:
    """Return the error about workers that run this Python."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"PYSPARK_PYTHON": str(python), "XDG_STATE_HOME": str(state)}
    command = [sys.executable, "-W", "ignore", "-c", _CODE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environ, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_workers_without_the_package_are_reported(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(_BARE.format(python=sys.executable))
    bare.chmod(0o755)

    said = probe_error(bare, tmp_path)

    assert "No module named 'venus'; the workers' Python lacks venus: `venus spark package` provides it" in said


def test_workers_without_the_python_are_reported(tmp_path: Path) -> None:
    absent = tmp_path / "no" / "python"

    assert f"the workers have no {absent}: set PYSPARK_PYTHON" in probe_error(absent, tmp_path)
