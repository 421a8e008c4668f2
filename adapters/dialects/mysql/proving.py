"""A MariaDB or MySQL database as the scratch schema of `venus prove`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import pymysql
from pymysql.constants import ER

from venus.adapters.dialects.mysql import torture
from venus.adapters.dialects.mysql.connection import MysqlConnection, parse_address
from venus.adapters.dialects.mysql.sql import literal, quote, statement
from venus.adapters.dialects.proving_contract import (
    SCRATCH,
    Application,
    DriverApplication,
    NameNotPossible,
    PlanCheck,
    Torture,
    UrlPlace,
)
from venus.adapters.dialects.statements import RecordedStatements
from venus.config import Settings

_SCRIPT = f"""CREATE DATABASE {SCRATCH};
CREATE USER {SCRATCH}@'%' IDENTIFIED BY 'choose one';
GRANT ALL ON {SCRATCH}.* TO {SCRATCH}@'%';
-- then, with that password: venus prove --source mysql+pymysql://{SCRATCH}:PASSWORD@HOST/{SCRATCH}"""
_FACTS = (
    "version",
    "build",
    "machine",
    "character set of the server",
    "collation of the server",
    "character set",
    "collation",
    "sql_mode",
    "isolation",
    "lower_case_table_names",
    "innodb_page_size",
    "innodb_flush_log_at_trx_commit",
    "innodb_autoinc_lock_mode",
    "log_bin",
    "binlog_format",
    "server",
)
#: Statements that are not parsed: the installation has run them, or only their own session can.
_RUN = re.compile(
    r"\s*(?:CREATE|ALTER|DROP|START TRANSACTION|EXPLAIN|SHOW|SET)\b|.*\bvenus_claimed\b", re.DOTALL | re.IGNORECASE
)
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")


def open_scratch(settings: Settings) -> MysqlScratch:
    """Return the database that the settings name."""
    return MysqlScratch(settings.source.url.get_secret_value())


