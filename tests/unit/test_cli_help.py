"""Help output and its cost: every word, at every width, without the libraries that only commands need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_cli import commands
from venus.cli.app import run

#: Libraries that help and typing errors do not need; each takes 20 ms to 200 ms to import.
HEAVY = {"alembic", "google", "grpc", "numpy", "pyarrow", "rich", "rocksdict", "sqlalchemy", "sqlglot"}
#: Typer parses options with it, but shows the help of `venus` without it.
PYDANTIC = {"pydantic", "pydantic_settings"}


@pytest.mark.parametrize(
    ("arguments", "spared"),
    [(["--help"], HEAVY | PYDANTIC), (["stats"], HEAVY), (["status", "--help"], HEAVY)],
)
def test_help_and_typing_errors_import_no_heavy_library(arguments: list[str], spared: set[str]) -> None:
    code = (
        "import sys\n"
        "from venus.cli.app import run\n"
        "run(sys.argv[1:])\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)

    imported = set(done.stderr.splitlines()[-1].split())
    assert "typer" in imported
    assert imported & spared == set()


def test_status_imports_no_library_of_an_installation(tmp_path: Path) -> None:
    (tmp_path / "venus.toml").write_text(
        '[source]\nurl = "sqlite:///none.db"\n[broker]\naddress = "127.0.0.1:1"\n'
        '[targets.main]\nurl = "postgresql://stranger@127.0.0.1:1/none"\n'
    )
    code = "import sys\nfrom venus.cli.app import run\nrun(['status'])\nprint(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)

    imported = set(done.stdout.splitlines()[-1].split())
    assert "venus.adapters.targets.relational.control" in imported
    assert imported & {"alembic", "mako", "pyspark"} == set()
    own = "venus.adapters.targets.relational"
    assert imported & {f"{own}.apply_session", f"{own}.full_sync", "venus.adapters.upper.capture"} == set()


def test_an_installation_imports_no_code_highlighter() -> None:
    code = "import sys\nfrom venus.migrations import run\nrun._alembic()\nprint(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    imported = set(done.stdout.split())
    assert {"alembic.command", "mako.exceptions"} <= imported
    assert imported & {"pygments", "mako.ext.pygmentplugin"} == set()


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("command", ["", *commands()])
def test_help_fits_the_width_of_the_terminal(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))

    assert run([*command.split(), "--help"]) == 0

    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > width] == []
    assert "<bool>" not in shown


@pytest.mark.parametrize("command", ["", "cluster", "half", "quarantine", "spark"])
def test_no_summary_of_a_command_is_truncated(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0

    assert [line for line in capsys.readouterr().out.splitlines()[1:] if "..." in line] == []


def test_help_shows_the_names_of_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "--help"]) == 0

    assert "[broker] data_dir" in capsys.readouterr().out


def test_a_typing_error_does_not_suggest_an_option_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sync", "--with-parents"]) == 2
    assert "--with-parent " not in capsys.readouterr().err.replace("--with-parents", "")

    assert run(["sync", "--capture-olny"]) == 2
    assert "--capture-only" in capsys.readouterr().err


def test_a_command_group_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["half"]) == 2

    written = capsys.readouterr()
    assert written.out == ""
    assert "rollback" in written.err
