"""MariaDB in Oracle mode behind the Oracle dialect's driver seam: a stand-in, not an Oracle.

What it vouches for: the text of the row triggers as an Oracle would get it, the exact delete, the state query and the
local transaction under concurrent writers. What it cannot: DISABLE/ENABLE, the DDL trigger, LOCK TABLE, physical
attributes, Oracle's own dictionary, types and errors. `ADAPTATIONS` is the whole difference between what the dialect
says and what MariaDB gets; the dictionary's views are made of information_schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from tests.support.mariadb import MariaServer

SCHEMA = "APP"
_NOTHING = "DO 0"

#: Pattern -> what MariaDB gets instead. In order; a trigger's body is touched by none of them.
ADAPTATIONS = (
    (r"^ALTER SESSION SET .*", _NOTHING),
    (r"^ALTER TRIGGER \w+ ENABLE$", _NOTHING),  # its triggers are always enabled
    (r"^LOCK TABLE .*", _NOTHING),  # its CREATE TRIGGER waits for open writers by itself
    (r"(?s)^(CREATE OR REPLACE|DROP) TRIGGER VENUS_DDL_TRG.*", _NOTHING),  # it has no DDL triggers
    (r"\nDISABLE\nBEGIN", "\nBEGIN"),
    (r"NOCYCLE CACHE 1000 (NO)?ORDER", "NOCYCLE CACHE 1000"),
    (r" USING INDEX INITRANS 8\n\) INITRANS 8 PCTFREE 5", "\n)"),
    (r"\((\d+) CHAR\)", r"(\1)"),
    (r" PURGE$", ""),
    (r"ESCAPE '\\'", "ESCAPE '|'"),
    (r"VENUS\\_%", "VENUS|_%"),
    (r"SELECT USER,", f"SELECT '{SCHEMA}',"),
    (r"SYSDATE - 3 / 86400", "NOW() - INTERVAL 3 SECOND"),
    (r"SYS_EXTRACT_UTC\(SYSTIMESTAMP\), 'YYYY-MM-DD HH24:MI:SS.FF6'", "UTC_TIMESTAMP(), 'YYYY-MM-DD HH24:MI:SS'"),
    (r"'SYYYY-", "'YYYY-"),
    (r"TO_DATE\((:p\d+), '[^']*'\)", r"\1"),
    (r"(?s)^SELECT \* FROM \((.*)\) WHERE ROWNUM <= :lines$", r"\1 LIMIT :lines"),  # a subquery's order is not kept
)

_VIEWS = """
CREATE TABLE PRODUCT_COMPONENT_VERSION AS SELECT 'Oracle stand-in' AS PRODUCT, '19.0.0.0.0' AS VERSION;
CREATE TABLE SESSION_PRIVS (PRIVILEGE VARCHAR(40) PRIMARY KEY);
INSERT INTO SESSION_PRIVS VALUES ('CREATE TABLE'), ('CREATE SEQUENCE'), ('CREATE TRIGGER'), ('CREATE VIEW'),
  ('UNLIMITED TABLESPACE');
CREATE TABLE USER_TS_QUOTAS (TABLESPACE_NAME VARCHAR(30), BYTES BIGINT, MAX_BYTES BIGINT);
CREATE TABLE USER_ERRORS (NAME VARCHAR(30), LINE INT, POSITION INT, TEXT VARCHAR(200), SEQUENCE INT);
CREATE FUNCTION SYS_CONTEXT(A VARCHAR(30), B VARCHAR(30))
  RETURN VARCHAR(30) DETERMINISTIC AS BEGIN RETURN 'BINARY'; END;
CREATE VIEW ALL_TABLES AS SELECT table_schema AS OWNER, table_name AS TABLE_NAME, 'NO' AS PARTITIONED,
  table_rows AS NUM_ROWS, 'N' AS TEMPORARY, 'NO' AS NESTED, 'N' AS SECONDARY, 'NO' AS DROPPED
  FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND table_name NOT LIKE 'USER|_%' ESCAPE '|'
  AND table_name NOT IN ('PRODUCT_COMPONENT_VERSION', 'SESSION_PRIVS');
CREATE VIEW ALL_TAB_COLS AS SELECT table_schema AS OWNER, table_name AS TABLE_NAME, column_name AS COLUMN_NAME,
  CASE data_type WHEN 'decimal' THEN 'NUMBER' WHEN 'varchar' THEN 'VARCHAR2' WHEN 'char' THEN 'CHAR'
    WHEN 'longtext' THEN 'CLOB' WHEN 'longblob' THEN 'BLOB' WHEN 'varbinary' THEN 'RAW' WHEN 'datetime' THEN 'DATE'
    ELSE data_type END AS DATA_TYPE,
  NULL AS DATA_TYPE_OWNER, character_octet_length AS DATA_LENGTH, character_maximum_length AS CHAR_LENGTH,
  'C' AS CHAR_USED, numeric_precision AS DATA_PRECISION, numeric_scale AS DATA_SCALE,
  CASE is_nullable WHEN 'YES' THEN 'Y' ELSE 'N' END AS NULLABLE, NULL AS COLLATION, 'NO' AS HIDDEN_COLUMN,
  'NO' AS VIRTUAL_COLUMN, ordinal_position AS INTERNAL_COLUMN_ID FROM information_schema.columns;
