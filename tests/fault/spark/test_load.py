"""Full load by Spark while its workers fail, die and run twice: the rows are always exact (scenarios 14, 21)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.brokers.delivery import CHUNK_ROWS, FakeDelivery
from tests.support.brokers.feed import Feed, following, items, put, query, rows_at, settings_for, wait_until_caught_up
from tests.support.faults.load_faults import FAULTS, FaultyRunner
from tests.support.spark.spark_load import DRIVER
from tests.support.spark.sparks import CLUSTER
from venus.adapters.targets.relational.full_sync import full_sync
from venus.spark.runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.fault,
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.usefixtures("executors_leave_nothing"),
]

ROOT = Path(__file__).parents[3]
#: Eight splits of three chunks.
ROWS = 8 * 3 * CHUNK_ROWS


def fill(feed: Feed) -> None:
    """Write the rows into a queue. A target has no key during its load, so a row that is loaded twice would be seen."""
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(ROWS)))


def check(database: str, broker: FakeDelivery, feed: Feed) -> None:
    assert rows_at(database, items()) == feed.model[1]
    assert query(database, "SELECT count(*), sum(rows) FROM venus.load_manifest")[0][1] == ROWS
    assert broker.snapshots_opened == 1
    feed.cut(put(3, "behind the load", 1))
    with following(settings_for(broker.address, {"a": database}), "a"):
        wait_until_caught_up(database, broker)
    assert rows_at(database, items()) == feed.model[1]


def load(master: str, broker: FakeDelivery, url: str, folder: Path, *faults: str) -> Any:
    """Load in a process of its own; return None if that was killed."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.spark.spark_load", master, broker.address, url]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}  # executors of a cluster run in another folder
    done = subprocess.run(
        [*command, str(folder), *faults], capture_output=True, text=True, timeout=280, check=False, env=environ
    )
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.slow
def test_each_row_is_loaded_once_whatever_happens_to_a_worker(
    spark_session: SparkSession, database: str, broker: FakeDelivery, feed: Feed, tmp_path: Path
) -> None:
    fill(feed)
    settings = settings_for(broker.address, {"a": database}, apply={"load_workers": 2})
    runner = FaultyRunner(SparkRunner(spark_session.sparkContext), FAULTS, tmp_path)

    report = full_sync(settings, "a", runner=runner)

    assert (report.rows, report.resumed_splits) == ({"shop.items": ROWS}, 0)
    assert len(runner.results) == 10  # eight splits, two of them by two attempts each
    assert sum(r.already for r in runner.results) == 3  # failures after the commit, and one of each pair of rivals
    assert len(list(tmp_path.iterdir())) == len(FAULTS)
    check(database, broker, feed)


@pytest.mark.slow
def test_the_workers_of_a_cluster_are_killed(database: str, broker: FakeDelivery, feed: Feed, tmp_path: Path) -> None:
    fill(feed)

    report = load(CLUSTER, broker, database, tmp_path, *FAULTS)

    assert report == {"rows": {"shop.items": ROWS}, "resumed": 0, "already": 3}
    check(database, broker, feed)


@pytest.mark.slow
@pytest.mark.parametrize("master", ["local[2]", CLUSTER])
def test_a_killed_driver_continues_at_its_position(
    master: str, database: str, broker: FakeDelivery, feed: Feed, tmp_path: Path
) -> None:
    fill(feed)

    assert load(master, broker, database, tmp_path, DRIVER) is None
    report = load(master, broker, database, tmp_path)

    assert report["resumed"] >= 2
    assert report["rows"] == {"shop.items": ROWS}
    check(database, broker, feed)
