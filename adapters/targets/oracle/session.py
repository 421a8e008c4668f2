"""One connection to an Oracle target. This is the only module on the target side that uses Oracle's driver.

Shared code writes BEGIN, RELEASE SAVEPOINT, and IF EXISTS, which Oracle does not have. The session tracks the
transaction itself, and simulates IF EXISTS by ignoring Oracle's error that a table exists or does not exist. An upsert
of VENUS's own tables is an UPDATE and an `ELSE INSERT`, which runs if the UPDATE has found no row, because MERGE does
not accept large values. Values are bound by name as `:p_name`, because the name of a bind variable cannot be a keyword
of SQL.

The lock of the target is a row that a second connection has locked: DBMS_LOCK would need a grant. The lock ends with
the process. The session uses the locking connection from time to time, so that it notices a lost connection and no
firewall closes an idle one.

Errors are classified by the reaction that they require, as at all relational targets (relational/session.py).
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any

from venus.adapters.dialects.oracle.session.connection import EDITION, SESSION, THICK
from venus.adapters.dialects.oracle.session.driver import (
    CLIENT,
    ErrorAction,
    ModuleDriver,
    RotatingDriver,
    error_action,
    error_code,
    first_line,
    parse_driver_url,
)
from venus.adapters.dialects.oracle.sql import applying_mark, literal, quote
from venus.adapters.targets.relational.session import BackgroundWork, Params, Refusal
from venus.adapters.targets.switching import url_option
from venus.errors import ConfigError, DatabaseUnavailable, Deadlock, LockTimeout, LoginRefused, TargetError

if TYPE_CHECKING:
    from pydantic import SecretStr

    from venus.adapters.targets.registry import ConfiguredTarget

#: Errors about the values of a row: constraints (1, 1400, 1407, 2290 to 2292), sizes (1438, 1461, 12899, 24816), dates
#: and numbers (1426, 1438, 1722, 1830 to 1899), partitions (14300, 14400 to 14402), a policy (28115), a character set
#: (29275), a column that numbers or computes its values itself (32795, 54013), a trigger (20000 to 20999).
_DATA = frozenset(
    {1, 1400, 1407, 1426, 1438, 1461, 1465, 1483, 1722, 2290, 2291, 2292, 12899, 12704, 12712, 14300, 14400, 14401}
    | {14402, 24816, 28115, 29275, 32795, 54013, *range(1830, 1900), *range(20000, 21000)}
)
#: Error codes for a name that is used already, and for a table that does not exist.
_THERE, _GONE = frozenset({"ORA-00955"}), frozenset({"ORA-00942"})
_PIECES = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|;|[^'\";]+", re.DOTALL)
#: A bind variable. Text in quotes, which has none, is matched too, so that it is skipped.
_BIND = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|(?<![:\w]):(p_|v)(\w+)")
_ELSE = "ELSE "
_IF_EXISTS = re.compile(r"^(CREATE (?:(?:GLOBAL TEMPORARY )?TABLE|SEQUENCE)|DROP TABLE) IF (?:NOT )?EXISTS ")
_DEADLOCK = "ORA-00060"
#: The quoted value of a message, which may be a value of the row.
_VALUE = re.compile(r"\(actual: .*?\)|value \S+(?= )")
#: Oracle has no limit for lock waits; a longer wait of DDL is an error, which status shows; it is tried again.
_SETTINGS = (*SESSION, "ALTER SESSION SET DDL_LOCK_TIMEOUT = 30")
LOCK_CHECK_S = 30.0


def split_statements(text: str) -> Iterator[str]:
    """Yield the statements of a text; semicolons outside of quotes separate them. Pure."""
    waiting = ""
    for piece in _PIECES.findall(text):
        if piece == ";":
            if waiting.strip():
                yield waiting.strip()
            waiting = ""
        else:
            waiting += piece
    if waiting.strip():
        yield waiting.strip()


def to_oracle(text: str) -> tuple[str, frozenset[str]]:
    """Return a statement in Oracle's syntax, and the errors that only mean that there was nothing to do. Pure."""
    text = text.removeprefix(_ELSE)
    if not (found := _IF_EXISTS.match(text)):
        return text, frozenset()
    return f"{found[1]} {text[found.end() :]}", _GONE if found[1].startswith("DROP") else _THERE


