"""Streams on a cluster whose workers and executors die within a micro-batch: each change arrives exactly once.

One driver runs both streams side by side, `format("venus")` and the apply of `venus sync --engine spark`, because a
cluster takes long to start.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.feed import Feed, applied_offset, deletion, items, put, rows_at, settings_for
from tests.support.brokers.real_broker import RealBroker
from tests.support.spark.sparks import CLUSTER
from tests.support.waiting import eventually
from venus.adapters.targets.relational.control import read_progress
from venus.adapters.targets.relational.full_sync import full_sync

pytestmark = [
    pytest.mark.fault,
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("executors_leave_nothing"),
]

ROOT = Path(__file__).parents[3]
KEYS = range(300)
#: A cluster takes most of a minute to restart its executors after each death while other clusters run.
WAIT_S = 480.0
#: Faults of stream readers and of apply tasks. No task may fail more than three times.
CASES = [
    pytest.param(CLUSTER, ["executor killed"], ["worker killed after commit"], id="cluster", marks=pytest.mark.slow),
    pytest.param(
        CLUSTER, ["worker killed", "executor killed"], ["executor killed"], id="cluster-more", marks=pytest.mark.slow
    ),
    pytest.param(
        "local[2]",
        ["worker killed", "exception"],
        ["worker killed after commit", "worker killed"],
        id="local",
        marks=pytest.mark.slow,
    ),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RealBroker]:
    made = RealBroker(tmp_path / "data")
    yield made
    made.stop()


@contextmanager
def driver(master: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.spark.spark_streams", master, str(folder)]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}  # executors of a cluster run in another folder
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=log, stderr=log, env=environ)
        try:
            yield process
            process.communicate(timeout=120)
        finally:
            process.kill()
            process.wait()


def write_random_cuts(feed: Feed, rng: random.Random, cuts: int) -> None:
    for n in range(cuts):
        keys = rng.sample(KEYS, 60)
        feed.cut(
            *(deletion(k) if rng.random() < 0.3 else put(k, f"{n} {k}", n) for k in keys),
            put(n % 7, "other", n, table=2),
            batch_rows=25,
        )


def stream_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows that the query has received, micro-batch by micro-batch."""
    files = sorted((folder / "batches").glob("[0-9]*.json"), key=lambda path: int(path.stem))
    return [row for file in files for row in json.loads(file.read_text())]


def state_of(rows: list[dict[str, Any]]) -> dict[Any, Any]:
    """Return the rows that result from the changes of a stream."""
    state: dict[Any, Any] = {}
    for row in sorted(rows, key=lambda r: r["_offset"]):
        if row["_deleted"]:
            state.pop((str(row["id"]),), None)
        else:
            state[str(row["id"]),] = (row["label"], str(row["amount"]))
    return state


@pytest.mark.parametrize(("master", "of_stream", "of_apply"), CASES)
def test_streams_are_exact_while_workers_and_executors_die(
    master: str, of_stream: list[str], of_apply: list[str], database: str, broker: RealBroker, tmp_path: Path
) -> None:
    feed, rng = Feed(broker), random.Random(8)
    feed.describe(items(), items(2, "others"))
    feed.cut(put(1, "a", 1), put(1, "o", 1, table=2))
    full_sync(settings_for(broker.address, {"a": database}), "a")
    write_random_cuts(feed, rng, 6)

    with driver(master, tmp_path, broker.address, database, ",".join(of_stream), ",".join(of_apply)) as process:

        def have_caught_up() -> bool:
            assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
            seen = [row["_offset"] for row in stream_rows(tmp_path)]
            return len(seen) >= feed.committed[1] and applied_offset(database) == broker.next_offset

        eventually(have_caught_up, "the streams' catching up", timeout_s=WAIT_S)
        write_random_cuts(feed, rng, 5)
        eventually(have_caught_up, "the streams' catching up", timeout_s=WAIT_S)

    report, rows = json.loads((tmp_path / "report.json").read_text()), stream_rows(tmp_path)
    happened = {f"stream: {fault}" for fault in of_stream} | {f"apply: {fault}" for fault in of_apply}
    assert {path.name for path in tmp_path.glob("*: *")} == happened
    offsets = [row["_offset"] for row in rows]
    assert len(set(offsets)) == len(offsets) == feed.committed[1]
    assert state_of(rows) == feed.model[1]
    assert report["error"] == ""
    assert report["staged"] >= 1
    for schema in feed.schemas.values():
        assert rows_at(database, schema) == feed.model[schema.table_id]
    assert read_progress(settings_for(broker.address, {"a": database}), "a").unaccounted == 0
