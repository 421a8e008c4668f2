"""A missing program: tests that need it are skipped and the end of the run says how to install it, or they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import SETTING

ROOT = Path(__file__).parents[2]
_SUITE = """
import pytest
from tests.support.programs import reject_missing

@pytest.fixture(scope="session")
def server():
    reject_missing("MariaDB")

def test_one(server): pass
def test_two(server): pass
def test_page(): reject_missing("Chromium")
def test_other(): pytest.skip("one writer at a time")
def test_passes(): pass
"""


def run(folder: Path, setting: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.support.programs"]\n')
    (folder / "test_it.py").write_text(_SUITE)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    environ |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", SETTING: setting}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("options", [(), ("-p", "xdist.plugin", "-n", "2")], ids=["serial", "spread"])
def test_the_end_says_what_was_skipped_and_how_to_install_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, "", *options)

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-4:-1] == [
        "2 tests need MariaDB",
        "1 test needs Chromium",
        "apt-get install --no-install-recommends chromium mariadb-server",
    ]


def test_where_all_are_required_a_missing_one_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "required")

    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 skipped, 2 errors" in done.stdout.splitlines()[-1]
    assert "missing on this machine: MariaDB (apt-get install --no-install-recommends mariadb-server)" in done.stdout
