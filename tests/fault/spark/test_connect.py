"""The same load through Spark Connect, with the same faults; the Spark server is a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers.delivery import CHUNK_ROWS, FakeDelivery
from tests.support.brokers.feed import Feed, items, put, rows_at
from tests.support.faults.load_faults import FAULTS
from tests.support.spark.spark_connect import connect_server

ROOT = Path(__file__).parents[3]
ROWS = 8 * 3 * CHUNK_ROWS

pytestmark = [
    pytest.mark.fault,
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="the extra `connect` is not installed"),
]


def test_a_load_through_spark_connect(database: str, broker: FakeDelivery, feed: Feed, tmp_path: Path) -> None:
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(ROWS)))
    paths = os.pathsep.join([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])

    with connect_server(paths) as remote:
        module = "tests.support.spark.spark_load"
        command = [sys.executable, "-W", "ignore", "-m", module, remote, broker.address, database]
        done = subprocess.run(
            [*command, str(tmp_path), *FAULTS],
            capture_output=True,
            text=True,
            timeout=280,
            env=os.environ | {"PYTHONPATH": paths},
        )

    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert (report["rows"], report["already"]) == ({"shop.items": ROWS}, 3)
    assert rows_at(database, items()) == feed.model[1]
