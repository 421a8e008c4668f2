"""The same slices by processes and by Spark (issue 3 sections 1 and 3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.whole_way import WholeWay, found, run_at, whole_way
from venus.adapters.running import LocalRunner, Runner
from venus.adapters.verify.run import Options, verify
from venus.config import Settings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROWS = 2_000
PLANTED = {("item", ("7",), "missing", "apply"), ("item", ("1999",), "different", "apply")}


def prepared(way: WholeWay) -> None:
    run_at(
        way.source, "CREATE TABLE item (id int PRIMARY KEY, v text)",
        f"INSERT INTO item SELECT n, 'v' || n FROM generate_series(1, {ROWS}) n",
    )  # fmt: skip
    way.install()
    way.load()
    way.at_target("DELETE FROM item WHERE id = 7", "UPDATE item SET v = 'x' WHERE id = 1999")


def compare(way: WholeWay, runner: Runner, leg: str) -> None:
    result = verify(way.settings, Options(target="main", leg=leg, slice_rows=500), runner_for=lambda _: runner)

    assert found(result) == PLANTED
    assert result.rows == ROWS
    assert not result.undecided


def test_by_processes(tmp_path: Path, database: str, second_database: str) -> None:
    with whole_way(tmp_path, database, second_database) as way:
        prepared(way)
        compare(way, LocalRunner(2), "target")


@pytest.mark.spark
@pytest.mark.slow
def test_by_spark(tmp_path: Path, database: str, second_database: str) -> None:
    from venus.spark.runner import open_runner

    with whole_way(tmp_path, database, second_database) as way:
        prepared(way)
        chosen = Settings.model_validate({"spark": {"master": "local[2]", "conf": {"spark.driver.memory": "512m"}}})
        with open_runner(chosen) as runner:
            compare(way, runner, "ends")
            compare(way, runner, "target")
