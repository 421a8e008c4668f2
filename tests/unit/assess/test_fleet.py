"""`venus assess --fleet` and `--watch`: a list of databases, one of which may be away, and the peak rate of changes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from venus.adapters.assess import report
from venus.adapters.dialects.registry import survey
from venus.adapters.dialects.survey_contract import Survey
from venus.cli.app import run
from venus.cli.assess import FLEET_BYTES_MAX, parse_time_s, read_fleet
from venus.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, rows in (("one", 3), ("two", 5)):
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
            connection.executemany("INSERT INTO t VALUES (?, 'v')", [(n,) for n in range(rows)])
            connection.commit()
    (tmp_path / "venus.toml").write_text('[source]\nurl = "sqlite:///one.db"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_database_is_assessed_and_one_that_is_away_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "fleet.csv").write_text("name,url\nfirst,sqlite:///one.db\n\nsecond,sqlite:///two.db\n")
    assert run(["assess", "--fleet", "fleet.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["databases"]
    assert [(one["name"], one["error"], one["forecast"]["rows"]) for one in found] == [
        ("first", "", 3),
        ("second", "", 5),
    ]

    (folder / "fleet.csv").write_text("away,sqlite:///none.db\nsecond,sqlite:///two.db\n")
    assert run(["assess", "--fleet", "fleet.csv", "--json"]) == 1
    away, second = json.loads(capsys.readouterr().out)["databases"]
    assert "none.db" in away["error"]
    assert (second["name"], second["carried"]) == ("second", 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,url\n", "names no database"),
        ("a,sqlite:///a.db\na,sqlite:///b.db\n", "line 2: a appears twice"),
        ("a,sqlite:///a.db\nb\n", "line 2: not a name and a URL"),
        ("a,\n", "line 1: not a name and a URL"),
        ("x" * (FLEET_BYTES_MAX + 1), "larger than"),
    ],
)
def test_a_file_that_is_not_a_list_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "fleet.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_fleet(file)


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_fleet(tmp_path / "none.csv")


@pytest.mark.parametrize(("text", "seconds"), [("", 0.0), ("90s", 90.0), ("10m", 600.0), ("2h", 7200.0)])
def test_a_duration_needs_a_unit(text: str, seconds: float) -> None:
    assert parse_time_s(text) == seconds


@pytest.mark.parametrize("text", ["10", "m", "0s", "-1m", "1.5h", "10 m", "99999h", "\u0661m"])
def test_another_text_is_not_a_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="not a time"):
        parse_time_s(text)


@pytest.mark.usefixtures("folder")
def test_a_database_that_counts_no_changes_has_no_peak(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["assess", "--watch", "10m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert report.NOT_COUNTED in found["unknown"]
    assert found["forecast"]["peak_changes_per_s"] is None


@pytest.mark.usefixtures("folder")
def test_the_peak_is_watched_until_the_time_has_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, counts = [0.0], iter([0, 0, 30, 4030, 4040])  # the first reading is that of the assessment

    def count(*arguments: Any) -> Survey:
        read = survey(*arguments)
        return replace(read, sizes=tuple(replace(size, changes=next(counts), over_s=1.0) for size in read.sizes))

    def wait(seconds: float) -> None:
        now[0] += seconds

    # in this thread only, because others sleep too
    monkeypatch.setattr("venus.cli.assess.time", SimpleNamespace(sleep=wait))
    monkeypatch.setattr("venus.adapters.assess.report.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("venus.adapters.assess.report.survey", count)
    assert run(["assess", "--watch", "30s", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["forecast"]
    assert found["peak_changes_per_s"] == 400.0
    assert now[0] == 30.0
