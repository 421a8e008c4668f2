"""`venus sync --engine spark` as an operator runs it: its driver is killed repeatedly, no change is lost or doubled.

Spark's checkpoint is lost with every kill, and each driver creates another. The target's offset alone decides what was
applied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psutil
import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.spark.sparks import CLUSTER, note_application
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.spark,
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.usefixtures("executors_leave_nothing"),
]
#: A driver needs a minute to start on a busy machine.
WAIT_S = 500.0


@pytest.fixture(params=["", CLUSTER], ids=["local", "cluster"])
def pipeline(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Server) -> Iterator[Pipeline]:
    url = postgres_server.create_database()
    made = Pipeline(folder=tmp_path, source=f"sqlite:///{tmp_path}/app.db", targets={"main": with_password(url)})
    made.environ = {"VENUS_SPARK__STAGE_ROWS_MIN": "50", "VENUS_SPARK__BATCH_ROWS_MAX": "2000"}
    made.environ["TEST_NEW_INTERPRETERS"] = "1"  # the loops; the one with the driver is found by its arguments in /proc
    made.configure()
    if request.param:  # executors of a cluster start in another folder
        made.environ |= {"VENUS_SPARK__MASTER": request.param, "PYTHONPATH": str(Path(__file__).parents[2])}
        with (tmp_path / "venus.toml").open("a") as file:
            file.write('[spark.conf]\n"spark.driver.memory" = "512m"\n"spark.executor.memory" = "512m"\n')
    try:
        write(made, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)")
        made.venus("install-triggers")
        made.start_broker()
        made.venus("migrate", "--target", "main", "--engine", "local")
        made.start("sync", "sync", "--engine", "spark", "--json")
        yield made
    finally:
        for log in (tmp_path / "state").rglob("spark-*.log"):
            log.unlink()  # a session that is killed leaves its log
        made.close()
        postgres_server.drop_database(url)


def write(pipeline: Pipeline, *statements: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement)
        connection.execute("COMMIT")


def driver(pipeline: Pipeline) -> psutil.Process | None:
    """Return the driver's process, if it runs."""
    for child in psutil.Process(pipeline.running["sync"].pid).children():
        with suppress(psutil.Error):  # the process was killed a moment ago
            if "--apply-only" in child.cmdline():
                return child
    return None


def rows(path: str) -> list[tuple[int, str]]:
    with closing(psycopg2.connect(libpq(path))) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT id, v FROM t ORDER BY id")
        return cursor.fetchall()


def test_a_repeatedly_killed_driver_applies_every_change_once(pipeline: Pipeline) -> None:
    counted = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
    for round_no in range(3):
        write(pipeline, f"{counted} INSERT OR REPLACE INTO t SELECT i, '{round_no} ' || i FROM n")
        write(pipeline, f"DELETE FROM t WHERE id % 7 = {round_no}")
        eventually(partial(has_moved, pipeline, round_no), "some of it", timeout_s=WAIT_S)
        found = driver(pipeline)
        if found is not None:
            record_application(found, pipeline)
            found.kill()
    with closing(sqlite3.connect(pipeline.folder / "app.db")) as connection:
        expected = connection.execute("SELECT id, v FROM t ORDER BY id").fetchall()
    eventually(lambda: rows(pipeline.targets["main"]) == expected, "everything", timeout_s=WAIT_S)
    pipeline.wait_until_caught_up("main")
    eventually(
        lambda: driver(pipeline) is not None, "a driver", timeout_s=WAIT_S
    )  # the last driver may have died with nothing left to apply
    found = driver(pipeline)
    assert found is not None
    record_application(found, pipeline)
    assert rows(pipeline.targets["main"]) == expected
    assert pipeline.status()["targets"][0]["unaccounted_rows"] == 0


def record_application(process: psutil.Process, pipeline: Pipeline) -> None:
    """Record the Spark application of a driver that will be killed, once its executors show its name."""

    def note_name() -> bool:
        for child in process.children(recursive=True) if process.is_running() else ():
            with suppress(psutil.Error, ValueError, IndexError):
                words = child.cmdline()
                note_application(words[words.index("--app-id") + 1], pipeline.folder)
                return True
        return not process.is_running()

    if "VENUS_SPARK__MASTER" in pipeline.environ:
        eventually(note_name, "the executors", timeout_s=WAIT_S)


def has_moved(pipeline: Pipeline, round_no: int) -> bool:
    """Return whether a change of this round is at the target, or the driver is working on it."""
    return any(value.startswith(f"{round_no} ") for _, value in rows(pipeline.targets["main"])[:50])