class MysqlScratch(UrlPlace):
    """The scratch database of `venus prove` on a MariaDB or MySQL server."""

    dialect = "mysql"
    empty_is_null = False
    concurrent_writers = True
    captures_truncate = False  # no trigger fires for TRUNCATE; InnoDB's number of the table shows it afterwards
    fires_on_cascade = True
    types: Mapping[str, str] = {"int": "int", "text": "longtext", "blob": "longblob", "decimal": "decimal(10,2)"}
    statements = statement
    pieces = frozenset(("cut.dirty_table", "triggers.insert", "triggers.update", "triggers.delete", "triggers.cascade"))

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._address = parse_address(url)
        self.name = f"database {self._address.database}"

    @property
    def namespace(self) -> str:
        """The name of the database."""
        return self._address.database

    def connect(self) -> Application:
        """Open a session of the application."""
        raw = pymysql.connect(charset="utf8mb4", **self._address.arguments)
        with raw.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,ANSI_QUOTES'")
        return self.remember(MysqlApplication(raw, "%s"))

    def _open(self) -> MysqlConnection:
        return MysqlConnection(self._address, "READ COMMITTED")

    def analyze(self, app: Application, *tables: str) -> None:
        """Let the server gather statistics of these tables."""
        for table in tables:
            app.execute(f'ANALYZE TABLE "{table}"')

    def dump(self) -> str:
        """Return the definitions of all objects, without counters."""
        with closing(self._open()) as connection:
            lines = []
            for kind, name in self._read_objects(connection):
                lines.append(f"{kind} {name}")
                if kind == "base table":
                    lines.append(_COUNTER.sub("", connection.rows(f"SHOW CREATE TABLE {quote(name)}")[0][1]))
            triggers = connection.rows(statement("scratch", "triggers", database=literal(self.namespace)))
            return "\n".join([*lines, *map(str, triggers)])

    def _read_objects(self, connection: MysqlConnection) -> list[tuple[str, str]]:
        found = connection.rows(statement("scratch", "objects", database=literal(self.namespace)))
        return [(str(kind), str(name)) for kind, name in found]

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        """Return columns with values that are hard to carry, and the statements that they need."""
        return torture.COLUMNS, torture.SETUP

    def script(self) -> str:
        """Return the lines that create a scratch database."""
        return _SCRIPT

    def removal(self) -> str:
        """Return the statements that remove the remains of a run."""
        name = quote(self.namespace)
        return f"DROP DATABASE {name}; CREATE DATABASE {name}"

    def read_facts(self) -> list[tuple[str, str]]:
        """Return version, character set and the like of the server."""
        with closing(self._open()) as connection:
            version = str(connection.row("SELECT version()")[0])
            # MariaDB renamed the variable in 11.1 and keeps the old name; MySQL 8 has only the new one
            isolation = "tx_isolation" if "mariadb" in version.lower() else "transaction_isolation"
            row = connection.row(statement("scratch", "facts", isolation=isolation))
        return [(name, str(value)) for name, value in zip(_FACTS, row, strict=True)]

    def list_objects(self) -> list[str]:
        """Return tables, views, sequences, routines and events of the database."""
        with closing(self._open()) as connection:
            return [f"{kind} {name}" for kind, name in self._read_objects(connection)]

    def prepare(self) -> None:
        """Do nothing: a run needs only the database."""

    def clear(self) -> None:
        """Drop all objects of the database."""
        self.close_sessions()
        kinds = {"base table": "TABLE", "system versioned": "TABLE"}
        with closing(self._open()) as connection:
            connection.run("SET foreign_key_checks = 0")
            for kind, name in self._read_objects(connection):
                connection.run(statement("scratch", "drop", kind=kinds.get(kind, kind.upper()), name=quote(name)))

    def parse(self, texts: Sequence[str]) -> int:
        """Let the server parse these statements; return how many it has parsed."""
        queries = [text for text in texts if not _RUN.match(text)]
        with closing(self._open()) as connection:
            for query in queries:
                connection.run(f"PREPARE venus_parsed FROM {literal(query.replace('%s', '?').replace('%%', '%'))}")
        return len(queries)

    def explain(self, recorded: RecordedStatements) -> list[PlanCheck]:
        """Explain the statements of a cut and of a fill on the table `proof`."""
        checks = []
        with closing(self._open()) as connection:
            for name, query in _find_queries(recorded):
                rows = connection.rows(statement("scratch", "explain", query=query))
                steps = [tuple("" if value is None else str(value) for value in row) for row in rows]
                checks.append(_check_plan(name, steps))
        return checks


def _find_queries(recorded: RecordedStatements) -> list[tuple[str, str]]:
    """Return the last recorded query of each name, to explain it; for a fill, the last that continues after a key."""
    found = [("probe", list(recorded[("cut", "head")])[-1])] if ("cut", "head") in recorded else []
    for name, block in (("claim", "numbers"), ("changes", "changes"), ("fill", "fill")):
        texts = [t for t in recorded.get(("cut", block), {}) if "`proof`" in t or name == "claim"]
        behind = [t for t in texts if " WHERE " in t] if name == "fill" else texts
        found += [(name, text) for text in (behind or texts)[-1:]]
    return found


def _check_plan(name: str, rows: list[tuple[str, ...]]) -> PlanCheck:
    """Return the execution plan, with a complaint if it scans the application's table (t in the queries)."""
    steps = tuple(" ".join(filter(None, row)) for row in rows)
    scanned = [step for step, row in zip(steps, rows, strict=True) if "t" in row[2:3] and "ALL" in row[3:5]]
    return PlanCheck(name=name, steps=steps, complaint="; ".join(scanned))


class MysqlApplication(DriverApplication):
    """A session of the application at MariaDB or MySQL, whose names cannot contain characters above U+FFFF."""

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement. Raises NameNotPossible."""
        try:
            return super().execute(sql, *values)
        except pymysql.Error as error:
            if error.args[0] == ER.INVALID_CHARACTER_STRING:
                raise NameNotPossible("MariaDB and MySQL cannot have such a name") from error
            raise
