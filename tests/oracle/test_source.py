"""The Oracle source on a real Oracle: what no stand-in can show. Run by `make test-oracle` where there is Docker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.support.follower import Follower
from venus.adapters.dialects.oracle.connection import driver_of
from venus.adapters.dialects.oracle.source import OracleSource

ITEM = 'CREATE TABLE "ITEM" ("ID" NUMBER(10) NOT NULL PRIMARY KEY, "V" VARCHAR2(40))'
#: Column type -> SQL of a value -> its canonical text.
TORTURE = (
    ("NUMBER", "1e-30", "0.000000000000000000000000000001"),
    ("NUMBER(38)", "12345678901234567890123456789012345678", "12345678901234567890123456789012345678"),
    ("NUMBER(5,-2)", "12345", "12300"),
    ("NUMBER(10,2)", "-0.5", "-0.50"),
    ("BINARY_DOUBLE", "BINARY_DOUBLE_NAN", "NaN"),
    ("BINARY_FLOAT", "0.1f", "0.1"),
    ("CHAR(5)", "'ab'", "ab   "),
    ("NVARCHAR2(10)", "N'\u00fc\u20ac'", "\u00fc\u20ac"),
    ("VARCHAR2(10)", "''", None),
    ("DATE", "TO_DATE('-0044-03-15 12:00:00', 'SYYYY-MM-DD HH24:MI:SS')", "0044-03-15 12:00:00 BC"),
    ("TIMESTAMP(9)", "TIMESTAMP '2026-11-20 08:30:00.123456789'", "2026-11-20 08:30:00.123456"),
    ("TIMESTAMP(0)", "TIMESTAMP '2026-11-20 08:30:00'", "2026-11-20 08:30:00"),
    ("TIMESTAMP(6) WITH TIME ZONE", "TIMESTAMP '2026-11-20 08:30:00 +02:00'", "2026-11-20 06:30:00.000000+00"),
    ("TIMESTAMP(6) WITH LOCAL TIME ZONE", "TIMESTAMP '2026-11-20 08:30:00 +02:00'", "2026-11-20 06:30:00.000000+00"),
    ("INTERVAL YEAR TO MONTH", "INTERVAL '2-3' YEAR TO MONTH", "2 years 3 mons"),
    ("INTERVAL DAY TO SECOND", "INTERVAL '-1 02:03:04' DAY TO SECOND", "-1 days -02:03:04"),
    ("RAW(4)", "HEXTORAW('00FF')", b"\x00\xff"),
    ("CLOB", "TO_CLOB('text')", "text"),
    ("BLOB", "HEXTORAW('00FF')", b"\x00\xff"),
    ("XMLTYPE", "XMLTYPE('<a/>')", "<a/>"),
)


def run(application: Any, *statements: str) -> None:
    with application.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    application.commit()


@pytest.fixture
def item(application: Any, source: OracleSource) -> Follower:
    run(application, ITEM, "INSERT INTO \"ITEM\" VALUES (1, 'one')")
    source.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower


def values(follower: Follower) -> dict[str, Any]:
    return {str(key[0]): row["V"] for key, row in follower.rows("ITEM").items()}


def test_changes_are_captured(item: Follower, application: Any) -> None:
    run(application, "INSERT INTO \"ITEM\" VALUES (2, 'two')", 'UPDATE "ITEM" SET "ID" = 3 WHERE "ID" = 1')
    item.drain()
    assert values(item) == {"2": "two", "3": "one"}


def test_a_late_commit_is_not_lost(item: Follower, application: Any, schema: str) -> None:
    late = driver_of(schema)[0].connect()
    late.cursor().execute("INSERT INTO \"ITEM\" VALUES (10, 'late')")
    run(application, "INSERT INTO \"ITEM\" VALUES (11, 'soon')")
    item.drain()
    late.commit()
    late.close()
    item.drain()
    assert {"10", "11"} <= set(values(item))


def test_truncate_is_seen(item: Follower, application: Any) -> None:
    run(application, 'TRUNCATE TABLE "ITEM"', "INSERT INTO \"ITEM\" VALUES (5, 'new')")
    item.drain()
    assert values(item) == {"5": "new"}


def test_a_new_column_is_followed(item: Follower, application: Any) -> None:
    run(application, 'ALTER TABLE "ITEM" ADD ("W" VARCHAR2(5) DEFAULT \'x\')')
    item.cut()
    item.drain()
    assert [row["W"] for row in item.rows("ITEM").values()] == ["x"]


def test_the_fence_waits_for_whoever_wrote_before(application: Any, schema: str) -> None:
    run(application, ITEM)
    application.cursor().execute("INSERT INTO \"ITEM\" VALUES (1, 'open')")
    source = OracleSource(*driver_of(schema))
    installing = threading.Thread(target=source.install, args=(["*"], []))
    installing.start()
    installing.join(5)
    assert installing.is_alive()
    application.commit()
    installing.join(120)
    assert not installing.is_alive()
    follower = Follower(source)
    follower.drain()
    assert values(follower) == {"1": "open"}
    source.close()


def test_every_type_arrives_as_its_canonical_text(application: Any, source: OracleSource) -> None:
    columns = ", ".join(f'"C{n}" {kind}' for n, (kind, _, _) in enumerate(TORTURE))
    literals = ", ".join(value for _, value, _ in TORTURE)
    run(
        application,
        f'CREATE TABLE "T" ("ID" NUMBER(4) PRIMARY KEY, {columns})',
        f'INSERT INTO "T" VALUES (1, {literals})',
    )
    source.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    row = follower.rows("T")[("1",)]
    found = {kind: row[f"C{n}"] for n, (kind, _, _) in enumerate(TORTURE)}
    assert found == {kind: text for kind, _, text in TORTURE}


def test_uninstall_leaves_nothing(item: Follower, source: OracleSource, application: Any) -> None:
    source.uninstall()
    with application.cursor() as cursor:
        cursor.execute("SELECT OBJECT_NAME FROM USER_OBJECTS WHERE OBJECT_NAME LIKE 'VENUS%'")
        assert cursor.fetchall() == []