class OracleTargetSession:
    """A connection that commits each statement at once, unless a transaction was begun.

    A connection is used by one thread and by the background work that this thread has started.
    """

    def __init__(self, url: str | SecretStr, *, application: str, target: str = "NAME") -> None:
        text = url if isinstance(url, str) else url.get_secret_value()
        self._option = url_option(target)
        self._driver = open_driver(text, self._option)
        self._login = RotatingDriver(self._driver, text, side="target")
        self.place = self._driver.place
        self.busy_since: float | None = None
        #: Staging tables of this session.
        self.temporary: set[str] = set()
        self._background = BackgroundWork("venus-target")
        self._is_begun = False
        self._kept: dict[str, Any] = {}
        self._numbers = count(1)
        self._lock: Any = None
        self._lock_checked_at = 0.0
        self._raw: Any = self._connect()
        try:
            for statement in _SETTINGS:
                self.run(statement)
            for current, usual in self.rows(EDITION):
                if current != usual:
                    self.run(f"ALTER SESSION SET EDITION = {quote(str(usual))}")
            action = literal(application[:32])
            self.run(f"BEGIN DBMS_APPLICATION_INFO.SET_MODULE('VENUS', {action}); END;")
            #: The schema of the user.
            self.schema = str((self.row("SELECT USER, SYS_CONTEXT('USERENV', 'CURRENT_SCHEMA') FROM DUAL") or ("",))[0])
        except BaseException:
            self.close()
            raise

    def mark_as_applying(self) -> None:
        """Mark the session, so that VENUS's triggers in this schema neither log nor reject its changes."""
        self.run(f"BEGIN DBMS_APPLICATION_INFO.SET_CLIENT_INFO({literal(applying_mark(self.schema))}); END;")

    def _connect(self) -> Any:
        """Open a connection. Raises LoginRefused, ConfigError or DatabaseUnavailable."""
        try:
            return self._login.connect()
        except LoginRefused as refused:
            hint = f"check user and password of {self._option}, and CREATE SESSION"
            raise LoginRefused(str(refused), hint=hint) from refused
        except self._driver.error as error:
            said, action = first_line(error), error_action(error_code(error))
            if action in (ErrorAction.CLIENT, ErrorAction.THICK):
                hint = CLIENT if action is ErrorAction.CLIENT else THICK.replace("[source] url", self._option)
                raise ConfigError(f"{self._option}: {said}", hint=hint) from error
            message = f"target {self.place} cannot be reached: {said}"
            hint = f"check {self._option}, the listener and the service's name"
            raise DatabaseUnavailable(message, hint=hint) from error

    # -- the connection --------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the connection is lost."""
        return self._raw is None

    def close(self) -> None:
        """Close the connection; an open transaction is lost."""
        self._background.close()
        for raw in (self._raw, self._lock):
            if raw is not None:
                with suppress(self._driver.error):
                    raw.close()
        self._raw = self._lock = None

    def try_lock(self, insert: str, select: str, params: Mapping[str, Any]) -> bool:
        """Try to lock a row over a second connection, which stays open as long as this session."""
        if self._lock is not None:
            return True
        lock = self._connect()
        try:
            cursor = lock.cursor()
            values = {f"p_{name}": value for name, value in params.items()}
            with suppress(self._driver.error):  # the row exists
                cursor.execute(insert, values)
            lock.commit()
            cursor.execute(select, values)
            is_there = bool(cursor.fetchall())
        except self._driver.error as error:
            lock.close()
            if error_action(error_code(error)) is ErrorAction.WAIT:
                return False
            raise self._classify(error) from error
        if not is_there:
            lock.close()
            raise DatabaseUnavailable(f"target {self.place}: the row that locks it cannot be written")
        self._lock, self._lock_checked_at = lock, time.monotonic()
        return True

    def _check_lock(self) -> None:
        """Check the locking connection from time to time. Raises DatabaseUnavailable if the connection is lost."""
        if self._lock is None or time.monotonic() < self._lock_checked_at + LOCK_CHECK_S:
            return
        try:
            cursor = self._lock.cursor()
            cursor.execute("SELECT 1 FROM DUAL")
            cursor.close()
        except self._driver.error as error:
            self.close()
            message = f"target {self.place}: the connection that locks it is lost: {first_line(error)}"
            raise DatabaseUnavailable(message) from error
        self._lock_checked_at = time.monotonic()

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

    def write_many(self, text: str, rows: list[tuple[Any, ...]], db_types: Seq[str] = ()) -> int:
        """Execute a statement for every row, within a transaction; return how many rows it has changed.

        `db_types`: the driver's types for the values; empty = the driver chooses.
        """
        self._background.wait()
        self.busy_since = time.monotonic()
        try:
            cursor = self._require_connection().cursor()
            try:
                self._set_sizes(cursor, db_types)
                cursor.executemany(text, rows)
                return int(cursor.rowcount)
            finally:
                cursor.close()
        except (self._driver.error, UnicodeEncodeError) as error:
            raise self._classify(error) from error
        finally:
            self.busy_since = None

    def _set_sizes(self, cursor: Any, db_types: Seq[str]) -> None:
        """Declare the types of the bind variables to the driver."""
        if any(db_types):
            module = self._driver.module
            cursor.setinputsizes(*(getattr(module, f"DB_TYPE_{name}") if name else None for name in db_types))

    def rows(self, text: str, params: Params = None) -> list[tuple[Any, ...]]:
        """Execute and fetch everything; small results only."""
        return self._run(text, params)[0]

    def row(self, text: str, params: Params = None) -> tuple[Any, ...] | None:
        """Execute and fetch the first row."""
        return next(iter(self.rows(text, params)), None)

    def stream(self, text: str, values: Seq[Any], rows_max: int) -> Iterator[list[tuple[Any, ...]]]:
        """Execute a query and yield its rows in pieces."""
        self._background.wait()
        try:
            cursor = self._require_connection().cursor()
            try:
                cursor.arraysize = rows_max
                cursor.execute(text, list(values)) if values else cursor.execute(text)
                while rows := cursor.fetchmany(rows_max):
                    yield rows
            finally:
                cursor.close()
        except self._driver.error as error:
            raise self._classify(error) from error

    def literal(self, text: str, params: Params) -> str:
        """Return `text` with `params` filled in: numbers as literals, other values as binds of the next `run`.

        A literal of Oracle has at most 4,000 bytes.
        """
        assert isinstance(params, Mapping)
        return _BIND.sub(lambda found: self._keep_bind(_bind_value(found[2], params)) if found[1] else found[0], text)

    def _keep_bind(self, value: Any) -> str:
        """Return a value as SQL: a number as a literal, any other value as a bind variable of the next `run`."""
        value = _to_bind_value(value)
        if value is None or isinstance(value, int):
            return literal(value)
        name = f"v{next(self._numbers)}"
        self._kept[name] = value
        return f":{name}"

    def begin_snapshot(self) -> None:
        """Begin a transaction whose reads all see one snapshot."""
        self.rollback()  # SET TRANSACTION must be the first statement
        self._is_begun = True
        self._execute("SET TRANSACTION READ ONLY", None)

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one and the connection is alive."""
        self._background.discard()
        self._is_begun = False
        self._kept.clear()
        if self._raw is not None:
            try:
                self._raw.rollback()
            except self._driver.error:
                self.close()

    def _require_connection(self) -> Any:
        """Return the driver's connection. Raises DatabaseUnavailable if the connection is lost."""
        if self._raw is None:
            raise DatabaseUnavailable(f"target {self.place}: the connection is lost")
        return self._raw

    def _run(self, text: str, params: Params) -> tuple[list[tuple[Any, ...]], int]:
        """Execute all statements of a text; return the last one's rows and row count."""
        self._background.wait()
        self.busy_since = time.monotonic()
        found: tuple[list[tuple[Any, ...]], int] = [], 0
        try:
            for one in split_statements(text) if not text.startswith(("BEGIN ", "DECLARE")) else [text]:
                if one.startswith(_ELSE) and found[1]:
                    continue
                found = self._run_one(one, params)
        finally:
            self.busy_since = None
        return found

    def _run_one(self, text: str, params: Params) -> tuple[list[tuple[Any, ...]], int]:
        """Execute one statement, and commit it outside of a transaction; BEGIN and COMMIT are simulated."""
        if text == "BEGIN":
            self._check_lock()
            self._is_begun = True
        elif text == "COMMIT":
            self._commit()
        elif not text.startswith("RELEASE SAVEPOINT"):
            found = self._execute_if(text, self._bind(text, params))
            if not self._is_begun and not text.startswith("SELECT"):
                self._commit()
            return found
        return [], 0

    def _commit(self) -> None:
        self._is_begun = False
        try:
            self._require_connection().commit()
        except self._driver.error as error:
            raise self._classify(error) from error

    def _bind(self, text: str, params: Params) -> dict[str, Any] | None:
        """Return the values of the bind variables that a statement has: Oracle's drivers refuse any others."""
        found: dict[str, Any] = {}
        for kind, name in _BIND.findall(text):
            if kind == "v":
                found[f"v{name}"] = self._kept.pop(f"v{name}")  # `literal` gives each placeholder a separate name
            elif kind:
                assert isinstance(params, Mapping)
                found[f"p_{name}"] = _to_bind_value(_bind_value(name, params))
        return found or None

    def _execute_if(self, text: str, binds: dict[str, Any] | None) -> tuple[list[tuple[Any, ...]], int]:
        """Execute a statement; an IF EXISTS or IF NOT EXISTS that Oracle lacks is simulated by ignoring its error."""
        sent, done = to_oracle(text)
        try:
            return self._execute(sent, binds)
        except TargetError as error:
            if isinstance(error.__cause__, Exception) and error_code(error.__cause__) in done:
                return [], 0
            raise

    def _execute(self, text: str, binds: dict[str, Any] | None) -> tuple[list[tuple[Any, ...]], int]:
        """Execute one statement in Oracle's syntax; return its rows and row count."""
        try:
            cursor = self._require_connection().cursor()
            try:
                cursor.execute(text, binds) if binds else cursor.execute(text)
                rows = cursor.fetchall() if text.startswith(("SELECT", "WITH")) else []
                return [tuple(map(_from_driver_value, row)) for row in rows], int(cursor.rowcount)
            finally:
                cursor.close()
        except (self._driver.error, UnicodeEncodeError) as error:
            raise self._classify(error) from error

    # -- errors ----------------------------------------------------------------------------------------------------

    def _classify(self, error: Exception) -> TargetError | DatabaseUnavailable:
        """Return the exception to raise for an error of the driver."""
        if isinstance(error, UnicodeEncodeError):
            return Refusal("a text is not valid Unicode", "ORA-12704")
        code, said = error_code(error), first_line(error)
        action = error_action(code)
        if action is ErrorAction.RECONNECT:
            self._raw = None
            return DatabaseUnavailable(f"target {self.place}: {said}")
        if action is ErrorAction.WAIT:
            kind = Deadlock if code == _DEADLOCK else LockTimeout
            return kind(f"target {self.place}: {said}")
        if action in (ErrorAction.SPACE, ErrorAction.AGAIN):
            return DatabaseUnavailable(f"target {self.place}: {said}")
        if code.startswith("ORA-") and int(code[4:]) in _DATA:
            return Refusal(said, code, summary=_VALUE.sub("?", said))
        return TargetError(f"target {self.place}: {said}")


