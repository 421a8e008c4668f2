"""`venus run` before it starts: it refuses a configuration, and lists, installs or asks for triggers."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer

from venus.cli import run as command
from venus.cli.app import run

pytestmark = pytest.mark.full

NO_TRIGGERS = "venus: source: no triggers are installed\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a configured database with a table; the broker and the loops are left out."""
    file = tmp_path / "app.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE keyless (v TEXT)")
    (tmp_path / "venus.toml").write_text(
        f'[source]\nurl = "sqlite:///{file}"\n[targets.main]\nurl = "postgresql://v:secret@127.0.0.1:1/x"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(command, "serving_broker", lambda *_: nullcontext())
    monkeypatch.setattr(command, "run_loops", lambda *_: 0)
    return file


def triggers(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone()[0])


def answer(monkeypatch: pytest.MonkeyPatch, reply: bool) -> list[str]:
    """Answer as a user at a terminal; return the questions."""
    asked: list[str] = []

    def confirm(text: str, **_: Any) -> bool:
        asked.append(text)
        return reply

    monkeypatch.setattr(command, "can_ask", lambda _: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    return asked


def test_without_triggers_it_is_refused_with_the_remedy(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run"]) == 3
    said = capsys.readouterr().err
    assert said.startswith(NO_TRIGGERS)
    assert "`venus run --install` installs them" in said
    assert triggers(source) == 0


def test_the_option_install_lists_and_installs_and_is_audited(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--install"]) == 0
    said = capsys.readouterr().err
    assert "+ main.orders: " in said
    assert "! main.keyless: refused" in said
    assert triggers(source) > 0
    (record,) = (source.parent / "state/venus/audit.jsonl").read_text().splitlines()
    assert json.loads(record)["what"] == "venus run --install"

    assert run(["run"]) == 0
    assert run(["run", "--install"]) == 0
    assert "+ " not in capsys.readouterr().err, "nothing is missing"


@pytest.mark.parametrize("reply", [True, False])
def test_on_a_terminal_it_lists_and_asks(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reply: bool
) -> None:
    asked = answer(monkeypatch, reply)
    assert run(["run"]) == (0 if reply else 3)
    assert asked == ["Install them now?"]
    assert "these would be created:\n" in capsys.readouterr().err
    assert (triggers(source) > 0) is reply


def test_a_missing_source_ends_it(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.unlink()
    assert run(["run"]) == 2
    assert "app.db" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--install"]])
def test_an_unreachable_source_is_waited_for(
    source: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """Capture waits for it; a container of the source often starts later."""
    file = source.parent / "venus.toml"
    file.write_text(file.read_text().replace(f"sqlite:///{source}", "postgresql://v:secret@127.0.0.1:1/app"))
    assert run(["run", *options]) == 0
    said = capsys.readouterr().err
    assert "the source cannot be reached now: " in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ('[broker]\naddresses = ["a:7400", "b:7400"]\n', "the configuration names several"),
        ('[broker]\nfurther = [["c:7400"]]\n', "the configuration names several"),
        ('[cluster]\nname = "c"\nbroker_id = "a"\netcd = ["e:2379"]\n', "the configuration names several"),
    ],
)
def test_a_configuration_of_several_brokers_is_refused(
    source: Path, capsys: pytest.CaptureFixture[str], sections: str, message: str
) -> None:
    with (source.parent / "venus.toml").open("a") as file:
        file.write(sections)
    assert run(["run", "--install"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "`venus broker`" in said
    assert triggers(source) == 0, "nothing was done"


def test_without_a_target_or_a_source_it_is_refused(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = source.parent / "venus.toml"
    text = file.read_text()
    file.write_text(text.partition("[targets")[0])
    assert run(["run", "--install"]) == 2
    assert "there is no [targets.NAME] section" in capsys.readouterr().err
    file.write_text("[targets" + text.partition("[targets")[2])
    assert run(["run", "--install"]) == 2
    assert "[source] url is not set" in capsys.readouterr().err
    assert triggers(source) == 0
