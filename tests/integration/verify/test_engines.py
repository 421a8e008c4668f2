"""A comparison has the same result in local processes and in Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pipelines.end_to_end import EndToEnd, difference_keys, end_to_end, run_at
from tests.support.spark.sparks import CLUSTER
from venus.adapters.verify.run import VerifyOptions, run_verify
from venus.process.runners import LocalRunner, Runner

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
ROWS = 2_000
PLANTED = {("item", ("7",), "missing", "apply"), ("item", ("1999",), "different", "apply")}


def prepare(e2e: EndToEnd) -> None:
    run_at(
        e2e.source,
        "CREATE TABLE item (id int PRIMARY KEY, v text)",
        f"INSERT INTO item SELECT n, 'v' || n FROM generate_series(1, {ROWS}) n",
    )
    e2e.install()
    e2e.load()
    e2e.at_target("DELETE FROM item WHERE id = 7", "UPDATE item SET v = 'x' WHERE id = 1999")


def compare(e2e: EndToEnd, runner: Runner, leg: str) -> None:
    result = run_verify(
        e2e.settings, VerifyOptions(target="main", leg=leg, slice_rows=500), runner_for=lambda _: runner
    )

    assert difference_keys(result) == PLANTED
    assert result.rows == ROWS
    assert not result.undecided_rows


def test_local_processes_compare(tmp_path: Path, database: str, second_database: str) -> None:
    with end_to_end(tmp_path, database, second_database) as e2e:
        prepare(e2e)
        compare(e2e, LocalRunner(2), "target")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("executors_leave_nothing")
@pytest.mark.parametrize("master", ["local[2]", CLUSTER])
def test_spark_compares(master: str, tmp_path: Path, database: str, second_database: str) -> None:
    legs = ("ends", "target")
    with end_to_end(tmp_path, database, second_database) as e2e:
        prepare(e2e)
        arguments = [master, e2e.broker.address, database, second_database, str(tmp_path), "500", *legs]
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.support.spark.spark_verify", *arguments],
            capture_output=True,
            text=True,
            timeout=280,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    assert done.returncode == 0, done.stderr[-3000:]
    for leg, said in json.loads(done.stdout).items():
        assert {(table, tuple(key), kind, fault) for table, key, kind, fault in said["found"]} == PLANTED, leg
        assert (said["rows"], said["undecided"]) == (ROWS, 0)
