"""Runs the suite for the Oracle dialect on MariaDB in Oracle mode: a stand-in, not an Oracle.

tests/support/oracle/standin.py says what this proves and what it cannot. Two things that an Oracle does by itself are
done here or left out: the test writes the notes of the DDL trigger, and cases that need triggers to fire on cascades
run on a real Oracle only (`make test-oracle`, `venus prove`).
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import ER

from tests.support.databases.mariadb import catalogue
from tests.support.oracle.driver import driver_folder
from tests.support.oracle.standin import DICTIONARY, SCHEMA, StandIn, ddl_trigger_body
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.oracle.proving import OracleScratch, quote_names
from venus.adapters.dialects.oracle.source import OracleSource
from venus.adapters.dialects.oracle.torture import STANDIN
from venus.adapters.dialects.proving_contract import Application, DriverApplication, NameNotPossible, Torture
from venus.config import Settings

_DDL = re.compile(r'(TRUNCATE|ALTER|DROP) TABLE "?(\w+)')


class StandInPlace(OracleScratch):
    """The schema APP on a server in Oracle mode."""

    fires_on_cascade = False  # InnoDB's triggers do not fire on cascades
    namespace = SCHEMA

    def __init__(self, standin: StandIn) -> None:
        super().__init__(f"oracle+cx_oracle://root@127.0.0.1:{standin.server.port}/?service_name=SCHOOL")
        self.standin = standin

    def connect(self) -> Application:
        return self.remember(StandInApplication(self.standin.server.connect(SCHEMA), "%s"))

    def open(self) -> Source:
        return self.remember(OracleSource(self.standin))

    def settings(self) -> Settings:
        """Return settings for commands, which find the stand-in as the driver cx_Oracle."""
        folder = driver_folder(Path(tempfile.gettempdir()) / f"venus-driver-{self.standin.server.port}")
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        return super().settings()

    def analyze(self, app: Application, *tables: str) -> None:
        for table in tables:
            self.standin.server.execute(f"ANALYZE TABLE `{table}`", SCHEMA)
            analyzed = f"REPLACE INTO ANALYZED VALUES ('{table}', NOW() - INTERVAL 3600 SECOND)"
            self.standin.server.execute(analyzed, DICTIONARY)

    def clear(self) -> None:
        self.close_sessions()
        self.standin.prepare()

    def dump(self) -> str:
        return catalogue(self.standin.server, SCHEMA)

    def torture(self) -> tuple[dict[str, Torture], tuple[str, ...]]:
        return STANDIN, ()


class StandInApplication(DriverApplication):
    """An application; after each DDL statement it writes the note that the DDL trigger would write."""

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        if '""' in sql:
            raise NameNotPossible("Oracle cannot have such a name")
        try:
            # the driver of an Oracle binds an empty value as NULL; MariaDB's driver binds it as an empty binary string
            found = super().execute(quote_names(sql), *(None if v == b"" else v for v in values))
        except pymysql.Error as error:
            if error.args[0] == ER.INVALID_CHARACTER_STRING:
                raise NameNotPossible("MariaDB cannot have such a name") from error
            raise
        installed = super().execute(f"SELECT TEXT FROM {DICTIONARY}.DDL_TRIGGERS") if _DDL.match(sql) else []
        for (trigger,) in installed:
            ddl = _DDL.match(sql)
            assert ddl is not None
            super().execute(ddl_trigger_body(str(trigger), ddl[1], ddl[2], sql))
            if ddl[1] == "ALTER":
                now = "DATE_FORMAT(NOW(), '%Y-%m-%d:%H:%i:%s')"
                super().execute(f"REPLACE INTO {DICTIONARY}.SPECIFIED VALUES ('{ddl[2]}', {now})")
            self.commit()
        return found
