"""SQLite connections, transactions and locks; the only module that handles the driver's errors.

SQLite has one writer at a time. VENUS's transactions are short, so it retries the lock at short intervals. SQLite's
own retries have growing pauses, so they would rarely get the lock beside busy writers. Without WAL a commit also locks
out readers: a read transaction also retries at short intervals before it begins, and then keeps its lock to the end.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from venus.adapters.dialects.registry import parse_url
from venus.errors import ConfigError, DatabaseUnavailable, LockTimeout, NoSuchDatabase, SourceError, VenusError

#: The first version with pragma_table_list. The application may use an older SQLite.
VERSION_MIN = (3, 37)
#: How long a transaction waits for the lock before it raises DatabaseUnavailable.
LOCK_WAIT_S = 30.0
#: Longest pause between two attempts to take the lock.
LOCK_PAUSE_S = 0.003

#: Result codes of a lock, and of a file that cannot be used now.
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
AWAY = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL}


def parse_file_url(url: str, option: str = "[source] url") -> Path:
    """Return the file that a URL names: `sqlite:////absolute` or `sqlite:///relative`."""
    parsed = parse_url(url, option, "sqlite:////absolute/path")
    if not parsed.database or parsed.database == ":memory:":
        raise ConfigError(f"{option} names no file", hint="write sqlite:////absolute/path or sqlite:///relative")
    if parsed.query or parsed.host or parsed.get_driver_name() != "pysqlite":
        raise ConfigError(f"{option}: a SQLite database is a file and takes no options", hint="write sqlite:///file")
    return Path(parsed.database)


def connect(file: Path) -> sqlite3.Connection:
    """Open an existing file in autocommit mode.

    SQLite itself does not wait for locks on this connection. Callers run statements inside `write_transaction` or
    `read_transaction`, which wait.
    """
    if sqlite3.sqlite_version_info < VERSION_MIN:
        required = ".".join(map(str, VERSION_MIN))
        raise ConfigError(f"Python's SQLite is {sqlite3.sqlite_version}, VENUS needs {required} or newer")
    if not file.is_file():
        hint = f"[source] url must name an existing SQLite file; looked for {file.absolute()}"
        raise NoSuchDatabase(f"{file}: {'is a directory' if file.is_dir() else 'no such file'}", hint=hint)
    with translate_errors(file):
        uri = f"{file.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA busy_timeout = 0")
            _run_while_busy(connection, "PRAGMA synchronous = FULL")  # a decided batch must survive a power cut
            _run_while_busy(connection, "SELECT 1 FROM sqlite_master LIMIT 1")
        except BaseException:
            connection.close()
            raise
        return connection


def read_identity(file: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if it does not exist. A replaced file has another identity."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_writable(file: Path) -> bool:
    """Return whether this process may write the file and create the journal beside it."""
    return os.access(file, os.W_OK) and os.access(file.absolute().parent, os.W_OK)


@contextmanager
def translate_errors(what: object) -> Iterator[None]:
    """Convert the driver's errors into VENUS's."""
    try:
        yield
    except sqlite3.Error as e:
        _raise_translated(what, e)


def _raise_translated(what: object, error: sqlite3.Error) -> NoReturn:
    code = primary_code(error)
    kind: type[VenusError] = DatabaseUnavailable if code in AWAY else SourceError
    kind = LockTimeout if code in BUSY else kind
    hint = {
        sqlite3.SQLITE_READONLY: "VENUS must be able to write the file and to create files beside it",
        sqlite3.SQLITE_NOTADB: "[source] url must name a SQLite database",
        sqlite3.SQLITE_CORRUPT: "run PRAGMA integrity_check and restore the file",
        sqlite3.SQLITE_FULL: "make room on the disk",
        sqlite3.SQLITE_BUSY: f"another process held the lock for {LOCK_WAIT_S:.0f} s",
    }
    raise kind(f"{what}: {error}", hint=hint.get(code, "")) from error


def primary_code(error: BaseException) -> int:
    """Return SQLite's primary result code, 0 if the error is not SQLite's."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _run_while_busy(connection: sqlite3.Connection, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement that takes a lock (BEGIN IMMEDIATE, the first read, COMMIT); retry while it is busy."""
    attempts = Retrying(
        retry=retry_if_exception(lambda e: primary_code(e) in BUSY),
        stop=stop_after_delay(LOCK_WAIT_S),
        wait=wait_random(0.0, LOCK_PAUSE_S),
        reraise=True,
    )
    return attempts(lambda: connection.execute(statement).fetchall())


@contextmanager
def write_transaction(connection: sqlite3.Connection, what: object) -> Iterator[None]:
    """Run the block in a transaction that holds the write lock."""
    with translate_errors(what):
        _run_while_busy(connection, "BEGIN IMMEDIATE")
        try:
            yield
            _run_while_busy(connection, "COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


@contextmanager
def snapshot(connection: sqlite3.Connection, what: object) -> Iterator[None]:
    """Run the block in the open transaction, or else in a read transaction of its own."""
    with translate_errors(what) if connection.in_transaction else read_transaction(connection, what):
        yield


@contextmanager
def read_transaction(connection: sqlite3.Connection, what: object) -> Iterator[None]:
    """Run the block in a read transaction: it sees one state of the database."""
    with translate_errors(what):
        begin_read(connection)
        try:
            yield
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def begin_read(connection: sqlite3.Connection) -> None:
    """Open a snapshot. The caller ends it."""
    connection.execute("BEGIN")
    try:
        _run_while_busy(connection, "SELECT 1 FROM sqlite_master LIMIT 1")  # BEGIN alone takes no lock
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def read_data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes with every commit of another connection."""
    return int(_run_while_busy(connection, "PRAGMA data_version")[0][0])


def quote(name: str) -> str:
    """Return an identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | int | bytes | None) -> str:
    """Return a value as SQL, for statements that an operator reads before they run."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return "'" + value.replace("'", "''") + "'"
