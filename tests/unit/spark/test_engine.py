"""The choice of the engine, made in one place; nothing is started here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from venus.cli.app import run
from venus.cli.spark import choose_runner
from venus.config import Settings
from venus.errors import ConfigError
from venus.process.runners import POOL_ROWS_MIN, LocalRunner


def settings(**spark: object) -> Settings:
    return Settings.model_validate({"spark": spark})


def choose(found: Settings, engine: str, rows: int = 0) -> tuple[str, str]:
    with choose_runner(found, engine, rows) as taken:
        return taken.name, taken.why


def test_auto_uses_spark_if_it_is_configured_or_worthwhile() -> None:
    much = Settings().spark.auto_rows_min

    assert choose(settings(), "auto", much - 1) == ("local", "")
    assert choose(settings(), "auto", much)[0] == "spark"
    assert choose(settings(auto_rows_min=7), "auto", 7) == ("spark", "7 rows, from 7 on")
    assert choose(settings(master="local[2]"), "auto") == ("spark", "spark.master is set")
    assert choose(settings(master="local[2]"), "local", much) == ("local", "")
    assert choose(settings(), "spark") == ("spark", "--engine spark")


def test_auto_uses_spark_in_a_spark_submit_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    assert choose(settings(), "auto") == ("spark", "started by spark-submit")


def test_auto_skips_a_missing_spark_and_spark_requires_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = settings(java_home=str(tmp_path), auto_rows_min=1)
    assert choose(nowhere, "auto", 1) == ("local", "")
    with pytest.raises(ConfigError, match=r"spark\.java_home"):
        choose(nowhere, "spark")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose(settings(auto_rows_min=1), "auto", 1) == ("local", "")
    with pytest.raises(ConfigError, match="PySpark is not installed") as caught:
        choose(settings(master="local[2]"), "auto")
    assert "venus-cdc[spark,java]" in caught.value.hint


def test_little_work_is_done_in_this_process() -> None:
    for rows, here in ((POOL_ROWS_MIN - 1, True), (POOL_ROWS_MIN, False)):
        with choose_runner(Settings(), "local", rows) as taken:
            assert isinstance(taken.runner, LocalRunner)
            assert isinstance(taken.runner.run(abs, [1, 2]), map) == here


def test_a_missing_java_is_reported_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "venus.toml"
    file.write_text(f'[targets.main]\nurl = "postgresql://127.0.0.1:1/d"\n[spark]\njava_home = "{tmp_path}"\n')

    assert run(["migrate", "--target", "main", "--engine", "spark", "-c", str(file)]) == 2

    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"venus: spark.java_home: no Java in {tmp_path}; Spark needs 17 or newer"
    assert len(said) == 2


@pytest.mark.parametrize("option", ['master = "spark://127.0.0.1:1"', 'remote = "sc://127.0.0.1:1/;token=x"'])
def test_a_missing_spark_is_reported_at_once(
    option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "venus.toml"
    file.write_text(f'[targets.main]\nurl = "postgresql://127.0.0.1:1/d"\n[spark]\n{option}\n')
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "pyspark" or found(name) or True)

    assert run(["migrate", "--target", "main", "-c", str(file)]) == 75

    said = capsys.readouterr().err.splitlines()
    assert "127.0.0.1:1 cannot be reached" in said[0]
    assert said[1].strip() == f"Look at {option.split()[0]} in [spark]."
