"""Which commands are audited on the machine where they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.test_cli import commands
from venus.cli.app import COMMANDS, REPAIRS, run


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "venus" / "audit.jsonl"


def test_the_audited_commands_exist() -> None:
    assert {*COMMANDS, REPAIRS} - {f"venus {command}" for command in commands()} == set()


def test_a_command_leaves_a_line(log: Path) -> None:
    (log.parents[2] / "venus.toml").write_text('[source]\nurl = "postgresql://ann:p1an7ed@127.0.0.1:1/x"\n')

    assert run(["install-triggers", "--dry-run"]) == 75
    assert run(["forget", "--business", "gone", "--yes"]) == 75
    assert run(["status"]) == 1
    assert run(["migrate", "--target", "p1an7ed"]) == 2

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["what"] for line in lines] == [
        "venus install-triggers --dry-run",
        "venus forget --business gone --yes",
        "venus migrate --target ***",
    ]
    assert [line["result"] for line in lines] == ["exit code 75", "exit code 75", "exit code 2"]
    assert all(line["who"] and line["where"] and line["when"] for line in lines)


def test_the_configuration_names_the_file(log: Path) -> None:
    folder = log.parents[2]
    (folder / "venus.toml").write_text(
        f'[security]\naudit_file = "{folder}/elsewhere.jsonl"\n[source]\nurl = "sqlite:///{folder}/shop.db"\n'
    )

    run(["pause", "--target", "missing"])

    assert not log.exists()
    assert json.loads((folder / "elsewhere.jsonl").read_text())["what"] == "venus pause --target missing"
