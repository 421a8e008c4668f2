"""A first load during the first read of the source, under writers; every process is killed in turn (scenarios 86, 87).

Before each check the command is stopped (SIGSTOP), so that the read cannot end during it. Oracle is the stand-in.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pymysql
import pytest
import sqlalchemy

from tests.support.brokers.feed import query
from tests.support.databases.mariadb import MariaServer
from tests.support.databases.postgres import Server, libpq
from tests.support.oracle.standin import SCHEMA, StandIn
from tests.support.pipelines.pipeline import Pipeline, with_password
from tests.support.pipelines.story_places import sqlite_pipeline, standin_pipeline
from tests.support.waiting import eventually
from venus.cli.probes import read_broker
from venus.config import load

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(600)]

ROWS = 20_000
#: Small chunks make the read last longer than all kills before its end; small limits let the load overlap it.
SLOW = {"VENUS_CAPTURE__FILL_CHUNK_ROWS": "1", "VENUS_APPLY__OVERLAP_ROWS_MIN": "100"}


@dataclass
class LoadedPipeline:
    """A pipeline whose source has the table item (id, v), and functions that write to it."""

    pipeline: Pipeline
    connect: Callable[[], Any]
    table: str
    #: Name of the table at the target.
    copy: str

    def run(self, *statements: str) -> None:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def rows(self) -> set[tuple[int, str]]:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(f"SELECT * FROM {self.table}")
            return {(int(number), str(value)) for number, value in cursor.fetchall()}

    def rows_at_target(self) -> set[tuple[int, str]]:
        found = query(self.pipeline.targets["main"], f"SELECT * FROM {self.copy}")
        return {(int(number), str(value)) for number, value in found}

    @contextmanager
    def write_steadily(self) -> Iterator[None]:
        """Write in a thread within the block."""
        stop, random_ = threading.Event(), random.Random(1)

        def write() -> None:
            while not stop.wait(0.02):
                key, number = random_.randrange(1, 2 * ROWS), random_.randrange(10**6)
                statements = [f"DELETE FROM {self.table} WHERE id = {key}"]
                if number % 3:
                    statements.append(f"INSERT INTO {self.table} VALUES ({key}, 'new {number}')")
                with suppress(sqlite3.OperationalError, pymysql.OperationalError):  # capture holds a lock
                    self.run(*statements)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@contextmanager
def postgresql_place(request: pytest.FixtureRequest, folder: Path, server: Server) -> Iterator[LoadedPipeline]:
    source, target = server.create_database(), server.create_database()
    pipeline = Pipeline(folder=folder, source=with_password(source), targets={"main": with_password(target)})
    pipeline.configure()
    try:
        yield LoadedPipeline(pipeline, lambda: psycopg2.connect(libpq(source)), "item", "public.item")
    finally:
        pipeline.close()
        server.drop_database(source)
        server.drop_database(target)


@contextmanager
def mariadb_place(request: pytest.FixtureRequest, folder: Path, server: Server) -> Iterator[LoadedPipeline]:
    maria: MariaServer = request.getfixturevalue("mariadb_server")
    source: str = request.getfixturevalue("mariadb_database")
    name, target = str(sqlalchemy.make_url(source).database), server.create_database()
    pipeline = Pipeline(folder=folder, source=source, targets={"main": with_password(target)})
    pipeline.configure()
    try:
        yield LoadedPipeline(pipeline, lambda: maria.connect(name), "item", f"{name}.item")
    finally:
        pipeline.close()
        server.drop_database(target)


@contextmanager
def sqlite_place(request: pytest.FixtureRequest, folder: Path, server: Server) -> Iterator[LoadedPipeline]:
    with sqlite_pipeline(folder, server) as pipeline:
        yield LoadedPipeline(pipeline, lambda: sqlite3.connect(folder / "app.db", timeout=60), "item", "public.item")


@contextmanager
def standin_place(request: pytest.FixtureRequest, folder: Path, server: Server) -> Iterator[LoadedPipeline]:
    maria: MariaServer = request.getfixturevalue("mariadb_oracle_server")
    StandIn(maria).prepare()
    with standin_pipeline(folder, maria, server, request.getfixturevalue("monkeypatch")) as pipeline:
        yield LoadedPipeline(pipeline, lambda: maria.connect(SCHEMA), '"ITEM"', "app.item")


PLACES = (postgresql_place, mariadb_place, sqlite_place, standin_place)


@pytest.fixture(params=PLACES, ids=[place.__name__ for place in PLACES])
def place(request: pytest.FixtureRequest, tmp_path: Path, postgres_server: Server) -> Iterator[LoadedPipeline]:
    with request.param(request, tmp_path, postgres_server) as made:
        made.pipeline.environ |= SLOW
        is_oracle = request.param is standin_place
        kinds = ("NUMBER(9)", "VARCHAR2(40)") if is_oracle else ("int", "varchar(40)")
        columns = f"id {kinds[0]} PRIMARY KEY, v {kinds[1]}"
        made.run(f"CREATE TABLE {made.table} ({columns})", f"CREATE INDEX by_v ON {made.table} (v)")
        for low in range(1, ROWS, 1000):
            values = ", ".join(f"({n}, 'old {n}')" for n in range(low, low + 1000))
            made.run(f"INSERT INTO {made.table} VALUES {values}")
        yield made


class Migration:
    """`venus migrate` as a process that is stopped and continued."""

    def __init__(self, place: LoadedPipeline) -> None:
        self._place, self._pipeline = place, place.pipeline
        self._settings = load(place.pipeline.folder / "venus.toml")
        self._pipeline.start("migrate", "migrate", "--target", "main", "--engine", "local")
        self.pid = self._pipeline.running["migrate"].pid

    def position(self) -> int:
        """Return the applied offset; -1 if there is none."""
        found = query(self._pipeline.targets["main"], "SELECT to_regclass('venus.applied') IS NOT NULL")
        rows = query(self._pipeline.targets["main"], 'SELECT "offset" FROM venus.applied') if found[0][0] else []
        return int(rows[0][0]) if rows else -1

    def worker(self) -> int:
        """Return the process that loads, 0 without one."""
        for child in psutil.Process(self.pid).children(recursive=True):
            with suppress(psutil.Error):  # the process has just ended
                if "spawn_main" in " ".join(child.cmdline()):
                    return child.pid
        return 0

    def wait_for_worker(self) -> int:
        """Return the process that loads, as soon as there is one."""
        return int(eventually(self.worker, "a process that loads"))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the command, but not its worker, while the source is still being read."""
        # a broker that has just started learns this with capture's next report
        self._pipeline.until(lambda: read_broker(self._settings).fills, "capture to report its read")
        os.kill(self.pid, signal.SIGSTOP)
        # the broker knows that the read continues; a stopped reader of SQLite might hold a lock on the file
        assert read_broker(self._settings).fills, "the read has ended too early"
        yield
        with suppress(ProcessLookupError):  # the command was killed
            os.kill(self.pid, signal.SIGCONT)

    def wait_for_progress(self) -> None:
        """Wait until the target has applied more changes."""
        before = self.position()
        self._pipeline.until(lambda: self.position() > before, "the load to continue")

    def is_level(self) -> bool:
        """Return whether the target has everything that the broker has."""
        return self.position() >= read_broker(self._settings).next_offset


