"""One connection to a PostgreSQL source; the only file on this side that knows psycopg2.

It is in autocommit mode and its users write BEGIN and COMMIT themselves, several statements to a string where that
saves a round trip. Errors are sorted by what to do about them: the server is away or busy (try again), the dictionary
is not what we thought (read it again), someone else was there (start over), or the statement is wrong.
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

from venus.adapters.dialects.columns import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.postgresql.statements import statement
from venus.errors import ConfigError, DatabaseUnavailable, LoginRefused, SourceError, UnknownHost

Raw = psycopg2.extensions.connection

#: Whoever is alone at a pooler has to be given the same server connection; beside others it takes some luck.
_ATTEMPTS = 3
#: A pool of one connection, kept for its session, has none left to compare with.
_PATIENCE_S = 5.0


def refuse_shared_sessions(raw: Raw, place: str, option: str) -> None:
    """Raise ConfigError if this connection's transactions go to different sessions of the server.

    A server tells each client the number of its process; a pooler makes up another one.
    """
    try:
        shared = raw.info.backend_pid != _backend(raw) and _is_shared(raw)
    except psycopg2.Error:  # the next statement meets it as well, and says what it means
        return
    if shared:
        raw.close()
        raise ConfigError(
            f"{place} is reached through a connection pooler in transaction mode, which VENUS cannot use",
            hint=f"let {option} name the server itself, or a pool that keeps sessions (PgBouncer: pool_mode = session)",
        )


def _backend(raw: Raw) -> int:
    with raw.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        ((number,),) = cursor.fetchall()
    return int(number)


def _is_shared(raw: Raw) -> bool:
    """Whether somebody else gets the server connection that we have, while we are connected."""
    found: list[bool] = []

    def look() -> None:
        try:
            for _ in range(_ATTEMPTS):
                ours = _backend(raw)
                with closing(psycopg2.connect(raw.dsn, password=raw.info.password, connect_timeout=5)) as other:
                    theirs = _backend(other)  # in a transaction, which keeps it for a moment
                    found.append(theirs == ours or _backend(raw) != ours)
                if found[-1]:
                    return
        except psycopg2.Error:  # it cannot be told
            pass

    looking = threading.Thread(target=look, name="venus-pooler", daemon=True)
    looking.start()
    looking.join(_PATIENCE_S)
    return any(found)


Params = Mapping[str, Any] | Sequence[Any] | None
Row = tuple[Any, ...]

#: What the server says when the URL is wrong; a connection that was refused has no SQLSTATE.
#: What is said where the URL is wrong, or a password, a name or pg_hba.conf is for a while; libpq gives no SQLSTATE.
_REJECTED = re.compile(
    "authentication failed|no password supplied|does not exist|no pg_hba.conf entry|is not permitted to log in"
    "|permission denied for database"
)
_UNKNOWN_HOST = "could not translate host name"
#: Class 08 connection, 53 resources, 57 operator intervention, 58 system, 55P03 lock not available, 40P01 deadlock.
_TRANSIENT = ("08", "53", "57", "58", "55P03", "40P01")
#: What psycopg2 raises where the server has said nothing, not always with the connection closed: after an immediate
#: shutdown the next statement finds the line broken. What the server says is of a class of its own.
_LOST = (psycopg2.DatabaseError, psycopg2.OperationalError, psycopg2.InterfaceError)
#: What cannot be written to: a standby, or what somebody has made read-only.
READ_ONLY = "25006"
#: Undefined column, table, object; another type than the function or statement was made for.
_DICTIONARY = ("42703", "42P01", "42704", "42804", "42883", "0A000")
#: What to do about that.
WRITABLE = (
    "it is a standby, or default_transaction_read_only is on for its database or role: "
    "let {} name the server that takes writes, or RESET that"
)
LOCK_TIMEOUT = "55P03"
#: character_not_in_repertoire: a SQL_ASCII database takes every byte; untranslatable_character: others have more.
_NO_TEXT = ("22021", "22P05")
#: insufficient_privilege; also what a policy hides from a role whose rows are not to be hidden.
DENIED = "42501"
SERIALIZATION = "40001"


class Conflict(SourceError):
    """Another session changed the same rows meanwhile."""

    retryable = True


class NotPermitted(SourceError):
    """The role may not do this, until somebody grants it."""

    retryable = True


class NoText(SourceError):
    """A text of the table that was read has bytes that are no character in UTF-8, or a character that it lacks."""


class LockTimeout(DatabaseUnavailable):
    """A lock was not given in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What can be set in the URL's query, as `venus_lock_timeout_s=5`; the rest of the query is libpq's."""

    #: How long a lock is waited for: a table under ALTER TABLE, the checkpoint row of a committing instance.
    lock_timeout_s: float = 10.0
    #: A hung adapter's open cut is ended by the server after this, so that it cannot block its successor for ever.
    idle_timeout_s: float = 120.0
    #: One statement, with the time that it waits for us to take its rows.
    statement_timeout_s: float = 900.0
    #: install: how long the application may be made to wait behind our lock, and how often we come back for it. Well
    #: below the server's deadlock_timeout (1 s), so that the application is never the one whose statement is ended.
    install_lock_timeout_s: float = 0.2
    install_attempts: int = 60
    #: Capture what is written under session_replication_role = replica too (the source is itself a subscriber).
    always: bool = False


def split_url(url: str) -> tuple[sa.URL, Options]:
    """Take our own options out of the URL."""
    parsed = sa.make_url(url)
    ours = {k.removeprefix("venus_"): str(v) for k, v in parsed.query.items() if k.startswith("venus_")}
    unknown = ours.keys() - Options.__dataclass_fields__.keys()
    if unknown:
        known = ", ".join(f"venus_{name}" for name in Options.__dataclass_fields__)
        raise ConfigError(f"[source] url: unknown option venus_{sorted(unknown)[0]}", hint=f"valid options are {known}")
    try:
        options = Options(**{name: _value(name, text) for name, text in ours.items()})
    except ValueError as error:
        raise ConfigError(f"[source] url: {error}") from None
    query = {k: v for k, v in parsed.query.items() if not k.startswith("venus_")}
    return parsed.set(drivername="postgresql", query=query), options


def _value(name: str, text: str) -> Any:
    default = getattr(Options(), name)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ValueError(f"venus_{name} is true or false, not {text!r}")
        return text == "true"
    return type(default)(text)


def connected(dsn: str, **more: Any) -> psycopg2.extensions.connection:
    """Connect, in autocommit mode.

    psycopg2 settles here how it quotes backslashes, for good: where database or role have standard_conforming_strings
    off, a later SET would have it corrupt strings. So it is switched on as the session starts; only there, because some
    poolers take no options.
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


