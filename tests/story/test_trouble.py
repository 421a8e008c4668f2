"""A running pipeline and the problems that an operator meets (features 4: scenarios 23 to 25, 30, 32, 33, 36).

One broker, one `venus sync` with two targets, and one SQLite source for the whole file. Each test has a table of its
own, created beforehand because its capture takes seconds, and leaves the pipeline healthy. Nothing is restarted in
between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq
from tests.support.pipelines.pipeline import Pipeline, with_password

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

OWN_TABLES = ("strict", "skipped", "paused", "waits", "spoilt", "away", "present")


class RunningPipeline:
    """The pipeline with access to its source and targets."""

    def __init__(self, pipeline: Pipeline, server: Server) -> None:
        self.pipeline = pipeline
        self.server = server
        self.sync = pipeline.running["sync"].pid if "sync" in pipeline.running else 0

    def write(self, *statements: str) -> None:
        """Run statements at the source, each in a transaction of its own."""
        with closing(sqlite3.connect(self.pipeline.folder / "app.db", timeout=30, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def run_at(self, target: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement at a target, as another program would."""
        with closing(psycopg2.connect(libpq(self.pipeline.targets[target]))) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def wait_for_rows(self, target: str, table: str, rows: list[tuple[Any, ...]]) -> None:
        """Wait until a target's table has exactly these rows."""

        def has_rows() -> bool:
            try:
                return self.run_at(target, f"SELECT * FROM {table} ORDER BY 1") == rows
            except (psycopg2.errors.UndefinedTable, psycopg2.OperationalError):
                return False

        self.pipeline.until(has_rows, f"{table} at {target} to be {rows}", every_s=0.2)

    def create_table(self, name: str) -> None:
        """Create a table with one row."""
        self.write(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v TEXT)", f"INSERT INTO {name} VALUES (1, 'one')")

    def wait_for_table(self, name: str) -> None:
        """Wait until both targets have a test's table as it was created."""
        for target in self.pipeline.targets:
            self.wait_for_rows(target, name, [(1, "one")])

    def wait_until_healthy(self) -> None:
        """Wait until the pipeline is healthy."""
        self.pipeline.until(lambda: self.pipeline.status()["healthy"], "a healthy pipeline", every_s=0.2)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, postgres_server: Server) -> Iterator[RunningPipeline]:
    urls = {name: postgres_server.create_database() for name in ("main", "other")}
    folder = tmp_path_factory.mktemp("trouble")
    pipeline = Pipeline(
        folder=folder, source=f"sqlite:///{folder}/app.db", targets={n: with_password(u) for n, u in urls.items()}
    )
    pipeline.configure()
    made = RunningPipeline(pipeline, postgres_server)
    try:
        made.write("CREATE TABLE steady (id INTEGER PRIMARY KEY, v TEXT)", "PRAGMA journal_mode = WAL")
        for table in OWN_TABLES:
            made.create_table(table)
        pipeline.venus("install-triggers")
        pipeline.start_broker()
        for name in urls:
            pipeline.venus("migrate", "--target", name)
        pipeline.start("sync", "sync")
        made.wait_until_healthy()
        yield made
    finally:
        pipeline.close()
        for url in urls.values():
            postgres_server.drop_database(url)


def test_a_new_table_joins_a_running_pipeline(running: RunningPipeline) -> None:
    sync = running.pipeline.running["sync"]

    running.create_table("joined")
    running.pipeline.venus("install-triggers")
    running.wait_for_table("joined")
    running.write("UPDATE joined SET v = 'uno'", "INSERT INTO joined VALUES (2, NULL)")

    running.wait_for_rows("main", "joined", [(1, "uno"), (2, None)])
    running.wait_for_rows("other", "joined", [(1, "uno"), (2, None)])
    assert sync.poll() is None


def test_a_refused_row_halts_its_table_and_no_other(running: RunningPipeline) -> None:
    running.wait_for_table("strict")
    running.run_at("main", "ALTER TABLE strict ADD CONSTRAINT no_bad CHECK (v <> 'bad')")
    running.write("INSERT INTO strict VALUES (2, 'bad')", "INSERT INTO steady VALUES (1, 'continues')")

    running.wait_for_rows("main", "steady", [(1, "continues")])
    running.wait_for_rows("other", "strict", [(1, "one"), (2, "bad")])
    found = running.pipeline.ask("status", code=1)
    assert any("main.strict is HALTED" in problem for problem in found["problems"])
    (waiting,) = running.pipeline.ask("quarantine", "list", code=1)["quarantine"]["main"]
    assert waiting["table"] == "main.strict"
    assert waiting["sqlstate"] == "23514"
    assert "no_bad" in waiting["message"]
    assert waiting["values"] == {"id": "2", "v": "bad"}
    assert "no_bad" in running.pipeline.venus("quarantine", "list", code=1).out

    running.run_at("main", "ALTER TABLE strict DROP CONSTRAINT no_bad")
    running.pipeline.venus("quarantine", "retry", "--target", "main")
    running.wait_for_rows("main", "strict", [(1, "one"), (2, "bad")])
    running.wait_until_healthy()
    assert running.pipeline.ask("quarantine", "list")["quarantine"]["main"] == []


