"""A schema of a real Oracle as a place of the conformance suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy

from tests.conformance import torture_oracle
from tests.conformance.place_oracle import quoting
from tests.conformance.places import Application
from tests.conformance.torture import Torture
from venus.adapters.dialects.contract import Source
from venus.adapters.dialects.oracle.session.driver import parse_driver_url
from venus.adapters.dialects.oracle.source import OracleSource

_CATALOGUE = (
    "SELECT OBJECT_NAME, OBJECT_TYPE, STATUS FROM USER_OBJECTS ORDER BY 2, 1",
    "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, DATA_LENGTH, NULLABLE, HIDDEN_COLUMN FROM USER_TAB_COLS ORDER BY 1, 2",
    "SELECT TRIGGER_NAME, STATUS, TABLE_NAME, TRIGGERING_EVENT FROM USER_TRIGGERS ORDER BY 1",
    "SELECT TABLE_NAME, INDEX_NAME, UNIQUENESS FROM USER_INDEXES WHERE INDEX_TYPE <> 'LOB' ORDER BY 1, 2",
    "SELECT SEQUENCE_NAME FROM USER_SEQUENCES ORDER BY 1",
)


@dataclass(slots=True)
class OraclePlace:
    """An empty schema; the URL is that of its owner."""

    url: str
    dialect: str = "oracle"
    empty_is_null: bool = True
    concurrent_writers: bool = True
    captures_truncate: bool = True
    fires_on_cascade: bool = True
    types: Mapping[str, str] = field(
        default_factory=lambda: {"int": "NUMBER(9)", "text": "CLOB", "blob": "BLOB", "decimal": "NUMBER(10,2)"}
    )

    @property
    def namespace(self) -> str:
        return str(sqlalchemy.make_url(self.url).username).upper()

    def connect(self) -> Application:
        return OracleApplication(parse_driver_url(self.url)[0].connect())

    def open(self) -> Source:
        return OracleSource(*parse_driver_url(self.url))

    def dump(self) -> str:
        connection = parse_driver_url(self.url)[0].connect()
        try:
            with connection.cursor() as cursor:
                return "\n".join(str(row) for sql in _CATALOGUE for row in cursor.execute(sql).fetchall())
        finally:
            connection.close()

    def torture(self) -> tuple[Mapping[str, Torture], Sequence[str]]:
        return torture_oracle.COLUMNS, ()


@dataclass(slots=True)
class OracleApplication:
    """A session of the application."""

    connection: Any

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        if '""' in sql:
            pytest.skip("Oracle knows no such name")
        parts = quoting(sql).split("?") if values else [quoting(sql)]
        text = "".join(part + (f":{n}" if n < len(parts) else "") for n, part in enumerate(parts, 1))
        with self.connection.cursor() as cursor:
            cursor.execute(text, values)
            return list(cursor.fetchall()) if cursor.description else []

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()
