"""Sessions at a MariaDB or MySQL server; the only module that uses the driver and handles its errors.

Every value arrives as the text that the server writes (binary columns as bytes), because a decoder of the driver could
turn a decimal into a float or lose a zero date. Every session sets utf8mb4, UTC and an sql_mode of its own, so that the
server's configuration has no influence.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pymysql
import sqlalchemy as sa
from pymysql.connections import Connection
from pymysql.constants import CLIENT, CR, ER
from pymysql.converters import encoders
from pymysql.cursors import SSCursor
from sqlalchemy.pool import StaticPool

from venus.adapters.dialects.column_choice import NO_CHOICE, ColumnChoice
from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.mysql.sql import literal, statement
from venus.adapters.dialects.statements import describe_session
from venus.errors import ConfigError, DatabaseUnavailable, Deadlock, LockTimeout, LoginRefused, SourceError

Row = tuple[Any, ...]

#: Triggers keep the mode under which they are created, and a zero date in a key must not fail the application.
SQL_MODE = "STRICT_ALL_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"

#: 1684: "Table was skipped since its definition is being modified by concurrent DDL statement".
_DICTIONARY = {ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR, ER.TABLE_DEF_CHANGED, ER.BAD_TABLE_ERROR, 1684}
#: A privilege is missing.
_DENIED = {
    ER.TABLEACCESS_DENIED_ERROR,
    ER.COLUMNACCESS_DENIED_ERROR,
    ER.DBACCESS_DENIED_ERROR,
    ER.SPECIFIC_ACCESS_DENIED_ERROR,
}
#: The server rejects the login. The remedy is another user, password, authentication plugin (1698) or database; or the
#: user must be allowed from this host, unlocked (3118, 4151), or given a new password (1862).
REJECTED = {
    ER.ACCESS_DENIED_ERROR,
    ER.DBACCESS_DENIED_ERROR,
    ER.BAD_DB_ERROR,
    ER.HOST_NOT_PRIVILEGED,
    1698,
    1862,
    3118,
    4151,
}
#: Errors of writes at a server that is a replica, or is about to become one.
READ_ONLY = {ER.OPTION_PREVENTS_STATEMENT, 1792, 1836}
#: Temporary errors: a statement's time limit, exhausted locks, memory or disk space, a node of a Galera cluster (1047)
#: or of a replication group (3100) that cannot serve at present.
SCARCE = {
    1047,
    1969,
    3024,
    3100,
    ER.LOCK_TABLE_FULL,
    ER.DISK_FULL,
    ER.RECORD_FILE_FULL,
    ER.OUT_OF_RESOURCES,
    ER.OUTOFMEMORY,
}
LOST = {
    CR.CR_SERVER_GONE_ERROR,
    CR.CR_SERVER_LOST,
    CR.CR_SERVER_LOST_EXTENDED,
    CR.CR_CONN_HOST_ERROR,
    CR.CR_CONNECTION_ERROR,
    ER.SERVER_SHUTDOWN,
    ER.CON_COUNT_ERROR,
    ER.QUERY_INTERRUPTED,
    1927,
    4031,
    0,
}
#: Encoders of arguments. There are no decoders, see above.
_CONVERSIONS: dict[Any, Any] = {**encoders}
#: MySQL's value for no limit.
_NO_LIMIT = 18446744073709551615
#: Sort key of the longest key that an index accepts, and MariaDB's default buffer, which holds several of them.
_SORT_BYTES = 8192
_SORT_BUFFER_BYTES = 2 << 20
#: How long a session that only shows the state waits for a lock: the server knows whole seconds.
GLANCE_LOCK_S = 1
#: How long the server waits for VENUS to take the next rows of a result.
_SLOW_READER_S = 3600
#: How long a session may be idle: one session waits while the other reads a cut.
_IDLE_S = 3600
_TLS = {"ssl_ca": "ca", "ssl_cert": "cert", "ssl_key": "key", "ssl_capath": "capath", "ssl_cipher": "cipher"}


class MysqlNotPermitted(SourceError):
    """The user lacks a privilege. Retryable, because the privilege may be granted later."""

    retryable = True


class NotUnicode(SourceError):
    """A text in utf8 that contains half of a surrogate pair, which no decoder accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlOptions:
    """VENUS's options in the query of the URL."""

    #: Whether 0000-00-00 and dates with a zero or impossible part become NULL instead of halting the table.
    zero_dates_null: bool = False
    lock_timeout_s: int = 50
    #: Short, because all users of the table queue behind the lock request of CREATE TRIGGER.
    install_lock_timeout_s: int = 2
    install_attempts: int = 30
    connect_timeout_s: int = 10


