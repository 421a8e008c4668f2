"""Tables on narrow and wide terminals: no line is wider than the terminal, and no name is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Group

from tests.unit.test_cli import configure
from venus.cli.app import run
from venus.cli.invocation import Invocation
from venus.cli.output import build_table

ROWS: list[tuple[object, ...]] = [
    ("main.order_lines", "active", 0, 25_695, "4,415 + 3 in quarantine"),
    ("main.orders", "active", 12, 10_270, "1,723"),
]


def show(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    Invocation().out.answer(
        {}, build_table("table", "state", "in the log", "changes committed", "applied by main", rows=ROWS)
    )
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [30, 40, 60, 72, 80, 200])
def test_a_table_fits_the_terminal_with_unbroken_names(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = show(width, monkeypatch, capsys)

    assert max(map(len, lines)) <= width
    assert any(line.startswith("main.order_lines") for line in lines)


def test_a_narrow_terminal_shows_one_value_below_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = show(40, monkeypatch, capsys)

    assert lines[:5] == [
        "main.order_lines",
        "  state: active",
        "  in the log: 0",
        "  changes committed: 25,695",
        "  applied by main: 4,415 + 3 in",
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_status_fits_the_terminal(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))

    assert run(["status"]) == 1

    assert max(map(len, capsys.readouterr().out.splitlines())) <= width


@pytest.mark.parametrize("width", [30, 60, 200])
def test_text_that_looks_like_markup_is_shown(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows: list[tuple[object, ...]] = [("main.t[/b]", "[targets.a]"), ("main.t:x:", "[bold]")]
    Invocation().out.answer({}, Group("[targets.b]", build_table("[red]", "what", rows=rows)))

    said = capsys.readouterr().out
    for text in ("main.t[/b]", "[targets.a]", "main.t:x:", "[bold]", "[targets.b]"):
        assert text in said
