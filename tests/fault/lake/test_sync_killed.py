"""kill -9 of `venus migrate` and `venus sync` into a lake while writers work, from a real source through a real broker.

test_kill.py kills around each durable step. Here the moment is random, and every component is real.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.databases.postgres import Server
from tests.support.databases.workload import KEYS, change_item, writers
from tests.support.pipelines import lakes
from tests.support.pipelines.end_to_end import run_at
from tests.support.pipelines.pipeline import Pipeline

pytestmark = [pytest.mark.fault, pytest.mark.integration]

#: Rows of the first table, enough that a load takes longer than a command's start.
BULK = 30_000


@pytest.fixture
def pipeline(tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    source = postgres_server.create_database()
    made = Pipeline(folder=tmp_path, source=source, targets={"lake": f"parquet://{tmp_path}/lake"})
    made.environ = {"VENUS_LAKE__COMMIT_S": "0.05", "VENUS_LAKE__REFRESH_S": "0.1"}
    made.configure()
    run_at(
        source,
        "CREATE TABLE item (id integer PRIMARY KEY, v text)",
        f"INSERT INTO item SELECT n, 'first ' || n FROM generate_series({KEYS}, {KEYS + BULK}) n",
    )
    made.venus("install-triggers")
    made.start_broker()
    made.start("capture", "sync", "--capture-only")
    try:
        yield made
    finally:
        made.close()
        postgres_server.drop_database(source)


def kill_in_the_middle(pipeline: Pipeline, rng: random.Random, *command: str) -> bool:
    """Start a command and kill it at a random moment; return whether it was still at work."""
    pipeline.start("victim", *command)
    time.sleep(rng.uniform(0.3, 1.5))
    at_work = pipeline.running["victim"].poll() is None
    pipeline.kill("victim")
    return at_work


def rows_of(lake: Path) -> list[tuple[Any, ...]]:
    """Return the newest state as a reader without VENUS sees it."""
    found = pq.read_table(lake / "current" / "public.item").to_pydict()
    return sorted(zip(found["id"], found["v"], strict=True))


def check(pipeline: Pipeline) -> None:
    """Compare source and lake; no change is in the history twice."""
    lake, wanted = pipeline.folder / "lake", run_at(pipeline.source, "SELECT id, v FROM item ORDER BY id")

    def is_equal() -> bool:
        try:
            return rows_of(lake) == wanted
        except FileNotFoundError:
            return False  # the loop is exchanging the state

    pipeline.until(is_equal, "the lake to be equal")
    history = lakes.history(lake, "public.item")
    offsets = history["_offset"].to_pylist()
    assert offsets
    assert len(set(offsets)) == len(offsets)
    assert pipeline.status()["targets"][0]["unaccounted_rows"] == 0
    assert not list(lake.rglob("*.tmp"))


def kill_commands(pipeline: Pipeline, *, loads: int, follows: int, seed: int) -> None:
    rng = random.Random(seed)
    with writers(pipeline.source, change_item, count=2, seed=seed) as counts:
        loading = [kill_in_the_middle(pipeline, rng, "migrate", "--target", "lake") for _ in range(loads)]
        pipeline.venus("migrate", "--target", "lake")
        following = ("sync", "--apply-only", "--target", "lake")
        killed = [kill_in_the_middle(pipeline, rng, *following) for _ in range(follows)]
        pipeline.start("apply", *following)
    assert not counts.failed
    assert counts.ended["commit"]
    assert sum(loading) + sum(killed) > (loads + follows) // 2
    assert all(killed), "a sync ends only if it is stopped"
    pipeline.wait_until_caught_up("lake")
    check(pipeline)


@pytest.mark.timeout(300)
def test_loads_and_syncs_are_killed_under_writers(pipeline: Pipeline) -> None:
    kill_commands(pipeline, loads=2, follows=4, seed=1)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_hundred_kills(pipeline: Pipeline) -> None:
    kill_commands(pipeline, loads=20, follows=80, seed=2)
