"""MariaDB in Oracle mode in place of the Oracle dialect's driver: a stand-in, not an Oracle.

It can test the text of the row triggers exactly as an Oracle would get it, and the exact delete, the state query and
the local transaction under concurrent writers. It cannot test DISABLE/ENABLE, the DDL trigger, LOCK TABLE, physical
attributes, Oracle's own dictionary, types and errors. adaptations.py has every difference between the dialect's
statements and MariaDB's; the dictionary's views (standin.sql) are built from information_schema.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT

from tests.support.databases.mariadb import MariaServer
from tests.support.oracle.adaptations import DICTIONARY as DICTIONARY
from tests.support.oracle.adaptations import SCHEMA as SCHEMA
from tests.support.oracle.adaptations import adapt as adapt
from tests.support.oracle.double import Lob
from venus.adapters.dialects.oracle.session.lobs import LOCATOR

_VIEWS = Path(__file__).with_suffix(".sql")
_SYS_CONTEXT = """CREATE FUNCTION SYS_CONTEXT(A VARCHAR(30), B VARCHAR(30)) RETURN VARCHAR(64) DETERMINISTIC AS
  BEGIN
    RETURN CASE B WHEN 'CLIENT_INFO' THEN @venus_client_info WHEN 'CURRENT_EDITION_NAME' THEN 'ORA$BASE'
      WHEN 'DATABASE_ROLE' THEN 'PRIMARY' ELSE 'BINARY' END;
  END"""
_RAISE = """CREATE PROCEDURE RAISE_APPLICATION_ERROR(N NUMBER(9), T VARCHAR(200)) AS
  S VARCHAR(128) := LEFT(CONCAT('ORA', N, ': ', T), 128);
  BEGIN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = S; END"""
_PADDED = """CREATE FUNCTION PADDED(V VARCHAR(4000), N NUMBER(9))
  RETURN VARCHAR(4000) DETERMINISTIC AS BEGIN RETURN CONCAT(V, SPACE(GREATEST(N - LENGTHB(V), 0))); END"""
#: Oracle's packages, as far as VENUS calls them. MariaDB's CREATE TRIGGER waits for open writers by itself, so the only
#: writers to wait for are those that a test writes into PENDING_DML.
_PACKAGES = (
    """CREATE PACKAGE DBMS_UTILITY AS
  FUNCTION WAIT_ON_PENDING_DML(TABLES VARCHAR(4000), TIMEOUT INT, SCN OUT BIGINT) RETURN INT;
END""",
    f"""CREATE PACKAGE BODY DBMS_UTILITY AS
  FUNCTION WAIT_ON_PENDING_DML(TABLES VARCHAR(4000), TIMEOUT INT, SCN OUT BIGINT) RETURN INT AS
    N INT;
  BEGIN
    SELECT COUNT(*) INTO N FROM {DICTIONARY}.PENDING_DML WHERE NAME = TABLES;
    RETURN CASE WHEN N = 0 THEN 1 ELSE 0 END;
  END;
END""",
    """CREATE PACKAGE DBMS_LOB AS
  PROCEDURE CREATETEMPORARY(LOC OUT LONGBLOB, CACHED INT);
  PROCEDURE WRITEAPPEND(LOC IN OUT LONGBLOB, AMOUNT INT, BUFFER LONGBLOB);
END""",
    """CREATE PACKAGE BODY DBMS_LOB AS
  PROCEDURE CREATETEMPORARY(LOC OUT LONGBLOB, CACHED INT) AS BEGIN LOC := ''; END;
  PROCEDURE WRITEAPPEND(LOC IN OUT LONGBLOB, AMOUNT INT, BUFFER LONGBLOB) AS
  BEGIN
    LOC := CONCAT(COALESCE(LOC, ''), SUBSTR(BUFFER, 1, AMOUNT));
  END;
END""",
    "CREATE FUNCTION HEXTORAW(T LONGTEXT) RETURN LONGBLOB DETERMINISTIC AS BEGIN RETURN UNHEX(T); END",
)
PRIVILEGES = "('CREATE TABLE'), ('CREATE SEQUENCE'), ('CREATE TRIGGER'), ('CREATE VIEW'), ('UNLIMITED TABLESPACE')"

#: Tables of the dictionary into which tests write.
_FILLED = (
    "SESSION_PRIVS",
    "USER_TS_QUOTAS",
    "USER_ERRORS",
    "INVALID_TRIGGERS",
    "DDL_TRIGGERS",
    "ALL_SEQUENCES",
    "ALL_TAB_IDENTITY_COLS",
    "ALL_POLICIES",
    "REDACTION_POLICIES",
    "BYTE_CHARS",
    "SORTS",
    "ALL_SYNONYMS",
    "SEGMENTS",
    "PENDING_DML",
    "FIXED_STATISTICS",
    "ANALYZED",
    "ALL_TAB_MODIFICATIONS",
    "ALL_LOBS",
    "LARGE_SEGMENTS",
    "ALTERED_TRIGGERS",
    "SPECIFIED",
    "JOBS",
    "ORDERED",
    "EDITIONED",
    "OTHER_TRIGGERS",
    "TRIGGER_OWNERS",
    "SQL_PLAN",
    "INSTANCE",
    "SYSSTAT",
    "DBA_REGISTRY_SQLPATCH",
    "ALL_SOURCE",
    "DISABLED",
)

#: MariaDB's error numbers -> Oracle's error code for the same situation.
_CODES = {
    1045: "ORA-01017",
    1048: "ORA-01400",
    1050: "ORA-00955",
    1051: "ORA-00942",
    1054: "ORA-00904",
    1062: "ORA-00001",
    1142: "ORA-01031",  # as an Oracle reports it if the user has any other privilege on the table; otherwise ORA-00942
    1146: "ORA-00942",
    1205: "ORA-00054",
    1213: "ORA-00060",
    1264: "ORA-01438",
    1292: "ORA-01861",
    1364: "ORA-01400",
    1406: "ORA-12899",
    1412: "ORA-01466",
    1451: "ORA-02292",
    1452: "ORA-02291",
    2003: "ORA-12541",
    2006: "ORA-03113",
    2013: "ORA-03113",
    4025: "ORA-02290",
    4092: "ORA-00955",
}


class StandInError(Exception):
    """An error of the server with Oracle's code."""


