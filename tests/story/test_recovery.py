"""The steps of docs/how-to/restore.md for lost or old broker data: they work, and no other data is lost."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password
from venus.cli.probes import read_broker
from venus.config import load

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def pipeline(tmp_path: Path, database: str) -> Iterator[Pipeline]:
    made = Pipeline(folder=tmp_path, source=f"sqlite:///{tmp_path}/app.db", targets={"main": with_password(database)})
    made.configure()
    yield made
    made.close()


def write(pipeline: Pipeline, *statements: str) -> None:
    with closing(sqlite3.connect(pipeline.folder / "app.db", timeout=30, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def run_at_target(pipeline: Pipeline) -> list[tuple[object, ...]]:
    with closing(psycopg2.connect(libpq(pipeline.targets["main"]))) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT id, v FROM t ORDER BY id")
        return cursor.fetchall()


def test_a_broker_that_lost_its_data_is_refused_and_filled_again(pipeline: Pipeline) -> None:
    write(pipeline, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    pipeline.venus("install-triggers")
    pipeline.start_broker()
    pipeline.venus("migrate", "--target", "main")
    pipeline.start("sync", "sync")
    write(pipeline, "UPDATE t SET v = 'newer' WHERE id = 1")
    pipeline.wait_until_caught_up("main")
    assert pipeline.stop("sync") == 0
    assert pipeline.stop("broker") == 0

    shutil.rmtree(pipeline.folder / "data")
    pipeline.start_broker()
    write(pipeline, "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (3, 'meanwhile')")
    refused = pipeline.venus("sync", "--capture-only", code=1)
    assert refused.err.startswith("venus: ") or "\nvenus: " in refused.err
    assert run_at_target(pipeline) == [(1, "newer"), (2, "old")], "the target keeps what it has"

    pipeline.venus("uninstall-triggers")
    pipeline.venus("install-triggers")
    refused = pipeline.venus("migrate", "--target", "main", code=3)
    assert "would show empty tables until it is done" in refused.err
    assert run_at_target(pipeline) == [(1, "newer"), (2, "old")], "the target still keeps what it has"
    pipeline.venus("migrate", "--target", "main", "--empty-meanwhile")
    assert run_at_target(pipeline) == [(1, "newer"), (3, "meanwhile")]
    pipeline.start("sync", "sync")
    write(pipeline, "UPDATE t SET v = 'continues' WHERE id = 3")
    pipeline.wait_until_caught_up("main")
    assert run_at_target(pipeline) == [(1, "newer"), (3, "continues")]
    assert pipeline.stop("sync") == 0


def test_a_broker_restored_from_a_backup_is_refused_and_filled_again(pipeline: Pipeline) -> None:
    """Its full data has rows that were deleted since, and its queue would reuse offsets that the target has applied."""
    write(pipeline, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    pipeline.venus("install-triggers")
    pipeline.start_broker()
    pipeline.venus("migrate", "--target", "main")
    assert pipeline.stop("broker") == 0
    shutil.copytree(pipeline.folder / "data", pipeline.folder / "backup")
    pipeline.start_broker()
    pipeline.start("sync", "sync")
    write(pipeline, "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (3, 'meanwhile')")
    pipeline.wait_until_caught_up("main")
    assert pipeline.stop("sync") == 0
    assert pipeline.stop("broker") == 0

    shutil.rmtree(pipeline.folder / "data")
    shutil.copytree(pipeline.folder / "backup", pipeline.folder / "data")
    pipeline.start_broker()
    refused = pipeline.venus("sync", "--capture-only", code=1)
    assert "the source has committed batch" in refused.err
    refused = pipeline.venus("sync", "--apply-only", "--target", "main", code=1)
    assert "has applied changes that this broker never had" in refused.err
    assert run_at_target(pipeline) == [(1, "old"), (3, "meanwhile")], "the target keeps what it has"

    pipeline.venus("uninstall-triggers")
    pipeline.venus("install-triggers")
    refused = pipeline.venus("migrate", "--target", "main", code=3)  # capture has read the source again
    assert "`venus resync --all --target main`, then `venus sync`" in refused.err
    pipeline.venus("resync", "--all", "--target", "main")
    pipeline.start("sync", "sync")
    write(pipeline, "UPDATE t SET v = 'continues' WHERE id = 3")
    pipeline.wait_until_caught_up("main")
    pipeline.until(lambda: run_at_target(pipeline) == [(1, "old"), (3, "continues")], "the target to be equal")
    assert pipeline.stop("sync") == 0


@pytest.mark.parametrize("queue", ["kept", "gone"])
def test_a_target_restored_from_a_backup_continues_by_itself(
    queue: str, pipeline: Pipeline, postgres_server: Server
) -> None:
    """The same holds after a failover to a replica that lacks the last commits: its offset went back with its rows."""
    name = sqlalchemy.make_url(pipeline.targets["main"]).database
    if queue == "gone":
        pipeline.environ["VENUS_BROKER__RETAIN_BYTES"] = "0"
    write(pipeline, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'old'), (2, 'old')")
    pipeline.venus("install-triggers")
    pipeline.start_broker()
    pipeline.venus("migrate", "--target", "main")
    postgres_server.execute(f"CREATE DATABASE {name}_backup TEMPLATE {name}")
    pipeline.start("sync", "sync")
    write(pipeline, "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (3, 'meanwhile')")
    pipeline.wait_until_caught_up("main")
    if queue == "gone":
        pipeline.until(lambda: read_broker(load(pipeline.folder / "venus.toml")).log_start > 5, "the queue to go")
    assert pipeline.stop("sync") == 0

    postgres_server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    postgres_server.execute(f"CREATE DATABASE {name} TEMPLATE {name}_backup")
    postgres_server.execute(f"DROP DATABASE {name}_backup")
    assert run_at_target(pipeline) == [(1, "old"), (2, "old")]
    pipeline.start("sync", "sync")
    write(pipeline, "UPDATE t SET v = 'continues' WHERE id = 1")
    pipeline.wait_until_caught_up("main")
    pipeline.until(lambda: run_at_target(pipeline) == [(1, "continues"), (3, "meanwhile")], "the target to be equal")
    assert pipeline.stop("sync") == 0
