"""Files of unexpected failures: one for each, and only a limited number."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from venus.cli import failure
from venus.cli.invocation import Invocation

INVOCATION = cast(Invocation, SimpleNamespace(redactor=lambda text: text))


def test_only_the_newest_failure_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    other = tmp_path / "venus" / "notes.log"
    other.parent.mkdir()
    other.touch()
    written = []
    for n in range(100):
        monkeypatch.setattr("venus.cli.failure.time.strftime", lambda _form, n=n: f"20260101-{n:06}")
        written.append(failure.write_report(ValueError(f"no {n}"), INVOCATION))

    left = sorted(other.parent.glob("failure-*.log"))
    assert left == written[-20:]
    assert "no 99" in left[-1].read_text()
    assert other.exists()


def test_no_file_of_other_programs_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    monkeypatch.setattr("venus.cli.failure.tempfile.gettempdir", lambda: str(tmp_path))
    for n in range(30):
        (tmp_path / f"failure-2026{n:04}.log").touch()

    failure.write_report(ValueError("x"), INVOCATION)

    assert len(list(tmp_path.glob("failure-*.log"))) == 31


def test_a_user_without_a_name_and_a_home_gets_a_failure_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a user id of its own: Python finds no home then."""

    def fail_to_find_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail_to_find_home)
    monkeypatch.setattr("venus.process.system.ROOT", tmp_path)
    report = failure.write_report(ValueError("no 1"), INVOCATION)
    assert report.parent == tmp_path / ".local" / "state" / "venus"
    assert "no 1" in report.read_text()
