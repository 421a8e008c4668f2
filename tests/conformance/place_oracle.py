"""The Oracle dialect on MariaDB in Oracle mode as a place of the suite: a stand-in, not an Oracle.

What this vouches for, and what it cannot, is said in tests/support/oracle/standin.py. Two things that an Oracle does
by itself are done here: the DDL trigger's notes are written for it, and what needs triggers that fire on cascades is
left to a real Oracle (`make test-oracle`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from tests.conformance import torture_oracle
from tests.conformance.places import Application, DriverApplication
from tests.conformance.torture import Torture
from tests.support.databases.mariadb import catalogue
from tests.support.oracle.standin import DICTIONARY, SCHEMA, StandIn, ddl_trigger_body
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.oracle.source import OracleSource

_DDL = re.compile(r'(TRUNCATE|ALTER|DROP) TABLE "?(\w+)')
#: A literal or a quoted name, or a word in lower case: the suite writes names so, and everything else in upper case.
_WORD = re.compile(r"""('(?:[^']|'')*'|"[^"]*")|\b(?!varchar\b)([a-z_]\w*)\b""")


def quoting(sql: str) -> str:
    """Quote the names of a statement: unquoted they would be upper case in Oracle, and some are its words."""
    return _WORD.sub(lambda found: found[1] or f'"{found[2]}"', sql)


@dataclass(slots=True)
class StandInPlace:
    """The schema APP on a server in Oracle mode."""

    standin: StandIn
    dialect: str = "oracle"
    namespace: str = SCHEMA
    empty_is_null: bool = True
    concurrent_writers: bool = True
    captures_truncate: bool = True
    fires_on_cascade: bool = False  # InnoDB's triggers do not
    types: Mapping[str, str] = field(
        default_factory=lambda: {"int": "NUMBER(9)", "text": "CLOB", "blob": "BLOB", "decimal": "NUMBER(10,2)"}
    )

    def connect(self) -> Application:
        return StandInApplication(self.standin.server.connect(SCHEMA), "%s")

    def open(self) -> Source:
        return OracleSource(self.standin)

    def dump(self) -> str:
        return catalogue(self.standin.server, SCHEMA)

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        return torture_oracle.STANDIN, ()


class StandInApplication(DriverApplication):
    """An application; after its DDL it writes what the DDL trigger would."""

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        if '""' in sql:
            pytest.skip("Oracle knows no such name")
        try:
            # the driver of an Oracle binds what is empty as NULL; MariaDB's as an empty binary string
            found = super().execute(quoting(sql), *(None if v == b"" else v for v in values))
        except pymysql.Error as error:
            if error.args[0] == ER.INVALID_CHARACTER_STRING:
                pytest.skip("MariaDB knows no such name")
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
