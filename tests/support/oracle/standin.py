"""MariaDB in Oracle mode behind the Oracle dialect's driver seam: a stand-in, not an Oracle.

What it vouches for: the text of the row triggers as an Oracle would get it, the exact delete, the state query and the
local transaction under concurrent writers. What it cannot: DISABLE/ENABLE, the DDL trigger, LOCK TABLE, physical
attributes, Oracle's own dictionary, types and errors. `ADAPTATIONS` is the whole difference between what the dialect
says and what MariaDB gets; the dictionary's views (standin.sql) are made of information_schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from tests.support.databases.mariadb import MariaServer
from tests.support.oracle.double import Lob
from venus.adapters.dialects.oracle.session.lobs import LOCATOR

SCHEMA = "APP"
DICTIONARY = "DICTIONARY"
_NOTHING = "DO 0"
_MOMENT = "%Y-%m-%d %H:%i:%s"


def _kept_only(trigger: str) -> str:
    text = f"CONVERT(X'{trigger.encode().hex()}' USING utf8mb4)"
    return f"REPLACE INTO {DICTIONARY}.DDL_TRIGGERS VALUES ('VENUS_DDL_TRG', {text})"


#: Pattern -> what MariaDB gets instead. In order; a trigger's body is touched by none of them.
ADAPTATIONS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        r"(?s)^BEGIN\n  DBMS_SCHEDULER\.CREATE_JOB.*q'\[\n(.*)\n\]'\);\nEND;$",
        lambda made: (
            f"REPLACE INTO {DICTIONARY}.JOBS VALUES ('VENUS_VALVE', CONVERT(X'{made[1].encode().hex()}' USING utf8mb4))"
        ),
    ),
    (r"^(?:BEGIN EXECUTE IMMEDIATE ')?ALTER SESSION SET .*", _NOTHING),
    (r"^ALTER TRIGGER \w+ ENABLE$", _NOTHING),  # its triggers are always enabled
    (
        r"(?s)^BEGIN\n  DBMS_STATS\.SET_TABLE_STATS.*TABNAME => '(\w+)'\);\nEND;$",
        rf"REPLACE INTO {DICTIONARY}.FIXED_STATISTICS VALUES ('\1')",
    ),
    (r"^ALTER INDEX \w+ COALESCE$", _NOTHING),
    (r"^CREATE OR REPLACE NONEDITIONABLE TRIGGER", "CREATE OR REPLACE TRIGGER"),
    # its triggers can only be dropped, and it runs no job: a test runs the job's block
    (r"'ALTER TRIGGER (VENUS_[IUD]_)' \|\| T\.NUM \|\| ' DISABLE'", r"'DROP TRIGGER \1' || T.NUM"),
    (r"(?s)^BEGIN\n  DBMS_SCHEDULER\.DROP_JOB.*", f"DELETE FROM {DICTIONARY}.JOBS"),
    (r"^ALTER SEQUENCE VENUS_SEQ NOORDER$", f"DELETE FROM {DICTIONARY}.ORDERED"),
    (r"  LOCK TABLE \w+ IN EXCLUSIVE MODE NOWAIT;\n", ""),
    (r"\bIF USER <> ", f"IF '{SCHEMA}' <> "),
    # it has no DDL triggers: `oracle_ddl_events` writes for the application what this one would
    (r"(?s)^CREATE OR REPLACE TRIGGER VENUS_DDL_TRG.*", lambda made: _kept_only(made[0])),
    (r"^DROP TRIGGER (VENUS_DDL_TRG)$", rf"DELETE FROM {DICTIONARY}.DDL_TRIGGERS WHERE NAME = '\1'"),
    # the views of who blocks are one made by hand, and there only where a test makes it
    (r"(?s)^SELECT O\.OBJECT_NAME, MAX\(ROUND.*GV\$LOCKED_OBJECT.*", f"SELECT NAME, AGE FROM {DICTIONARY}.BLOCKERS"),
    (
        r"(?s)^SELECT L\.SESSION_ID, .*GV\$LOCKED_OBJECT.*",
        f"SELECT SESSION_ID, 1, 'APP', 'joe', '2026-11-25 15:00:00' FROM {DICTIONARY}.BLOCKERS",
    ),
    (
        r"\b(FROM|JOIN) ((?:ALL|USER)_[A-Z_]+|SESSION_PRIVS|PRODUCT_COMPONENT_VERSION|REDACTION_POLICIES"
        r"|DATABASE_PROPERTIES|NLS_DATABASE_PARAMETERS|DBA_REGISTRY_SQLPATCH)\b",
        rf"\1 {DICTIONARY}.\2",
    ),
    (r"\bGV\$(SQL_PLAN|INSTANCE|SYSSTAT)\b", rf"{DICTIONARY}.\1"),
    (r"SYS_CONTEXT\('USERENV', '(DB_UNIQUE_NAME|CON_NAME)'\) FROM DUAL", rf"\1 FROM {DICTIONARY}.THE_DATABASE"),
    (r"TO_CHAR\(DBID\) FROM V\$DATABASE", f"DBID FROM {DICTIONARY}.THE_DATABASE"),
    # a round trip through a smaller character set loses what it does not have, as at an Oracle
    (r"CONVERT\(CONVERT\((.+?), 'AL32UTF8', 'US7ASCII'\), 'US7ASCII', 'AL32UTF8'\)", r"CONVERT(\1 USING ascii)"),
    # texts read as bytes: here a column has a character set of its own, and a CLOB is a text
    (
        r"TO_CLOB\(RAWTOHEX\(UTL_RAW\.CAST_TO_RAW\(SUBSTRB\(([^(),]+), (\d+), (\d+)\)\)\)\)",
        r"HEX(SUBSTR(CAST(\1 AS BINARY), \2, \3))",
    ),
    (r"UTL_RAW\.CAST_TO_RAW\(((?:[^()]|\([^()]*\))+)\)", r"CAST(\1 AS BINARY)"),
    (r"UTL_RAW\.CAST_TO_VARCHAR2\((:\w+)\)", r"CONVERT(\1 USING utf8mb4)"),
    (r"DBMS_LOB\.SUBSTR\(([^(),]+), (\d+), (\d+)\)", r"SUBSTR(\1, \3, \2)"),
    (r" WHERE ROWNUM <= (\d+)\) T$", r" LIMIT \1) T"),
    (r"\nDISABLE\n(DECLARE|BEGIN)", r"\n\1"),
    (r" DROP \(RECORDID, ISDELETED, SEQUENCE\)$", " DROP RECORDID, DROP ISDELETED, DROP SEQUENCE"),
    (r"NOCYCLE CACHE 1000 (NO)?ORDER", "NOCYCLE CACHE 1000"),
    (r" USING INDEX INITRANS 8(?: TABLESPACE \"\w+\")?\n\) INITRANS 8 PCTFREE 5(?: TABLESPACE \"\w+\")?", "\n)"),
    (r"^ALTER TABLE (VENUS_L_\d+) MODIFY \((K\d+) (.*)\)$", r"ALTER TABLE \1 MODIFY \2  \3  NOT NULL"),
    # its CAST adds no blanks
    (r"CAST\(([^()]+) AS CHAR\((\d+) BYTE\)\)", r"PADDED(\1, \2)"),
    (r"CAST\(([^()]+) AS N?CHAR\((\d+)(?: CHAR)?\)\)", r"RPAD(\1, \2, ' ')"),
    # a log table's columns: MariaDB's NUMBER is a DOUBLE, its fractions end at the sixth digit
    (r"\b(K\d+)  NUMBER  NOT NULL", r"\1  DECIMAL(65,20)  NOT NULL"),
    (r"\b(K\d+)  TIMESTAMP\(9\)  NOT NULL", r"\1  DATETIME(6)  NOT NULL"),
    (r"\b(K\d+)  NVARCHAR2\(", r"\1  VARCHAR2("),
    (r"\((\d+) (?:CHAR|BYTE)\)", r"(\1)"),
    (r" PURGE$", ""),
    (r"ESCAPE '\\'", "ESCAPE '|'"),
    (r"VENUS\\_(L\\_)?%", lambda found: found[0].replace("\\", "|")),
    (r"SELECT USER, SYS_CONTEXT\('USERENV', 'CURRENT_SCHEMA'\)", f"SELECT '{SCHEMA}', '{SCHEMA}'"),
    (r"\bVSIZE\(", "OCTET_LENGTH("),
    (r"\bORA_HASH\(", "CRC32("),
    (r"\bDBMS_LOB\.GETLENGTH\(", "CHAR_LENGTH("),  # counts 1 for characters beyond U+FFFF: see Cursor.fetched
    (r"\(SYSDATE - (T\.LAST_ANALYZED|I\.STARTUP_TIME)\) \* 86400", r"TIMESTAMPDIFF(SECOND, \1, NOW())"),
    (r"TO_CHAR\((O\.DATA_OBJECT_ID)\)", r"\1"),
    (r"TO_CHAR\((O\.LAST_DDL_TIME), '[^']*'\)", r"\1"),
    (r"SYSDATE - 3 / 86400", "NOW() - INTERVAL 3 SECOND"),
    (r"SYS_EXTRACT_UTC\(SYSTIMESTAMP\), 'YYYY-MM-DD HH24:MI:SS.FF6'", "UTC_TIMESTAMP(), 'YYYY-MM-DD HH24:MI:SS'"),
    (r"TO_CHAR\(([^()]+), 'SYYYY-MM-DD HH24:MI:SS'\)", rf"DATE_FORMAT(\1, '{_MOMENT}')"),
    (r"TO_CHAR\(([^()]+), 'SYYYY-MM-DD HH24:MI:SS\.FF6'\)", rf"DATE_FORMAT(\1, '{_MOMENT}.%f')"),
    (r"TO_(?:DATE|TIMESTAMP)\((:[pe]\d+), '[^']*'\)", r"\1"),
    (r"(?s)^SELECT \* FROM \((.*)\) WHERE ROWNUM <= :lines$", r"\1 LIMIT :lines"),  # a subquery's order is not kept
)

_VIEWS = Path(__file__).with_suffix(".sql")
_SYS_CONTEXT = """CREATE FUNCTION SYS_CONTEXT(A VARCHAR(30), B VARCHAR(30)) RETURN VARCHAR(30) DETERMINISTIC AS
  BEGIN
    RETURN CASE B WHEN 'CURRENT_EDITION_NAME' THEN 'ORA$BASE' WHEN 'DATABASE_ROLE' THEN 'PRIMARY' ELSE 'BINARY' END;
  END"""
_RAISE = """CREATE PROCEDURE RAISE_APPLICATION_ERROR(N NUMBER(9), T VARCHAR(200)) AS
  S VARCHAR(128) := LEFT(CONCAT('ORA', N, ': ', T), 128);
  BEGIN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = S; END"""
_PADDED = """CREATE FUNCTION PADDED(V VARCHAR(4000), N NUMBER(9))
  RETURN VARCHAR(4000) DETERMINISTIC AS BEGIN RETURN CONCAT(V, SPACE(GREATEST(N - LENGTHB(V), 0))); END"""
#: Oracle's packages, as far as VENUS calls them. MariaDB's CREATE TRIGGER waits for open writers by itself, so nothing
#: is ever left to wait for but what a test writes into PENDING_DML.
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

#: What tests write into the dictionary.
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
    "SQL_PLAN",
    "INSTANCE",
    "SYSSTAT",
    "DBA_REGISTRY_SQLPATCH",
    "ALL_SOURCE",
)

#: MariaDB's error numbers -> the code that an Oracle gives in the same situation.
_CODES = {
    1054: "ORA-00904",
    1142: "ORA-01031",  # an Oracle says so if the user may do anything else with it, else ORA-00942
    1146: "ORA-00942",
    1205: "ORA-00054",
    1213: "ORA-00060",
    1412: "ORA-01466",
    2013: "ORA-03113",
}


class StandInError(Exception):
    """An error of the server under its Oracle code."""


@lru_cache(maxsize=1024)
def adapted(text: str) -> str:
    """Return what MariaDB gets for a statement."""
    for pattern, instead in ADAPTATIONS:
        text = re.sub(pattern, instead, text)
    return text


@dataclass(slots=True)
class Cursor:
    """A cursor that takes Oracle's binds."""

    raw: Any
    session: Connection
    arraysize: int = 100
    prefetchrows: int = 2

    @property
    def said(self) -> list[str]:
        return self.session.said

    @property
    def rowcount(self) -> int:
        return int(self.raw.rowcount)

    def execute(self, text: str, binds: Mapping[str, Any] | Sequence[Any] | None = None) -> None:
        self.said.append(text)
        _check_binds(text, binds)
        try:
            if text == "SET TRANSACTION READ ONLY":
                self.raw.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                self.raw.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            elif binds:
                self.raw.execute(_place(adapted(text)), binds)
            else:
                self.raw.execute(adapted(text))
            self.session.executed(text)
        except pymysql.Error as e:
            raise _error(e) from e

    def executemany(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        self.session.is_open = True
        try:
            self.raw.executemany(_place(adapted(text)), rows)
        except pymysql.Error as e:
            raise _error(e) from e

    def fetchall(self) -> list[Any]:
        return self.fetched(self.raw.fetchall())

    def fetchmany(self, size: int) -> list[Any]:
        return self.fetched(self.raw.fetchmany(size))

    def fetched(self, rows: Sequence[Any]) -> list[Any]:
        """Give locators where an Oracle would, with their lengths as an Oracle counts them."""
        named = [column[0] for column in self.raw.description or ()]
        located = [n for n, name in enumerate(named) if name.startswith(LOCATOR)]
        return [_locate(row, located) for row in rows] if located else list(rows)

    def close(self) -> None:
        self.raw.close()


def _locate(row: Sequence[Any], places: Sequence[int]) -> tuple[Any, ...]:
    values = list(row)
    for n in places:
        if values[n] is not None:
            values[n] = Lob(values[n])
            values[n - 1] = values[n].size()
    return tuple(values)


def _check_binds(text: str, binds: Mapping[str, Any] | Sequence[Any] | None) -> None:
    """Oracle's driver takes neither a bind too many (DPY-4008) nor one too few (DPY-4010); MySQL's does not care."""
    if isinstance(binds, Mapping):
        placed = set(re.findall(r"(?<![:\w]):([a-z]\w*)", text))
        assert placed == set(binds), f"binds {sorted(binds)}, placeholders {sorted(placed)}: {text}"


def _place(text: str) -> str:
    text = re.sub(r":(\d+)\b", "%s", text.replace("%", "%%"))
    return re.sub(r"(?<![:\w]):([a-z]\w*)", r"%(\1)s", text)


def _error(error: pymysql.Error) -> StandInError:
    code = error.args[0] if error.args else 0
    if raised := re.match(r"ORA-2\d{4}: .*", str(error.args[-1])):  # by RAISE_APPLICATION_ERROR
        return StandInError(raised[0])
    return StandInError(f"{_CODES.get(code, 'ORA-00600')}: {error}")


@dataclass(slots=True)
class Connection:
    """A session."""

    raw: Any
    said: list[str]
    outputtypehandler: Any = None  # MariaDB's driver fetches decimals and texts as they are
    inputtypehandler: Any = None
    is_open: bool = False  # a transaction

    def cursor(self) -> Cursor:
        return Cursor(self.raw.cursor(), self)

    def executed(self, text: str) -> None:
        """Let go of what MariaDB holds behind a query: at an Oracle it begins no transaction."""
        passes = text.startswith(("SELECT", "ALTER SESSION", "BEGIN EXECUTE IMMEDIATE 'ALTER SESSION"))
        self.is_open = self.is_open or not passes or text.endswith("FOR UPDATE")
        if not self.is_open:
            self.raw.commit()

    def commit(self) -> None:
        self.said.append("COMMIT")
        self.raw.commit()
        self.is_open = False

    def rollback(self) -> None:
        self.said.append("ROLLBACK")
        self.raw.rollback()
        self.is_open = False

    def close(self) -> None:
        self.raw.close()


def session(said: list[str] | None = None, **where: Any) -> Connection:
    """Open a session with the settings of an Oracle's."""
    raw = pymysql.connect(charset="utf8mb4", client_flag=CLIENT.FOUND_ROWS, ssl_disabled=True, **where)
    cursor = raw.cursor()
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    cursor.execute("SET NAMES utf8mb4 COLLATE utf8mb4_bin")  # what a CAST gives is compared like a column
    # a CHAR comes with its blanks, as from an Oracle
    cursor.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',PAD_CHAR_TO_FULL_LENGTH')")
    return Connection(raw, [] if said is None else said)


def ddl_trigger_body(trigger: str, event: str, name: str, text: str) -> str:
    """Return what an Oracle would run of the DDL trigger for a statement, as a block.

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
    """A Driver of the Oracle dialect; `said` is every statement that the dialect said."""

    server: MariaServer
    place: str = "stand-in"
    error: type[Exception] = StandInError
    said: list[str] = field(default_factory=list)
    user: str = "root"

    def connect(self) -> Connection:
        return session(self.said, host="127.0.0.1", port=self.server.port, user=self.user, database=SCHEMA)

    def prepare(self) -> None:
        """Make an empty schema, and the dictionary if this server has none yet; in one session."""
        with closing(self.server.connect(autocommit=True)) as session, session.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{SCHEMA}"')
            cursor.execute(f'CREATE DATABASE "{SCHEMA}" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin')
            session.select_db(SCHEMA)
            # a trigger asks it how its session compares text: it must be found where the trigger lies
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
