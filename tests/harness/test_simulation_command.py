"""The command that replays histories of the simulations lists its options, and names a typo in one line."""

from __future__ import annotations

import pytest

from tests.simulation import __main__ as command
from tests.simulation.world import World


def test_one_history_is_described_and_many_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(World, "says", ["3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 10
    assert command.main(World, "says", ["3", "5"]) == 0
    assert "ms of CPU and " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["x"], "a seed is a number from 0, not 'x'"),
        (["5", "5"], "there is no seed from 5 to below 5"),
        ([], "the following arguments are required: SEED|FIRST"),
    ],
)
def test_a_typo_is_named(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(World, "says", arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