@dataclass(slots=True)
class Cursor:
    """A cursor that accepts Oracle's binds."""

    raw: Any
    session: Connection
    arraysize: int = 100
    prefetchrows: int = 2

    @property
    def rowcount(self) -> int:
        return int(self.raw.rowcount)

    def setinputsizes(self, *types: Any) -> None:
        """Ignore the types of binds, which MariaDB's driver does not need."""

    def execute(self, text: str, binds: Mapping[str, Any] | Sequence[Any] | None = None) -> None:
        self.session.said.append(text)
        _check_binds(text, binds)
        if isinstance(binds, Mapping):
            binds = {name: _bind_value(value) for name, value in binds.items()}
        with _translate_errors():
            if text == "SET TRANSACTION READ ONLY":
                self.raw.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                self.raw.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            elif binds:
                self.raw.execute(_place(adapt(text)), binds)
            else:
                self.raw.execute(adapt(text))
            self.session.on_executed(text)

    def executemany(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        self.session.said.append(text)
        self.session.is_open = True
        self.session.written |= set(_TEMPORARY.findall(text))
        with _translate_errors():
            self.raw.executemany(_place(adapt(text)), [tuple(map(_bind_value, row)) for row in rows])

    def fetchall(self) -> list[Any]:
        return self.add_locators(self.raw.fetchall())

    def fetchmany(self, size: int) -> list[Any]:
        return self.add_locators(self.raw.fetchmany(size))

    def add_locators(self, rows: Sequence[Any]) -> list[Any]:
        """Return values with locators where an Oracle would return them, with lengths as an Oracle counts them."""
        named = [column[0] for column in self.raw.description or ()]
        located = [n for n, name in enumerate(named) if name.startswith(LOCATOR)]
        return [_locate(row, located) for row in rows] if located else list(rows)

    def close(self) -> None:
        self.raw.close()


#: A temporary table of a target, which is an ordinary one here: the session empties it at COMMIT.
_TEMPORARY = re.compile(r'^INSERT INTO ("venus_[sd]_\w+")')


def _bind_value(value: Any) -> Any:
    """Return the value that an Oracle's driver binds: None for an empty one."""
    return None if value in ("", b"") else value


def _locate(row: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    """Return a row with a LOB object in each of these places, and its length in the place before."""
    values = list(row)
    for n in places:
        if values[n] is not None:
            values[n] = Lob(values[n])
            values[n - 1] = values[n].size()
    return tuple(values)


def _check_binds(text: str, binds: Mapping[str, Any] | Sequence[Any] | None) -> None:
    """Check the number of binds: Oracle's driver refuses too many (DPY-4008) or too few (DPY-4010), MySQL's none."""
    if isinstance(binds, Mapping):
        placed = set(re.findall(r"(?<![:\w]):([a-z]\w*)", text))
        assert placed == set(binds), f"binds {sorted(binds)}, placeholders {sorted(placed)}: {text}"


def _place(text: str) -> str:
    """Return the text with the driver's placeholders in place of Oracle's binds."""
    text = re.sub(r":(\d+)\b", "%s", text.replace("%", "%%"))
    return re.sub(r"(?<![:\w]):([a-z]\w*)", r"%(\1)s", text)


def _error(error: pymysql.Error) -> StandInError:
    code = error.args[0] if error.args else 0
    if raised := re.match(r"ORA-2\d{4}: .*", str(error.args[-1])):  # raised by RAISE_APPLICATION_ERROR
        return StandInError(raised[0])
    return StandInError(f"{_CODES.get(code, 'ORA-00600')}: {error}")


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise errors of MariaDB's driver as an Oracle's."""
    try:
        yield
    except pymysql.Error as e:
        raise _error(e) from e


@dataclass(slots=True)
class Connection:
    """A session."""

    raw: Any
    said: list[str]
    outputtypehandler: Any = None  # MariaDB's driver fetches decimals and texts unchanged
    inputtypehandler: Any = None
    is_open: bool = False  # whether a transaction is open
    written: set[str] = field(default_factory=set)  # temporary tables with rows of the transaction

    def cursor(self) -> Cursor:
        return Cursor(self.raw.cursor(), self)

    def on_executed(self, text: str) -> None:
        """End the read transaction that MariaDB opens for a query; at an Oracle a query opens none."""
        passes = text.startswith(("SELECT", "ALTER SESSION", "BEGIN EXECUTE IMMEDIATE 'ALTER SESSION"))
        self.is_open = self.is_open or not passes or "FOR UPDATE" in text
        if not self.is_open:
            self.raw.commit()

    def commit(self) -> None:
        self.said.append("COMMIT")
        with _translate_errors():
            for table in self.written:
                self.raw.cursor().execute(f"DELETE FROM {table}")
            self.written.clear()
            self.raw.commit()
        self.is_open = False

    def rollback(self) -> None:
        self.said.append("ROLLBACK")
        self.written.clear()
        with _translate_errors():
            self.raw.rollback()
        self.is_open = False

    def close(self) -> None:
        self.raw.close()


def session(said: list[str] | None = None, **where: Any) -> Connection:
    """Open a session with an Oracle's settings."""
    with _translate_errors():
        raw = pymysql.connect(charset="utf8mb4", client_flag=CLIENT.FOUND_ROWS, ssl_disabled=True, **where)
    cursor = raw.cursor()
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    cursor.execute("SET NAMES utf8mb4 COLLATE utf8mb4_bin")  # a CAST compares like a column
    # a CHAR is read with its blanks, as from an Oracle
    cursor.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',PAD_CHAR_TO_FULL_LENGTH')")
    return Connection(raw, [] if said is None else said)


def ddl_trigger_body(trigger: str, event: str, name: str, text: str) -> str:
    """Return the DDL trigger's body for a statement, as a block that an Oracle would run.

    MariaDB has no ORA_SQL_TXT and no collections: that part is replaced by its result.
    """
    body = trigger[trigger.index("\nBEGIN\n") + 1 :]
    body = re.sub(r"(?s)    V_COUNT := ORA_SQL_TXT.*?END LOOP;\n", "", body)
    values = {
        "ORA_DICT_OBJ_TYPE": "TABLE",
        "ORA_DICT_OBJ_OWNER": SCHEMA,
        "ORA_DICT_OBJ_NAME": name,
        "ORA_SYSEVENT": event,
        "V_TEXT": text,
    }
    return re.sub(r"\b(ORA_\w+|V_TEXT)\b", lambda found: "'" + values[found[1]].replace("'", "''") + "'", body)


@dataclass(slots=True)
class StandIn:
    """A driver of the Oracle dialect; `said` lists every statement that the dialect executed."""

    server: MariaServer
    place: str = "stand-in"
    error: type[Exception] = StandInError
    said: list[str] = field(default_factory=list)
    user: str = "root"

    def connect(self) -> Connection:
        return session(self.said, host="127.0.0.1", port=self.server.port, user=self.user, database=SCHEMA)

    def prepare(self) -> None:
        """Make an empty schema, and the dictionary if this server has none yet, in one session."""
        with closing(self.server.connect(autocommit=True)) as session, session.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{SCHEMA}"')
            cursor.execute(f'CREATE DATABASE "{SCHEMA}" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin')
            session.select_db(SCHEMA)
            # a trigger calls it to find how its session compares text, so it must be in the trigger's schema
            for made in (_SYS_CONTEXT, _RAISE, _PADDED, *_PACKAGES):
                cursor.execute(made)
            if not cursor.execute(f"SHOW DATABASES LIKE '{DICTIONARY}'"):
                cursor.execute(f'CREATE DATABASE "{DICTIONARY}" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin')
                session.select_db(DICTIONARY)
                for statement in _VIEWS.read_text(encoding="utf-8").split(";\n"):
                    if statement.strip():
                        cursor.execute(statement)
            session.select_db(DICTIONARY)
            for table in _FILLED:
                cursor.execute(f"DELETE FROM {table}")
            cursor.execute(f"INSERT INTO SESSION_PRIVS VALUES {PRIVILEGES}")
            cursor.execute("UPDATE THE_DATABASE SET DB_UNIQUE_NAME = 'SHOP_A', CON_NAME = 'SHOP', DBID = '1001'")
            cursor.execute("UPDATE NLS_DATABASE_PARAMETERS SET VALUE = 'AL32UTF8' WHERE PARAMETER = 'NLS_CHARACTERSET'")


@pytest.fixture
def oracle_target(
    mariadb_oracle_server: MariaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    """Make an empty schema for a URL of cx_Oracle, which works in this process and in those that it spawns."""
    from tests.support.oracle.driver import driver_folder  # the folder's module imports this one

    standin = StandIn(mariadb_oracle_server)
    standin.prepare()
    monkeypatch.syspath_prepend(driver_folder(tmp_path / "driver"))
    monkeypatch.delitem(sys.modules, "cx_Oracle", raising=False)
    yield standin
    sys.modules.pop("cx_Oracle", None)
