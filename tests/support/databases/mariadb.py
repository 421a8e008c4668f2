"""A MariaDB for the tests: one server for each sql_mode and test run, a fresh database for every test.

Its binaries come from Debian's package mariadb-server. It listens on the loopback interface only, with a data
directory of its own. Nothing is synced to the disk, because no test cuts the machine's power and each DDL statement
would cost a sync.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pymysql
import pytest
import sqlalchemy
import tenacity
from pymysql.constants import ER

from tests.support.ports import free_port
from tests.support.processes.lifetimes import new_folder
from tests.support.programs import reject_missing

#: Default sql_mode of MariaDB 10.11.
DEFAULT_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION"
#: MariaDB's Oracle mode: PL/SQL triggers, sequences by NEXTVAL, and the empty string is NULL. It is strict, as an
#: Oracle is: a value that does not fit is an error.
ORACLE_MODE = "ORACLE,EMPTY_STRING_IS_NULL,STRICT_ALL_TABLES"

_START_S = 120.0
_PORTS_MAX = 3
_SYSTEM_PATHS = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"


@dataclass(slots=True)
class MariaServer:
    """A running server, on which databases are created by name."""

    process: subprocess.Popen[bytes]
    home: Path
    port: int
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    command: tuple[str, ...] = ()

    def connect(self, database: str | None = None, **options: Any) -> pymysql.connections.Connection[Any]:
        """Open a session of the administrator, by default without autocommit.

        The session uses no TLS, because the driver would read the system's certificates each time, in 90 ms.
        """
        options = {"user": "root", "charset": "utf8mb4", "ssl_disabled": True, **options}
        return pymysql.connect(host="127.0.0.1", port=self.port, database=database, **options)

    def execute(self, statement: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement as the administrator."""
        connection = self.connect(database, autocommit=True)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def url(self, database: str, user: str = "root", password: str = "") -> str:
        """Return the SQLAlchemy URL of a database."""
        url = sqlalchemy.URL.create(
            "mysql+pymysql",
            username=user,
            password=password or None,
            host="127.0.0.1",
            port=self.port,
            database=database,
        )
        return url.render_as_string(hide_password=False)

    def create_database(self, collation: str = "utf8mb4_general_ci") -> str:
        """Create an empty database and return its URL."""
        name = f"t{next(self.numbers)}"
        self.execute(f"CREATE DATABASE {name} COLLATE {collation}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database after ending all its sessions, because an open transaction would block it."""
        name = sqlalchemy.make_url(url).database
        for (session,) in self.execute(f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"):
            try:
                self.execute(f"KILL {session}")
            except pymysql.OperationalError as e:
                if e.args[0] != ER.NO_SUCH_THREAD:  # the session has ended by itself
                    raise
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def kill(self) -> None:
        """Kill the server like a crash of its machine, except that the operating system's buffers are kept."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """Restart the server on the same port, with its data."""
        assert self.command
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)
        _wait_for(self)

    def stop(self) -> None:
        """Stop the server as its service manager would."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _binary(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":" + _SYSTEM_PATHS)


def require_binaries() -> tuple[str, str]:
    """Return the paths of the server and its installer."""
    server, installer = _binary("mariadbd"), _binary("mariadb-install-db")
    if server is None or installer is None:
        reject_missing("MariaDB")
    return server, installer


@contextmanager
def running_mariadb(sql_mode: str = DEFAULT_MODE, *options: str) -> Iterator[MariaServer]:
    """Install and start a server with this global sql_mode; stop and remove it at the end."""
    server, installer = require_binaries()
    home = new_folder("maria-")
    user = pwd.getpwuid(os.getuid()).pw_name
    data = home / "data"
    try:
        _install(installer, data, user)
        running = _start(server, home, user, sql_mode, options)
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _start(server: str, home: Path, user: str, sql_mode: str, options: tuple[str, ...]) -> MariaServer:
    """Start the server and wait until it answers; choose another port if another process has taken this one."""
    for attempt in range(1, _PORTS_MAX + 1):
        running = _launch(server, home, user, sql_mode, options)
        try:
            _wait_for(running)
            return running
        except BaseException:
            ended = running.process.poll() is not None
            running.stop()
            if not ended or attempt == _PORTS_MAX:
                raise
    raise AssertionError("not reached")


def _launch(server: str, home: Path, user: str, sql_mode: str, options: tuple[str, ...]) -> MariaServer:
    port = free_port()
    command = (
        server,
        "--no-defaults",
        f"--datadir={home}/data",
        f"--user={user}",
        "--bind-address=127.0.0.1",
        f"--port={port}",
        f"--socket={home}/s",
        f"--pid-file={home}/pid",
        f"--tmpdir={home}",
        f"--sql-mode={sql_mode}",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=32M",
        "--max-allowed-packet=64M",
        "--skip-name-resolve",
        "--character-set-server=utf8mb4",
        "--innodb-lock-wait-timeout=20",
        "--performance-schema=OFF",
        "--max-connections=60",
        "--debug-no-sync",
        *options,
    )
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    return MariaServer(process, home, port, command=command)


def _install(installer: str, data: Path, user: str) -> None:
    """Create the server's own tables; the administrator connects over loopback TCP without a password."""
    command = [
        installer,
        "--no-defaults",
        f"--datadir={data}",
        f"--user={user}",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
        "--skip-name-resolve",
    ]
    # A starting server removes files that look like temporary tables from its TMPDIR, even those of another server.
    own = os.environ | {"TMPDIR": str(data.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_START_S, env=own)
    assert done.returncode == 0, done.stdout + done.stderr


def _wait_for(server: MariaServer) -> None:
    def has_ended() -> bool:
        return server.process.poll() is not None

    for attempt in tenacity.Retrying(
        stop=tenacity.stop_after_delay(_START_S),
        wait=tenacity.wait_fixed(0.1),
        retry=tenacity.retry_if_exception(lambda error: isinstance(error, pymysql.Error) and not has_ended()),
        reraise=True,
    ):
        with attempt:
            try:
                server.execute("SELECT 1")
            except pymysql.Error as error:
                text = (server.home / "server.log").read_text(errors="replace") if has_ended() else ""
                raise type(error)(*error.args, text[-2000:]) from error


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaServer]:
    """Start one server with MariaDB's default sql_mode for the whole test run."""
    with running_mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_oracle_server() -> Iterator[MariaServer]:
    """Start one server in Oracle mode for the whole test run."""
    with running_mariadb(ORACLE_MODE) as server:
        yield server


@pytest.fixture
def mariadb_database(mariadb_server: MariaServer) -> Iterator[str]:
    """Make an empty database and yield its URL."""
    url = mariadb_server.create_database()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture
def mariadb_exact_database(mariadb_server: MariaServer) -> Iterator[str]:
    """Make a database whose collation distinguishes 'a' from 'A' and from 'a ', as in other database systems."""
    url = mariadb_server.create_database("utf8mb4_nopad_bin")
    yield url
    mariadb_server.drop_database(url)


def catalogue(server: MariaServer, database: str) -> str:
    """Return the DDL of every object in a database, without counters that change with its rows."""
    connection = server.connect(database, autocommit=True)
    try:
        cursor = connection.cursor()
        cursor.execute("SHOW FULL TABLES")
        lines = [f"{name} {kind}" for name, kind in cursor.fetchall()]
        for name in [line.rpartition(" BASE TABLE")[0] for line in lines if line.endswith(" BASE TABLE")]:
            cursor.execute("SHOW CREATE TABLE `" + name.replace("`", "``") + "`")
            lines.append(re.sub(r" AUTO_INCREMENT=\d+", "", str(cursor.fetchall()[0][1])))
        cursor.execute(
            "SELECT * FROM information_schema.triggers WHERE trigger_schema = database() ORDER BY trigger_name"
        )
        lines += map(str, cursor.fetchall())
        return "\n".join(lines)
    finally:
        connection.close()
