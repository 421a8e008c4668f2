"""The command line with a missing, wrong or unusual configuration, without any server: one line names the place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.test_cli import SECRET, configure
from venus.cli.app import run


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.upper().startswith("VENUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", ["migrate", "cutover", "verify"])
def test_the_only_target_needs_no_name_and_one_of_several_does(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path)
    run([command])
    assert "cannot be reached" in capsys.readouterr().err, "it is chosen"

    configure(tmp_path, f'[targets.second]\nurl = "postgresql://u:{SECRET}@127.0.0.1:1/e"\n')
    assert run([command]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "venus: there are several targets: choose one with --target",
        "  There are main, second.",
    ]


def test_a_file_from_windows_is_read_and_its_line_numbers_are_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path)
    text = (tmp_path / "venus.toml").read_text().replace("postgresql://u", "nonsense://u", 1)
    (tmp_path / "venus.toml").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))

    assert run(["check"]) == 2
    assert capsys.readouterr().err.startswith("venus: venus.toml:2: [source] url")


@pytest.mark.parametrize("command", ["check", "install-triggers", "pause"])
def test_a_missing_file_is_a_configuration_error(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path)
    text = (tmp_path / "venus.toml").read_text()
    (tmp_path / "venus.toml").write_text(text.replace(f"postgresql://u:{SECRET}@127.0.0.1:1/d", "sqlite:///none.db", 1))

    assert run(command.split()) == 2

    said = capsys.readouterr().err.splitlines()
    assert said[0] == "venus: none.db: no such file"
    assert str(tmp_path / "none.db") in said[1]


@pytest.mark.parametrize(
    ("option", "url", "command", "says"),
    [
        ("targets.main.url", "", "pause --target main", "targets.main.url is not the URL of a target"),
        ("targets.main.url", "mssql://h/d", "pause --target main", "targets.main.url: mssql is not a target that"),
        ("targets.main.url", "postgresql://h:x/d", "pause --target main", "targets.main.url is not a database URL"),
        (
            "targets.main.url",
            "postgresql://u:a@hunter@h/d",
            "pause --target main",
            "targets.main.url is not a database",
        ),
        ("source.url", "mysql://u:a@hunter:2@h/d", "check", "[source] url is not a database URL"),
        ("targets.main.url", "$SHOP", "pause --target main", "targets.main.url is not the URL of a target"),
        ("source.url", "${SHOP}", "check", "[source] url is not a database URL"),
        ("source.url", "nonsense", "check", "[source] url is not a database URL"),
        ("source.url", "mariadb://h", "check", "[source] url names no database\n  Write mariadb://user@host/database."),
        ("source.url", "mariadb://u:hunter@a..b/d", "check", "[source] url: its host is not a host name\n  "),
        ("source.url", "oracle://u:hunter@a..b/d", "check", "[source] url: its host is not a host name\n  "),
        (
            "targets.main.url",
            "mysql://h:99999/d",
            "pause --target main",
            "targets.main.url: its port is not between 1 and",
        ),
        ("targets.main.url", "postgresql://u%00@h/d", "pause --target main", "targets.main.url: it contains a NUL"),
        (
            "targets.main.url",
            "parquet:///a\\u0000b",
            "pause --target main",
            "targets.main.url contains a NUL character",
        ),
    ],
)
def test_an_invalid_url_is_named_by_its_line_or_variable(
    option: str,
    url: str,
    command: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(tmp_path)
    text = (tmp_path / "venus.toml").read_text()
    line = 2 if option == "source.url" else 4
    right = f"postgresql://u:{SECRET}@127.0.0.1:1/d"
    (tmp_path / "venus.toml").write_text(
        "\n".join(row.replace(right, url) if n == line else row for n, row in enumerate(text.splitlines(), 1))
    )
    assert run(command.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"venus: venus.toml:{line}: {says}")
    assert "hunter" not in said
    assert ("%40" in said) == ("is not a database" in said and "$" not in url)
    assert ("variables are not expanded: set VENUS_" in said) == ("$" in url)

    (tmp_path / "venus.toml").write_text(text)
    variable = f"VENUS_{option.upper().replace('.', '__')}"
    if url and "\\u0000" not in url:  # an empty one has a message of its own, and no variable can contain a NUL
        monkeypatch.setenv(variable, url)
        assert run(command.split()) == 2
        assert capsys.readouterr().err.startswith(f"venus: environment: {variable}: {says}")


def test_the_configuration_is_printed_with_passwords_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(tmp_path)

    assert run(["config"]) == 0

    shown = capsys.readouterr().out
    assert "broker.buffer_bytes_max" in shown
    assert "67108864" in shown
    assert SECRET not in shown


def test_a_broker_may_be_configured_by_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container: the broker needs neither a source nor a target."""
    monkeypatch.chdir(tmp_path)
    assert run(["broker", "--check"]) == 2
    assert "venus.toml: no such file" in capsys.readouterr().err
    monkeypatch.setenv("VENUS_BROKER__DATA_DIR", str(tmp_path / "store"))
    assert run(["broker", "--check"]) != 0
    said = capsys.readouterr().err
    assert "venus.toml" not in said
    assert str(tmp_path / "store") in said
    assert run(["status"]) == 2, "it needs a source"
    assert "venus.toml: no such file" in capsys.readouterr().err
