"""The command that runs random histories by the thousand says how many failed, and which."""

from __future__ import annotations

import pytest

from tests.histories import __main__ as command


@pytest.mark.parametrize("kind", list(command.KINDS))
def test_every_kind_runs(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([kind, "7", "9"]) == 0
    assert capsys.readouterr().out.startswith(f"{kind}: 3 histories, 0 failed, ")


def test_failed_histories_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(number: int) -> None:
        assert number % 3, f"history {number}: other rows"

    monkeypatch.setitem(command.KINDS, "sets", run)
    assert command.main(["sets", "1", "7"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith("sets: 7 histories, 2 failed, ")
    assert said.out.splitlines()[1] == "failed: 3 6"
    assert said.err.splitlines() == ["3: history 3: other rows", "6: history 6: other rows"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], f"'' is no kind of history. There are {', '.join(command.KINDS)}; --help says more"),
        (["set", "1", "2"], "'set' is no kind of history: did you mean sets? There are"),
        (["sets", "1"], "two numbers follow sets"),
        (["sets", "1", "x"], "two numbers follow sets"),
        (["sets", "3", "2"], "there is no history from 3 to 2"),
    ],
)
def test_a_typo_is_reported_in_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(says)
    assert len(said.splitlines()) == 1


def test_help_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"    {kind} " in said for kind in command.KINDS)
