"""One connection to a PostgreSQL target. This is the only module on the target side that uses psycopg2.

The caller writes BEGIN and COMMIT itself, with several statements in one string, so that a small cut costs only one
round trip. Errors are classified by the reaction that they require: the server is unreachable (try again later), the
target refused a value or a row (`Refusal` with its SQLSTATE: quarantine), or the statement is wrong (`TargetError`).

A background thread may run one piece of work with the session while the caller prepares the next one.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

import psycopg2
import psycopg2.extensions
import sqlalchemy as sa

from venus.adapters.dialects.postgresql.connection import (
    DEADLOCK,
    LOCK_TIMEOUT,
    READ_ONLY,
    SERIALIZATION,
    WRITABLE,
    connect,
    connect_error,
    lend_to_sqlalchemy,
    refuse_shared_sessions,
    server_hint,
)
from venus.adapters.dialects.postgresql.sql import statement as dialect_statement
from venus.adapters.dialects.statements import Statements
from venus.adapters.targets.postgresql.naming import OWN_SCHEMA
from venus.adapters.targets.relational.session import BackgroundWork, Params, Refusal, Superseded
from venus.adapters.targets.switching import url_option
from venus.errors import DatabaseUnavailable, Deadlock, LockTimeout, TargetError, VenusError

if TYPE_CHECKING:
    from pydantic import SecretStr

    from venus.adapters.targets.registry import ConfiguredTarget

statement = Statements(__name__.rpartition(".")[0])
logger = logging.getLogger(__name__)

#: SQLSTATE classes of errors about data: 22 values, 23 constraints, 44 views, P0 RAISE in a trigger.
_DATA_CLASSES = ("22", "23", "44", "P0")
#: Transient classes and codes: connection, resources, operator intervention, a transaction that was rolled back.
_TRANSIENT = ("08", "53", "57", "58", "40", READ_ONLY)
#: SQLSTATEs of a lock that another session holds, or of a conflict with its transaction.
_CONFLICTS = {LOCK_TIMEOUT: LockTimeout, DEADLOCK: Deadlock, SERIALIZATION: Deadlock}

SUPERSEDED = "VE001"


class CopyInput(Protocol):
    """A file whose `read` may return any number of bytes, and none at the end."""

    def read(self, size: int, /) -> bytes: ...


class CopyOutput(Protocol):
    """A sink to which COPY output is written piece by piece."""

    def write(self, data: bytes, /) -> int: ...


class TargetSession:
    """A connection in autocommit mode, used by one thread and by the background work that this thread has started."""

    def __init__(self, url: str | SecretStr, *, application: str, target: str = "NAME") -> None:
        text = url if isinstance(url, str) else url.get_secret_value()
        parsed = sa.make_url(text).set(drivername="postgresql")
        self._option = url_option(target)
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
        """Make COMMIT durable again, as it was at first: the broker may delete changes acknowledged after a commit."""
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
    def is_closed(self) -> bool:
        """Whether the connection is lost."""
        return bool(self._connection.closed)

    def run(self, text: str, params: Params = None) -> int:
        """Execute one or more statements in one round trip; return the last one's row count."""
        self._background.wait()
        self.busy_since = time.monotonic()
        try:
            self._cursor.execute(text, params)
        except (psycopg2.Error, ValueError) as error:
            raise self.classify(error) from error
        finally:
            self.busy_since = None
        return int(self._cursor.rowcount)

    def rows(self, text: str, params: Params = None) -> list[tuple[Any, ...]]:
        """Execute a query and return all its rows; for small results only."""
        self.run(text, params)
        return self._cursor.fetchall()

    def row(self, text: str, params: Params = None) -> tuple[Any, ...] | None:
        """Execute a query and return its first row; None if there is none."""
        self.run(text, params)
        return self._cursor.fetchone()

    def copy_in(self, text: str, data: bytes) -> int:
        """COPY complete text lines into a table; return the number of rows."""
        return self.copy_from(text, io.BytesIO(data))

    def copy_from(self, text: str, lines: CopyInput) -> int:
        """COPY text lines into a table while they are produced; an error of `lines` raises DatabaseUnavailable."""
        self._background.wait()
        self.busy_since = time.monotonic()
        try:
            self._cursor.copy_expert(text, cast("Any", lines), size=1 << 18)
        except (psycopg2.Error, ValueError) as error:
            raise self.classify(error) from error
        finally:
            self.busy_since = None
        return int(self._cursor.rowcount)

    def copy_out(self, text: str) -> bytes:
        """Return the output of a COPY TO statement; for small results only."""
        buffer = io.BytesIO()
        self.copy_to(text, buffer)
        return buffer.getvalue()

    def copy_to(self, text: str, into: CopyOutput) -> int:
        """Write the output of a COPY TO statement to `into`, piece by piece as it arrives."""
        self._background.wait()
        try:
            self._cursor.copy_expert(text, into)
        except psycopg2.Error as error:
            raise self.classify(error) from error
        return int(self._cursor.rowcount)

    def literal(self, text: str, params: Params) -> str:
        """Return `text` with `params` filled in as SQL literals."""
        self._background.wait()
        try:
            return self._cursor.mogrify(text, params).decode()
        except ValueError as error:
            raise self.classify(error) from error

    def forget_prepared(self) -> None:
        """Remove the prepared statements."""
        self.run("DEALLOCATE ALL")
        self.prepared.clear()

    def begin_snapshot(self) -> None:
        """Begin a transaction whose reads all see one snapshot."""
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    @contextmanager
    def sqlalchemy(self) -> Iterator[sa.Connection]:
        """Lend this session to SQLAlchemy, in a transaction that is committed at the end. Errors become VENUS's."""
        self.run("BEGIN")
        try:
            with lend_to_sqlalchemy(self._connection) as connection:
                yield connection
            self.run("COMMIT")
        except sa.exc.DBAPIError as error:
            raise self.classify(error.orig if isinstance(error.orig, Exception) else error) from error
        finally:
            self.rollback()

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one and the connection is alive."""
        self._background.discard()
        if self.is_closed or self._connection.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE:
            return
        try:
            self._cursor.execute("ROLLBACK")
        except psycopg2.Error:
            self._connection.close()

    def classify(self, error: Exception) -> TargetError | DatabaseUnavailable:
        """Return the error of VENUS to raise for an error of the driver."""
        if isinstance(error, ValueError):  # psycopg2 itself refuses a NUL character
            return Refusal(str(error), "22021")
        assert isinstance(error, psycopg2.Error)
        state = error.pgcode or ""
        if state == SUPERSEDED:
            return Superseded(_first_line(error))
        if state in _CONFLICTS and not self.is_closed:
            return _CONFLICTS[state](f"target {self.place}: {_first_line(error)} {state}")
        if self.is_closed or not state or state.startswith(_TRANSIENT):
            advice = f"; {WRITABLE.format(self._option)}" if state == READ_ONLY else server_hint(error)
            return DatabaseUnavailable(f"target {self.place}: {_first_line(error)} {state}".rstrip() + advice)
        if state.startswith(_DATA_CLASSES):
            table = (error.diag.schema_name or "", error.diag.table_name or "")
            constraint, summary = error.diag.constraint_name or "", error.diag.message_primary or _first_line(error)
            return Refusal(_message(error), state, table, constraint, summary)
        return TargetError(f"target {self.place}: {_message(error)} ({state})")


_NO_LIMITS = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = 0"
#: The server ends the sessions of a crashed machine after a minute instead of two hours. Until then such sessions hold
#: locks for which the next process waits. tcp_user_timeout is not set, because it would also end sessions that wait
#: long for a lock or a disk.
_KEEPALIVES = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _message(error: psycopg2.Error) -> str:
    parts = [error.diag.message_primary or _first_line(error)]
    if error.diag.message_detail:
        parts.append(error.diag.message_detail)
    return ": ".join(parts)


REPLICA = "foreign keys and triggers are off while VENUS applies (session_replication_role = replica)"
DEFERRED = "foreign keys are checked at the end of each transaction (this role may not set session_replication_role)"


def try_replica_role(session: TargetSession) -> bool:
    """Disable foreign keys and ordinary triggers for this session if its role may; return whether they are disabled."""
    try:
        session.run(statement("dictionary", "replica_role"))
    except DatabaseUnavailable:
        raise
    except VenusError:  # an administrator may have disabled them with ALTER ROLE ... SET
        return session.row("SELECT current_setting('session_replication_role')") == ("replica",)
    return True


def open_session(target: ConfiguredTarget, purpose: str) -> TargetSession:
    """Open a session with a target of the configuration."""
    application = f"venus {purpose} {target.group}"
    return open_marked_session(target.url, application, business=target.business, target=target.name)


def limit_lock_waits(session: TargetSession, milliseconds: int) -> None:
    """Limit how long the statements of a session wait for a lock."""
    session.run(statement("side", "lock_timeout", own=OWN_SCHEMA, milliseconds=str(milliseconds)))


def open_marked_session(url: str | SecretStr, application: str, *, business: str, target: str) -> TargetSession:
    """Open a session; mark it if the database follows another one as this target.

    Triggers of VENUS neither log nor reject changes by a marked session. These triggers treat changes by other
    pipelines like changes by the application.
    """
    session = TargetSession(url, application=application, target=target)
    try:
        if session.row(statement("side", "may_read", own=OWN_SCHEMA)) == (True,):
            mark = statement("side", "mark_session", own=OWN_SCHEMA)
            session.run(mark, {"business": business, "target": target})
    except BaseException:
        session.close()
        raise
    return session