def test_a_refused_row_is_skipped_only_with_a_reason(running: RunningPipeline) -> None:
    running.wait_for_table("skipped")
    running.run_at("main", "ALTER TABLE skipped ADD CONSTRAINT no_bad CHECK (v <> 'bad')")
    running.write("INSERT INTO skipped VALUES (2, 'bad')", "INSERT INTO skipped VALUES (3, 'good')")
    running.wait_for_rows("other", "skipped", [(1, "one"), (2, "bad"), (3, "good")])
    running.pipeline.until(
        lambda: any(t["open_quarantine"] for t in running.pipeline.status()["targets"]), "the quarantine", every_s=0.2
    )
    (waiting,) = running.pipeline.ask("quarantine", "list", code=1)["quarantine"]["main"]

    refused = running.pipeline.venus("quarantine", "skip", str(waiting["id"]), "--target", "main", code=2)
    assert "--reason" in refused.err
    running.pipeline.venus("quarantine", "skip", str(waiting["id"]), "--target", "main", "--reason", "known bad")

    running.wait_for_rows("main", "skipped", [(1, "one"), (3, "good")])
    kept = running.pipeline.ask("quarantine", "list", "--all")["quarantine"]["main"]
    assert [row["reason"] for row in kept if row["id"] == waiting["id"]] == ["known bad"]
    running.wait_until_healthy()


def test_a_paused_table_waits_and_continues_in_order(running: RunningPipeline) -> None:
    running.wait_for_table("paused")
    running.pipeline.venus("pause", "paused", "--target", "main")
    running.write(
        "UPDATE paused SET v = 'two'", "UPDATE paused SET v = 'three'", "INSERT INTO paused VALUES (2, 'new')"
    )

    running.wait_for_rows("other", "paused", [(1, "three"), (2, "new")])
    assert running.run_at("main", "SELECT * FROM paused") == [(1, "one")]
    paused = "target main: main.paused is PAUSED (paused by an operator); "
    problems = [f"{paused}`venus resume main.paused --target main` resumes it"]
    running.pipeline.until(lambda: list(running.pipeline.status()["problems"]) == problems, "this problem alone")
    running.pipeline.venus("status", code=1)

    running.pipeline.venus("resume", "paused", "--target", "main")
    running.wait_for_rows("main", "paused", [(1, "three"), (2, "new")])
    running.wait_until_healthy()


def test_a_paused_target_and_a_paused_source_wait(running: RunningPipeline) -> None:
    running.wait_for_table("waits")
    running.pipeline.venus("pause", "--target", "other")
    running.write("UPDATE waits SET v = 'two'")
    running.wait_for_rows("main", "waits", [(1, "two")])
    assert running.run_at("other", "SELECT * FROM waits") == [(1, "one")]
    running.pipeline.venus("resume", "--target", "other")
    running.wait_for_rows("other", "waits", [(1, "two")])

    running.pipeline.venus("pause", "waits")
    running.write("UPDATE waits SET v = 'three'", "INSERT INTO steady VALUES (50, 'not paused')")
    running.pipeline.until(
        lambda: running.run_at("main", "SELECT 1 FROM steady WHERE id = 50"), "the table that is not paused"
    )
    log_rows = {t["name"]: t["log_rows"] for t in running.pipeline.status()["source"]["tables"]}
    assert log_rows["main.waits"] >= 1
    assert running.run_at("main", "SELECT * FROM waits") == [(1, "two")]
    running.pipeline.venus("resume", "waits")
    running.wait_for_rows("main", "waits", [(1, "three")])
    running.wait_until_healthy()


