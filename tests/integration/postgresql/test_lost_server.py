"""Capture waits for a server that goes down at once, as after `pg_ctl stop -m immediate`, whatever it was doing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support.databases.postgres import Server, running_server
from tests.support.processes.lifetimes import new_folder
from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.errors import DatabaseUnavailable

pytestmark = pytest.mark.integration

STATEMENTS: dict[str, Callable[[PostgresConnection], object]] = {
    "one": lambda connection: connection.run("SELECT 1"),
    "commit": lambda connection: connection.commit("SELECT 1"),
    "texts": lambda connection: connection.fetch_texts("SELECT 1"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    home = new_folder("pg-")
    with running_server(home / "data") as running:
        yield running
    home.rmdir()


@pytest.mark.parametrize("what", STATEMENTS)
def test_capture_waits_for_a_server_that_went_down_during_an_idle_session(what: str, server: Server) -> None:
    connection = PostgresConnection(server.url("postgres"))
    connection.run("BEGIN; SELECT 1")
    postmaster = psutil.Process(server.pg.get_postmaster_info().pid or 0)
    os.kill(postmaster.pid, signal.SIGQUIT)
    postmaster.wait(60)
    try:
        with pytest.raises(DatabaseUnavailable):
            STATEMENTS[what](connection)
        connection.rollback()
        assert connection.is_closed
    finally:
        connection.close()
        server.start()
