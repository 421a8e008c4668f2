"""`format("venus")` through Spark Connect: the client has neither a JVM nor VENUS's rows, the server has the wheel."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.feed import Feed, deletion, items, put
from tests.support.brokers.real_broker import RealBroker
from tests.support.spark.spark_connect import connect_server

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="the extra `connect` is not installed"),
]

#: A user's job, run twice with the same checkpoint: it writes the changes that have arrived to Parquet files.
JOB = """
import json, sys
from pyspark.sql import SparkSession
remote, broker, folder = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
place = {"address": broker, "table": "items"}
full = spark.read.format("venus").options(**place).load()
changes = spark.readStream.format("venus").options(**place, starting="earliest", max_rows="150").load()
writer = changes.writeStream.format("parquet").option("path", folder + "/out")
query = writer.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
seen = spark.read.parquet(folder + "/out")
offsets = sorted(row[0] for row in seen.select("_offset").collect())
print(json.dumps({"full": [list(row) for row in full.collect()], "offsets": offsets}))
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RealBroker]:
    made = RealBroker(tmp_path / "data")
    yield made
    made.stop()


def run_job(environ: dict[str, str], *arguments: str) -> Any:
    command = [sys.executable, "-W", "ignore", "-c", JOB, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_full_data_and_streams_through_spark_connect(broker: RealBroker, tmp_path: Path) -> None:
    feed = Feed(broker)
    feed.describe(items())
    feed.cut(*(put(n, f"label {n}", n) for n in range(400)), batch_rows=60)
    paths = os.pathsep.join([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    environ = os.environ | {"PYTHONPATH": paths}

    with connect_server(paths) as remote:
        first = run_job(environ, remote, broker.address, str(tmp_path))
        model = dict(feed.model[1])
        feed.cut(deletion(3), put(4, "four", 4), put(400, "new", None))
        second = run_job(environ, remote, broker.address, str(tmp_path))

    assert first["offsets"] == list(range(400))
    assert second["offsets"] == list(range(403))
    found = {(str(key),): (label, None if amount is None else str(amount)) for key, label, amount in first["full"]}
    assert found == model
