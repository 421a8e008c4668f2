"""Sessions at an Oracle database over DB-API: the only module that runs statements and translates driver errors."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager, suppress
from typing import Any

from venus.adapters.dialects.contract import SchemaChanged, SnapshotLost
from venus.adapters.dialects.oracle.session.driver import (
    CLIENT,
    Driver,
    ErrorAction,
    error_action,
    error_code,
    first_line,
)
from venus.adapters.dialects.oracle.session.lobs import Lob, read_lob
from venus.adapters.dialects.oracle.sql import quote
from venus.errors import ConfigError, DatabaseUnavailable, SourceError, VenusError

Row = tuple[Any, ...]
Binds = Mapping[str, Any] | Seq[Any]

#: Settings that a logon trigger, the database's parameters or the client's environment could change.
SESSION = (
    # own objects are named without their schema
    """BEGIN EXECUTE IMMEDIATE 'ALTER SESSION SET CURRENT_SCHEMA = "' || USER || '"'; END;""",
    "ALTER SESSION SET ISOLATION_LEVEL = READ COMMITTED",
    # VENUS confirms a COMMIT to the broker only when it is on disk
    "ALTER SESSION SET COMMIT_LOGGING = IMMEDIATE",
    "ALTER SESSION SET COMMIT_WAIT = WAIT",
    # otherwise an outdated materialized view may answer for a table (QUERY_REWRITE_INTEGRITY)
    "ALTER SESSION SET QUERY_REWRITE_ENABLED = FALSE",
    "ALTER SESSION SET NLS_COMP = BINARY",
    "ALTER SESSION SET NLS_SORT = BINARY",
    "ALTER SESSION SET NLS_CALENDAR = GREGORIAN",
    "ALTER SESSION SET NLS_NUMERIC_CHARACTERS = '.,'",
    "ALTER SESSION SET NLS_LENGTH_SEMANTICS = BYTE",
    "ALTER SESSION SET NLS_NCHAR_CONV_EXCP = TRUE",  # an error instead of question marks
    "ALTER SESSION SET TIME_ZONE = '+00:00'",
)
#: Triggers and views belong to an edition; the application uses the default edition unless it asks for another one.
EDITION = """SELECT SYS_CONTEXT('USERENV', 'CURRENT_EDITION_NAME'), PROPERTY_VALUE FROM DATABASE_PROPERTIES
 WHERE PROPERTY_NAME = 'DEFAULT_EDITION'"""
#: The hint for connections that need Oracle's client.
THICK = (
    "add thick_mode=true and lib_dir=... (Oracle's Instant Client) to [source] url: servers before 12.1, old password"
    " verifiers and Native Network Encryption need it"
)
#: The hint for a database without free space. The application's statements may fail as well; VENUS retries until there
#: is space.
SPACE = "extend what the message names (tablespace, quota, undo, temporary or archive space); capture then resumes"


class OracleBusy(DatabaseUnavailable):
    """Another session's lock or open transaction blocks the statement; it can be retried unchanged."""


class OracleNotPermitted(SourceError):
    """The user lacks a privilege, which a DBA may grant at any time."""

    retryable = True


