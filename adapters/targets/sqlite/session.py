"""One connection to a SQLite target. This is the only module on the target side that uses SQLite's driver.

The file is in WAL mode, so a reader sees whole cuts and never waits; every commit is synced before it is acknowledged.
SQLite has one writer at a time. A transaction of VENUS takes the write lock at its start, for which it waits a limited
time; status names the process that holds the lock. The session checks no foreign keys: the source has checked them, and
the effects of cascades arrive as separate changes.

Errors are classified by the reaction that they require, as at all relational targets (relational/session.py).
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random

from venus.adapters.dialects.sqlite.connection import (
    AWAY,
    BUSY,
    LOCK_PAUSE_S,
    LOCK_WAIT_S,
    literal,
    primary_code,
    read_identity,
)
from venus.adapters.targets.relational.session import BackgroundWork, Params, Refusal
from venus.adapters.targets.sqlite.file import FileLock, find_file, find_writer, version_problem
from venus.adapters.targets.switching import OLD, url_option
from venus.errors import ConfigError, DatabaseUnavailable, LockTimeout, NoSuchDatabase, TargetError

if TYPE_CHECKING:
    from pydantic import SecretStr

    from venus.adapters.targets.registry import ConfiguredTarget

_SETTINGS = (
    "PRAGMA busy_timeout = 0",  # the session itself retries, at short intervals
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA recursive_triggers = OFF",
    "PRAGMA trusted_schema = OFF",
)
#: Statement that opens the file, and the snapshot of a transaction.
_FIRST_READ = "SELECT 1 FROM sqlite_schema LIMIT 1"
#: The mark of a transaction of VENUS in the record of a file that follows (side.sql).
_HAS_RECORD = "SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = 'venus_side'"
_MARK = "UPDATE main.venus_side SET applying = ?"
#: A wait for the write lock is reported after this time, and again each time.
SHOW_S = 2.0
#: Result codes for a refused row: a constraint, a value that is too long, or one that a STRICT table does not accept.
_REFUSALS = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH}
_TABLE = re.compile(r"(?:failed:|column) (\w+)\.\w+")
#: How many values one statement inserts: every build of SQLite accepts this many.
_VARIABLES_MAX = 999
#: The rows and the row count of a statement.
StatementResult = tuple[list[tuple[Any, ...]], int]
#: A parameter of a statement of own.sql.
_PARAMETER = re.compile(r":([a-z]\w*)")
_HINTS = {
    sqlite3.SQLITE_FULL: "make room on its disk",
    sqlite3.SQLITE_READONLY: "let VENUS's user write the file and create files beside it",
    sqlite3.SQLITE_CANTOPEN: "let VENUS's user write the file and create files beside it",
    sqlite3.SQLITE_NOTADB: "name another file",
    sqlite3.SQLITE_CORRUPT: "restore the file; or delete it and run `venus migrate`",
}


def split_statements(text: str) -> Iterator[str]:
    """Yield the statements of a text. Pure."""
    if ";" not in text:
        yield text
        return
    waiting = ""
    for part in text.split(";"):
        waiting += f"{part};"
        if sqlite3.complete_statement(waiting):
            if waiting.strip() != ";":
                yield waiting.strip()
            waiting = ""


class SqliteSession:
    """A connection in autocommit mode, used by one thread and by the background work that this thread has started.

    A missing file is treated as an empty database in memory, unless `creates` is set. With `begins_late` a transaction
    takes the write lock at its first change. `follows`: the file was the application's, so it exists, and the triggers
    that reject writes accept the session's transactions.
    """

    def __init__(
        self,
        url: str | SecretStr,
        *,
        group: str,
        target: str,
        creates: bool = False,
        begins_late: bool = False,
        follows: bool = False,
    ) -> None:
        text = url if isinstance(url, str) else url.get_secret_value()
        self.file = find_file(text, url_option(target))
        if problem := version_problem(sqlite3.sqlite_version_info):
            raise ConfigError(problem)
        self.busy_since: float | None = None
        #: Called with the holder of the write lock while this session waits for it, and with "" afterwards.
        self.on_wait: Callable[[str], None] = lambda _: None
        #: Staging tables of this session.
        self.temporary: set[str] = set()
        self.is_closed = False
        self._show_at = SHOW_S
        self._begin = "BEGIN" if begins_late else "BEGIN IMMEDIATE"
        self._background = BackgroundWork("venus-target")
        self._lock = FileLock(self.file, group)
        #: Whether transactions mark themselves as VENUS's, and whether the open one has done so.
        self._marks = follows and not begins_late
        self._is_marked = False
        exists = creates or self.file.exists()
        if follows and not exists:
            raise NoSuchDatabase(f"{url_option(target)}: {self.file} does not exist", hint="restore the file")
        place = f"{self.file.as_uri()}?mode={'rwc' if creates else 'rw'}" if exists else ":memory:"
        try:
            self._connection = sqlite3.connect(place, uri=True, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._classify(error) from error
        try:
            self._connection.create_function("venus_now_us", 0, lambda: time.time_ns() // 1000)
            for statement in (*_SETTINGS, _FIRST_READ):
                self.run(statement)
            self._identity = read_identity(self.file)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; an open transaction is lost."""
        self._background.close()
        self._connection.close()
        self._lock.release()
        self.is_closed = True

    @property
    def connection(self) -> sqlite3.Connection:
        """The driver's connection, for code that reads the dictionary in the session's transaction."""
        self._background.wait()
        return self._connection

    def try_lock(self) -> bool:
        """Try to lock the target for this process; the lock ends with the session."""
        return self._lock.try_acquire()

    def find_worker(self) -> str:
        """Return the process that last locked the target, as text; empty if none has."""
        return self._lock.find_owner()

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Start work with this session in another thread; the next use of the session waits and raises its error."""
        self._background.start(work)

    def wait_for_background(self) -> None:
        """Wait for the work in the other thread and raise its error."""
        self._background.wait()

    # -- statements ------------------------------------------------------------------------------------------------

    def run(self, text: str, params: Params = None) -> int:
        """Execute one or more statements; return the last one's row count."""
        return self._run(text, params)[1]

    def write_rows(self, text: str) -> int:
        """Execute one statement that writes rows; return their number."""
        return self.run(text)

    def write_many(self, text: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """Execute a statement for every row, within a transaction; return how many rows it has changed."""
        return self._write(partial(self._connection.executemany, text, rows))

    def _write(self, execute: Callable[[], sqlite3.Cursor]) -> int:
        """Execute a statement that writes many rows; return their number."""
        self._background.wait()
        self.busy_since = time.monotonic()
        try:
            return execute().rowcount
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._classify(error) from error
        finally:
            self.busy_since = None

    def insert_columns(self, text: Callable[[str], str], row: str, columns: Sequence[Sequence[Any]]) -> int:
        """Insert the rows of these columns, within a transaction; return how many were inserted.

        `text` returns the statement for a list of `row`s. A statement has many rows, because a call for each row costs
        as much as SQLite's own work, and releases Python's lock each time.
        """
        width = len(columns)
        many = max(1, _VARIABLES_MAX // width)
        whole = len(columns[0]) // many * many
        values: list[Any] = [None] * (width * whole)
        for n, column in enumerate(columns):
            values[n::width] = column[:whole]
        written = 0
        if whole:
            statement, step = text(", ".join([row] * many)), width * many
            for at in range(0, len(values), step):
                written += self._write(partial(self._connection.execute, statement, values[at : at + step]))
        if whole < len(columns[0]):
            written += self.write_many(text(row), zip(*(column[whole:] for column in columns), strict=True))
        return written

    def rows(self, text: str, params: Params = None) -> list[tuple[Any, ...]]:
        """Execute and fetch everything; small results only."""
        return self._run(text, params)[0]

    def row(self, text: str, params: Params = None) -> tuple[Any, ...] | None:
        """Execute and fetch the first row."""
        return next(iter(self._run(text, params)[0]), None)

    def find_each(self, text: str, keys: Iterable[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
        """Execute a query once for each of these keys; return a list of rows for each key."""
        self._background.wait()
        try:
            return [self._connection.execute(text, key).fetchall() for key in keys]
        except sqlite3.Error as error:
            raise self._classify(error) from error

    def stream(self, text: str, params: Params, rows_max: int) -> Iterator[list[tuple[Any, ...]]]:
        """Execute a query and yield its rows in pieces."""
        self._background.wait()
        try:
            cursor = self._connection.execute(text, params or ())
            try:
                while rows := cursor.fetchmany(rows_max):
                    yield rows
            finally:
                cursor.close()
        except sqlite3.Error as error:
            raise self._classify(error) from error

    def literal(self, text: str, params: Params) -> str:
        """Return `text` with `params` filled in as SQL literals."""
        assert isinstance(params, Mapping)
        return _PARAMETER.sub(lambda found: _as_literal(params[found[1]]), text)

    def begin_snapshot(self) -> None:
        """Begin a transaction whose reads all see one snapshot."""
        self._background.wait()
        try:
            self._connection.execute("BEGIN")
            self._run_while_busy(_FIRST_READ, ())  # BEGIN alone opens no snapshot
        except sqlite3.Error as error:
            self.rollback()
            raise self._classify(error) from error

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one."""
        self._background.discard()
        self.temporary.clear()  # a rollback also removes tables that the transaction has created
        if not self.is_closed and self._connection.in_transaction:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _run(self, text: str, params: Params) -> StatementResult:
        """Execute all statements of a text; return the last one's rows and row count."""
        self._background.wait()
        self.busy_since = time.monotonic()
        values = {k: _as_value(v) for k, v in params.items()} if isinstance(params, Mapping) else (params or ())
        found: StatementResult = [], 0
        try:
            for one in split_statements(text):
                found = self._run_one(one, values)
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
            raise self._classify(error) from error
        finally:
            self.busy_since = None
        return found

    def _run_one(self, text: str, values: Any) -> StatementResult:
        """Execute one statement; BEGIN and COMMIT also set and remove the mark of VENUS in the file."""
        word = text.rstrip(";").upper()
        if word == "BEGIN":
            self._refuse_replaced_file()
            found = self._run_while_busy(self._begin, ())
            self._is_marked = self._marks and self._mark(is_applying=True)
            return found
        if word == "COMMIT":
            if not self._connection.in_transaction:
                return [], 0
            if self._is_marked:
                self._mark(is_applying=False)
        return self._run_while_busy(text, values)

    def _mark(self, *, is_applying: bool) -> bool:
        """Set or remove the mark of VENUS in the file's record of its role; return False if there is no record.

        No other connection ever sees the mark: SQLite has one writer, and a commit removes it first.
        """
        if not self._execute(_HAS_RECORD, ())[0]:
            return False
        self._execute(_MARK, (int(is_applying),))
        return True

    def _refuse_replaced_file(self) -> None:
        """Raise DatabaseUnavailable if the path now leads to another file: everything written here would be lost."""
        if read_identity(self.file) != self._identity:
            raise DatabaseUnavailable(f"target {self.file}: the file was removed or replaced")

    def _run_while_busy(self, text: str, values: Any) -> StatementResult:
        """Execute a statement; wait for the write lock, report the wait, and give up after a limited time."""
        try:
            return self._execute(text, values)
        except sqlite3.OperationalError as error:
            if not _can_wait(error):
                raise
        self._show_at = SHOW_S
        attempts = Retrying(
            retry=retry_if_exception(_can_wait),
            stop=stop_after_delay(LOCK_WAIT_S),
            wait=wait_random(0.0, LOCK_PAUSE_S),
            before_sleep=self._report_wait,
            reraise=True,
        )
        found = attempts(self._execute, text, values)
        if self._show_at > SHOW_S:
            self.on_wait("")
        return found

    def _execute(self, text: str, values: Any) -> StatementResult:
        """Execute one statement; return its rows and row count."""
        cursor = self._connection.execute(text, values)
        return cursor.fetchall(), cursor.rowcount

    def _report_wait(self, state: RetryCallState) -> None:
        """Report from time to time which process holds the write lock."""
        if state.seconds_since_start is not None and state.seconds_since_start >= self._show_at:
            self._show_at += SHOW_S
            self.on_wait(self.describe_writer())

    def describe_writer(self) -> str:
        """Describe the process that holds the write lock of the file, for messages."""
        return find_writer(self.file) or "another process"

    # -- errors ----------------------------------------------------------------------------------------------------

    def _classify(self, error: Exception) -> TargetError | DatabaseUnavailable | ConfigError:
        """Return the exception to raise for an error of the driver."""
        if isinstance(error, (OverflowError, UnicodeEncodeError)):
            return Refusal("a value is too large or is not valid Unicode", "SQLITE_MISMATCH")
        code, said = primary_code(error), str(error)
        name = str(getattr(error, "sqlite_errorname", "") or type(error).__name__)
        if code in _REFUSALS:
            table = _TABLE.search(said)
            return Refusal(said, name, ("main", table[1]) if table else ("", ""))
        where = f"target {self.file}"
        if code in BUSY:
            holder = self.describe_writer()
            hint = f"end the transaction of {holder}, which holds the file"
            return LockTimeout(f"{where}: {holder} has held the file for {LOCK_WAIT_S:.0f} s", hint=hint)
        kind = DatabaseUnavailable if code in AWAY else TargetError
        return kind(f"{where}: {said}", hint=_HINTS.get(code, ""))


def _can_wait(error: BaseException) -> bool:
    """Return whether waiting helps against an error. Waiting does not help if the snapshot is outdated."""
    return primary_code(error) in BUSY and getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_BUSY_SNAPSHOT


def _as_value(value: Any) -> Any:
    """Return a parameter as SQLite accepts it; a list becomes JSON."""
    return json.dumps(list(value)) if isinstance(value, (list, tuple)) else value


def _as_literal(value: Any) -> str:
    """Return a value as SQL, in which a NUL character is escaped."""
    if isinstance(value, str) and "\0" in value:
        return f"CAST({literal(value.encode())} AS TEXT)"
    return literal(int(value) if isinstance(value, bool) else _as_value(value))


def open_session(target: ConfiguredTarget, purpose: str) -> SqliteSession:
    """Open a session for a `purpose`: "install" may create the file, "resync" takes the write lock late."""
    follows = target.name == OLD
    return SqliteSession(
        target.url,
        group=target.group,
        target=target.name,
        creates=purpose == "install" and not follows,
        begins_late=purpose == "resync",
        follows=follows,
    )
