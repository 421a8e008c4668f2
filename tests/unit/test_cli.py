"""The command line without any server: help, errors in one line, exit codes, no secret in any output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.models import CommandInfo

from venus.cli.app import app, run
from venus.cli.failure import explain
from venus.cli.invocation import Invocation
from venus.cli.output import Redactor, find_passwords
from venus.config import Settings
from venus.errors import DatabaseUnavailable, Refused
from venus.text.formatting import format_bytes, format_duration

SECRET = "hunter2-Xyz"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.upper().startswith("VENUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def commands() -> list[str]:
    """Return every command; those of groups have two words."""
    names = [command.name or "" for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names += [f"{group.name} {command_name(command)}" for command in group.typer_instance.registered_commands]
    return names


def command_name(command: CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__


def configure(tmp_path: Path, extra: str = "") -> None:
    (tmp_path / "venus.toml").write_text(
        f'[source]\nurl = "postgresql://u:{SECRET}@127.0.0.1:1/d"\n'
        f'[targets.main]\nurl = "postgresql://u:{SECRET}@127.0.0.1:1/d"\n'
        f'[broker]\nlisten = "127.0.0.1:1"\n{extra}'
    )


@pytest.mark.parametrize(
    "command",
    [
        "assess --html no/a.html",
        "assess --script no/a.sql",
        "verify --html no/a.html",
        "verify --html folder",
        "verify --parquet venus.toml",
        "prove --source sqlite:///s.db --report no/a",
    ],
)
def test_an_unwritable_report_is_named_before_anything_is_read(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path)  # no server answers at this address
    (tmp_path / "s.db").touch()
    (tmp_path / "folder").mkdir()
    *_, option, file = command.split()

    assert run(command.split()) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"venus: {option} {file}")
    assert len(said) == 2, "the place and the way out"


def test_a_predicate_is_checked_before_a_broker_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(tmp_path)

    assert run(["listen", "orders", "amount >"]) == 2
    assert capsys.readouterr().err.startswith("venus: character 9: the text ends where a constant was expected\n")


def test_a_database_without_captured_tables_counts_as_unmoved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "venus.toml").write_text('[source]\nurl = "sqlite:///s.db"\n')
    (tmp_path / "s.db").touch()

    assert run(["install-triggers", "--moved"]) == 2
    assert capsys.readouterr().err == (
        "venus: nothing is captured in this database\n  Run `venus install-triggers` without --moved.\n"
    )


def test_a_target_that_cannot_be_cut_over_is_refused_with_one_that_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "venus.toml").write_text('[targets.main]\nurl = "sqlite:///t.db"\n')

    assert run(["cutover"]) == 2
    assert capsys.readouterr().err.splitlines()[1] == "  A PostgreSQL target can be: --target NAME."


@pytest.mark.parametrize("command", commands())
def test_every_command_has_help_and_the_common_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0

    shown = capsys.readouterr().out
    assert "--json" in shown
    assert ("--config" in shown) == (command != "prove"), "which takes a URL, and no configuration"
    assert len(shown.splitlines()) >= 8


def test_a_fall_back_without_its_databases_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path)
    monkeypatch.chdir(tmp_path)

    assert run(["fallback"]) == 75
    assert "Check url in [source]." in capsys.readouterr().err


def test_help_groups_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0

    shown = capsys.readouterr().out
    assert [word for word in ("Try", "Prepare", "Run", "Watch", "Act") if f"\n{word}:\n" not in shown] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stats"], "Did you mean 'status'?"),
        (["status", "--jsn"], "--json"),
        (["status", "-c", "none.toml"], "none.toml: no such file"),
        (["status"], "venus.toml: no such file"),
        (["pause", "a", "b"], "unexpected extra argument"),
        (["half", "commit"], "BATCH"),
        (["half", "commit", "x"], "Invalid value for 'BATCH'"),
    ],
)
def test_a_wrong_command_line_is_one_line_a_hint_and_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2

    written = capsys.readouterr()
    assert written.out == ""
    assert says in written.err.splitlines()[0]
    assert written.err.startswith("venus: ")
    assert len(written.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["check"], 75, "cannot be reached"),
        (["install-triggers"], 75, "cannot be reached"),
        (["uninstall-triggers"], 75, "cannot be reached"),
        (["half", "list"], 75, "127.0.0.1:1"),
        (["quarantine", "list"], 75, "cannot be reached"),
        (["pause", "--target", "main"], 75, "cannot be reached"),
        (["pause", "--target", "mian"], 2, "did you mean main?"),
        (["migrate", "--target", "mian"], 2, "did you mean main?"),
        (["migrate", "--target", "main", "--engine", "fast"], 2, "invalid engine"),
        (["sync", "--capture-only", "--target", "main"], 2, "cannot be combined"),
        (["sync", "--target", "mian"], 2, "did you mean main?"),
        (["resync"], 2, "name a table, or use --all"),
        (["resync", "t", "--differences", "--target", "main"], 2, "use one of them"),
        (["demo", "--folder", "."], 2, "is not empty"),
    ],
)
def test_an_unreachable_or_impossible_part_is_reported_in_one_line(
    arguments: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path)

    assert run(arguments) == code

    written = capsys.readouterr()
    assert says in written.err.splitlines()[-2 if written.err.splitlines()[-1].startswith("  ") else -1]
    assert "Traceback" not in written.err
    assert SECRET not in written.out + written.err


def test_a_bundle_is_written_despite_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path)

    def fail(_: Invocation) -> None:
        raise KeyError(f"a defect near {SECRET}")

    monkeypatch.setattr("venus.cli.support_bundle.collect_status", fail)
    assert run(["support", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["missing"]["status.json"] == "KeyError: 'a defect near ***'"
    assert "versions.json" in found["parts"]


def test_status_works_with_every_part_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(tmp_path)

    assert run(["status", "--json"]) == 1

    written = capsys.readouterr()
    found = json.loads(written.out)
    assert not found["healthy"]
    assert found["source"]["error"]
    assert found["broker"]["error"]
    assert found["targets"][0]["error"]
    assert len(found["problems"]) == 3
    assert SECRET not in written.out + written.err


def test_json_errors_are_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(tmp_path)

    assert run(["--json", "half", "list"]) == 75

    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == 75
    assert error["message"]


def test_options_may_come_before_or_after_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(tmp_path)
    (tmp_path / "venus.toml").rename(tmp_path / "other.toml")

    assert run(["-c", "other.toml", "--json", "config"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert run(["config", "--json", "-c", "other.toml"]) == 0
    behind = json.loads(capsys.readouterr().out)

    assert before == behind
    assert before["source"]["url"] == "postgresql://u:***@127.0.0.1:1/d"


def test_a_defect_is_reported_in_one_line_with_a_file_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    invocation = Invocation()
    invocation.redactor.learn(Settings(source={"url": f"postgresql://u:{SECRET}@h/d"}))  # type: ignore[arg-type]
    try:
        raise ValueError(f"cannot use postgresql://u:{SECRET}@h/d\nat all")
    except ValueError as error:
        message, hint, code = explain(error, invocation)

    report = Path(hint.removeprefix("details: "))
    assert code == 12
    assert "\n" not in message
    assert SECRET not in message
    assert report.is_relative_to(tmp_path)
    assert "Traceback" in report.read_text()
    assert SECRET not in report.read_text()
    assert report.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("error", "code"), [(Refused("x"), 3), (DatabaseUnavailable("x"), 75), (KeyboardInterrupt(), 130)]
)
def test_errors_have_their_exit_codes(error: BaseException, code: int) -> None:
    assert explain(error, Invocation())[2] == code


def test_an_interrupted_command_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    configure(tmp_path)
    monkeypatch.setattr("venus.cli.verify.compare", interrupt)

    assert run(["verify"]) == 130

    assert capsys.readouterr().err == "venus: interrupted\n"


def test_passwords_are_masked_in_every_spelling() -> None:
    redact = Redactor()
    redact.learn(
        Settings(
            source={"url": "postgresql://u:p%40ss%2Fword@h/d"},  # type: ignore[arg-type]
            targets={"a": {"url": "postgresql://h/d?password=qu%26ry"}},  # type: ignore[dict-item]
        )
    )

    text = redact("p%40ss%2Fword p@ss/word qu%26ry qu&ry postgresql://x:unknown@h/d?a=b")

    assert text == "*** *** *** *** postgresql://x:***@h/d?a=b"
    assert find_passwords("sqlite:///x.db") == set()


def test_figures_are_readable() -> None:
    assert [format_bytes(n) for n in (0, 1023, 12_900_000, 5 << 40)] == ["0 B", "1023 B", "12.3 MiB", "5.0 TiB"]
    assert [format_duration(s) for s in (0.44, 12, 200, 9000, 400_000)] == ["0.4 s", "12 s", "3.3 min", "2.5 h", "5 d"]


def test_files_of_a_command_and_its_children_are_for_their_owner_only(tmp_path: Path) -> None:
    script = (
        "import os, venus.cli, venus.cli.app as app\n"
        "app.run = lambda _: os.system('mkdir folder && touch folder/file')\n"
        "os.umask(0o022)\n"
        "venus.cli.main()\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)

    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "folder" / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "words", [["assess", "--html"], ["cluster", "move", "main", "--leader"], ["status", "--every"]]
)
def test_an_option_without_its_value_points_to_its_own_commands_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    command = " ".join(word for word in words[:-1] if word != "main")
    assert capsys.readouterr().err.endswith(f"See `venus {command} --help`.\n")


def test_an_empty_topology_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "venus.toml").write_text('[broker]\naddress = "127.0.0.1:1"\n[targets.main]\nurl = "sqlite://"\n')
    assert run(["cluster", "topology", "-c", str(tmp_path / "venus.toml")]) == 75
    said = capsys.readouterr().err
    assert said.count("is `venus run` or `venus broker` running?") == 1
    assert said.splitlines()[1] == "  Check [broker] address and addresses."