@dataclass(frozen=True, slots=True)
class MysqlAddress:
    """The parsed URL of a source: the server, the database, the driver's arguments, VENUS's options."""

    place: str
    database: str
    arguments: Mapping[str, Any]
    options: MysqlOptions
    #: The columns that travel.
    columns: ColumnChoice = NO_CHOICE


def parse_address(url: str, columns: ColumnChoice = NO_CHOICE) -> MysqlAddress:
    """Parse a URL `mysql+pymysql://user:password@host/database`. Messages show only host, port and database."""
    parsed = sa.make_url(url)
    if parsed.drivername not in ("mysql+pymysql", "mariadb+pymysql", "mysql", "mariadb"):
        raise ConfigError("[source] url: unknown driver", hint="write mysql+pymysql:// or mariadb+pymysql://")
    if not parsed.database:
        raise ConfigError("[source] url names no database", hint=f"write {parsed.drivername}://user@host/database")
    arguments: dict[str, Any] = {
        "host": parsed.host or "localhost",
        "port": parsed.port or 3306,
        "user": parsed.username or "",
        "password": parsed.password or "",
        "database": parsed.database,
    }
    options: dict[str, Any] = {}
    tls: dict[str, Any] = {}
    for name, value in parsed.query.items():
        _read_option(name, str(value), arguments, options, tls)
    if tls:
        arguments["ssl"] = tls
    place = f"{parsed.host or 'localhost'}{f':{parsed.port}' if parsed.port else ''}/{parsed.database}"
    return MysqlAddress(place, parsed.database, arguments, MysqlOptions(**options), columns)


def _read_option(
    name: str, value: str, arguments: dict[str, Any], options: dict[str, Any], tls: dict[str, Any]
) -> None:
    """Store a query option of the URL in the dictionary it belongs to. Raises ConfigError for a wrong name or value."""
    if name in _TLS:
        tls[_TLS[name]] = value
    elif name == "unix_socket":
        arguments[name] = value
    elif name == "venus_zero_dates" and value in ("refuse", "null"):
        options["zero_dates_null"] = value == "null"
    elif name in ("venus_lock_timeout_s", "venus_connect_timeout_s") and value.isdecimal():
        options[name.removeprefix("venus_")] = int(value)
    elif name != "charset":
        raise ConfigError(
            f"[source] url: option {name} is unknown or has an invalid value",
            hint=f"valid: {', '.join(_TLS)}, unix_socket, venus_zero_dates=refuse|null, venus_lock_timeout_s",
        )


class DriverConnection(Connection):
    """A PyMySQL connection. All connections that verify no certificate share one TLS context.

    PyMySQL itself would make a context for each connection and read the system's certificates, which takes 30 ms of
    CPU.
    """

    _unverified: ClassVar[ssl.SSLContext | None] = None

    def _create_ssl_ctx(self, sslp: dict[str, Any] | ssl.SSLContext) -> ssl.SSLContext:
        if sslp:
            own: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]  # not in the driver's stubs
            return own
        if DriverConnection._unverified is None:
            context = DriverConnection._unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return DriverConnection._unverified


