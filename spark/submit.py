"""Submission of a VENUS command to a cluster by spark-submit, with the driver on this machine.

`build_pex` builds one file with VENUS and its dependencies except Spark, for the nodes of a cluster with Python 3.11.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import venus
from venus.config import Settings, is_secret
from venus.errors import ConfigError, VenusError
from venus.spark.java import find_java, wrap_java
from venus.spark.session import NOT_INSTALLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A command line, with additions to the environment of this process."""

    command: tuple[str, ...]
    environ: dict[str, str]


def plan_submission(
    settings: Settings,
    command: Sequence[str],
    application: Path,
    *,
    master: str = "",
    pex: Path | None = None,
    options: Sequence[str] = (),
) -> Submission:
    """Return the call of spark-submit that runs `application` with a command. Raises ConfigError."""
    if not (master := master or settings.spark.master):
        raise ConfigError("no master to submit to", hint="set spark.master, or --master spark://HOST:PORT, yarn, ...")
    if pex is not None and not pex.is_file():
        raise ConfigError(f"--pex {pex}: no such file", hint="venus spark package makes one")
    # the driver reads secrets from the configuration itself: every user can see a command line
    public = {name: value for name, value in settings.spark.conf.items() if not is_secret(name)}
    conf = {"spark.speculation": "false", "spark.app.name": f"venus {command[0]}"} | public
    words = [_spark_submit(), "--master", master, "--deploy-mode", "client"]
    words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    words += ["--files", str(pex.resolve())] if pex is not None else []
    environ = {
        "JAVA_HOME": str(wrap_java(find_java(settings.spark.java_home))),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": f"./{pex.name}" if pex is not None else os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    return Submission(command=(*words, *options, str(application), *command), environ=environ)


def _spark_submit() -> str:
    """Return the spark-submit of SPARK_HOME, or PySpark's own."""
    if home := os.environ.get("SPARK_HOME"):
        command = Path(home) / "bin" / "spark-submit"
        if not command.is_file():
            raise ConfigError(
                f"SPARK_HOME is {home}, which has no bin/spark-submit", hint="unset it to use that of PySpark"
            )
        return str(command)
    if (package := find_spec("pyspark")) is None or package.origin is None:
        raise ConfigError("PySpark is not installed, and SPARK_HOME is not set", hint=NOT_INSTALLED)
    return str(Path(package.origin).parent / "bin" / "spark-submit")


def submit(wanted: Submission, log: Path) -> int:
    """Run spark-submit and return its exit code; stdout is that of the command, Spark's output goes into the log."""
    with log.open("ab") as file:
        return subprocess.run(wanted.command, env=os.environ | wanted.environ, stderr=file).returncode


#: Files of a checkout that do not go into a wheel.
_NOT_BUILT = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", "data")


def build_pex(output: Path, wheel: Path | None = None) -> None:
    """Write the PEX from the packages that are installed here.

    Raises ConfigError if pex is missing, or if VENUS's own wheel cannot be obtained.
    """
    if importlib.util.find_spec("pex") is None:
        raise ConfigError("pex is not installed", hint="pip install 'venus-cdc[cluster]'")
    if wheel is not None and not wheel.is_file():
        raise ConfigError(f"--wheel {wheel}: no such file")
    with tempfile.TemporaryDirectory(prefix="venus-pex-") as folder:
        wheel = wheel or _own_wheel(Path(folder))
        # the node's Spark has its own PySpark, which must come before any other
        _run_command(
            sys.executable,
            "-m",
            "pex",
            "--inherit-path=fallback",
            "--venv-repository",
            sys.prefix,
            str(wheel),
            "--output-file",
            str(output),
        )


def _own_wheel(folder: Path) -> Path:
    """Build the wheel of a checkout from a copy, because a build leaves files behind."""
    source = _checkout()
    if source is None:
        raise ConfigError(
            "VENUS was installed from a wheel, which is not kept", hint="name it: venus spark package --wheel FILE"
        )
    copied = folder / "tree"
    shutil.copytree(source, copied, symlinks=True, ignore=_NOT_BUILT)
    _run_command(
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "wheel",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(copied),
    )
    return next(folder.glob("*.whl"))


def _checkout() -> Path | None:
    """Return the checkout from which VENUS runs; None if a wheel cannot be built from it."""
    root = Path(venus.__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").exists() and (root / "setup.cfg").exists() else None


def _run_command(*command: str) -> None:
    """Run a command. Raises VenusError, with the last line of its output, if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise VenusError(f"{Path(command[2]).name} ended with {done.returncode}: {lines[-1]}")
