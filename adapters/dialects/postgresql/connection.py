"""One connection to a PostgreSQL source; the only module of the source that uses psycopg2.

The connection is in autocommit mode. Callers write BEGIN and COMMIT themselves, and put several statements into one
string where that saves a round trip. Errors are classified by their remedy: the server is away or busy (retry), the
dictionary has changed (read it again), another session interfered (start over), or the statement is wrong.

A connection pooler in transaction mode is refused, because it could switch the server connection between two
transactions. Settings, prepared statements and locks would then belong to another session: values would be read under
other settings, and two processes could apply to one target. A pooler in session mode is accepted.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg2
import psycopg2.extensions
import sqlalchemy as sa
from sqlalchemy.pool import StaticPool

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.postgresql.sql import statement
from venus.errors import ConfigError, DatabaseUnavailable, Deadlock, LockTimeout, LoginRefused, SourceError, UnknownHost

Raw = psycopg2.extensions.connection

#: Attempts to get the same server connection twice. One is enough if there are no other clients of the pooler.
_ATTEMPTS = 3
#: How long a session that only shows the state waits for a lock.
GLANCE_LOCK_MS = 100
#: How long to wait for a second connection: a session pool of size one never grants it.
_PATIENCE_S = 5.0


def refuse_shared_sessions(raw: Raw, place: str, option: str) -> None:
    """Raise ConfigError if this connection's transactions run in different sessions of the server.

    A server reports its process number to each client, but a pooler reports an invented one.
    """
    try:
        shared = raw.info.backend_pid != _read_backend_pid(raw) and _has_shared_session(raw)
    except psycopg2.Error:  # the next statement fails as well, and reports the cause
        return
    if shared:
        raw.close()
        raise ConfigError(
            f"{place} is reached through a connection pooler in transaction mode, which VENUS cannot use",
            hint=f"let {option} name the server itself, or a pool that keeps sessions (PgBouncer: pool_mode = session)",
        )


def _read_backend_pid(raw: Raw) -> int:
    with raw.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        ((number,),) = cursor.fetchall()
    return int(number)


def _has_shared_session(raw: Raw) -> bool:
    """Return whether another client gets this server connection while this client is connected."""
    found: list[bool] = []

    def probe() -> None:
        try:
            for _ in range(_ATTEMPTS):
                ours = _read_backend_pid(raw)
                with closing(psycopg2.connect(raw.dsn, password=raw.info.password, connect_timeout=5)) as other:
                    theirs = _read_backend_pid(other)  # a transaction, which keeps the server connection for a moment
                    found.append(theirs == ours or _read_backend_pid(raw) != ours)
                if found[-1]:
                    return
        except psycopg2.Error:  # the answer is unknown
            pass

    thread = threading.Thread(target=probe, name="venus-pooler", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    return any(found)


Params = Mapping[str, Any] | Sequence[Any] | None
Row = tuple[Any, ...]

#: Messages about a wrong URL, or about a password, a host name or a pg_hba.conf that may be wrong only temporarily.
#: libpq gives them no SQLSTATE.
_REJECTED = re.compile(
    "authentication failed|no password supplied|does not exist|no pg_hba.conf entry|is not permitted to log in"
    "|permission denied for database"
)
_UNKNOWN_HOST = "could not translate host name"
#: Class 08 connection, 53 resources, 57 operator intervention, 58 system.
_TRANSIENT = ("08", "53", "57", "58")
#: Classes of errors that psycopg2 raises itself. The connection is not always closed then: after an immediate shutdown,
#: the next statement finds it broken. Errors that the server reports have subclasses of these.
_LOST = (psycopg2.DatabaseError, psycopg2.OperationalError, psycopg2.InterfaceError)
#: read_only_sql_transaction: the server is a standby, or the session is read-only.
READ_ONLY = "25006"
#: Undefined column, table or object; a type that differs from the one that a function or statement was built for.
_DICTIONARY = ("42703", "42P01", "42704", "42804", "42883", "0A000")
#: Reports of the server (XX000) when an object is dropped or altered while a function or DDL reads its catalogue entry.
_CHANGED_MEANWHILE = re.compile(
    "cache lookup failed|could not open relation with OID|tuple concurrently (updated|deleted)"
)
#: The remedy for READ_ONLY.
WRITABLE = (
    "it is a standby, or default_transaction_read_only is on for its database or role: "
    "let {} name the server that accepts writes, or RESET that setting"
)
LOCK_TIMEOUT, DEADLOCK = "55P03", "40P01"
#: character_not_in_repertoire: a SQL_ASCII database accepts any byte. untranslatable_character: UTF-8 lacks it.
_NO_TEXT = ("22021", "22P05")
#: insufficient_privilege; also raised if a row security policy would hide rows, because row_security is off.
DENIED = "42501"
SERIALIZATION = "40001"
INTERNAL = "XX000"


class Conflict(SourceError):
    """Another session changed the same rows concurrently."""

    retryable = True


class PostgresNotPermitted(SourceError):
    """The role lacks a privilege. Retryable, because the privilege may be granted later."""

    retryable = True


class InvalidText(SourceError):
    """A text contains bytes that are not a character in UTF-8, or a character that UTF-8 lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """VENUS's options in the query of the URL, such as `venus_lock_timeout_s=5`. libpq gets the other options."""

    #: How long to wait for a lock: a table under ALTER TABLE, the checkpoint row of a committing instance.
    lock_timeout_s: float = 10.0
    #: After this time the server ends the open cut of a hung adapter, so that it does not block its successor for ever.
    idle_timeout_s: float = 120.0
    #: Limit for one statement, including the time until VENUS has read its rows.
    statement_timeout_s: float = 900.0
    #: install: how long the application may wait behind VENUS's lock request, and how often that is repeated. The time
    #: is well below the server's deadlock_timeout (1 s), so that the server never ends the application's statement.
    install_lock_timeout_s: float = 0.2
    install_attempts: int = 60
    #: Also capture writes under session_replication_role = replica (the source is itself a subscriber).
    always: bool = False


