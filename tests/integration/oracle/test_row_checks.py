"""Findings of `venus check` about the rows and the database before a table is captured."""

from __future__ import annotations

from typing import Any

import pytest

from venus.adapters.dialects import rows
from venus.adapters.dialects.oracle.installation import row_checks
from venus.adapters.dialects.oracle.source import OracleSource
from venus.errors import Refused
from venus.model import Finding

pytestmark = pytest.mark.integration

NOTE = 'CREATE TABLE "NOTE" ("CODE" VARCHAR2(20) PRIMARY KEY, "V" VARCHAR2(2400), "BODY" CLOB)'
REFUSED = "bytes that US7ASCII does not define, and the server would replace them without an error"


def findings(source: OracleSource, where: str = "APP.NOTE") -> list[Finding]:
    return [f for f in source.installer.check(["*"], []) if f.where == where]


@pytest.fixture
def note(application: Any) -> None:
    application.execute(NOTE)
    application.execute("""INSERT INTO "NOTE" VALUES ('a', 'plain', 'text'), ('b', RPAD('x', 2400, 'x'), NULL)""")


@pytest.fixture
def ascii_database(application: Any) -> None:
    application.execute(
        "UPDATE DICTIONARY.NLS_DATABASE_PARAMETERS SET VALUE = 'US7ASCII' WHERE PARAMETER = 'NLS_CHARACTERSET'"
    )


@pytest.mark.usefixtures("note")
def test_the_character_sets_are_named(source: OracleSource) -> None:
    (found,) = findings(source, "character set")
    assert found.message == "AL32UTF8, of national texts AL16UTF16"


@pytest.mark.usefixtures("note", "ascii_database")
@pytest.mark.parametrize(
    ("values", "column"),
    [("'c', 'größe', 'x'", "V"), ("'c', 'x', 'größe'", "BODY"), ("'c', CONCAT(RPAD('x', 2399, 'x'), 'ß'), NULL", "V")],
)
def test_a_text_that_the_server_would_alter_is_refused_by_the_check(
    application: Any, source: OracleSource, values: str, column: str
) -> None:
    assert findings(source) == []
    application.execute(f'INSERT INTO "NOTE" VALUES ({values})')
    (found,) = findings(source)
    assert found.message == f"column {column}: 1 of 3 sampled rows have {REFUSED}"
    assert found.blocks
    with pytest.raises(Refused, match=f"column {column}"):
        source.installer.install(["*"], [])


@pytest.mark.usefixtures("note", "ascii_database")
def test_the_texts_of_keys_are_read_in_full(
    application: Any, source: OracleSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_checks, "_sample_checks", lambda *_: [])
    application.execute("""INSERT INTO "NOTE" VALUES ('zß', 'x', NULL)""")
    assert [(f.message, f.blocks) for f in findings(source)] == [(f"column CODE: 1 of 3 rows have {REFUSED}", True)]


@pytest.mark.usefixtures("note")
def test_in_a_unicode_database_every_text_is_carried(application: Any, source: OracleSource) -> None:
    application.execute("""INSERT INTO "NOTE" VALUES ('zß', 'größe', 'größe')""")
    assert findings(source) == []


@pytest.mark.usefixtures("note")
def test_rows_above_the_limit_are_counted(
    application: Any, source: OracleSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "ROW_BYTES_MAX", 1000)
    application.execute(
        """INSERT INTO "NOTE" VALUES ('c', NULL, RPAD('x', 1001, 'x')), ('d', NULL, RPAD('x', 1000, 'x'))"""
    )
    (found,) = source.installer.find_large_rows(["*"], [])
    assert found.message == "column BODY: 1 of 4 rows have more than the 0 MiB of a row, and such a row halts its table"
    assert not found.blocks


@pytest.mark.usefixtures("note")
def test_tables_written_by_direct_path_or_in_parallel_are_named(application: Any, source: OracleSource) -> None:
    application.execute(
        "INSERT INTO DICTIONARY.SQL_PLAN VALUES ('APP', 'NOTE', 'a', 'LOAD AS SELECT', 1),"
        " ('APP', 'NOTE', 'b', 'UPDATE', 3), ('APP', 'NOTE', 'c', 'UPDATE', 1),"
        " ('APP', 'ELSEWHERE', 'd', 'LOAD AS SELECT', 1)"
    )
    (found,) = findings(source)
    assert found.message.startswith("2 statements write it by direct path or in parallel: once it has triggers")
    assert not found.blocks
