"""Shipped files: the package list in setup.cfg is written by hand, and one source tree has one import name.

Sdist and wheel are built once, offline. The wheel is installed beside this environment's libraries in a fresh virtual
environment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.support.distribution import build
from venus import __version__

ROOT = Path(__file__).parents[2]
HOMES = {"venus": "venus", "adapters": "venus.adapters", "spark": "venus.spark", "migrations": "venus.migrations"}
#: Spark loads top-level modules with this name pattern by itself.
SPARK_FINDS = "pyspark_venus.py"
#: The example configuration, which is beside the README.
EXAMPLE = "venus/config/venus.example.toml"
LINKS = {"venus/adapters": "../adapters", "venus/spark": "../spark", "venus/migrations": "../migrations"}


def read_setup() -> ConfigParser:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def own_files() -> set[str]:
    """Return the files that belong in the wheel, under their names in it. rglob does not follow the links."""
    return {EXAMPLE} | {
        "/".join([*package.split("."), *path.relative_to(ROOT / home).parts])
        for home, package in HOMES.items()
        for path in (ROOT / home).rglob("*")
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), **environ}
    return subprocess.run([str(c) for c in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the sdist, as a release is built."""
    return build(tmp_path_factory.mktemp("wheel"))[1]


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a fresh environment with the wheel; the libraries are this environment's, by one path line (offline)."""
    home = tmp_path_factory.mktemp("fresh")
    made = run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    assert made.returncode == 0, made.stderr
    python = home / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install")
    done = run(*pip, "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    assert done.returncode == 0, done.stderr
    site = next((home / "venv" / "lib").glob("python3*")) / "site-packages"
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return home


def test_every_package_is_shipped() -> None:
    listed = set(read_setup()["options"]["packages"].split())

    found = {
        ".".join([name, *init.parent.relative_to(ROOT / home).parts])
        for home, name in HOMES.items()
        for init in (ROOT / home).rglob("__init__.py")
    }

    assert listed == found


def test_the_links_equal_setup_cfg() -> None:
    mapping = dict(re.findall(r"^(\S+) = (\S+)$", read_setup()["options"]["package_dir"], re.MULTILINE))

    assert mapping == {package: home for home, package in HOMES.items()}
    assert {name: str((ROOT / name).readlink()) for name in LINKS} == LINKS


def test_the_wheel_holds_every_file_and_one_import_name(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert {name.partition("/")[0] for name in names} == {"venus", SPARK_FINDS}
    names -= {SPARK_FINDS}
    assert own_files() - names == set(), "in the tree, not in the wheel: list it in setup.cfg"
    assert names - own_files() == set(), "in the wheel, not in the tree"


@pytest.mark.parametrize("home", ["adapters", "spark", "migrations"])
def test_a_second_copy_of_the_classes_cannot_be_imported(home: str) -> None:
    refused = run(sys.executable, "-c", f"import {home}", cwd=ROOT)

    assert f"import venus.{home}, not {home}" in refused.stderr


def test_the_version_is_in_one_place(wheel: Path) -> None:
    assert read_setup()["metadata"]["version"] == "attr: venus.__version__"
    assert wheel.name == f"venus_cdc-{__version__}-py3-none-any.whl"


@pytest.mark.full
def test_the_installed_wheel_has_the_command(environment: Path) -> None:
    shown = run(environment / "venv" / "bin" / "venus", "--help", cwd=environment)

    assert shown.returncode == 0, shown.stderr
    assert "install-triggers" in shown.stdout
    assert "demo" in shown.stdout


@pytest.mark.full
def test_the_installed_wheel_has_what_the_demo_needs(environment: Path) -> None:
    code = (
        "import venus.cli.demo.command, venus.cli.demo.story, venus.broker.service.process\n"
        "import venus.adapters.upper.capture\n"
        "import venus.adapters.targets.relational.apply_session, venus.adapters.dialects.sqlite.source\n"
        "import venus.migrations.run\n"
        "import venus; print(venus.__file__)"
    )

    found = run(environment / "venv" / "bin" / "python", "-W", "error::SyntaxWarning", "-c", code, cwd=environment)

    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).is_relative_to(environment / "venv")


def test_every_pip_finds_every_extra(wheel: Path) -> None:
    """Setuptools writes cx-oracle for cx_oracle, which the pip of Python 3.11 does not find: it exits with 0."""
    metadata = next(name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("METADATA"))
    lines = zipfile.ZipFile(wheel).read(metadata).decode().splitlines()

    extras = [line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")]

    assert extras == list(read_setup()["options.extras_require"])
    assert [name for name in extras if not re.fullmatch("[a-z0-9]+", name)] == []


def test_every_dependency_is_justified() -> None:
    requirements = read_setup()["options"]["install_requires"].split("\n")
    names = [re.split(r"[<>=\[;]", line.strip())[0] for line in requirements if line.strip()]
    reasons = (ROOT / "docs" / "explanation" / "decisions.md").read_text().lower()

    assert [name for name in names if f"`{name.lower()}`" not in reasons] == []
