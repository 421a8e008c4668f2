"""Every change of a statement for the stand-in (MariaDB in Oracle mode): all differences from an Oracle.

One table of patterns serves source and target. A pattern changes the statements that it matches, and no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

SCHEMA = "APP"
DICTIONARY = "DICTIONARY"
_NOTHING = "DO 0"
_MOMENT = "%Y-%m-%d %H:%i:%s"


def _ddl_trigger_insert(trigger: str) -> str:
    """Return a statement that stores the text of the DDL trigger, because MariaDB cannot create it."""
    text = f"CONVERT(X'{trigger.encode().hex()}' USING utf8mb4)"
    return f"REPLACE INTO {DICTIONARY}.DDL_TRIGGERS VALUES ('VENUS_DDL_TRG', {text})"


#: Patterns and their replacements for MariaDB, in order; none changes the body of a trigger.
ADAPTATIONS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        r"(?s)^BEGIN\n  DBMS_SCHEDULER\.CREATE_JOB.*q'\[\n(.*)\n\]'\);\nEND;$",
        lambda made: (
            f"REPLACE INTO {DICTIONARY}.JOBS VALUES ('VENUS_VALVE', CONVERT(X'{made[1].encode().hex()}' USING utf8mb4))"
        ),
    ),
    (r"^(?:BEGIN EXECUTE IMMEDIATE ')?ALTER SESSION SET .*", _NOTHING),
    (r"^ALTER TRIGGER \w+ ENABLE$", _NOTHING),  # MariaDB's triggers are always enabled
    (
        r"(?s)^BEGIN\n  DBMS_STATS\.SET_TABLE_STATS.*TABNAME => '(\w+)'\);\nEND;$",
        rf"REPLACE INTO {DICTIONARY}.FIXED_STATISTICS VALUES ('\1')",
    ),
    (r"^ALTER INDEX \w+ COALESCE$", _NOTHING),
    # in a following database: MariaDB has no client info, no autonomous transactions, and cannot disable a trigger
    (
        r"^BEGIN DBMS_APPLICATION_INFO\.SET_CLIENT_INFO\('(.*)'\); END;$",
        rf"SET @venus_client_info = '\1', foreign_key_checks = (SELECT COUNT(*) = 0 FROM {DICTIONARY}.DISABLED)",
    ),
    (r"(?s)DECLARE\n  FUNCTION NEWEST_STATE .*?\n  END;\nBEGIN", "DECLARE\n  V_STATE VARCHAR2(20);\nBEGIN"),
    (
        r"    IF NEWEST_STATE <> 'OPEN' THEN",
        "    SELECT STATE INTO V_STATE FROM VENUS_SIDE WHERE ID = 1 LOCK IN SHARE MODE;\n    IF V_STATE <> 'OPEN' THEN",
    ),
    (r'^ALTER TABLE "\w+" DISABLE CONSTRAINT "(\w+)"$', rf"REPLACE INTO {DICTIONARY}.DISABLED VALUES ('\1')"),
    (
        r'^ALTER TABLE "\w+" ENABLE NOVALIDATE CONSTRAINT "(\w+)"$',
        rf"DELETE FROM {DICTIONARY}.DISABLED WHERE NAME = '\1'",
    ),
    (r'^ALTER TABLE "\w+" MODIFY CONSTRAINT "\w+" VALIDATE$', _NOTHING),
    (r'^ALTER TRIGGER "\w+"\."(\w+)" DISABLE$', rf"REPLACE INTO {DICTIONARY}.DISABLED VALUES ('\1')"),
    (r'^ALTER TRIGGER "\w+"\."(\w+)" ENABLE$', rf"DELETE FROM {DICTIONARY}.DISABLED WHERE NAME = '\1'"),
    (
        r'^ALTER TABLE "(\w+)" MODIFY \("\w+" GENERATED .* \(START WITH (\d+)\)\)$',
        r'ALTER SEQUENCE "ISEQ$$_\1" RESTART \2',
    ),
    (r"^(ALTER SEQUENCE \S+ RESTART) START WITH (\d+)$", r"\1 \2"),
    # statements of the target
    (r"(?s)^BEGIN DBMS_APPLICATION_INFO\.SET_MODULE.*", _NOTHING),
    (r"^COMMENT ON .*|^ALTER TABLE .* FOREIGN KEY .* DISABLE$", _NOTHING),
    (r"\(\(TO_NUMBER\(TO_CHAR\(.*?, 'FF6'\)\)", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"),
    (r"(?s)^CREATE GLOBAL TEMPORARY TABLE (.*) ON COMMIT DELETE ROWS$", r"CREATE TABLE \1"),  # by Connection.commit
    (r"^DELETE FROM (\S+) ([tq]) WHERE", r"DELETE \2 FROM \1 \2 WHERE"),
    (r"INSERT /\*\+ IGNORE_ROW_ON_DUPKEY_INDEX\(.*?\) \*/\s+INTO", "INSERT IGNORE INTO"),
    (r"ORDER BY id\) piece\nWHERE ROWNUM <= (:\w+)", r"ORDER BY id LIMIT \1) piece"),
    (r"\bEMPTY_CLOB\(\)", "CONVERT(X'' USING utf8mb4)"),
    (r"\bEMPTY_BLOB\(\)", "X''"),
    (r"\bDBMS_LOB\.COMPARE\((\S+), (\S+)\)", r"STRCMP(CAST(\1 AS BINARY), CAST(\2 AS BINARY))"),
    (r"TO_(?:DATE|TIMESTAMP)\((:\d+), '[^']*'\)", r"\1"),
    (r"FROM_TZ\((:\d+), '\+00:00'\)", r"\1"),
    (r"SYS_EXTRACT_UTC\((T\.[^()]+)\)", r"\1"),
    (r"^(ALTER TABLE \S+ MODIFY) \((\".*)\)$", r"\1 \2"),
    (r"\" BINARY_DOUBLE\b", '" DOUBLE'),
    (r"NUMBER\((\d+),-(\d+)\)", lambda made: f"NUMBER({int(made[1]) + int(made[2])})"),  # no negative scales
    (r"(\" )NUMBER(?= NOT| DEFAULT|,|\n|\))", r"\1DECIMAL(65,30)"),  # MariaDB's NUMBER is a DOUBLE
    (r"(\" )TIMESTAMP\(([0-6])\)(?: WITH TIME ZONE)?", r"\1DATETIME(\2)"),
    (r"VARCHAR2\(\d{4} BYTE\)", "VARCHAR2(300)"),  # MariaDB's keys are limited to 3,072 bytes
    (r"^CREATE OR REPLACE NONEDITIONABLE TRIGGER", "CREATE OR REPLACE TRIGGER"),
    # MariaDB's triggers can only be dropped, and it runs no job: a test runs the job's block
    (r"'ALTER TRIGGER (VENUS_[IUD]_)' \|\| T\.NUM \|\| ' DISABLE'", r"'DROP TRIGGER \1' || T.NUM"),
    (r"(?s)^BEGIN\n  DBMS_SCHEDULER\.DROP_JOB.*", f"DELETE FROM {DICTIONARY}.JOBS"),
    (r"^ALTER SEQUENCE VENUS_SEQ NOORDER$", f"DELETE FROM {DICTIONARY}.ORDERED"),
    (r"  LOCK TABLE \w+ IN EXCLUSIVE MODE NOWAIT;\n", ""),
    (r"\bIF USER <> ", f"IF '{SCHEMA}' <> "),
    # one table replaces the views of blocking sessions; it exists only where a test creates it
    (r"(?s)^CREATE OR REPLACE TRIGGER VENUS_DDL_TRG.*", lambda made: _ddl_trigger_insert(made[0])),
    (r"^DROP TRIGGER (VENUS_DDL_TRG)$", rf"DELETE FROM {DICTIONARY}.DDL_TRIGGERS WHERE NAME = '\1'"),
    # a handmade table replaces the views of blocking sessions at a target; only some tests make it
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
    # a conversion to a smaller character set and back loses the characters that it lacks, as at an Oracle
    (r"CONVERT\(CONVERT\((.+?), 'AL32UTF8', 'US7ASCII'\), 'US7ASCII', 'AL32UTF8'\)", r"CONVERT(\1 USING ascii)"),
    # texts read as bytes: a MariaDB column has a character set of its own, and a CLOB is a text
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
    # MariaDB's CAST adds no blanks
    (r"CAST\(([^()]+) AS CHAR\((\d+) BYTE\)\)", r"PADDED(\1, \2)"),
    (r"CAST\(([^()]+) AS N?CHAR\((\d+)(?: CHAR)?\)\)", r"RPAD(\1, \2, ' ')"),
    # columns of a log table: MariaDB's NUMBER is a DOUBLE, and fractions end at the sixth digit
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
    (r"\bDBMS_LOB\.GETLENGTH\(", "CHAR_LENGTH("),  # counts 1 for characters above U+FFFF: see Cursor.add_locators
    (r"\(SYSDATE - (T\.LAST_ANALYZED|I\.STARTUP_TIME)\) \* 86400", r"TIMESTAMPDIFF(SECOND, \1, NOW())"),
    (r"TO_CHAR\((O\.DATA_OBJECT_ID)\)", r"\1"),
    (r"TO_CHAR\((O\.LAST_DDL_TIME), '[^']*'\)", r"\1"),
    (r"SYSDATE - 3 / 86400", "NOW() - INTERVAL 3 SECOND"),
    (r"SYS_EXTRACT_UTC\(SYSTIMESTAMP\), 'YYYY-MM-DD HH24:MI:SS.FF6'", "UTC_TIMESTAMP(), 'YYYY-MM-DD HH24:MI:SS'"),
    (r"TO_CHAR\(([^()]+), 'SYYYY-MM-DD HH24:MI:SS'\)", rf"DATE_FORMAT(\1, '{_MOMENT}')"),
    (r"TO_CHAR\(([^()]+), 'SYYYY-MM-DD HH24:MI:SS\.FF6'\)", rf"DATE_FORMAT(\1, '{_MOMENT}.%f')"),
    (r"TO_(?:DATE|TIMESTAMP)\((:[pe]\d+), '[^']*'\)", r"\1"),
    (r"(?s)^SELECT \* FROM \((.*)\) WHERE ROWNUM <= :lines$", r"\1 LIMIT :lines"),  # MariaDB ignores the ORDER BY
)


@lru_cache(maxsize=1024)
def adapt(text: str) -> str:
    """Return the statement for MariaDB."""
    for pattern, instead in ADAPTATIONS:
        text = re.sub(pattern, instead, text)
    return text