class OracleSession:
    """One session, opened when it is first used. The driver begins transactions implicitly and never commits."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._raw: Any = None
        self._is_clean = True  # nothing was executed since the last COMMIT or ROLLBACK
        self.place = driver.place

    def open(self) -> Any:
        """Return the driver's connection, connecting if there is none."""
        if self._raw is None:
            try:
                self._raw = self._driver.connect()
            except self._driver.error as error:
                raise self._connect_error(error) from error
            try:
                self._apply_settings()
            except BaseException:
                self.close()  # a session with only some of the settings must not be used
                raise
        return self._raw

    def _apply_settings(self) -> None:
        """Make the session independent of outside settings."""
        for text in SESSION:
            self.run(text)
        for current, usual in self.fetch_rows(EDITION):
            if current != usual:
                self.rollback()  # the edition cannot be changed in a transaction
                self.run(f"ALTER SESSION SET EDITION = {quote(str(usual))}")

    def _connect_error(self, error: Exception) -> VenusError:
        message = f"source {self.place} cannot be reached: {first_line(error)}"
        action = error_action(error_code(error))
        if action is ErrorAction.CLIENT:
            return ConfigError(
                f"[source] url: Oracle's client library cannot be loaded: {first_line(error)}", hint=CLIENT
            )
        if action is ErrorAction.THICK:
            return ConfigError(f"[source] url: the thin mode cannot connect: {first_line(error)}", hint=THICK)
        if action is ErrorAction.DENIED:
            return ConfigError(message, hint="check user and password of [source] url, and CREATE SESSION")
        return DatabaseUnavailable(message, hint="check [source] url, the listener and the service's name")

    def close(self) -> None:
        """Close the session; uncommitted changes are lost."""
        raw, self._raw = self._raw, None
        self._is_clean = True
        if raw is not None:
            with suppress(self._driver.error):
                raw.close()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except self._driver.error as error:
            raise self._to_venus_error(error) from error

    def _to_venus_error(self, error: Exception) -> VenusError:
        message = f"source {self.place}: {first_line(error)}"
        action = error_action(error_code(error))
        if action is ErrorAction.RECONNECT:
            self.close()
            return DatabaseUnavailable(message)
        if action is ErrorAction.AGAIN:
            hint = "if this happens often, raise UNDO_RETENTION, or lower cut_rows_max or cut_read_s of [capture]"
            return SnapshotLost(message, hint=hint)
        if action is ErrorAction.WAIT:
            return OracleBusy(message)
        if action is ErrorAction.DICTIONARY:
            return SchemaChanged(message)
        if action is ErrorAction.SPACE:
            return DatabaseUnavailable(message, hint=SPACE)
        if action is ErrorAction.DENIED:
            return OracleNotPermitted(message, hint="`venus check` prints the missing GRANT statement")
        return SourceError(message)

    def run(self, text: str, binds: Binds | None = None) -> int:
        """Execute a statement; return the number of changed rows."""
        with self._translate_errors(), self._cursor() as cursor:
            cursor.execute(text, binds) if binds else cursor.execute(text)
            return int(cursor.rowcount)

    def run_many(self, text: str, rows: Seq[Binds]) -> int:
        """Execute a statement for each row of values, in one round trip; return the number of changed rows."""
        with self._translate_errors(), self._cursor() as cursor:
            cursor.executemany(text, rows)
            return int(cursor.rowcount)

    def fetch_rows(self, text: str, binds: Binds | None = None) -> list[Row]:
        """Execute a query and fetch all rows; for small results only."""
        with self._translate_errors(), self._cursor() as cursor:
            cursor.execute(text, binds) if binds else cursor.execute(text)
            return list(cursor.fetchall())

    def fetch_row(self, text: str, binds: Binds | None = None) -> Row:
        """Execute a query that returns exactly one row, and fetch it."""
        rows = self.fetch_rows(text, binds)
        if len(rows) != 1:
            raise SourceError(f"source {self.place}: {len(rows)} rows where one is expected")
        return rows[0]

    def peek(self, text: str) -> Row:
        """Execute a query of one row outside of any transaction, in one round trip; no transaction stays open."""
        self.rollback()
        with self._translate_errors(), self._cursor() as cursor:
            self._is_clean = True  # a query begins no transaction
            cursor.prefetchrows = 2  # one more than the query returns, so that the driver need not fetch again
            cursor.execute(text)
            return tuple(cursor.fetchall()[0])

    def stream(self, text: str, binds: Binds | None, piece: int) -> Generator[list[Row], None, None]:
        """Execute a query and yield its rows in pieces of this size."""
        with self._translate_errors(), self._cursor() as cursor:
            cursor.arraysize = piece
            cursor.execute(text, binds) if binds else cursor.execute(text)
            while rows := cursor.fetchmany(piece):
                yield rows

    def read_lob(self, locator: Lob, length: int) -> Any:
        """Read the content of a LOB in pieces. Call it before the next rows are fetched."""
        with self._translate_errors():
            return read_lob(locator, length)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        cursor = self.open().cursor()
        self._is_clean = False
        try:
            yield cursor
        finally:
            with suppress(self._driver.error):
                cursor.close()

    def commit(self) -> None:
        """Commit the open transaction, if any statement was executed."""
        if not self._is_clean:
            with self._translate_errors():
                self.open().commit()
            self._is_clean = True

    def rollback(self) -> None:
        """Abandon the open transaction."""
        if self._raw is not None and not self._is_clean:
            try:
                self._raw.rollback()
                self._is_clean = True
            except self._driver.error:
                self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end of the block, or roll back if it raises."""
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()
