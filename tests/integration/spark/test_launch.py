"""A JVM that ends before it accepts connections is started once more; a second failure is reported in one line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from venus.spark.java import find_java

pytestmark = [pytest.mark.integration, pytest.mark.spark]

#: Runs in a process of its own: in this one Spark would reuse the existing session.
_CODE = """
import logging, sys
from venus.config import Settings
from venus.errors import VenusError
from venus.spark.session import open_context
logging.basicConfig(format="%(message)s", level=logging.WARNING)
try:
    with open_context(Settings.model_validate({"spark": {"java_home": sys.argv[1]}})) as context:
        print(context.range(5).count())
except VenusError as error:
    print(f"{type(error).__name__}: {error}; {error.hint}")
"""
_WORDS = "Could not reserve enough space for object heap"
_JAVA = """#!/bin/sh
echo x >> {calls}
if [ $(wc -l < {calls}) -le {bad} ]; then
    echo 'Error occurred during initialization of VM' >&2
    echo '{words}' >&2
    exit 1
fi
exec {java} "$@"
"""


def start_context_with_failing_java(folder: Path, times: int) -> tuple[str, list[str]]:
    """Return what the program printed and what it logged."""
    found = find_java()
    real = found.home
    home = folder / "java"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'JAVA_VERSION="{found.version}"')  # a home that VENUS has wrapped has no Java
    java = home / "bin" / "java"
    names = {"calls": folder / "calls", "java": real / "bin" / "java"}
    quoted = {name: shlex.quote(str(path)) for name, path in names.items()}
    java.write_text(_JAVA.format(bad=times, words=_WORDS, **quoted))
    java.chmod(0o755)
    environ = os.environ | {"XDG_CACHE_HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CODE, str(home)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.splitlines()


@pytest.mark.slow
def test_a_jvm_that_ended_at_once_is_restarted(tmp_path: Path) -> None:
    said, logged = start_context_with_failing_java(tmp_path, 1)

    assert said == "5"
    assert logged[0] == f"Spark's JVM did not start, trying once more: {_WORDS}"
    assert not list(tmp_path.rglob("spark-*.log")), "a session that went well leaves no log"


def test_a_jvm_that_does_not_start_is_reported_in_one_line(tmp_path: Path) -> None:
    said, _ = start_context_with_failing_java(tmp_path, 100)

    (log,) = tmp_path.rglob("spark-*.log")
    assert said == f"SparkFailed: Spark's JVM does not start: {_WORDS}; Spark's output is in {log}"
    assert (tmp_path / "calls").read_text().count("x") == 2
