"""One connection to a PostgreSQL target. The only module on the target side that uses psycopg2.

The caller writes BEGIN and COMMIT itself, with several statements in one string, because a small cut has to cost one
round trip. Errors are classified by the reaction to them: the server is unreachable (try again later), the target
refused a value or a row (`Refusal` with its SQLSTATE: quarantine), or the statement is wrong (`TargetError`).

A thread may run one piece of work with the session while the caller prepares the next one.
"""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

import psycopg2
import psycopg2.extensions
import sqlalchemy as sa

from venus.adapters.dialects.postgresql.connection import (
    READ_ONLY,
    WRITABLE,
    connect,
    connect_error,
    refuse_shared_sessions,
    server_hint,
)
from venus.adapters.dialects.postgresql.sql import statement as dialect_statement
from venus.adapters.dialects.statements import Statements
from venus.errors import DatabaseUnavailable, TargetError, VenusError

if TYPE_CHECKING:
    from pydantic import SecretStr

statement = Statements(__name__.rpartition(".")[0])
logger = logging.getLogger(__name__)

Params = Mapping[str, Any] | Sequence[Any] | None

#: SQLSTATE classes of errors about data: 22 values, 23 constraints, 44 views, P0 RAISE in a trigger.
_DATA_CLASSES = ("22", "23", "44", "P0")
#: Transient classes and codes: connection, resources, operator intervention, serialisation, deadlock.
_TRANSIENT = ("08", "53", "57", "58", "40", "55P03", READ_ONLY)

SUPERSEDED = "VE001"


class BackgroundWork:
    """Executor of one piece of work at a time, in its own thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None
        self._worker = 0

    def start(self, work: Callable[[], None]) -> None:
        """Start work after the previous piece is done. Raises the error of that piece and then starts nothing."""
        self.wait()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, self._name, initializer=self._on_start)
        self._job = self._executor.submit(work)

    def wait(self) -> None:
        """Wait for the last piece and raise its error; a call from within the piece returns immediately."""
        if self._job is None or threading.get_ident() == self._worker:
            return
        job, self._job = self._job, None
        job.result()

    def discard(self) -> None:
        """Wait for the last piece and ignore its error."""
        with suppress(Exception):
            self.wait()

    def close(self) -> None:
        """Wait for the last piece and end the thread."""
        self.discard()
        if self._executor is not None:
            self._executor.shutdown()

    def _on_start(self) -> None:
        self._worker = threading.get_ident()


class CopyInput(Protocol):
    """Source of bytes that returns any number of them per read, and none at its end."""

    def read(self, size: int, /) -> bytes: ...


class CopyOutput(Protocol):
    """Sink of bytes, piece by piece."""

    def write(self, data: bytes, /) -> int: ...


class Refusal(TargetError):
    """The target refused a row. The message may contain values of the row; `summary` contains none."""

    def __init__(
        self,
        message: str,
        sqlstate: str = "",
        table: tuple[str, str] = ("", ""),
        constraint: str = "",
        summary: str = "",
    ) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        #: The text for a table's state, which is visible on the broker's page.
        self.summary = f"{summary or message} ({sqlstate})"
        #: Schema and name of the table, if the server reports them.
        self.table = table
        self.constraint = constraint


class Superseded(TargetError):
    """Another process has changed the applied offset or a table's state."""


