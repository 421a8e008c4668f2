"""Cases that only a real Oracle database can show: `venus prove`, and `make test-oracle`."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from venus.adapters.dialects.oracle.proving import OracleApplication, OracleScratch
from venus.adapters.dialects.oracle.session.driver import parse_driver_url
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower

#: The error of an edition without this option, or of a server on which it is not enabled.
NO_OPTION = "ORA-00439"
#: Oracle cannot flash back to a moment within 3 s after the table's last DDL (ORA-01466), and does not show this
#: beforehand.
DDL_DISTANCE_S = 6.0
ITEM = 'CREATE TABLE "ITEM" ("ID" NUMBER(10) NOT NULL PRIMARY KEY, "V" VARCHAR2(40))'


def run(application: Any, *statements: str) -> None:
    """Execute statements in one transaction of the application."""
    with application.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    application.commit()


@pytest.fixture
def application(app: OracleApplication) -> Any:
    """Return the driver's connection in the session of the application."""
    return app.connection


@pytest.fixture
def owner_url(place: OracleScratch) -> str:
    """Return the URL of the scratch schema's owner."""
    return place.url


@pytest.fixture
def item(application: Any, source: OracleSource) -> Follower:
    """Return a follower that has captured the table ITEM with its one row."""
    run(application, ITEM, "INSERT INTO \"ITEM\" VALUES (1, 'one')")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower


def values(follower: Follower) -> dict[str, Any]:
    """Return the captured value of V of each row, by key."""
    return {str(key[0]): row["V"] for key, row in follower.rows("ITEM").items()}


def test_changes_are_captured(item: Follower, application: Any) -> None:
    run(application, "INSERT INTO \"ITEM\" VALUES (2, 'two')", 'UPDATE "ITEM" SET "ID" = 3 WHERE "ID" = 1')
    item.drain()
    assert values(item) == {"2": "two", "3": "one"}


def test_a_late_commit_is_not_lost(item: Follower, application: Any, owner_url: str) -> None:
    late = parse_driver_url(owner_url)[0].connect()
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


def test_the_fence_waits_for_every_earlier_writer(application: Any, owner_url: str) -> None:
    run(application, ITEM)
    application.cursor().execute("INSERT INTO \"ITEM\" VALUES (1, 'open')")
    source = OracleSource(*parse_driver_url(owner_url))
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
    """Oracle does not use the direct path for a table with triggers (INSERT, "Restrictions on direct-path INSERT")."""
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
    """Small LOBs travel with their row, large ones in pieces that split no character; an empty LOB is not NULL."""
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


def test_numbers_of_two_instances_caches_do_no_harm(application: Any, owner_url: str) -> None:
    """As on a RAC, a number drawn from one cache may be lower than a committed number from another cache."""
    source = OracleSource(*parse_driver_url(f"{owner_url}&venus_rac=yes"))
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


def test_the_papers_own_variant(application: Any, owner_url: str) -> None:
    """The application marks a deleted row in a column ISDELETED; a DELETE is refused."""
    driver, options = parse_driver_url(owner_url)
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


def state_of(source: OracleSource, name: str = "ITEM") -> str:
    """Return the state of a table after a comparison with the dictionary."""
    source.capture.refresh_schemas()
    return next(t.state for t in source.registry.read_registered_tables() if t.schema.name == name)


def test_a_rename_is_noted(item: Follower, application: Any, source: OracleSource) -> None:
    run(application, 'ALTER TABLE "ITEM" RENAME TO "THING"')
    item.drain()
    assert state_of(source) == "RESYNC"


def test_the_ddl_trigger_records_the_statement(item: Follower, application: Any) -> None:
    run(application, 'ALTER TABLE "ITEM" ADD ("W" NUMBER(3))')
    with application.cursor() as cursor:
        rows = cursor.execute("SELECT EVENT, OBJ_NAME, SQL_TEXT FROM VENUS_DDL").fetchall()
    application.rollback()
    assert [(event, name) for event, name, _ in rows] == [("ALTER", "ITEM")]
    assert 'ADD ("W" NUMBER(3))' in rows[0][2]


def test_a_trigger_that_is_disabled_and_enabled_again_marks_its_table(
    item: Follower, application: Any, source: OracleSource
) -> None:
    assert state_of(source) == "ACTIVE"
    run(application, 'ALTER TABLE "ITEM" DISABLE ALL TRIGGERS', "INSERT INTO \"ITEM\" VALUES (7, 'unseen')")
    run(application, 'ALTER TABLE "ITEM" ENABLE ALL TRIGGERS')
    item.drain()
    assert state_of(source) == "RESYNC"