def unreachable(text: str, *, hint: str) -> DatabaseUnavailable:
    """Return the error of a connection that was not made, by what the library or the server says."""
    if _UNKNOWN_HOST in text:
        return UnknownHost(text, hint=hint)
    return (LoginRefused if _REJECTED.search(text) else DatabaseUnavailable)(text, hint=hint)


class Writable(Protocol):
    """What COPY writes into."""

    def write(self, data: bytes, /) -> int: ...


class Connection:
    """A session with our settings, used by one thread at a time."""

    def __init__(
        self, url: str, *, application: str = "venus capture", columns: ColumnChoice = NO_CHOICE
    ) -> None:  # fmt: skip
        self.url, self.options = split_url(url)
        #: Which columns travel.
        self.columns = columns
        self.place = self.url.set(query={}).render_as_string(hide_password=True)
        try:
            dsn = self.url.render_as_string(hide_password=False)
            self._raw = connected(dsn, application_name=application, tcp_user_timeout=60_000)
        except psycopg2.Error as error:
            text = f"source {self.place} cannot be reached: {_first_line(error)}"
            raise unreachable(text, hint="check [source] url") from error
        self._cursor = self._raw.cursor()
        self._texts = self._raw.cursor()
        self.run(self._settings())
        refuse_shared_sessions(self._raw, f"source {self.place}", "[source] url")
        # where it is not permitted VENUS's own heartbeat fires no trigger either; `check` says whose setting it is
        with suppress(NotPermitted):
            self.run(statement("session", "own_triggers"))

    def _settings(self) -> str:
        """Text must mean the same whatever the database's defaults are, and nobody may wait for us for ever."""
        o = self.options
        return (
            f"{statement('session', 'settings')}; {statement('session', 'transactions')}; SET synchronous_commit = on;"
            "SET search_path = pg_catalog; SET jit = off;"
            "SET enable_nestloop = on; SET enable_seqscan = on; SET enable_sort = on;"
            f"SET lock_timeout = {int(o.lock_timeout_s * 1000)};"
            f"SET idle_in_transaction_session_timeout = {int(o.idle_timeout_s * 1000)};"
            f"SET statement_timeout = {int(o.statement_timeout_s * 1000)}"
        )

    def close(self) -> None:
        """Close it; whatever is not committed is gone."""
        self._raw.close()

    @property
    def closed(self) -> bool:
        """Whether the connection is lost."""
        return bool(self._raw.closed)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return not self.closed and self._raw.info.transaction_status != psycopg2.extensions.TRANSACTION_STATUS_IDLE

    def run(self, text: str, params: Params = None) -> int:
        """Execute one or more statements in one round trip; return the last one's row count."""
        try:
            self._cursor.execute(text, params)
        except (psycopg2.Error, ValueError) as error:
            raise self._sorted(error) from error
        return int(self._cursor.rowcount)

    def rows(self, text: str, params: Params = None) -> list[Row]:
        """Execute and fetch everything; small results only."""
        self.run(text, params)
        return self._cursor.fetchall()

    def row(self, text: str, params: Params = None) -> Row:
        """Execute and fetch the one row that there must be."""
        rows = self.rows(text, params)
        if len(rows) != 1:
            raise SourceError(f"source {self.place}: {len(rows)} rows where one is expected: {text.split(' FROM ')[0]}")
        return rows[0]

    def commit(self, last: str = "") -> None:
        """COMMIT, behind `last` statements. A failed transaction would end in ROLLBACK without an error; not here."""
        self.run(f"{last}; COMMIT" if last else "COMMIT")
        if self._cursor.statusmessage != "COMMIT":
            raise SourceError(f"source {self.place}: COMMIT was answered by {self._cursor.statusmessage}")

    def rollback(self) -> None:
        """Abandon the open transaction, if there is one and a server to tell."""
        if self.in_transaction:
            try:
                self._cursor.execute("ROLLBACK")
            except psycopg2.Error:
                self._raw.close()

    def cancel(self) -> None:
        """Ask the server to end the running statement; may be called from another thread."""
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
    def reading(self) -> Iterator[None]:
        """Run the block in one read-only snapshot, unless there is a transaction already."""
        if self.in_transaction:
            yield
            return
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            self.rollback()

    def copy_out(self, text: str, into: Writable) -> None:
        """COPY ... TO STDOUT, row by row into a file."""
        try:
            self._cursor.copy_expert(text, into)
        except psycopg2.Error as error:
            raise self._sorted(error) from error

    def expect_types(self, oids: Iterable[int]) -> None:
        """Let `texts` return values of these types as they are, whatever else is made of them elsewhere."""
        as_written = psycopg2.extensions.new_type(tuple(oids), "AS_WRITTEN", lambda text, _: text)
        psycopg2.extensions.register_type(as_written, self._texts)

    def texts(self, text: str) -> list[tuple[str | None, ...]]:
        """Execute and fetch everything as the server writes it, like COPY; small results of expected types only."""
        try:
            self._texts.execute(text)
            return self._texts.fetchall()
        except (psycopg2.Error, ValueError) as error:
            raise self._sorted(error) from error

    def literal(self, text: str, params: Params) -> str:
        """Return `text` with `params` in place as SQL literals."""
        return self._cursor.mogrify(text, params).decode()

    @contextmanager
    def sqlalchemy(self) -> Iterator[sa.Connection]:
        """Lend this very session to SQLAlchemy; what it does joins the open transaction, its errors are ours."""
        engine = sa.create_engine("postgresql+psycopg2://", creator=lambda: self._raw, poolclass=StaticPool)
        try:
            with engine.connect() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise self._sorted(error.orig if isinstance(error.orig, Exception) else error) from error

    def _sorted(self, error: Exception) -> SourceError | DatabaseUnavailable:
        if not isinstance(error, psycopg2.Error):
            return SourceError(f"source {self.place}: {error}")
        state = error.pgcode or ""
        said = f"source {self.place}: {_first_line(error)}" + (f" ({state})" if state else "")
        if state == LOCK_TIMEOUT:
            return LockTimeout(said)
        if state == READ_ONLY:
            return DatabaseUnavailable(f"{said}; {WRITABLE.format('[source] url')}")
        if self.closed or type(error) in _LOST or state.startswith(_TRANSIENT):
            return DatabaseUnavailable(said + server_hint(error))
        if state == SERIALIZATION:
            return Conflict(said)
        if state in _NO_TEXT:
            return NoText(said)
        if state == DENIED:
            return NotPermitted(said)
        if state in _DICTIONARY:
            return SchemaChanged(said)
        return SourceError(said)


def server_hint(error: psycopg2.Error) -> str:
    """Return what the server advises where resources are used up (class 53): it names the setting."""
    hint = error.diag.message_hint if (error.pgcode or "").startswith("53") else ""
    return f"; {' '.join(hint.split())}" if hint else ""


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
