"""The Oracle source on a real Oracle: what no stand-in can show. Run by `make test-oracle` where there is Docker."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.support.databases.follower import Follower
from venus.adapters.dialects.oracle.session.driver import parse_driver_url
from venus.adapters.dialects.oracle.source import OracleSource

ITEM = 'CREATE TABLE "ITEM" ("ID" NUMBER(10) NOT NULL PRIMARY KEY, "V" VARCHAR2(40))'


def run(application: Any, *statements: str) -> None:
    with application.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    application.commit()


@pytest.fixture
def item(application: Any, source: OracleSource) -> Follower:
    run(application, ITEM, "INSERT INTO \"ITEM\" VALUES (1, 'one')")
    source.installer.install(["*"], [])
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
    late = parse_driver_url(schema)[0].connect()
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
    source = OracleSource(*parse_driver_url(schema))
    installing = threading.Thread(target=source.installer.install, args=(["*"], []))
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


def test_a_direct_path_insert_falls_back_and_is_captured(item: Follower, application: Any) -> None:
    """Oracle gives up the direct path for a table with triggers (INSERT, "Restrictions on direct-path INSERT")."""
    run(application, "INSERT /*+ APPEND */ INTO \"ITEM\" SELECT LEVEL + 100, 'bulk' FROM DUAL CONNECT BY LEVEL <= 50")
    item.drain()
    assert sum(value == "bulk" for value in values(item).values()) == 50


def test_a_write_through_a_locator_fires_no_trigger_and_a_new_fill_finds_it(
    application: Any, source: OracleSource
) -> None:
    run(
        application,
        'CREATE TABLE "DOC" ("ID" NUMBER(9) PRIMARY KEY, "BODY" CLOB)',
        "INSERT INTO \"DOC\" VALUES (1, 'a')",
    )
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    run(
        application,
        """DECLARE L CLOB;
           BEGIN SELECT "BODY" INTO L FROM "DOC" WHERE "ID" = 1 FOR UPDATE; DBMS_LOB.WRITEAPPEND(L, 1, 'b'); END;""",
    )
    assert follower.cut() is None
    assert follower.rows("DOC")[("1",)]["BODY"] == "a"
    source.capture.restart_fill(follower.table_id("DOC"))
    follower.drain()
    assert follower.rows("DOC")[("1",)]["BODY"] == "ab"


def test_a_lob_that_is_written_after_its_insert_is_read_as_it_is_in_the_end(
    application: Any, source: OracleSource
) -> None:
    run(application, 'CREATE TABLE "DOC" ("ID" NUMBER(9) PRIMARY KEY, "BODY" CLOB)')
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    run(
        application,
        """DECLARE L CLOB;
           BEGIN
             INSERT INTO "DOC" VALUES (1, EMPTY_CLOB()) RETURNING "BODY" INTO L;
             FOR N IN 1 .. 100 LOOP DBMS_LOB.WRITEAPPEND(L, 1000, RPAD('x', 1000, 'x')); END LOOP;
           END;""",
    )
    follower.drain()
    assert follower.rows("DOC")[("1",)]["BODY"] == "x" * 100_000


def test_lobs_of_every_size_travel_whole(application: Any, source: OracleSource) -> None:
    """Small ones with their row, large ones in pieces, none of which splits a character; an empty one is not NULL."""
    oracledb = pytest.importorskip("oracledb")
    run(application, 'CREATE TABLE "DOC" ("ID" NUMBER(10) PRIMARY KEY, "C" CLOB, "N" NCLOB, "B" BLOB)')
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    text, body = "x" + "🙂é" * 800_000, bytes(range(256)) * 12_000
    with application.cursor() as cursor:
        cursor.setinputsizes(None, oracledb.DB_TYPE_CLOB, oracledb.DB_TYPE_NCLOB, oracledb.DB_TYPE_BLOB)
        cursor.execute('INSERT INTO "DOC" VALUES (:1, :2, :3, :4)', [1, text, text, body])
        cursor.execute('INSERT INTO "DOC" VALUES (:1, :2, :3, :4)', [2, "small 🙂", "small", b"\x00"])
    run(
        application,
        'INSERT INTO "DOC" VALUES (3, EMPTY_CLOB(), EMPTY_CLOB(), EMPTY_BLOB())',
        'INSERT INTO "DOC" ("ID") VALUES (4)',
    )
    follower.drain()
    assert {str(key[0]): (row["C"], row["N"], row["B"]) for key, row in follower.rows("DOC").items()} == {
        "1": (text, text, body),
        "2": ("small 🙂", "small", b"\x00"),
        "3": ("", "", b""),
        "4": (None, None, None),
    }


def test_numbers_of_two_instances_caches_do_no_harm(application: Any, schema: str) -> None:
    """As on a RAC: what is drawn from one cache is lower than what another has given out and committed already."""
    source = OracleSource(*parse_driver_url(f"{schema}&venus_rac=yes"))
    run(application, ITEM)
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    run(application, "INSERT INTO \"ITEM\" VALUES (1, 'low')")
    run(application, "ALTER SEQUENCE VENUS_SEQ INCREMENT BY 100000", "INSERT INTO \"ITEM\" VALUES (2, 'high')")
    follower.drain()
    run(application, "ALTER SEQUENCE VENUS_SEQ INCREMENT BY -90000", "INSERT INTO \"ITEM\" VALUES (3, 'lower')")
    follower.drain()
    assert values(follower) == {"1": "low", "2": "high", "3": "lower"}
    source.close()


def test_the_papers_own_variant(application: Any, schema: str) -> None:
    driver, options = parse_driver_url(schema)
    source = OracleSource(driver, replace(options, inline=True))
    run(application, ITEM, "INSERT INTO \"ITEM\" VALUES (1, 'one')")
    source.installer.install(["*"], [])
    follower = Follower(source)
    run(application, "INSERT INTO \"ITEM\" VALUES (2, 'two')", 'UPDATE "ITEM" SET ISDELETED = 1 WHERE "ID" = 1')
    follower.drain()
    assert {row["ID"]: row["V"] for row in follower.rows("ITEM").values()} == {"2": "two"}
    with pytest.raises(driver.error, match="ORA-20100"):
        run(application, 'DELETE FROM "ITEM"')
    application.rollback()
    source.installer.uninstall()
    source.close()


def test_drop_and_rename_are_noted(item: Follower, application: Any, source: OracleSource) -> None:
    run(application, 'ALTER TABLE "ITEM" RENAME TO "THING"')
    item.drain()
    source.capture.refresh_schemas()
    (state,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "ITEM"]
    assert state.state == "RESYNC"


def test_uninstall_leaves_nothing(item: Follower, source: OracleSource, application: Any) -> None:
    source.installer.uninstall()
    with application.cursor() as cursor:
        cursor.execute("SELECT OBJECT_NAME FROM USER_OBJECTS WHERE OBJECT_NAME LIKE 'VENUS%'")
        assert cursor.fetchall() == []