def test_a_load_survives_kills_of_every_process(place: LoadedPipeline) -> None:
    pipeline = place.pipeline
    pipeline.ask("install-triggers")
    pipeline.start_broker()
    with place.write_steadily():
        migration = Migration(place)
        pipeline.until(lambda: migration.position() > 0, "the tables to follow")
        with migration.pause():
            waiting = pipeline.status()["problems"]
            assert any("its load has not ended" in line for line in waiting), waiting
            sessions = (
                "FROM pg_stat_activity WHERE application_name LIKE 'venus apply%' AND datname = current_database()"
            )
            terminate = f"SELECT pg_terminate_backend(pid) {sessions}"
            pipeline.until(lambda: query(pipeline.targets["main"], terminate), "a session that applies")
            pipeline.until(migration.is_level, "the load to connect again")
        migration.wait_for_progress()
        with migration.pause():
            first = migration.wait_for_worker()
            os.kill(first, signal.SIGKILL)
        pipeline.until(lambda: migration.worker() not in (0, first), "another process to load")
        migration.wait_for_progress()
        with migration.pause():
            pipeline.kill("broker")
            pipeline.start_broker()
            pipeline.until(migration.is_level, "the load to find the broker again")
        migration.wait_for_progress()
        with migration.pause():
            worker = migration.wait_for_worker()
            pipeline.running.pop("migrate").kill()
            eventually(lambda: not psutil.pid_exists(worker), "the process that loads to end with its parent")
        pipeline.environ["VENUS_CAPTURE__FILL_CHUNK_ROWS"] = "20000"
        report = pipeline.ask("migrate", "--target", "main", "--engine", "local")
    assert report["refused"] == 0
    assert report["rows"] > ROWS / 2
    pipeline.start("sync", "sync", "--target", "main")
    pipeline.wait_until_caught_up("main")
    assert place.rows_at_target() == place.rows()
    pipeline.until(lambda: not pipeline.status()["problems"], "no problem", every_s=0.2)
    indexes = f"SELECT count(*) FROM pg_indexes WHERE schemaname || '.' || tablename = '{place.copy}'"
    assert query(pipeline.targets["main"], indexes) == [(2,)]


@pytest.mark.parametrize("place", [sqlite_place], ids=["sqlite_place"], indirect=True)
def test_a_load_in_one_process_overlaps_the_read(place: LoadedPipeline) -> None:
    pipeline = place.pipeline
    pipeline.environ["VENUS_CAPTURE__FILL_CHUNK_ROWS"] = "20"  # the source is read to the end
    pipeline.ask("install-triggers")
    with place.write_steadily():
        pipeline.start("run", "run")
        pipeline.until_said("main: following", "the target to follow")
    assert "loading begins while the source is being read" in pipeline.log.read_text()
    pipeline.wait_until_caught_up("main")
    assert place.rows_at_target() == place.rows()
