"""A newcomer without a checkout: the wheel with its extra `demo` in an empty environment, and the commands it has.

pip fetches every library that setup.cfg names. So this proves what the unit tests of packaging cannot: the list is
complete, and no file of the checkout is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.distribution import ROOT, build
from venus import __version__

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]


class Newcomer:
    """A folder with an empty environment, and a shell without any setting of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"

    def install(self, wheel: Path) -> None:
        """Create the environment and install the wheel with pip, which uses the machine's settings."""
        pip = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VENUS_"))}
        for command in (
            [sys.executable, "-m", "venv", str(self.bin.parent)],
            [str(self.bin / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[demo]"],
        ):
            done = subprocess.run(command, cwd=self.folder, env=pip, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str, timeout_s: float = 60.0) -> str:
        """Run a command of the environment; return its output."""
        clean = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.folder), "LANG": "C.UTF-8"}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=clean,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    folder = Path(tempfile.mkdtemp(prefix="newcomer-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user if root runs this, and pytest closes its folders to others
    found = Newcomer(folder)
    found.install(build(tmp_path_factory.mktemp("dist"))[1])
    yield found
    shutil.rmtree(folder, ignore_errors=True)


def test_no_module_comes_from_the_checkout(newcomer: Newcomer) -> None:
    paths = newcomer.run("python", "-c", "import sys, venus; print(venus.__file__, *sys.path)")

    assert str(ROOT) not in paths
    assert paths.startswith(str(newcomer.folder))


def test_the_command_prints_its_version_and_options(newcomer: Newcomer) -> None:
    assert newcomer.run("venus", "--version") == f"venus {__version__}\n"
    assert f"venus {__version__}" in " ".join(newcomer.run("venus", "version").split())
    assert newcomer.run("venus", "config", "--example") == (ROOT / "venus.example.toml").read_text()


def test_the_demo_runs(newcomer: Newcomer) -> None:
    found = json.loads(newcomer.run("venus", "demo", "--json", timeout_s=900))

    assert found["different"] == 0
    assert sum(proof["rows"] for proof in found["proved"]) > 1000
