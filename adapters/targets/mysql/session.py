"""One connection to a MariaDB or MySQL target. This is the only module on the target side that uses PyMySQL.

The session has its own sql_mode, time zone and character set, so that the server's configuration has no influence. The
session checks no foreign keys: the source has checked them, and the effects of cascades arrive as separate changes. A
statement that writes rows counts as refused if the server reports a warning, because the server may have changed a
value.

Errors are classified by the reaction that they require, as at all relational targets (relational/session.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.connections import MySQLResult
from pymysql.constants import CLIENT, CR, ER, FIELD_TYPE
from pymysql.converters import conversions, convert_datetime
from pymysql.cursors import SSCursor

from venus.adapters.dialects.mysql.connection import (
    LOST,
    READ_ONLY,
    REJECTED,
    SCARCE,
    DriverConnection,
    error_text,
    parse_address,
)
from venus.adapters.targets.relational.session import BackgroundWork, Params, Refusal
from venus.adapters.targets.switching import OLD, url_option
from venus.errors import ConfigError, DatabaseUnavailable, Deadlock, LockTimeout, LoginRefused, TargetError

if TYPE_CHECKING:
    from pydantic import SecretStr

    from venus.adapters.targets.registry import ConfiguredTarget

#: The server must raise an error instead of changing a value, and must not number a column whose value is 0.
SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
_SETTINGS = (
    f"SET sql_mode = '{SQL_MODE}', time_zone = '+00:00', foreign_key_checks = 0, unique_checks = 1,"
    " completion_type = 'NO_CHAIN', sql_select_limit = 18446744073709551615,"
    " net_read_timeout = 3600, net_write_timeout = 3600,"
    "/*M!100300 idle_transaction_timeout = 0, idle_write_transaction_timeout = 0,*/"
    "/*M!100100 max_statement_time = 0,*/"
    # a longer wait is an error, which status shows; it is tried again
    " innodb_lock_wait_timeout = 30, lock_wait_timeout = 30"
)
#: In a database that follows, VENUS's triggers neither log nor reject changes that its own pipeline applies. Changes by
#: another pipeline are logged or rejected like those of the application.
_APPLIES = "SET @venus_apply = 1"
#: Single rows are written at READ COMMITTED: gap locks would only block the application.
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
#: Errors about the values of a row, beside those that the driver calls DataError and IntegrityError: no default (1364),
#: a value for a date, number or character (1292, 1411), a trigger's SIGNAL (1644), CHECK (3819, 4025), a generated
#: column (1906, 3105), no partition (1526, 1748), a row too large (1118, 139).
_DATA = {139, 1118, 1153, 1292, 1364, 1411, 1526, 1644, 1690, 1748, 1906, 3105, 3140, 3819, 4025}
_CONFLICTS = {ER.LOCK_DEADLOCK: Deadlock, ER.LOCK_WAIT_TIMEOUT: LockTimeout}
_CONNECT_S = 10
_CHUNK_BYTES = 1 << 18
#: How long the server keeps an idle session, which holds the lock of the target although its machine may have crashed.
#: The session of a load is idle while tasks load the rows.
_IDLE_S, _IDLE_LOAD_S = 900, 7 * 86400
#: The first quoted text of these messages is a value of the row.
_VALUE = re.compile(r"(?i)\b(entry|value:?|function \w+) '.*?'(?= for | to )", re.DOTALL)
_TABLE = re.compile(r"`([^`]+)`\.`([^`]+)`")


def _to_utc_datetime(text: str) -> datetime | str:
    found = convert_datetime(text)
    return found.replace(tzinfo=UTC) if isinstance(found, datetime) else found


_CONVERSIONS: dict[Any, Any] = {
    **conversions,
    FIELD_TYPE.DATETIME: _to_utc_datetime,
    FIELD_TYPE.TIMESTAMP: _to_utc_datetime,
}


class _RowsResult(MySQLResult):
    """Result of a statement. Answers LOAD DATA LOCAL with rows from memory, and never reads a file for the server."""

    def _read_load_local_packet(self, first_packet: Any) -> None:
        """Send the waiting rows to the server, which has requested the data of LOAD DATA LOCAL."""
        connection: Any = self.connection
        pieces, connection.venus_rows = connection.venus_rows, ()
        try:
            for rows in pieces:
                for at in range(0, len(rows), _CHUNK_BYTES):
                    connection.write_packet(rows[at : at + _CHUNK_BYTES])
        finally:
            connection.write_packet(b"")
            answer = connection._read_packet()
        if not answer.is_ok_packet():
            raise pymysql.OperationalError(CR.CR_COMMANDS_OUT_OF_SYNC, "Commands Out of Sync")
        self._read_ok_packet(answer)  # type: ignore[attr-defined]


class _RowsConnection(DriverConnection):
    """A connection that sends rows from memory for LOAD DATA LOCAL."""

    #: The lines of the running LOAD DATA, in pieces.
    venus_rows: Iterable[bytes] = ()

    def _read_query_result(self, unbuffered: bool = False) -> int:
        """Read the result of a statement as a `_RowsResult`; return the number of rows affected."""
        self._result: Any = None
        result: Any = _RowsResult(self)
        if unbuffered:
            result.init_unbuffered_query()
        else:
            result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows)


class MysqlSession:
    """A connection in autocommit mode, used by one thread and by the background work that this thread has started."""

    def __init__(self, url: str | SecretStr, *, application: str, target: str = "NAME") -> None:
        text = url if isinstance(url, str) else url.get_secret_value()
        self._option = url_option(target)
        try:
            address = parse_address(text)
        except ConfigError as error:
            raise ConfigError(str(error).replace("[source] url", f"targets.{target}.url"), hint=error.hint) from error
        self.place, self.database = address.place, address.database
        self.busy_since: float | None = None
        self._background = BackgroundWork("venus-target")
        try:
            self._connection = _RowsConnection(
                charset="utf8mb4",
                autocommit=True,
                conv=_CONVERSIONS,
                client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS | CLIENT.LOCAL_FILES,
                connect_timeout=_CONNECT_S,
                program_name=application[:63],
                **address.arguments,
            )
        except (pymysql.Error, OSError) as error:
            code = error.args[0] if error.args else 0
            kind = LoginRefused if code in REJECTED else DatabaseUnavailable
            said = f"target {self.place} cannot be reached: {error_text(error)}"
            raise kind(said, hint=f"check {self._option}") from error
        self._cursor: Any = self._connection.cursor()
        self.run(_SETTINGS)
        self.run(_ISOLATION)
        if target == OLD:
            self.run(_APPLIES)
        self.run(f"SET wait_timeout = {_IDLE_LOAD_S if application.startswith('venus load') else _IDLE_S}")
        found = self.row("SELECT @@max_allowed_packet, @@local_infile")
        #: The longest statement that the server accepts, and whether it accepts LOAD DATA LOCAL.
        self.packet_bytes, self.can_load = (int(found[0]), bool(int(found[1]))) if found else (1 << 20, False)
        #: Temporary tables of this session.
        self.temporary: set[str] = set()

    @property
    def is_closed(self) -> bool:
        """Whether the connection is lost."""
        return not self._connection.open

    def close(self) -> None:
        """Close the connection; an open transaction is lost."""
        self._background.close()
        if self._connection.open:
            self._connection.close()

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Start work with this session in another thread; the next use of the session waits and raises its error."""
        self._background.start(work)

    def wait_for_background(self) -> None:
        """Wait for the work in the other thread and raise its error."""
        self._background.wait()

    def run(self, text: str, params: Params = None) -> int:
        """Execute one or more statements in one round trip; return the last one's row count."""
        self._background.wait()
        self.busy_since = time.monotonic()
        try:
            self._cursor.execute(text, params)
            while self._cursor.nextset():
                pass
        except (pymysql.Error, OSError, ValueError) as error:
            raise self._classify(error) from error
        finally:
            self.busy_since = None
        return int(self._cursor.rowcount)

    def write_rows(self, text: str) -> int:
        """Execute one statement that writes rows; return their number. Raises Refusal if the server changed a value."""
        if len(text) > self.packet_bytes // 2 and len(text.encode()) >= self.packet_bytes - 64:
            raise Refusal(
                f"a row is longer than max_allowed_packet ({self.packet_bytes:,} bytes)", str(ER.NET_PACKET_TOO_LARGE)
            )
        found = self.run(text)
        if self._cursor.warning_count:
            warnings = [w for w in self.rows("SHOW WARNINGS") if w[1] not in _HARMLESS]
            if warnings:
                _, code, message = warnings[0]
                raise Refusal(f"the server would change a value: {message}", str(code), summary=mask_value(message))
        return found

    def load_rows(self, text: str, lines: Iterable[bytes]) -> int:
        """Send lines in pieces to a LOAD DATA LOCAL; return the number of rows written, or 0 if the server warns.

        The server stores one piece while the next one is built.
        """
        self._background.wait()
        self._connection.venus_rows = lines
        found = self.run(text)
        return 0 if self._cursor.warning_count else found

    def rows(self, text: str, params: Params = None) -> list[tuple[Any, ...]]:
        """Execute and fetch everything; small results only."""
        self.run(text, params)
        return list(self._cursor.fetchall())

    @contextmanager
    def read_texts(self) -> Iterator[None]:
        """Read every value as the text that the server writes, binary columns as bytes, within the block."""
        connection: Any = self._connection
        decoders, connection.decoders = connection.decoders, {}
        try:
            yield
        finally:
            connection.decoders = decoders

    def text_rows(self, text: str) -> list[tuple[Any, ...]]:
        """Execute and fetch everything as texts."""
        with self.read_texts():
            return self.rows(text)

    def stream(self, text: str, rows_max: int) -> Iterator[list[tuple[Any, ...]]]:
        """Execute a query and yield its rows in pieces. A caller that stops early must close the session."""
        self._background.wait()
        try:
            with self._connection.cursor(SSCursor) as cursor:
                cursor.execute(text)
                while rows := cursor.fetchmany(rows_max):
                    yield list(rows)
        except (pymysql.Error, OSError) as error:
            raise self._classify(error) from error

    def row(self, text: str, params: Params = None) -> tuple[Any, ...] | None:
        """Execute and fetch the first row."""
        self.run(text, params)
        found: tuple[Any, ...] | None = self._cursor.fetchone()
        return found

    def literal(self, text: str, params: Params) -> str:
        """Return `text` with `params` filled in as SQL literals."""
        return str(self._cursor.mogrify(text, params))

    def begin_snapshot(self) -> None:
        """Begin a transaction whose reads all see one snapshot."""
        self.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.run("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one and the connection is alive."""
        self._background.discard()
        if self.is_closed:
            return
        try:
            self._cursor.execute("ROLLBACK")
        except (pymysql.Error, OSError):
            self._abandon()

    def _abandon(self) -> None:
        """Close the socket of a broken connection without sending anything."""
        if self._connection.open:
            self._connection._force_close()  # type: ignore[attr-defined]

    def _classify(self, error: Exception) -> TargetError | DatabaseUnavailable:
        """Return the exception to raise for an error of the driver."""
        code = error.args[0] if error.args and isinstance(error.args[0], int) else -1
        said = error_text(error)
        if isinstance(error, ValueError):
            return Refusal(said, "HY000")
        if isinstance(error, OSError) or code in LOST:
            self._abandon()
            return DatabaseUnavailable(f"target {self.place}: {said}")
        if code in READ_ONLY:
            hint = f"it is a replica or read-only: let {self._option} name the server that accepts writes"
            return DatabaseUnavailable(f"target {self.place}: {said}; {hint}")
        if code in _CONFLICTS:
            return _CONFLICTS[code](f"target {self.place}: {said}")
        if code in SCARCE:
            return DatabaseUnavailable(f"target {self.place}: {said}")
        if code in _DATA or isinstance(error, (pymysql.err.DataError, pymysql.err.IntegrityError)):
            table = _TABLE.search(said)
            return Refusal(said, str(code), (table[1], table[2]) if table else ("", ""), summary=mask_value(said))
        return TargetError(f"target {self.place}: {said}")


#: Notes of DROP IF EXISTS, CREATE IF NOT EXISTS and of a statement that is unsafe for statement-based replication.
_HARMLESS = frozenset({1050, 1051, 1592})


def mask_value(message: str) -> str:
    """Return a message of the server with the value of a row replaced by `?`."""
    return _VALUE.sub(r"\1 ?", message)


def open_session(target: ConfiguredTarget, purpose: str) -> MysqlSession:
    """Open a session with a target of the configuration; `purpose` is a part of its name."""
    return MysqlSession(target.url, application=f"venus {purpose} {target.group}", target=target.name)