def split_url(url: str) -> tuple[sa.URL, PostgresOptions]:
    """Separate VENUS's options from the URL."""
    parsed = sa.make_url(url)
    own = {k.removeprefix("venus_"): str(v) for k, v in parsed.query.items() if k.startswith("venus_")}
    unknown = own.keys() - PostgresOptions.__dataclass_fields__.keys()
    if unknown:
        known = ", ".join(f"venus_{name}" for name in PostgresOptions.__dataclass_fields__)
        raise ConfigError(f"[source] url: unknown option venus_{sorted(unknown)[0]}", hint=f"valid options are {known}")
    try:
        options = PostgresOptions(**{name: _parse_option(name, text) for name, text in own.items()})
    except ValueError as error:
        raise ConfigError(f"[source] url: {error}") from None
    query = {k: v for k, v in parsed.query.items() if not k.startswith("venus_")}
    return parsed.set(drivername="postgresql", query=query), options


def _parse_option(name: str, text: str) -> Any:
    """Convert an option of VENUS in a URL to the type of its default."""
    default = getattr(PostgresOptions(), name)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(f"venus_{name} is true or false, not {text!r}")
        return text == "true"
    return type(default)(text)


def connect(dsn: str, **more: Any) -> psycopg2.extensions.connection:
    """Connect in autocommit mode.

    psycopg2 decides at connect time how it quotes backslashes. If the database or the role turns
    standard_conforming_strings off, a later SET would make psycopg2 corrupt strings, so VENUS turns the setting on as
    the session starts. It passes this option only where it is needed, because some poolers accept no options.
    """
    alive = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
    parameters = {"connect_timeout": 10, "client_encoding": "UTF8", **alive, **more}
    raw: psycopg2.extensions.connection = psycopg2.connect(dsn, **parameters)
    if raw.get_parameter_status("standard_conforming_strings") == "off":
        given = raw.info.options
        raw.close()
        raw = psycopg2.connect(dsn, **parameters, options=f"{given} -c standard_conforming_strings=on".lstrip())
    raw.autocommit = True
    return raw