def open_driver(url: str, option: str) -> ModuleDriver:
    """Return the driver for a target's URL. Raises ConfigError."""
    try:
        driver, options = parse_driver_url(url)
    except ConfigError as error:
        raise ConfigError(str(error).replace("[source] url", option), hint=error.hint) from error
    if options.schemas or options.watch_database:
        raise ConfigError(f"{option}: venus_schemas and venus_watch are options of a source", hint="leave them out")
    assert isinstance(driver, ModuleDriver)
    return driver


def _bind_value(name: str, params: Mapping[str, Any]) -> Any:
    """Return the value of a parameter; for `record_hash`, the hash of the record id, which is too long for an index."""
    if name == "record_hash":
        return hashlib.sha256(params["record_id"]).hexdigest()
    return params[name]


def _to_bind_value(value: Any) -> Any:
    """Return a value as it is bound: a boolean as a number, an empty text as NULL."""
    return int(value) if isinstance(value, bool) else None if value in ("", b"") else value


def _from_driver_value(value: Any) -> Any:
    """Return a value that was read; a whole Decimal becomes an integer."""
    return int(value) if isinstance(value, Decimal) and value == int(value) else value


def open_session(target: ConfiguredTarget, purpose: str) -> OracleTargetSession:
    """Open a session with a target of the configuration; `purpose` is a part of its name."""
    return OracleTargetSession(target.url, application=f"{purpose} {target.group}", target=target.name)