class MysqlConnection:
    """One session, opened at its first use."""

    def __init__(self, address: MysqlAddress, isolation: str) -> None:
        self.address = address
        self.place = address.place
        self.options = address.options
        self._isolation = isolation
        self._raw: DriverConnection | None = None
        self._streaming: SSCursor | None = None
        self.in_transaction = False
        #: Whether the server has denied a statement since this was reset.
        self.denied = False
        #: The server's version, once it was asked for.
        self.version = ""

    def open(self) -> DriverConnection:
        """Return the driver's connection; connect if there is none."""
        if self._raw is None:
            try:
                self._raw = DriverConnection(
                    charset="utf8mb4",
                    autocommit=True,
                    conv=_CONVERSIONS,
                    client_flag=CLIENT.FOUND_ROWS,
                    connect_timeout=self.options.connect_timeout_s,
                    **self.address.arguments,
                )
            except pymysql.Error as error:
                raise self._connect_error(error) from error
            except OSError as error:  # the driver reads certificate files before it connects
                names = ", ".join(_TLS)
                raise ConfigError(
                    f"source {self.place}: a certificate or key of the URL cannot be read: {error.strerror or error}",
                    hint=f"check {names} in [source] url",
                ) from error
            self.run(self._settings())
            # some servers make all transactions read-only by default
            self.run(f"SET SESSION TRANSACTION ISOLATION LEVEL {self._isolation}, READ WRITE")
        return self._raw

    def _settings(self) -> str:
        """Return the statement that sets the variables of the session, whatever the server's configuration is."""
        o = self.options
        return (
            f"SET time_zone = '+00:00', sql_mode = '{SQL_MODE}', group_concat_max_len = 16777216,"
            # rows beyond the limit, and rows that sort alike in their first bytes, would be skipped silently
            f" sql_select_limit = {_NO_LIMIT}, max_sort_length = {_SORT_BYTES},"
            f" sort_buffer_size = greatest(@@global.sort_buffer_size, {_SORT_BUFFER_BYTES}),"
            # otherwise a statement outside a transaction would stay uncommitted until the next COMMIT
            " completion_type = 'NO_CHAIN', sql_quote_show_create = 1,"
            # a cut is read no faster than its half messages are shipped
            f" net_write_timeout = {_SLOW_READER_S}, wait_timeout = greatest(@@wait_timeout, {_IDLE_S}),"
            # a session that reads a cut waits for the broker
            "/*M!100300 idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0,*/"
            # reading a large table takes long
            "/*M!100100 max_statement_time = 0,*/ /*!50708 max_execution_time = 0,*/"
            f" lock_wait_timeout = {o.lock_timeout_s}, innodb_lock_wait_timeout = {o.lock_timeout_s}"
        )

    def limit_lock_waits(self) -> None:
        """Set a short lock timeout for this session; a longer wait raises LockTimeout."""
        self.options = replace(self.options, lock_timeout_s=GLANCE_LOCK_S)
        self.run(self._settings())

    def close(self) -> None:
        """Close the session at once. Uncommitted work is lost."""
        raw, self._raw, self._streaming, self.in_transaction = self._raw, None, None, False
        self.version = ""
        if raw is not None:
            with suppress(pymysql.Error, OSError):
                raw._force_close()  # type: ignore[attr-defined]

    def run(self, text: str, values: Seq[Any] | None = None) -> int:
        """Execute a statement; return the number of rows that it changed or found."""
        raw = self.open()
        try:
            with raw.cursor() as cursor:
                return int(cursor.execute(text, values))
        except (pymysql.Error, OSError) as error:
            raise self._to_venus_error(error) from error

    def rows(self, text: str, values: Seq[Any] | None = None) -> list[Row]:
        """Execute a statement and fetch all rows. For small results only."""
        raw = self.open()
        try:
            with raw.cursor() as cursor:
                cursor.execute(text, values)
                return list(cursor.fetchall())
        except (pymysql.Error, OSError, UnicodeDecodeError) as error:
            raise self._to_venus_error(error) from error

    def row(self, text: str, values: Seq[Any] | None = None) -> Row:
        """Execute a statement that returns exactly one row, and return that row."""
        rows = self.rows(text, values)
        if len(rows) != 1:
            raise SourceError(f"source {self.place}: {len(rows)} rows where one is expected: {text.split(' FROM ')[0]}")
        return rows[0]

    @contextmanager
    def stream(self, text: str) -> Iterator[SSCursor]:
        """Execute a statement and yield a cursor that streams its rows. To stop early, call `rollback` or `close`."""
        raw = self.open()
        try:
            cursor = raw.cursor(SSCursor)
            self._streaming = cursor
            cursor.execute(text)
            yield cursor
            if cursor.fetchone() is None:
                cursor.close()
                self._streaming = None
        except (pymysql.Error, OSError, UnicodeDecodeError) as error:
            raise self._to_venus_error(error) from error

    def begin(self, text: str = "START TRANSACTION") -> None:
        """Begin a transaction."""
        self.run(text)
        self.in_transaction = True

    def commit(self) -> None:
        """Commit the open transaction."""
        self.run("COMMIT")
        self.in_transaction = False

    def rollback(self) -> None:
        """Abandon the open transaction. If a result is only partly read, close the session instead."""
        if self._streaming is not None:
            self.close()
        elif self.in_transaction and self._raw is not None:
            with suppress(SourceError, DatabaseUnavailable):
                self.run("ROLLBACK")
            self.in_transaction = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction."""
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()

    @contextmanager
    def sqlalchemy(self) -> Iterator[sa.Connection]:
        """Open a read-only session for SQLAlchemy, which needs the driver's decoders. Errors become VENUS's."""
        arguments = dict(self.address.arguments)
        try:
            raw = pymysql.connect(
                charset="utf8mb4",
                connect_timeout=self.options.connect_timeout_s,
                init_command=f"SET lock_wait_timeout = {self.options.lock_timeout_s}",
                **arguments,
            )
        except pymysql.Error as error:
            raise self._connect_error(error) from error
        engine = sa.create_engine("mysql+pymysql://", creator=lambda: raw, poolclass=StaticPool)
        try:
            with engine.connect() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise self._to_venus_error(error.orig if isinstance(error.orig, Exception) else error) from error
        finally:
            engine.dispose()
            with suppress(pymysql.Error):
                raw.close()

    def _connect_error(self, error: pymysql.Error) -> DatabaseUnavailable:
        kind = LoginRefused if error.args and error.args[0] in REJECTED else DatabaseUnavailable
        return kind(f"source {self.place} cannot be reached: {error_text(error)}", hint="check [source] url")

    def _to_venus_error(self, error: Exception) -> SourceError | DatabaseUnavailable:
        if isinstance(error, UnicodeDecodeError):
            self.close()  # the result is only partly read
            return NotUnicode(f"a text has the bytes {error.object[error.start :][:3].hex()}, which are no Unicode")
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        said = f"source {self.place}: {error_text(error)}"
        if isinstance(error, OSError) or code in LOST:
            self.close()
            return DatabaseUnavailable(said)
        if code in READ_ONLY:
            hint = "it is a replica or read-only: let [source] url name the server that accepts writes"
            return DatabaseUnavailable(f"{said}; {hint}")
        if code in SCARCE:
            return DatabaseUnavailable(said)
        if code in _DENIED:
            self.denied = True
            return MysqlNotPermitted(said)
        if code == ER.LOCK_DEADLOCK:
            return Deadlock(said)
        if code == ER.LOCK_WAIT_TIMEOUT:
            return LockTimeout(said)
        return SchemaChanged(said) if code in _DICTIONARY else SourceError(said)


def error_text(error: Exception) -> str:
    """Return the server's message with its number."""
    return f"{error.args[1]} ({error.args[0]})" if len(error.args) > 1 else str(error)


def describe_sessions(connection: MysqlConnection, block: str) -> str:
    """Describe the sessions that the query `block` of registry.sql finds; empty without the privilege PROCESS."""
    database = literal(connection.address.database)
    try:
        rows = connection.rows(statement("registry", block, database=database))
    except SourceError:
        return ""
    return "; ".join(_describe_session(*row) for row in rows)


def _describe_session(number: str, user: str, host: str, command: str, query: str, since: str) -> str:
    opened = f"transaction open since {since}, the server's time" if since else ""
    return describe_session(number, f"user {user}", host, opened, command, query=query)
