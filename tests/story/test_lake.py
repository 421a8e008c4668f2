"""A folder of Parquet files as a target, as an operator uses it: the same commands, and only files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.pipelines.pipeline import Pipeline

pytestmark = [pytest.mark.integration, pytest.mark.quick, pytest.mark.timeout(300)]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(
        folder=tmp_path, source=f"sqlite:///{tmp_path}/app.db", targets={"lake": f"parquet://{tmp_path}/lake"}
    )
    made.environ = {"VENUS_LAKE__COMMIT_S": "0.2", "VENUS_LAKE__REFRESH_S": "0.5"}
    made.configure()
    try:
        write(made, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
        made.venus("install-triggers")
        yield made
    finally:
        made.close()


def write(pipeline: Pipeline, statement: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=30, isolation_level=None)) as connection:
        connection.execute(statement)


def read_newest_state(pipeline: Pipeline) -> dict[int, str]:
    """Read the newest state; retry if it was replaced twice meanwhile, because only one older state is kept."""
    while True:
        try:
            found = pq.read_table((pipeline.folder / "lake" / "current" / "main.t").resolve())
        except FileNotFoundError:
            continue
        if found.column_names:
            return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


#: Commands that a folder does not support, their error, and the exit code.
NOT_HERE = [
    (("migrate", "--target", "lake", "--ddl-only"), "is a folder of Parquet files: there is no DDL to print", 2),
    (("pause", "t", "--target", "lake"), "has not been loaded yet", 3),
    (
        ("quarantine", "list", "--target", "lake"),
        "is a folder of Parquet files: it refuses no row, so that there is no quarantine",
        2,
    ),
]


def test_a_folder_is_loaded_followed_killed_paused_and_resynced(pipeline: Pipeline) -> None:
    write(pipeline, "INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    for arguments, said, code in NOT_HERE:
        assert said in pipeline.venus(*arguments, code=code).err
    pipeline.start_broker()
    before = pipeline.ask("status", code=1)["targets"][0]
    loaded = pipeline.ask("migrate", "--target", "lake")
    again = pipeline.venus("migrate", "--target", "lake")
    pipeline.start("sync", "sync", "--json")

    assert not before["loaded"]
    assert (loaded["rows"], loaded["tables"]) == (2, {"main.t": 2})
    assert "is loaded already" in again.out
    write(pipeline, "UPDATE t SET v = 'zwei' WHERE id = 2")
    write(pipeline, "DELETE FROM t WHERE id = 1")
    pipeline.until(lambda: read_newest_state(pipeline) == {2: "zwei"}, "the changes")
    pipeline.kill("sync")
    pipeline.venus("pause", "--target", "lake")
    pipeline.start("sync", "sync", "--json")
    write(pipeline, "INSERT INTO t VALUES (3, 'drei')")
    pipeline.until(lambda: "paused" in str(pipeline.status()["problems"]), "the pause")
    assert read_newest_state(pipeline) == {2: "zwei"}
    pipeline.venus("resume", "--target", "lake")
    pipeline.until(lambda: read_newest_state(pipeline) == {2: "zwei", 3: "drei"}, "the rest")
    pipeline.venus("resync", "t", "--target", "lake")
    pipeline.until(lambda: pipeline.status()["targets"][0]["tables"][0]["state"] == "ACTIVE", "the resync")
    assert read_newest_state(pipeline) == {2: "zwei", 3: "drei"}
    pipeline.wait_until_caught_up("lake")
    shown = pipeline.venus("status", code=(0, 1)).out
    assert "target lake" in shown
    assert pipeline.status()["targets"][0]["tables"][0]["rows_applied"] == 3
