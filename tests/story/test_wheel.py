"""A newcomer without a checkout: the wheel with its extra `demo` in an empty environment, and what it then can do.

pip fetches every library that setup.cfg names, so this says what the unit tests of packaging cannot: that the list is
complete, and that nothing is found only because a checkout is there.
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
    """A folder with nothing but an environment, and a shell that knows nothing of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"

    def install(self, wheel: Path) -> None:
        """Make the environment and install the wheel with pip, whose own settings are those of the machine."""
        pip = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VENUS_"))}
        for command in (
            [sys.executable, "-m", "venv", str(self.bin.parent)],
            [str(self.bin / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[demo]"],
        ):
            done = subprocess.run(command, cwd=self.folder, env=pip, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str, timeout_s: float = 60.0) -> str:
        """Run a command of the environment; return what it prints."""
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
    folder.chmod(0o755)  # PostgreSQL runs as another user if root runs this, and pytest closes its folders
    found = Newcomer(folder)
    found.install(build(tmp_path_factory.mktemp("dist"))[1])
    yield found
    shutil.rmtree(folder, ignore_errors=True)


def test_nothing_comes_from_the_checkout(newcomer: Newcomer) -> None:
    paths = newcomer.run("python", "-c", "import sys, venus; print(venus.__file__, *sys.path)")

    assert str(ROOT) not in paths
    assert paths.startswith(str(newcomer.folder))


def test_it_says_its_version_and_its_options(newcomer: Newcomer) -> None:
    assert newcomer.run("venus", "--version") == f"venus {__version__}\n"
    assert f"venus {__version__}" in " ".join(newcomer.run("venus", "version").split())
    assert newcomer.run("venus", "config", "--example") == (ROOT / "venus.example.toml").read_text()


def test_the_demo_runs(newcomer: Newcomer) -> None:
    found = json.loads(newcomer.run("venus", "demo", "--json", timeout_s=900))

    assert found["different"] == 0
    assert sum(proof["rows"] for proof in found["proved"]) > 1000