def test_changes_are_captured_after_a_trigger_was_compiled_again(item: Follower, application: Any) -> None:
    number = item.table_id("ITEM")
    run(application, *(f"ALTER TRIGGER VENUS_{letter}_{number:05} COMPILE" for letter in "IUD"))
    run(application, "INSERT INTO \"ITEM\" VALUES (8, 'seen')")
    item.drain()
    assert values(item)["8"] == "seen"


def test_a_dropped_table_in_the_recycle_bin_is_no_table_of_the_application(
    item: Follower, application: Any, source: OracleSource
) -> None:
    run(application, 'CREATE TABLE "GONE" ("ID" NUMBER(9) PRIMARY KEY)', 'DROP TABLE "GONE"')
    assert [name for name in source.dictionary.read_table_names() if "BIN$" in name] == []
    assert source.dictionary.find_uncaptured_tables(["*"], []) == []


def test_a_dropped_table_that_flashback_returns_is_marked(
    item: Follower, application: Any, source: OracleSource
) -> None:
    run(application, 'DROP TABLE "ITEM"')
    assert state_of(source) == "RESYNC"
    run(application, 'FLASHBACK TABLE "ITEM" TO BEFORE DROP')
    assert state_of(source) == "RESYNC"


@pytest.fixture
def scn_before_change(item: Follower, application: Any) -> str:
    """Change the row of the table; return the SCN before that."""
    run(application, 'ALTER TABLE "ITEM" ENABLE ROW MOVEMENT')
    item.drain()
    time.sleep(DDL_DISTANCE_S)
    run(application, "INSERT INTO \"ITEM\" VALUES (50, 'before')")
    with application.cursor() as cursor:
        ((scn,),) = cursor.execute('SELECT MAX(ORA_ROWSCN) FROM "ITEM"').fetchall()
    run(application, 'UPDATE "ITEM" SET "V" = \'later\' WHERE "ID" = 1')
    item.drain()
    assert values(item)["1"] == "later"
    return str(scn)


def test_a_flashback_of_rows_fires_no_trigger_and_a_new_fill_finds_it(
    item: Follower, application: Any, source: OracleSource, scn_before_change: str
) -> None:
    run(application, f'FLASHBACK TABLE "ITEM" TO SCN {scn_before_change}')
    item.drain()
    source.capture.restart_fill(item.table_id("ITEM"))
    item.drain()
    assert values(item)["1"] == "one"


def test_a_flashback_of_rows_with_triggers_is_captured(
    item: Follower, application: Any, scn_before_change: str
) -> None:
    run(application, f'FLASHBACK TABLE "ITEM" TO SCN {scn_before_change} ENABLE TRIGGERS')
    item.drain()
    assert values(item)["1"] == "one"


def test_a_table_with_an_exchanged_partition_is_compared(
    application: Any, owner_url: str, source: OracleSource
) -> None:
    parts = 'PARTITION BY RANGE ("ID") (PARTITION P1 VALUES LESS THAN (100), PARTITION P2 VALUES LESS THAN (MAXVALUE))'
    try:
        run(application, f"{ITEM} {parts}")
    except parse_driver_url(owner_url)[0].error as error:
        if NO_OPTION in str(error):
            pytest.skip("the server has no partitioning")
        raise
    run(application, ITEM.replace('"ITEM"', '"BESIDE"'), "INSERT INTO \"BESIDE\" VALUES (2, 'exchanged')")
    source.installer.install(["ITEM"], [])
    follower = Follower(source)
    follower.drain()
    assert state_of(source) == "ACTIVE"
    run(application, 'ALTER TABLE "ITEM" EXCHANGE PARTITION P1 WITH TABLE "BESIDE"')
    assert state_of(source) == "ACTIVE"
    (table,) = [t for t in source.registry.read_registered_tables() if t.schema.name == "ITEM"]
    assert table.is_compared
    follower.drain()  # without a broker the table is read again
    assert values(follower) == {"2": "exchanged"}


def test_rows_that_move_keep_their_table_active(item: Follower, application: Any, source: OracleSource) -> None:
    run(application, 'ALTER TABLE "ITEM" ENABLE ROW MOVEMENT', 'ALTER TABLE "ITEM" SHRINK SPACE')
    run(application, "INSERT INTO \"ITEM\" VALUES (9, 'seen')")
    item.drain()
    assert values(item)["9"] == "seen"
    assert state_of(source) == "ACTIVE"


def test_uninstall_leaves_nothing(item: Follower, source: OracleSource, application: Any) -> None:
    source.installer.uninstall()
    with application.cursor() as cursor:
        cursor.execute("SELECT OBJECT_NAME FROM USER_OBJECTS WHERE OBJECT_NAME LIKE 'VENUS%'")
        assert cursor.fetchall() == []