def test_a_table_is_repaired_from_the_broker_and_from_the_source(running: RunningPipeline) -> None:
    running.wait_for_table("spoilt")
    rows = [(1, "one"), (2, "two")]
    running.write("INSERT INTO spoilt VALUES (2, 'two')")
    running.wait_for_rows("main", "spoilt", rows)

    for command in (["resync", "spoilt", "--target", "main"], ["resync", "main.spoilt"]):
        running.run_at("main", "UPDATE spoilt SET v = 'spoilt' WHERE id = 1")
        running.run_at("main", "DELETE FROM spoilt WHERE id = 2")
        running.run_at("main", "INSERT INTO spoilt VALUES (9, 'ghost')")
        running.pipeline.venus(*command)
        if "--target" not in command:  # the source cannot report a row as deleted that it never had
            running.pipeline.until(
                lambda: running.run_at("main", "SELECT 1 FROM spoilt WHERE id = 2"), "row 2", every_s=0.2
            )
            running.run_at("main", "DELETE FROM spoilt WHERE id = 9")
        running.wait_for_rows("main", "spoilt", rows)
    running.wait_until_healthy()


def test_a_target_that_is_away_affects_neither_the_source_nor_the_other_target(running: RunningPipeline) -> None:
    running.wait_for_table("away")
    name = libpq(running.pipeline.targets["main"]).partition("?")[0].rpartition("/")[2]
    running.server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    running.server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    try:
        running.write(
            "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)"
            " INSERT INTO away SELECT i, 'row ' || i FROM n"
        )
        running.pipeline.until(
            lambda: running.run_at("other", "SELECT count(*) FROM away") == [(3000,)], "the other target", every_s=0.2
        )
        found = running.pipeline.ask("status", code=1)
        assert [t["name"] for t in found["targets"] if t["error"]] == ["main"]
        assert sum(t["log_rows"] for t in found["source"]["tables"]) < 1000
        (behind,) = [c for c in found["broker"]["consumers"] if c["group"] == "main/main"]
        assert behind["backlog_rows"] >= 2999
        assert behind["backlog_bytes"] > 0
        assert "UNREACHABLE" in running.pipeline.venus("status", code=1).out
    finally:
        running.server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    running.pipeline.until(
        lambda: running.run_at("main", "SELECT count(*) FROM away") == [(3000,)], "main to catch up", every_s=0.5
    )
    running.wait_until_healthy()


def test_existing_rows_and_other_columns_are_refused(running: RunningPipeline, postgres_server: Server) -> None:
    running.wait_for_table("present")
    url = postgres_server.create_database()
    running.pipeline.targets["third"] = url
    try:
        running.run_at("third", "CREATE TABLE present (id bigint PRIMARY KEY, w text)")
        options = {"VENUS_TARGETS__THIRD__URL": url}
        refused = running.pipeline.venus("migrate", "--target", "third", code=3, environ=options)
        assert "column v is missing" in refused.err

        running.run_at("third", "ALTER TABLE present RENAME COLUMN w TO v")
        running.run_at("third", "INSERT INTO present VALUES (7, 'was here')")
        refused = running.pipeline.venus("migrate", "--target", "third", code=3, environ=options)
        assert "present" in refused.err
        assert running.run_at("third", "SELECT * FROM present") == [(7, "was here")]

        options["VENUS_TARGETS__THIRD__ON_EXISTING"] = "truncate"
        running.pipeline.venus("migrate", "--target", "third", environ=options)
        running.wait_for_rows("third", "present", [(1, "one")])
        running.pipeline.venus("forget", "--target", "third", code=3)
        running.pipeline.venus("forget", "--target", "third", "--yes")
    finally:
        del running.pipeline.targets["third"]
        postgres_server.drop_database(url)


def test_status_names_the_part_that_lags(running: RunningPipeline) -> None:
    running.wait_until_healthy()
    running.pipeline.until(lambda: running.pipeline.status()["lag"]["source_to_broker_s"] < 20, "a heartbeat")
    assert running.pipeline.status()["lag"]["end_to_end_s"].keys() == {"main", "other"}

    assert running.pipeline.stop("sync") == 0
    running.write("INSERT INTO steady VALUES (99, 'waits')")

    def check_absence() -> None:  # the broker notices the end of each stream by itself
        found = running.pipeline.ask("status", code=1)
        assert "capture is not connected" in found["verdict"]
        assert sum(t["log_rows"] for t in found["source"]["tables"]) >= 1
        assert any("apply is not connected" in problem for problem in found["problems"])

    running.pipeline.until_passes(check_absence)

    running.pipeline.kill("broker")
    found = running.pipeline.ask("status", code=1)
    assert found["broker"]["error"]
    assert not found["source"]["error"]
    assert all(t["loaded"] for t in found["targets"])

    running.pipeline.start_broker()
    running.pipeline.start("sync", "sync")
    running.pipeline.until(
        lambda: running.run_at("main", "SELECT 1 FROM steady WHERE id = 99"), "the last row", every_s=0.2
    )
    running.wait_until_healthy()
