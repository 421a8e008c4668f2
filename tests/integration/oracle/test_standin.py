"""The Oracle dialect's own statements on MariaDB in Oracle mode: generated triggers, cuts, local transaction."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.support.oracle.standin import StandIn, adapt
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower
from venus.errors import Fenced, SourceError
from venus.model import BatchNo, Epoch

pytestmark = pytest.mark.integration

ENROLL = """CREATE TABLE "ENROLL" ("STUDENT_ID" NUMBER(10) NOT NULL, "COURSE" VARCHAR2(20) NOT NULL,
    "GRADE" NUMBER(5,2), "SEEN" DATE, "ESSAY" CLOB, "SCAN" BLOB, PRIMARY KEY ("STUDENT_ID", "COURSE"))"""


@pytest.fixture
def enroll(application: Any, source: OracleSource) -> Follower:
    application.execute(ENROLL)
    application.execute("""INSERT INTO "ENROLL" VALUES (1, 'Math', 9.5, '2026-11-20 08:30:00', 'text', x'00ff')""")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    return follower


def test_existing_rows_are_filled_in_canonical_text(enroll: Follower) -> None:
    row = enroll.rows("ENROLL")["1", "Math"]
    assert row["GRADE"] == "9.50"
    assert row["SEEN"] == "2026-11-20 08:30:00"
    assert row["ESSAY"] == "text"
    assert row["SCAN"] == b"\x00\xff"


def test_the_triggers_run_as_generated(enroll: Follower, standin: StandIn) -> None:
    made = [
        s
        for s in standin.said
        if s.startswith("CREATE OR REPLACE NONEDITIONABLE TRIGGER VENUS_") and "DDL_TRG" not in s
    ]
    assert len(made) == 6
    for text in made:
        assert adapt(text) == text.replace("\nDISABLE\n", "\n").replace(" NONEDITIONABLE", "", 1)


def test_insert_update_delete_and_a_new_key(enroll: Follower, application: Any) -> None:
    application.execute("""INSERT INTO "ENROLL" ("STUDENT_ID", "COURSE") VALUES (2, 'Math'), (3, 'Art')""")
    application.execute("""UPDATE "ENROLL" SET "GRADE" = 7 WHERE "STUDENT_ID" = 2""")
    application.execute("""UPDATE "ENROLL" SET "COURSE" = 'Physics' WHERE "STUDENT_ID" = 1""")
    application.execute("""DELETE FROM "ENROLL" WHERE "STUDENT_ID" = 3""")
    enroll.drain()
    rows = enroll.rows("ENROLL")
    assert set(rows) == {("1", "Physics"), ("2", "Math")}
    assert rows["2", "Math"]["GRADE"] == "7.00"


def test_a_key_may_change_only_its_case(enroll: Follower, application: Any) -> None:
    application.execute("""UPDATE "ENROLL" SET "COURSE" = 'MATH'""")
    enroll.drain()
    assert set(enroll.rows("ENROLL")) == {("1", "MATH")}


def test_a_fill_continues_after_its_last_row(application: Any, source: OracleSource) -> None:
    application.execute(ENROLL)
    for student in range(1, 8):
        application.execute(
            """INSERT INTO "ENROLL" ("STUDENT_ID", "COURSE") VALUES (%s, 'a'), (%s, 'b')""", [student] * 2
        )
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain(fill_rows=3)
    assert len(follower.rows("ENROLL")) == 14


def test_a_late_commit_inside_the_range_is_not_lost(enroll: Follower, standin: StandIn, application: Any) -> None:
    late = standin.server.connect("APP", autocommit=False)
    late.cursor().execute("""INSERT INTO "ENROLL" ("STUDENT_ID", "COURSE") VALUES (10, 'late')""")
    application.execute("""INSERT INTO "ENROLL" ("STUDENT_ID", "COURSE") VALUES (11, 'soon')""")
    enroll.drain()
    assert ("10", "late") not in enroll.rows("ENROLL")
    late.commit()
    late.close()
    enroll.drain()
    assert {("10", "late"), ("11", "soon")} <= set(enroll.rows("ENROLL"))


def test_an_older_epoch_is_fenced_and_leaves_the_log(enroll: Follower, source: OracleSource, application: Any) -> None:
    application.execute("""DELETE FROM "ENROLL" """)
    cut = source.capture.open_cut([])
    assert cut is not None
    seen = enroll.read(cut, [], rows_max=100, bytes_max=10_000, fill_rows=100)
    OracleSource(source.database.writer._driver).registry.raise_epoch(Epoch(enroll.epoch + 1))
    with pytest.raises(Fenced):
        cut.commit(enroll.epoch, seen.batches, [], BatchNo(0))
    assert sum(waiting for waiting, _ in source.capture.read_backlog().values()) == 1
    assert source.registry.read_batches([seen.batches[0].batch_no]) == {}


def test_log_rows_that_another_session_removed_are_reported(
    enroll: Follower, source: OracleSource, application: Any
) -> None:
    application.execute("""DELETE FROM "ENROLL" """)
    cut = source.capture.open_cut([])
    assert cut is not None
    seen = enroll.read(cut, [], rows_max=100, bytes_max=10_000, fill_rows=100)
    application.execute("DELETE FROM VENUS_L_00002")
    with pytest.raises(SourceError, match="were deleted by another session"):
        cut.commit(enroll.epoch, seen.batches, [], BatchNo(0))
    assert source.registry.read_batches([seen.batches[0].batch_no]) == {}


def test_a_noted_truncate_empties_the_table(enroll: Follower, application: Any) -> None:
    application.execute('TRUNCATE TABLE "ENROLL"')
    # the note that the DDL trigger would write, which MariaDB does not have
    application.execute("INSERT INTO VENUS_DDL VALUES (VENUS_SEQ.NEXTVAL, 'TRUNCATE', 'APP', 'ENROLL', NULL)")
    application.execute("""INSERT INTO "ENROLL" ("STUDENT_ID", "COURSE") VALUES (5, 'new')""")
    enroll.drain()
    assert set(enroll.rows("ENROLL")) == {("5", "new")}
    application.execute("SELECT COUNT(*) FROM VENUS_DDL")
    assert application.fetchall() == ((0,),)


def test_a_new_column_is_a_new_version_and_is_filled(enroll: Follower, application: Any) -> None:
    application.execute("""ALTER TABLE "ENROLL" ADD "ROOM" VARCHAR2(10) DEFAULT 'A1'""")
    application.execute("INSERT INTO VENUS_DDL VALUES (VENUS_SEQ.NEXTVAL, 'ALTER', 'APP', 'ENROLL', NULL)")
    assert enroll.cut() is None  # finds the new version, and no changed value
    enroll.drain()
    assert enroll.rows("ENROLL")["1", "Math"]["ROOM"] == "A1"


def test_a_dropped_trigger_marks_its_table_and_install_restores_it(
    enroll: Follower, source: OracleSource, application: Any
) -> None:
    application.execute("DROP TRIGGER VENUS_U_00002")
    source.capture.refresh_schemas()
    state = {t.schema.name: t for t in source.registry.read_registered_tables()}["ENROLL"]
    assert state.state == "RESYNC"
    assert "VENUS_U_00002" in state.reason
    done = source.installer.install(["*"], [])
    assert [s.what for s in done if not s.exists and s.what.startswith("trigger")] == ["trigger VENUS_U_00002"]
    source.capture.restart_fill(state.schema.table_id)
    assert {t.schema.name: t.state for t in source.registry.read_registered_tables()}["ENROLL"] == "ACTIVE"


def test_a_trigger_that_does_not_compile_is_removed(application: Any, source: OracleSource) -> None:
    application.execute(ENROLL)
    application.execute("INSERT INTO DICTIONARY.INVALID_TRIGGERS VALUES ('VENUS_U_00002')")
    application.execute(
        "INSERT INTO DICTIONARY.USER_ERRORS VALUES ('VENUS_U_00002', 3, 5, 'PLS-00201: no such thing', 1)"
    )
    with pytest.raises(SourceError, match=r"VENUS_U_00002 does not compile.*PLS-00201"):
        source.installer.install(["*"], [])
    application.execute("SELECT trigger_name FROM information_schema.triggers WHERE event_object_table = 'ENROLL'")
    assert application.fetchall() == ()
    left = {t.schema.name: t for t in source.registry.read_registered_tables()}["ENROLL"]
    assert left.state == "PAUSED"
    assert "VENUS_U_00002 does not compile" in left.reason
    application.execute("DELETE FROM DICTIONARY.INVALID_TRIGGERS")
    source.installer.install(["*"], [])
    assert {t.schema.name: (t.state, t.reason) for t in source.registry.read_registered_tables()}["ENROLL"] == (
        "ACTIVE",
        "",
    )


def test_triggers_that_cannot_be_recreated_do_not_fail_the_application(
    enroll: Follower, source: OracleSource, application: Any
) -> None:
    application.execute("DROP TRIGGER VENUS_U_00002")
    application.execute("INSERT INTO DICTIONARY.INVALID_TRIGGERS VALUES ('VENUS_U_00002')")
    with pytest.raises(SourceError, match="VENUS_U_00002 does not compile"):
        source.installer.install(["*"], [])
    state = {t.schema.name: t for t in source.registry.read_registered_tables()}["ENROLL"]
    assert state.state == "RESYNC"
    assert "VENUS_U_00002 does not compile" in state.reason
    application.execute("""UPDATE "ENROLL" SET "GRADE" = 1""")
    application.execute("SELECT trigger_name FROM information_schema.triggers WHERE trigger_name = 'VENUS_U_00002'")
    assert application.fetchall() == ()


def test_uninstall_leaves_nothing(enroll: Follower, source: OracleSource, application: Any) -> None:
    source.installer.uninstall()
    application.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'APP' AND table_name LIKE 'VENUS%'"
    )
    assert application.fetchall() == ()
    application.execute("SELECT trigger_name FROM information_schema.triggers")
    assert application.fetchall() == ()


def test_a_check_finds_what_no_target_can_hold(application: Any, source: OracleSource) -> None:
    application.execute(ENROLL)
    application.execute(
        """INSERT INTO "ENROLL" ("STUDENT_ID", "COURSE", "ESSAY") VALUES (1, 'a', CONCAT('x', CHR(0)))"""
    )
    application.execute("""INSERT INTO "ENROLL" ("STUDENT_ID", "COURSE", "SEEN") VALUES (2, 'b', '0000-01-01')""")
    found = {f.message: f for f in source.installer.check(["*"], []) if f.where == "APP.ENROLL"}
    assert [m.partition(" sampled rows")[0] for m in found] == ["column SEEN: 1 of 2", "column ESSAY: 1 of 2"]
    assert not any(f.blocks for f in found.values())


def test_a_check_names_the_grants_that_would_show_blocking_sessions(application: Any, source: OracleSource) -> None:
    (found,) = [f for f in source.installer.check(["*"], []) if "open transaction" in f.message]
    assert 'GRANT SELECT ON GV_$TRANSACTION TO "APP";' in found.remedy
    assert not found.blocks


def test_blocking_sessions_are_named_if_visible(enroll: Follower, source: OracleSource, application: Any) -> None:
    """The test makes both views as an Oracle has them: a transaction has been open for 90 seconds."""
    views = 'GRANT SELECT ON GV_$LOCKED_OBJECT TO "APP"; GRANT SELECT ON GV_$TRANSACTION TO "APP";'
    assert source.capture.describe_blockers() == f"not shown without {views}"
    columns = "'VENUS_L_00002' AS NAME, 90 AS AGE, 57 AS SESSION_ID"
    application.execute(f"CREATE VIEW DICTIONARY.BLOCKERS AS SELECT {columns}")
    try:
        assert source.capture.read_backlog()[2] == (0, 90)
        opened = "transaction open since 2026-11-25 15:00:00, the server's time"
        assert source.capture.describe_blockers() == f"session 57 (user APP, of the system joe, instance 1, {opened})"
    finally:
        application.execute("DROP VIEW DICTIONARY.BLOCKERS")
    assert "not shown" in source.capture.describe_blockers()


def test_a_column_is_carried_with_the_requested_type(application: Any, standin: StandIn) -> None:
    application.execute('CREATE TABLE "FLAGS" ("ID" NUMBER(9) PRIMARY KEY, "ON" NUMBER(1), "DAY" DATE, "U" RAW(16))')
    application.execute("""INSERT INTO "FLAGS" VALUES (1, 1, '2026-11-21', X'000102030405060708090a0b0c0d0e0f')""")
    asked = {"FLAGS.ON": "boolean", "APP.FLAGS.DAY": "date", "flags.u": "uuid"}
    with closing(OracleSource(standin, OracleOptions(type_map=asked))) as source:
        source.installer.install(["*"], [])
        follower = Follower(source)
        follower.drain()
        row = follower.rows("FLAGS")[("1",)]
        assert row == {"ID": "1", "ON": "t", "DAY": "2026-11-21", "U": "00010203-0405-0607-0809-0a0b0c0d0e0f"}
        assert source.capture.refresh_schemas() == []
    with closing(OracleSource(standin, OracleOptions(type_map={"FLAGS.OFF": "boolean"}))) as source:
        (found,) = [f for f in source.installer.check(["*"], []) if f.blocks]
        assert found.message == "FLAGS.OFF names no column of a captured table"


def test_a_log_of_an_older_version_is_named_and_widened(
    enroll: Follower, source: OracleSource, application: Any
) -> None:
    application.execute("ALTER TABLE VENUS_L_00002 MODIFY K1 NUMBER(10) NOT NULL, MODIFY K2 VARCHAR2(20) NOT NULL")
    application.execute("""INSERT INTO "ENROLL" ("STUDENT_ID", "COURSE") VALUES (5, 'waits')""")
    found = [f.message for f in source.installer.check(["*"], []) if "older version" in f.message]
    assert [m.split(" is of ")[0] for m in found] == ["column K1 of its log", "column K2 of its log"]
    made = [s.what for s in source.installer.install(["*"], []) if not s.exists]
    assert made == ["width of VENUS_L_00002.K1", "width of VENUS_L_00002.K2"]
    application.execute('ALTER TABLE "ENROLL" MODIFY "COURSE" VARCHAR2(60) NOT NULL')
    application.execute("""INSERT INTO "ENROLL" ("STUDENT_ID", "COURSE") VALUES (6, REPEAT('x', 60))""")
    enroll.drain()
    assert {("5", "waits"), ("6", "x" * 60)} <= set(enroll.rows("ENROLL"))
    assert {t.state for t in source.registry.read_registered_tables()} == {"ACTIVE"}


def test_a_key_of_another_form_disables_its_triggers(enroll: Follower, source: OracleSource, application: Any) -> None:
    application.execute('ALTER TABLE "ENROLL" MODIFY "STUDENT_ID" NUMBER(12,2) NOT NULL')
    source.capture.refresh_schemas()
    state = {t.schema.name: t for t in source.registry.read_registered_tables()}["ENROLL"]
    assert state.state == "RESYNC"
    assert "key column STUDENT_ID has another form now" in state.reason
    application.execute("SELECT trigger_name FROM information_schema.triggers WHERE event_object_table = 'ENROLL'")
    assert application.fetchall() == ()
