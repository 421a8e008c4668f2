"""Sessions at an Oracle database over DB-API: the only place that runs statements and sorts the driver's errors."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager, suppress
from typing import Any

from venus.adapters.dialects.contract import SchemaChanged, SnapshotLost
from venus.adapters.dialects.oracle.driver import CLIENT, Action, Driver, action_of, code_of, said_by
from venus.adapters.dialects.oracle.lobs import Lob, whole
from venus.adapters.dialects.oracle.names import quoted
from venus.errors import ConfigError, DatabaseUnavailable, SourceError, VenusError

Row = tuple[Any, ...]
Binds = Mapping[str, Any] | Seq[Any]

#: What a logon trigger, the database's parameters or the client's environment would otherwise decide.
SESSION = (
    # own objects are named without their schema
    """BEGIN EXECUTE IMMEDIATE 'ALTER SESSION SET CURRENT_SCHEMA = "' || USER || '"'; END;""",
    "ALTER SESSION SET ISOLATION_LEVEL = READ COMMITTED",
    # the broker is told of a COMMIT only when it is on the disk
    "ALTER SESSION SET COMMIT_LOGGING = IMMEDIATE",
    "ALTER SESSION SET COMMIT_WAIT = WAIT",
    # or a materialized view that is out of date may answer for a table (QUERY_REWRITE_INTEGRITY)
    "ALTER SESSION SET QUERY_REWRITE_ENABLED = FALSE",
    "ALTER SESSION SET NLS_COMP = BINARY",
    "ALTER SESSION SET NLS_SORT = BINARY",
    "ALTER SESSION SET NLS_CALENDAR = GREGORIAN",
    "ALTER SESSION SET NLS_NUMERIC_CHARACTERS = '.,'",
    "ALTER SESSION SET NLS_LENGTH_SEMANTICS = BYTE",
    "ALTER SESSION SET NLS_NCHAR_CONV_EXCP = TRUE",  # an error instead of question marks
    "ALTER SESSION SET TIME_ZONE = '+00:00'",
)
#: Triggers and views are those of an edition: the one that the application has, unless it asks for another one.
EDITION = """SELECT SYS_CONTEXT('USERENV', 'CURRENT_EDITION_NAME'), PROPERTY_VALUE FROM DATABASE_PROPERTIES
 WHERE PROPERTY_NAME = 'DEFAULT_EDITION'"""
#: What only Oracle's client can do.
THICK = (
    "add thick_mode=true and lib_dir=... (Oracle's Instant Client) to [source] url: servers before 12.1, old password"
    " verifiers and Native Network Encryption need it"
)
#: While it has none, the application's own statements may fail as well. VENUS tries again until it has.
SPACE = "extend what the message names (tablespace, quota, undo, temporary or archive space); capture then goes on"


class Busy(DatabaseUnavailable):
    """Somebody's lock or open transaction is in the way; the same statement can be tried again."""


class NotPermitted(SourceError):
    """The user may not do this, until somebody grants it."""

    retryable = True


class Session:
    """One session, opened when it is first needed. The driver begins a transaction by itself, and never commits."""

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
                raise self._connect_failed(error) from error
            try:
                self._settle()
            except BaseException:
                self.close()  # one with half of the settings must not be used
                raise
        return self._raw

    def _settle(self) -> None:
        """Have the session depend on nobody's settings."""
        for text in SESSION:
            self.run(text)
        for current, usual in self.rows(EDITION):
            if current != usual:
                self.rollback()  # it cannot be changed in a transaction
                self.run(f"ALTER SESSION SET EDITION = {quoted(str(usual))}")

    def _connect_failed(self, error: Exception) -> VenusError:
        said = f"source {self.place} cannot be reached: {said_by(error)}"
        action = action_of(code_of(error))
        if action is Action.CLIENT:
            return ConfigError(f"[source] url: Oracle's client library cannot be loaded: {said_by(error)}", hint=CLIENT)
        if action is Action.THICK:
            return ConfigError(f"[source] url: the thin mode cannot connect: {said_by(error)}", hint=THICK)
        if action is Action.DENIED:
            return ConfigError(said, hint="check user and password of [source] url, and CREATE SESSION")
        return DatabaseUnavailable(said, hint="check [source] url, the listener and the service's name")

    def close(self) -> None:
        """Close it; whatever is not committed is gone."""
        raw, self._raw = self._raw, None
        self._is_clean = True
        if raw is not None:
            with suppress(self._driver.error):
                raw.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._driver.error as error:
            raise self._sorted(error) from error

    def _sorted(self, error: Exception) -> VenusError:
        said = f"source {self.place}: {said_by(error)}"
        action = action_of(code_of(error))
        if action is Action.RECONNECT:
            self.close()
            return DatabaseUnavailable(said)
        if action is Action.AGAIN:
            hint = "if this happens often, raise UNDO_RETENTION, or lower cut_rows_max or cut_read_s of [capture]"
            return SnapshotLost(said, hint=hint)
        if action is Action.WAIT:
            return Busy(said)
        if action is Action.DICTIONARY:
            return SchemaChanged(said)
        if action is Action.SPACE:
            return DatabaseUnavailable(said, hint=SPACE)
        if action is Action.DENIED:
            return NotPermitted(said, hint="`venus check` prints the missing GRANT statement")
        return SourceError(said)

    def run(self, text: str, binds: Binds | None = None) -> int:
        """Execute a statement; return how many rows it has changed."""
        with self._translated(), self._cursor() as cursor:
            cursor.execute(text, binds) if binds else cursor.execute(text)
            return int(cursor.rowcount)

    def many(self, text: str, rows: Seq[Binds]) -> int:
        """Execute a statement once for each row of values, in one trip; return how many rows it has changed."""
        with self._translated(), self._cursor() as cursor:
            cursor.executemany(text, rows)
            return int(cursor.rowcount)

    def rows(self, text: str, binds: Binds | None = None) -> list[Row]:
        """Execute and fetch everything; small results only."""
        with self._translated(), self._cursor() as cursor:
            cursor.execute(text, binds) if binds else cursor.execute(text)
            return list(cursor.fetchall())

    def row(self, text: str, binds: Binds | None = None) -> Row:
        """Execute and fetch the one row that there must be."""
        rows = self.rows(text, binds)
        if len(rows) != 1:
            raise SourceError(f"source {self.place}: {len(rows)} rows where one is expected")
        return rows[0]

    def peek(self, text: str) -> Row:
        """Execute a query of one row outside of any transaction, in one trip: nothing is to be ended afterwards."""
        self.rollback()
        with self._translated(), self._cursor() as cursor:
            self._is_clean = True  # a query begins no transaction
            cursor.prefetchrows = 2  # one more than there are: so the driver knows that it has all of them
            cursor.execute(text)
            return tuple(cursor.fetchall()[0])

    def stream(self, text: str, binds: Binds | None, piece: int) -> Generator[list[Row], None, None]:
        """Execute and yield the rows in pieces of this many."""
        with self._translated(), self._cursor() as cursor:
            cursor.arraysize = piece
            cursor.execute(text, binds) if binds else cursor.execute(text)
            while rows := cursor.fetchmany(piece):
                yield rows

    def lob(self, locator: Lob, length: int) -> Any:
        """Read the content of a LOB in pieces, before the next rows are fetched."""
        with self._translated():
            return whole(locator, length)

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
        """COMMIT."""
        if not self._is_clean:
            with self._translated():
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
        """Commit at the end of the block, or leave nothing."""
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()
