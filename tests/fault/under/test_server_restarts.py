"""A PostgreSQL server, source and target at once, crashes without a shutdown: no change is lost or doubled."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import psycopg2
import pytest

from tests.support.databases.postgres import Server, libpq, running_server
from tests.support.pipelines.end_to_end import EndToEnd, end_to_end, run_at
from tests.support.processes.lifetimes import new_folder
from venus.adapters.targets.relational.control import request_resync
from venus.errors import DatabaseUnavailable, Unavailable

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.timeout(300)]

QUERY = "SELECT * FROM account ORDER BY id"


@pytest.fixture
def server() -> Iterator[Server]:
    home = new_folder("pg-")
    with running_server(home / "data") as running:
        yield running
    home.rmdir()


def crash(server: Server) -> None:
    """End the server at once, as `pg_ctl stop -m immediate` does, and start it again."""
    postmaster = psutil.Process(server.pg.get_postmaster_info().pid or 0)
    os.kill(postmaster.pid, signal.SIGQUIT)
    postmaster.wait(60)
    server.start()


class Application:
    """Application that writes at a source until it is stopped, and reconnects after each lost connection."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self.done = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._write()
            except psycopg2.Error:
                self._stop.wait(0.05)

    def _write(self) -> None:
        connection = psycopg2.connect(libpq(self._url))
        try:
            while not self._stop.is_set():
                n = self.done
                with connection, connection.cursor() as cursor:
                    cursor.execute(f"UPDATE account SET amount = amount + 1 WHERE id % 50 = {n % 50}")
                    cursor.execute("INSERT INTO account (amount) VALUES (0), (1)")
                    cursor.execute(f"DELETE FROM account WHERE id % 97 = {n % 97} AND id > 200")
                self.done += 1
        finally:
            connection.close()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def e2e(server: Server, tmp_path: Path) -> Iterator[EndToEnd]:
    source, target = server.create_database(), server.create_database()
    run_at(
        source,
        "CREATE TABLE account (id serial PRIMARY KEY, amount int)",
        "INSERT INTO account (amount) SELECT 0 FROM generate_series(1, 20000)",
    )
    with end_to_end(tmp_path, source, target) as made:
        made.install()
        yield made


def repeat_until_success(command: Callable[[], object]) -> int:
    """Run a command until it succeeds, as a user at a terminal would; return how often it was repeated."""
    end, attempts = time.monotonic() + 120, 0
    while True:
        try:
            command()
            return attempts
        except (DatabaseUnavailable, Unavailable):
            assert time.monotonic() < end, "it never succeeded"
            attempts += 1
            time.sleep(0.1)


def offset(e2e: EndToEnd) -> int:
    try:
        return int(e2e.at_target('SELECT "offset" FROM venus.applied')[0][0])
    except psycopg2.Error:
        return 0


def has_passed(e2e: EndToEnd, to: int) -> bool:
    return offset(e2e) > to


def has_continued(application: Application, to: int, unless_ended: threading.Thread | None = None) -> bool:
    return application.done > to or (unless_ended is not None and not unless_ended.is_alive())


def wait_until_equal(e2e: EndToEnd) -> None:
    e2e.wait_until_caught_up()
    assert e2e.at_target(QUERY) == run_at(e2e.source, QUERY)
    assert e2e.at_target("SELECT count(*) FROM venus.target_table WHERE state <> 'ACTIVE'") == [(0,)]


@pytest.mark.slow
def test_a_server_crashes_during_the_load_and_while_changes_are_applied(e2e: EndToEnd, server: Server) -> None:
    application = Application(e2e.source)
    loading = threading.Thread(target=lambda: repeat_until_success(e2e.load))
    loading.start()
    for _ in range(3):
        e2e.until(partial(has_continued, application, application.done + 3, loading), "the application to continue")
        crash(server)
    loading.join(120)
    assert not loading.is_alive()
    e2e.start()
    for _ in range(4):
        e2e.until(partial(has_passed, e2e, offset(e2e) + 50), "the target to continue")
        crash(server)
    application.end()
    wait_until_equal(e2e)


def test_a_server_crashes_during_a_resync(e2e: EndToEnd, server: Server) -> None:
    e2e.load()
    e2e.start()
    application = Application(e2e.source)
    e2e.at_target("DELETE FROM account WHERE id % 3 = 0")
    repeat_until_success(lambda: request_resync(e2e.settings, "main", "public.account"))
    for _ in range(3):
        e2e.until(partial(has_continued, application, application.done + 3), "the application to continue")
        crash(server)
    application.end()

    def has_resynced() -> bool:
        try:
            return e2e.at_target("SELECT count(*) FROM venus.sweep") == [(0,)]
        except psycopg2.Error:
            return False

    e2e.until(has_resynced, "the resync to end")
    wait_until_equal(e2e)
