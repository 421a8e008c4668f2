"""How a command of VENUS is given to a cluster by spark-submit, with the driver on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from venus.config import Settings, is_secret
from venus.errors import ConfigError
from venus.spark import job
from venus.spark.java import find_java, wrapped
from venus.spark.session import NOT_INSTALLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A command line, and what its environment has besides that of this process."""

    command: tuple[str, ...]
    environ: dict[str, str]


def submission(
    settings: Settings,
    command: Sequence[str],
    *,
    master: str = "",
    pex: Path | None = None,
    options: Sequence[str] = (),
) -> Submission:
    """Say how spark-submit is called. Raises ConfigError for what cannot be found."""
    if not (master := master or settings.spark.master):
        raise ConfigError("no master to submit to", hint="set spark.master, or --master spark://HOST:PORT, yarn, ...")
    if pex is not None and not pex.is_file():
        raise ConfigError(f"--pex {pex}: no such file", hint="venus spark package makes one")
    # the driver reads secrets from the configuration itself: everybody can see a command line
    public = {name: value for name, value in settings.spark.conf.items() if not is_secret(name)}
    conf = {"spark.speculation": "false", "spark.app.name": f"venus {command[0]}"} | public
    words = [_spark_submit(), "--master", master, "--deploy-mode", "client"]
    words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    words += ["--files", str(pex.resolve())] if pex is not None else []
    environ = {
        "JAVA_HOME": str(wrapped(find_java(settings.spark.java_home))),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": f"./{pex.name}" if pex is not None else os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    return Submission(command=(*words, *options, str(Path(job.__file__)), *command), environ=environ)


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
    """Run it; what the command says comes out on stdout, what Spark says goes into the log. Return its exit code."""
    with log.open("ab") as file:
        return subprocess.run(wanted.command, env=os.environ | wanted.environ, stderr=file).returncode
