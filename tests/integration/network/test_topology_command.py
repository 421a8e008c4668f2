"""`venus cluster topology` with real sets: upstreams, offsets and lag; errors in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers.networks import has, start
from tests.support.brokers.servers import fill
from tests.support.waiting import eventually
from venus.broker.service.process import RunningBroker
from venus.cli.app import run

pytestmark = pytest.mark.integration


@pytest.fixture
def network(tmp_path: Path) -> Iterator[dict[str, RunningBroker]]:
    hq = start(tmp_path / "hq")
    fill(hq.address, 1, 3)
    europe = start(tmp_path / "europe", hq.address, tier="tandem", level=1)
    lyon = start(tmp_path / "lyon", europe.address, tier="access", level=2)
    running = {"hq": hq, "europe": europe, "lyon": lyon}
    try:
        has(lyon.address, 3)
        yield running
    finally:
        for broker in reversed(running.values()):
            broker.stop()


def config(tmp_path: Path, address: str) -> str:
    file = tmp_path / "venus.toml"
    file.write_text(f'[broker]\naddress = "{address}"\n')
    return str(file)


def test_from_the_lowest_set_all_sets_above_are_found(
    network: dict[str, RunningBroker],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    file = config(tmp_path, network["lyon"].address)
    assert run(["cluster", "topology", "-c", file]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"hq: core · level 0 · {network['hq'].address}")
    assert lines[1].startswith("│  main  3")
    assert lines[2].startswith(f"└─ europe: tandem · level 1 · {network['europe'].address}")
    assert lines[3].startswith("   │  main  3  level")
    assert lines[4].startswith(f"   └─ lyon: access · level 2 · {network['lyon'].address}")
    assert lines[5].startswith("         main  3  level")
    assert len(lines) == 6


def test_json_output_has_every_hop(
    network: dict[str, RunningBroker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cluster", "topology", "--json", "-c", config(tmp_path, network["lyon"].address)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    sets = {one["set"]: one for one in found["sets"]}
    assert {name: one["pulls_from"] for name, one in sets.items()} == {"hq": None, "europe": "hq", "lyon": "europe"}
    assert sets["lyon"]["businesses"][0] | dict.fromkeys(("from_home_s", "mean_s", "deviation_s"), 0) == {
        "business": "main",
        "offset": 3,
        "behind": 0,
        "behind_s": 0.0,
        "from_home_s": 0,
        "mean_s": 0,
        "deviation_s": 0,
        "state": "following",
        "reason": "",
        "nearest": None,
        "away_s": 0.0,
        "not_back": "",
    }


def test_from_the_home_all_sets_below_are_found_and_a_missing_one_is_shown_as_the_home_sees_it(
    network: dict[str, RunningBroker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, network["hq"].address)

    def is_found() -> bool:
        code = run(["cluster", "topology", "-c", file])
        out = capsys.readouterr().out
        return code == 0 and "europe: tandem" in out and "lyon: access" in out

    eventually(is_found)
    network["europe"].stop()

    def is_away() -> bool:
        code = run(["cluster", "topology", "-c", file])
        out = capsys.readouterr().out
        return code == 1 and "europe: not asked · ! no answer: " in out and "main  3  ! not connected, level" in out

    eventually(is_away)


def test_a_set_that_is_cut_off_is_named_and_changes_the_exit_code(
    network: dict[str, RunningBroker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network["europe"].stop()
    file = config(tmp_path, network["lyon"].address)

    def shows_both() -> bool:
        code = run(["cluster", "topology", "-c", file])
        out = capsys.readouterr().out
        return code == 1 and "! set lyon: main is cut off" in out and "no answer: broker at" in out

    eventually(shows_both)


def test_two_sets_of_one_name_are_reported(
    network: dict[str, RunningBroker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lyon, file = network["lyon"].address, config(tmp_path, network["lyon"].address)
    port = lyon.rpartition(":")[2]
    assert run(["cluster", "topology", f"localhost:{port}", "-c", file]) == 0, "one broker by two names"
    capsys.readouterr()

    other = start(tmp_path / "other", network["europe"].address, tier="access", level=2, set_name="lyon")
    try:
        assert run(["cluster", "topology", other.address, "-c", file]) == 1
        said = f"! several sets are called lyon: at {lyon} and at {other.address}; give each a [cluster] set of its own"
        assert said in " ".join(capsys.readouterr().out.split())
    finally:
        other.stop()


def test_wrong_arguments_are_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = config(tmp_path, "127.0.0.1:1")
    assert run(["cluster", "topology", "-c", file]) == 75
    assert "broker at 127.0.0.1:1 cannot be reached" in capsys.readouterr().err
    assert run(["cluster", "topology", "nowhere", "-c", file]) == 2
    assert "nowhere should be HOST:PORT" in capsys.readouterr().err
