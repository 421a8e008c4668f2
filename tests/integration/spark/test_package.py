"""The package for a cluster: one file, in which a node finds everything that a task needs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from venus.spark.submit import build_pex

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

CODE = (
    "import venus.adapters.targets.relational.load_task as task, venus.spark.tasks as probe;"
    "print(probe.describe_worker(0).missing, task.__file__)"
)


def test_a_package_holds_what_a_task_needs(tmp_path: Path) -> None:
    file = tmp_path / "venus.pex"

    build_pex(file)

    root = tmp_path / "root"
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PEX_ROOT": str(root)}
    ended = subprocess.run([file, "-c", CODE], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    missing, module = ended.stdout.split()
    assert missing == "()"
    assert Path(module).is_relative_to(root)