@contextmanager
def lend_to_sqlalchemy(raw: Raw) -> Iterator[sa.Connection]:
    """Lend an open session, with its settings, to SQLAlchemy; the caller begins and ends transactions."""
    engine = sa.create_engine("postgresql+psycopg2://", creator=lambda: raw, poolclass=StaticPool)
    with engine.connect() as connection:
        yield connection


def connect_error(text: str, *, hint: str) -> DatabaseUnavailable:
    """Return the error of a failed connection attempt, by the message of libpq or the server."""
    if _UNKNOWN_HOST in text:
        return UnknownHost(text, hint=hint)
    return (LoginRefused if _REJECTED.search(text) else DatabaseUnavailable)(text, hint=hint)


class CopyDestination(Protocol):
    """A destination to which COPY writes."""

    def write(self, data: bytes, /) -> int: ...


class PostgresConnection:
    """A session with VENUS's settings, used by one thread at a time."""

    def __init__(self, url: str, *, application: str = "venus capture", columns: ColumnChoice = NO_CHOICE) -> None:
        self.url, self.options = split_url(url)
        #: The columns that travel.
        self.columns = columns
        #: The size from which triggers write no more to a log; 0 = no limit.
        self.log_bytes_max = 0
        self.place = self.url.set(query={}).render_as_string(hide_password=True)
        try:
            dsn = self.url.render_as_string(hide_password=False)
            self._raw = connect(dsn, application_name=application, tcp_user_timeout=60_000)
        except psycopg2.Error as error:
            text = f"source {self.place} cannot be reached: {_first_line(error)}"
            raise connect_error(text, hint="check [source] url") from error
        self._cursor = self._raw.cursor()
        self._texts = self._raw.cursor()
        self.run(self._settings())
        refuse_shared_sessions(self._raw, f"source {self.place}", "[source] url")
        # without this right not even VENUS's heartbeat would fire a trigger; `check` reports whose setting it is
        with suppress(PostgresNotPermitted):
            self.run(statement("session", "own_triggers"))

    def _settings(self) -> str:
        """Return the settings of the session: how values look as text, and how long others wait for its locks."""
        o = self.options
        return (
            f"{statement('session', 'settings')}; {statement('session', 'transactions')}; SET synchronous_commit = on;"
            "SET search_path = pg_catalog; SET jit = off; SET plan_cache_mode = force_generic_plan;"
            "SET enable_nestloop = on; SET enable_seqscan = on; SET enable_sort = on;"
            f"SET lock_timeout = {int(o.lock_timeout_s * 1000)};"
            f"SET idle_in_transaction_session_timeout = {int(o.idle_timeout_s * 1000)};"
            f"SET statement_timeout = {int(o.statement_timeout_s * 1000)}"
        )

    def close(self) -> None:
        """Close the connection. Uncommitted work is lost."""
        self._raw.close()

    def limit_lock_waits(self) -> None:
        """Set a short lock timeout for this session: a longer wait raises LockTimeout."""
        self.run(f"SET lock_timeout = {GLANCE_LOCK_MS}")

    @property
    def is_closed(self) -> bool:
        """Whether the connection is lost."""
        return bool(self._raw.closed)

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return not self.is_closed and self._raw.info.transaction_status != psycopg2.extensions.TRANSACTION_STATUS_IDLE

    def run(self, text: str, params: Params = None) -> int:
        """Execute one or more statements in one round trip; return the row count of the last one."""
        try:
            self._cursor.execute(text, params)
        except (psycopg2.Error, ValueError) as error:
            raise self._to_venus_error(error) from error
        return int(self._cursor.rowcount)

    def rows(self, text: str, params: Params = None) -> list[Row]:
        """Execute a statement and fetch all rows. For small results only."""
        self.run(text, params)
        return self._cursor.fetchall()

    def row(self, text: str, params: Params = None) -> Row:
        """Execute a statement that returns exactly one row, and return that row."""
        rows = self.rows(text, params)
        if len(rows) != 1:
            raise SourceError(f"source {self.place}: {len(rows)} rows where one is expected: {text.split(' FROM ')[0]}")
        return rows[0]

    def commit(self, last: str = "") -> None:
        """Run `last`, then commit. Raises SourceError if the server rolls back a failed transaction instead."""
        self.run(f"{last}; COMMIT" if last else "COMMIT")
        if self._cursor.statusmessage != "COMMIT":
            raise SourceError(f"source {self.place}: COMMIT was answered by {self._cursor.statusmessage}")

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one."""
        if self.is_in_transaction:
            try:
                self._cursor.execute("ROLLBACK")
            except psycopg2.Error:
                self._raw.close()

    def cancel(self) -> None:
        """Ask the server to cancel the running statement. Another thread may call this."""
        with suppress(psycopg2.Error):
            self._raw.cancel()

    @contextmanager
    def transaction(self, begin: str = "BEGIN") -> Iterator[None]:
        """Run the block in a transaction."""
        self.run(begin)
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Run the block in the open transaction, or else in a read-only snapshot of its own."""
        if self.is_in_transaction:
            yield
            return
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            self.rollback()

    def copy_out(self, text: str, into: CopyDestination) -> None:
        """Run COPY ... TO STDOUT, and write its output into a destination, row by row."""
        try:
            self._cursor.copy_expert(text, into)
        except psycopg2.Error as error:
            raise self._to_venus_error(error) from error

    def expect_types(self, oids: Iterable[int]) -> None:
        """Make `fetch_texts` return values of these types undecoded."""
        as_written = psycopg2.extensions.new_type(tuple(oids), "AS_WRITTEN", lambda text, _: text)
        psycopg2.extensions.register_type(as_written, self._texts)

    def fetch_texts(self, text: str) -> list[tuple[str | None, ...]]:
        """Execute a statement and fetch all values as texts, like COPY. For small results of expected types only."""
        try:
            self._texts.execute(text)
            return self._texts.fetchall()
        except (psycopg2.Error, ValueError) as error:
            raise self._to_venus_error(error) from error

    def literal(self, text: str, params: Params) -> str:
        """Return `text` with `params` inserted as SQL literals."""
        return self._cursor.mogrify(text, params).decode()

    @contextmanager
    def sqlalchemy(self) -> Iterator[sa.Connection]:
        """Lend this session to SQLAlchemy, within the open transaction. Errors become VENUS's."""
        try:
            with lend_to_sqlalchemy(self._raw) as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise self._to_venus_error(error.orig if isinstance(error.orig, Exception) else error) from error

    def _to_venus_error(self, error: Exception) -> SourceError | DatabaseUnavailable:
        if not isinstance(error, psycopg2.Error):
            return SourceError(f"source {self.place}: {error}")
        state = error.pgcode or ""
        said = f"source {self.place}: {_first_line(error)}" + (f" ({state})" if state else "")
        if state == LOCK_TIMEOUT:
            return LockTimeout(said)
        if state == DEADLOCK:
            return Deadlock(said)
        if state == READ_ONLY:
            return DatabaseUnavailable(f"{said}; {WRITABLE.format('[source] url')}")
        if self.is_closed or type(error) in _LOST or state.startswith(_TRANSIENT):
            return DatabaseUnavailable(said + server_hint(error))
        if state == SERIALIZATION:
            return Conflict(said)
        if state in _NO_TEXT:
            return InvalidText(said)
        if state == DENIED:
            return PostgresNotPermitted(said)
        if state in _DICTIONARY or (state == INTERNAL and _CHANGED_MEANWHILE.search(said)):
            return SchemaChanged(said)
        return SourceError(said)


def server_hint(error: psycopg2.Error) -> str:
    """Return the server's hint about exhausted resources (class 53), which names the setting."""
    hint = error.diag.message_hint if (error.pgcode or "").startswith("53") else ""
    return f"; {' '.join(hint.split())}" if hint else ""


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
