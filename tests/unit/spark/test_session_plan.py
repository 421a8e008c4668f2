"""The options of a Spark session, and the shown part of Spark's long exceptions."""

from __future__ import annotations

import sys

import pytest

from venus.config import Settings, effective_settings
from venus.spark.session import plan_session, with_retries
from venus.spark.sessionlog import last_cause


def settings(**spark: object) -> Settings:
    return Settings.model_validate({"spark": spark})


@pytest.mark.parametrize(
    ("master", "made"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_local_masters_retry_failed_tasks(master: str, made: str) -> None:
    assert with_retries(master) == made


def test_workers_run_this_python_and_the_users_settings_take_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)

    made = plan_session(settings(conf={"spark.driver.memory": "3g", "spark.ui.enabled": True}))

    assert made.master == "local[2,4]"
    assert made.environ["PYSPARK_PYTHON"] == sys.executable
    assert (made.conf["spark.driver.memory"], made.conf["spark.ui.enabled"]) == ("3g", "true")
    assert made.conf["spark.speculation"] == "false"


def test_a_cluster_has_its_own_addresses_and_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./venus.pex")

    made = plan_session(settings(master="spark://host:7077"))

    assert made.environ["PYSPARK_PYTHON"] == "./venus.pex"
    assert "SPARK_LOCAL_IP" not in made.environ
    assert "spark.driver.host" not in made.conf


def test_secrets_of_spark_are_not_shown() -> None:
    found = settings(
        remote="sc://host:443/;token=hunter2",
        conf={"spark.hadoop.fs.s3a.secret.key": "hunter3", "spark.executor.memory": "1g"},
    )

    assert "hunter" not in f"{effective_settings(found)} {found!r}"
    assert effective_settings(found)["spark"]["conf"]["spark.executor.memory"] == "1g"


def test_the_innermost_cause_is_named() -> None:
    message = last_cause(
        RuntimeError(
            "An error occurred while calling o42.collect.\n: org.apache.spark.SparkException: Job aborted\n"
            "\tat org.apache.spark.Foo\nCaused by: org.apache.spark.api.python.PythonException: Traceback\n"
            '  File "x.py", line 3\nValueError: no such split\n\n\tat org.apache.spark.Bar\n'
        )
    )
    assert message == "ValueError: no such split"
