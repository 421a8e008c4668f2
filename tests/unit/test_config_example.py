"""venus.example.toml lists every option with its default."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import SecretStr

from venus.cli.app import run
from venus.config import Settings, load, options

ROOT = Path(__file__).parents[2]
#: Sections inside other sections.
NESTED = ("source.columns", "broker.limits", "broker.degrade", "broker.health")


def test_the_example_has_every_option_with_its_default_and_nothing_else() -> None:
    tree = tomllib.loads((ROOT / "venus.example.toml").read_text())
    alarms = tree["alarms"]
    tree["targets.NAME"] = tree.pop("targets")["main"]
    for section, nested in (path.split(".") for path in NESTED):
        tree[f"{section}.{nested}"] = tree[section].pop(nested)
    tree["alarms.to.NAME"], tree["alarms.rules.NAME"] = alarms.pop("to")["oncall"], alarms.pop("rules")["other"]
    tree["labels"] = {"NAME": []}  # names are the user's
    written = {f"{section}.{option}": value for section, body in tree.items() for option, value in body.items()}
    defaults = {
        path: list(d)
        if isinstance(d, tuple)
        else str(d)
        if isinstance(d, Path)
        else d.get_secret_value()
        if isinstance(d, SecretStr)
        else d
        for path, d in options().items()
    }
    examples = {
        "source.url",
        "targets.NAME.url",
        "alarms.to.NAME.command",
    }  # these have no default, so the file shows an example

    assert written.keys() == defaults.keys()
    assert {p: v for p, v in written.items() if p not in examples} == {
        p: v for p, v in defaults.items() if p not in examples
    }


def test_the_example_explains_every_option() -> None:
    lines = (ROOT / "venus.example.toml").read_text().splitlines()

    for number, line in enumerate(lines):
        if "=" in line and not line.startswith("#"):
            assert lines[number - 1].startswith("#"), f"line {number + 1} has no comment above it: {line}"


@pytest.mark.usefixtures("no_venus_environment")
def test_the_example_loads() -> None:
    assert load(ROOT / "venus.example.toml").broker == Settings().broker


@pytest.mark.usefixtures("no_venus_environment")
def test_the_example_is_printed_by_every_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["config", "--example"]) == 0
    assert capsys.readouterr().out == (ROOT / "venus.example.toml").read_text()


def test_all_mistakes_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VENUS_BROKER__LISTN", "x")
    (tmp_path / "venus.toml").write_text('[broker]\nhttpp = ""\nretain_bytes = "many"\n[capture]\nheartbeat_s = -1\n')
    monkeypatch.chdir(tmp_path)
    assert run(["status"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        "venus: environment: VENUS_BROKER__LISTN matches no option (did you mean VENUS_BROKER__LISTEN?)",
        "venus: venus.toml:2: broker.httpp: no such option (did you mean http?)",
    ]
    assert {line.split(":")[2] + line.split(":")[3] for line in said[2:4]} == {
        "3 broker.retain_bytes",
        "5 capture.heartbeat_s",
    }