class TargetSession:
    """A connection in autocommit mode, used by one thread and by the work that this thread has started `behind` it."""

    def __init__(self, url: str | SecretStr, *, application: str, target: str = "NAME") -> None:
        text = url if isinstance(url, str) else url.get_secret_value()
        parsed = sa.make_url(text).set(drivername="postgresql")
        self._option = f"url in [targets.{target}]"
        self.place = parsed.set(query={}).render_as_string(hide_password=True)
        dsn = parsed.render_as_string(hide_password=False)
        try:
            self._connection = connect(dsn, application_name=application[:63])
        except psycopg2.Error as error:
            text = f"target {self.place} cannot be reached: {_first_line(error)}"
            raise connect_error(text, hint=f"check {self._option}") from error
        self._cursor = self._connection.cursor()
        self._background = BackgroundWork("venus-target")
        #: Start of the running statement, for other threads; None = idle.
        self.busy_since: float | None = None
        #: The names of prepared statements.
        self.prepared: set[str] = set()
        always = "; ".join(dialect_statement("session", block) for block in ("settings", "transactions", "durable"))
        self.run(f"{always}; {_NO_LIMITS}; {_KEEPALIVES}")
        refuse_shared_sessions(self._connection, f"target {self.place}", self._option)

    def commit_durably(self) -> None:
        """Make COMMIT durable again, as at the start: the broker may delete changes that are acknowledged after it."""
        self.run(f"RESET synchronous_commit; {dialect_statement('session', 'durable')}")

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Start work with this session in another thread; the next use of the session waits and raises its error."""
        self._background.start(work)

    def wait_for_background(self) -> None:
        """Wait for the work in the other thread and raise its error."""
        self._background.wait()

    def close(self) -> None:
        """Close the connection; an open transaction is lost."""
        self._background.close()
        self._connection.close()

    @property
    def closed(self) -> bool:
        """Whether the connection is lost."""
        return bool(self._connection.closed)

    def run(self, text: str, params: Params = None) -> int:
        """Execute one or more statements in one round trip; return the last one's row count."""
        self._background.wait()
        self.busy_since = time.monotonic()
        try:
            self._cursor.execute(text, params)
        except (psycopg2.Error, ValueError) as error:
            raise self._classify(error) from error
        finally:
            self.busy_since = None
        return int(self._cursor.rowcount)

    def rows(self, text: str, params: Params = None) -> list[tuple[Any, ...]]:
        """Execute and fetch everything; small results only."""
        self.run(text, params)
        return self._cursor.fetchall()

    def row(self, text: str, params: Params = None) -> tuple[Any, ...] | None:
        """Execute and fetch the first row."""
        self.run(text, params)
        return self._cursor.fetchone()

    def copy_in(self, text: str, data: bytes) -> int:
        """COPY complete text lines in."""
        return self.copy_from(text, io.BytesIO(data))

    def copy_from(self, text: str, lines: CopyInput) -> int:
        """COPY text lines in while they are produced; an error of `lines` is raised as DatabaseUnavailable."""
        self._background.wait()
        self.busy_since = time.monotonic()
        try:
            self._cursor.copy_expert(text, cast("Any", lines), size=1 << 18)
        except (psycopg2.Error, ValueError) as error:
            raise self._classify(error) from error
        finally:
            self.busy_since = None
        return int(self._cursor.rowcount)

    def copy_out(self, text: str) -> bytes:
        """COPY out into memory; small results only."""
        buffer = io.BytesIO()
        self.copy_to(text, buffer)
        return buffer.getvalue()

    def copy_to(self, text: str, into: CopyOutput) -> int:
        """COPY out, piece by piece as it arrives."""
        self._background.wait()
        try:
            self._cursor.copy_expert(text, into)
        except psycopg2.Error as error:
            raise self._classify(error) from error
        return int(self._cursor.rowcount)

    def literal(self, text: str, params: Params) -> str:
        """Return `text` with `params` filled in as SQL literals."""
        self._background.wait()
        try:
            return self._cursor.mogrify(text, params).decode()
        except ValueError as error:
            raise self._classify(error) from error

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one and the connection is alive."""
        self._background.discard()
        if self.closed or self._connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE:
            return
        try:
            self._cursor.execute("ROLLBACK")
        except psycopg2.Error:
            self._connection.close()

    def _classify(self, error: Exception) -> TargetError | DatabaseUnavailable:
        if isinstance(error, ValueError):  # psycopg2 itself refuses a NUL character
            return Refusal(str(error), "22021")
        assert isinstance(error, psycopg2.Error)
        state = error.pgcode or ""
        if state == SUPERSEDED:
            return Superseded(_first_line(error))
        if self.closed or not state or state.startswith(_TRANSIENT):
            advice = f"; {WRITABLE.format(self._option)}" if state == READ_ONLY else server_hint(error)
            return DatabaseUnavailable(f"target {self.place}: {_first_line(error)} {state}".rstrip() + advice)
        if state.startswith(_DATA_CLASSES):
            table = (error.diag.schema_name or "", error.diag.table_name or "")
            constraint, summary = error.diag.constraint_name or "", error.diag.message_primary or _first_line(error)
            return Refusal(_message(error), state, table, constraint, summary)
        return TargetError(f"target {self.place}: {_message(error)} ({state})")


_NO_LIMITS = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = 0"
#: The server ends the sessions of a crashed machine after a minute instead of two hours. Until then they hold locks for
#: which the next process waits. tcp_user_timeout is not set, because it would also end sessions that wait long for a
#: lock or a disk.
_KEEPALIVES = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _message(error: psycopg2.Error) -> str:
    parts = [error.diag.message_primary or _first_line(error)]
    if error.diag.message_detail:
        parts.append(error.diag.message_detail)
    return ": ".join(parts)


def try_replica_role(session: TargetSession) -> bool:
    """Disable foreign keys and ordinary triggers for this session if its role may; return whether they are disabled."""
    try:
        session.run(statement("dictionary", "replica_role"))
    except DatabaseUnavailable:
        raise
    except VenusError:  # an administrator may have disabled them with ALTER ROLE ... SET
        return session.row("SELECT current_setting('session_replication_role')") == ("replica",)
    return True