CREATE VIEW ALL_CONSTRAINTS AS SELECT table_schema AS OWNER, table_name AS TABLE_NAME,
  CONCAT(table_name, '_', constraint_name) AS CONSTRAINT_NAME,
  CASE constraint_type WHEN 'PRIMARY KEY' THEN 'P' WHEN 'UNIQUE' THEN 'U' ELSE 'R' END AS CONSTRAINT_TYPE,
  'ENABLED' AS STATUS, 'VALIDATED' AS VALIDATED, 'NOT DEFERRABLE' AS DEFERRABLE
  FROM information_schema.table_constraints;
CREATE VIEW ALL_CONS_COLUMNS AS SELECT table_schema AS OWNER,
  CONCAT(table_name, '_', constraint_name) AS CONSTRAINT_NAME,
  column_name AS COLUMN_NAME, ordinal_position AS POSITION FROM information_schema.key_column_usage;
CREATE VIEW ALL_OBJECTS AS SELECT table_schema AS OWNER, table_name AS OBJECT_NAME, 'TABLE' AS OBJECT_TYPE,
  create_time AS LAST_DDL_TIME FROM information_schema.tables WHERE table_type = 'BASE TABLE';
CREATE VIEW USER_TRIGGERS AS SELECT trigger_name AS TRIGGER_NAME, 'ENABLED' AS STATUS,
  event_object_schema AS TABLE_OWNER, event_object_table AS TABLE_NAME FROM information_schema.triggers
  UNION ALL SELECT 'VENUS_DDL_TRG', 'ENABLED', 'APP', '';
CREATE VIEW USER_OBJECTS AS SELECT table_name AS OBJECT_NAME,
  CASE table_type WHEN 'BASE TABLE' THEN 'TABLE' ELSE table_type END AS OBJECT_TYPE, 'VALID' AS STATUS
  FROM information_schema.tables WHERE table_schema = 'APP'
  UNION ALL SELECT TRIGGER_NAME, 'TRIGGER', 'VALID' FROM USER_TRIGGERS;
CREATE VIEW USER_SOURCE AS SELECT trigger_name AS NAME, 'TRIGGER' AS TYPE, 1 AS LINE, action_statement AS TEXT
  FROM information_schema.triggers
"""

#: MariaDB's error numbers -> the code that an Oracle gives in the same situation.
_CODES = {
    1054: "ORA-00904",
    1146: "ORA-00942",
    1205: "ORA-00054",
    1213: "ORA-00060",
    1412: "ORA-01466",
    2013: "ORA-03113",
}


class StandInError(Exception):
    """An error of the server under its Oracle code."""


def adapted(text: str) -> str:
    """Return what MariaDB gets for a statement."""
    for pattern, instead in ADAPTATIONS:
        text = re.sub(pattern, instead, text)
    return text


@dataclass(slots=True)
class Cursor:
    """A cursor that takes Oracle's binds."""

    raw: Any
    said: list[str]
    arraysize: int = 100

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
                self.raw.execute(_placed(adapted(text)), binds)
            else:
                self.raw.execute(adapted(text))
        except pymysql.Error as e:
            raise _error(e) from e

    def executemany(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            self.raw.executemany(_placed(text), rows)
        except pymysql.Error as e:
            raise _error(e) from e

    def fetchall(self) -> list[Any]:
        return list(self.raw.fetchall())

    def fetchmany(self, size: int) -> list[Any]:
        return list(self.raw.fetchmany(size))

    def close(self) -> None:
        self.raw.close()


def _check_binds(text: str, binds: Mapping[str, Any] | Sequence[Any] | None) -> None:
    """Oracle's driver takes neither a bind too many (DPY-4008) nor one too few (DPY-4010); MySQL's does not care."""
    if isinstance(binds, Mapping):
        placed = set(re.findall(r"(?<![:\w]):([a-z]\w*)", text))
        assert placed == set(binds), f"binds {sorted(binds)}, placeholders {sorted(placed)}: {text}"


def _placed(text: str) -> str:
    text = re.sub(r":(\d+)\b", "%s", text.replace("%", "%%"))
    return re.sub(r"(?<![:\w]):([a-z]\w*)", r"%(\1)s", text)


def _error(error: pymysql.Error) -> StandInError:
    code = error.args[0] if error.args else 0
    return StandInError(f"{_CODES.get(code, 'ORA-00600')}: {error}")


@dataclass(slots=True)
class Connection:
    """A session."""

    raw: Any
    said: list[str]

    def cursor(self) -> Cursor:
        return Cursor(self.raw.cursor(), self.said)

    def commit(self) -> None:
        self.raw.commit()

    def rollback(self) -> None:
        self.raw.rollback()

    def close(self) -> None:
        self.raw.close()


@dataclass(slots=True)
class StandIn:
    """A Driver of the Oracle dialect; `said` is every statement that the dialect said."""

    server: MariaServer
    place: str = "stand-in"
    error: type[Exception] = StandInError
    said: list[str] = field(default_factory=list)

    def connect(self) -> Connection:
        raw = self.server.connect(SCHEMA, client_flag=CLIENT.FOUND_ROWS)
        raw.cursor().execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return Connection(raw, self.said)

    def prepare(self) -> None:
        """Make the schema and the dictionary's views, empty of anything else."""
        self.server.execute(f'DROP DATABASE IF EXISTS "{SCHEMA}"')
        self.server.execute(f'CREATE DATABASE "{SCHEMA}" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin')
        for statement in re.split(r";\n", _VIEWS.strip()):
            self.server.execute(statement, SCHEMA)
