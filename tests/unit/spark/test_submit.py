"""How a cluster gets VENUS: the spark-submit command line, and the errors about missing parts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from venus.cli.app import run
from venus.cli.spark import APPLICATION, split_option
from venus.config import Settings
from venus.errors import ConfigError
from venus.spark.submit import build_pex, plan_submission


def settings(**spark: object) -> Settings:
    return Settings.model_validate({"spark": spark})


def test_the_command_names_the_master_and_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    pex = tmp_path / "v.pex"
    pex.touch()
    found = plan_submission(
        settings(master="yarn", conf={"spark.executor.memory": "2g"}),
        ["migrate", "--target", "main"],
        APPLICATION,
        pex=pex,
        options=["--executor-cores", "2"],
    )
    words = list(found.command)

    assert words[0].endswith("pyspark/bin/spark-submit")
    assert words[1:5] == ["--master", "yarn", "--deploy-mode", "client"]
    assert "spark.executor.memory=2g" in words
    assert words[words.index("--files") + 1] == str(pex)
    assert words[-6:-4] == ["--executor-cores", "2"]
    assert words[-4].endswith("cli/spark_job.py")
    assert words[-3:] == ["migrate", "--target", "main"]
    assert found.environ["PYSPARK_PYTHON"] == "./v.pex"
    assert found.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert (Path(found.environ["JAVA_HOME"]) / "bin" / "java").exists()


def test_spark_home_takes_precedence_over_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch()

    assert (
        plan_submission(settings(), ["status"], APPLICATION, master="local").command[0]
        == f"{tmp_path}/bin/spark-submit"
    )


def test_a_missing_part_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no master") as caught:
        plan_submission(settings(), ["migrate"], APPLICATION)
    assert "--master" in caught.value.hint
    with pytest.raises(ConfigError, match=r"--pex .*: no such file") as caught:
        plan_submission(settings(), ["migrate"], APPLICATION, master="yarn", pex=tmp_path / "v.pex")
    assert "venus spark package" in caught.value.hint
    with pytest.raises(ConfigError, match=r"--wheel .*: no such file"):
        build_pex(tmp_path / "v.pex", tmp_path / "no.whl")
    with pytest.raises(ConfigError, match=r"--option \"--executor-cores '2\": no closing quotation"):
        split_option("--executor-cores '2")


def test_a_spark_home_without_spark_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))

    with pytest.raises(ConfigError, match=f"SPARK_HOME is {tmp_path}, which has no bin/spark-submit"):
        plan_submission(settings(), ["status"], APPLICATION, master="local")


def test_a_dry_run_prints_the_command_with_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "venus.toml"
    file.write_text('[spark]\nmaster = "spark://h:7077"\n')

    assert run(["spark", "submit", "--dry-run", "--json", "-c", str(file), "--", "migrate", "--target", "a"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["command"][-6:] == ["migrate", "--target", "a", "-c", str(file), "--json"]
    assert "spark://h:7077" in found["command"]


@pytest.mark.parametrize("own", ["--config=b.toml", "-cb.toml", "-c b.toml", "--config b.toml"])
def test_a_commands_own_configuration_is_not_overridden(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last --config option counts: a load would have written to the target of the other file."""
    file = tmp_path / "venus.toml"
    file.write_text('[spark]\nmaster = "spark://h:7077"\n')

    run(["spark", "submit", "--dry-run", "--json", "-c", str(file), "--", "migrate", *own.split()])

    found = json.loads(capsys.readouterr().out)
    assert found["command"][-len(own.split()) - 2 :] == ["migrate", *own.split(), "--json"]
