"""Changes without a trigger and without a note are noticed by the numbers of a table's segments."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.support.oracle.standin import StandIn
from venus.adapters.dialects.oracle.dictionary import segments
from venus.adapters.dialects.oracle.dictionary.segments import Segments
from venus.adapters.dialects.oracle.session.connection import OracleSession
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration


@pytest.fixture
def item(application: Any, source: OracleSource) -> Follower:
    application.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(20))')
    application.execute("""INSERT INTO "ITEM" VALUES (1, 'a'), (2, 'b')""")
    application.execute("INSERT INTO DICTIONARY.SEGMENTS VALUES ('ITEM', 'P1', 101), ('ITEM', 'P2', 102)")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    source.capture.refresh_schemas()
    return follower


def state(source: OracleSource) -> tuple[str, str]:
    return next((t.state, t.reason) for t in source.registry.read_registered_tables() if t.schema.name == "ITEM")


def note(application: Any, event: str) -> None:
    application.execute(
        f"INSERT INTO VENUS_DDL (SEQ, EVENT, OBJ_OWNER, OBJ_NAME) VALUES (VENUS_SEQ.NEXTVAL, '{event}', 'APP', 'ITEM')"
    )


def test_a_truncate_without_a_note_marks_the_table(item: Follower, application: Any, source: OracleSource) -> None:
    application.execute('TRUNCATE TABLE "ITEM"')
    application.execute("INSERT INTO DICTIONARY.SEGMENTS VALUES ('ITEM', NULL, 2)")
    source.capture.refresh_schemas()
    now, reason = state(source)
    assert now == "RESYNC"
    assert reason.startswith("the table's segment was replaced: TRUNCATE")
    source.capture.restart_fill(2)
    item.drain()
    assert item.rows("ITEM") == {}
    source.capture.refresh_schemas()
    assert state(source) == ("ACTIVE", "")


def test_changes_of_a_table_before_its_capture_are_ignored(
    item: Follower, application: Any, source: OracleSource
) -> None:
    source.capture.refresh_schemas()
    number = item.table_id("ITEM")
    source.installer.release([number])
    source.installer.drop_logs({number: "gone"})
    application.execute('TRUNCATE TABLE "ITEM"')
    application.execute("INSERT INTO DICTIONARY.SEGMENTS VALUES ('ITEM', NULL, 2)")
    source.installer.install(["*"], [])
    source.capture.refresh_schemas()
    item.drain()
    source.capture.refresh_schemas()
    assert state(source) == ("ACTIVE", "")
    assert item.rows("ITEM") == {}


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "UPDATE DICTIONARY.SEGMENTS SET DATA_OBJECT_ID = 777 WHERE SUBOBJECT_NAME = 'P1'",
            "partition P1 was replaced",
        ),
        ("DELETE FROM DICTIONARY.SEGMENTS WHERE SUBOBJECT_NAME = 'P2'", "partition P2 is gone"),
    ],
)
def test_a_partition_that_is_exchanged_or_dropped_marks_the_table(
    sql: str, said: str, item: Follower, application: Any, source: OracleSource
) -> None:
    application.execute(sql)
    source.capture.refresh_schemas()
    assert state(source)[0] == "RESYNC"
    assert state(source)[1].startswith(said)


def test_a_new_partition_does_not_mark_the_table(item: Follower, application: Any, source: OracleSource) -> None:
    application.execute("INSERT INTO DICTIONARY.SEGMENTS VALUES ('ITEM', 'P3', 103)")
    source.capture.refresh_schemas()
    assert state(source) == ("ACTIVE", "")
    application.execute("UPDATE DICTIONARY.SEGMENTS SET DATA_OBJECT_ID = 777 WHERE SUBOBJECT_NAME = 'P3'")
    source.capture.refresh_schemas()
    assert state(source)[1].startswith("partition P3 was replaced")


@pytest.mark.parametrize("looks_first", [True, False])
def test_a_truncate_that_was_noted_is_followed(
    looks_first: bool, item: Follower, application: Any, source: OracleSource
) -> None:
    application.execute('TRUNCATE TABLE "ITEM"')
    note(application, "TRUNCATE")
    application.execute("UPDATE DICTIONARY.SEGMENTS SET DATA_OBJECT_ID = DATA_OBJECT_ID + 10")
    if looks_first:
        source.capture.refresh_schemas()
    item.drain()
    source.capture.refresh_schemas()
    assert item.rows("ITEM") == {}
    assert state(source) == ("ACTIVE", "")
    application.execute("UPDATE DICTIONARY.SEGMENTS SET DATA_OBJECT_ID = DATA_OBJECT_ID + 10")
    source.capture.refresh_schemas()
    assert state(source)[0] == "RESYNC"


@pytest.mark.parametrize("before_segments", [True, False])
def test_a_truncate_that_is_noted_during_a_comparison_is_followed(
    before_segments: bool, item: Follower, application: Any, source: OracleSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_segments(session: OracleSession, release: str) -> Segments:
        monkeypatch.undo()
        found = None if before_segments else segments.read_segments(session, release)
        application.execute('TRUNCATE TABLE "ITEM"')
        note(application, "TRUNCATE")
        application.execute("UPDATE DICTIONARY.SEGMENTS SET DATA_OBJECT_ID = DATA_OBJECT_ID + 10")
        return found or segments.read_segments(session, release)

    monkeypatch.setattr(segments, "read_segments", read_segments)
    source.capture.refresh_schemas()
    assert state(source) == ("ACTIVE", "")
    item.drain()
    source.capture.refresh_schemas()
    assert item.rows("ITEM") == {}
    assert state(source) == ("ACTIVE", "")


def test_a_table_that_is_dropped_during_a_comparison_is_gone(
    item: Follower, application: Any, source: OracleSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_segments(session: OracleSession, release: str) -> Segments:
        monkeypatch.undo()
        application.execute('DROP TABLE "ITEM"')
        application.execute("DELETE FROM DICTIONARY.SEGMENTS WHERE OBJECT_NAME = 'ITEM'")
        return segments.read_segments(session, release)

    monkeypatch.setattr(segments, "read_segments", read_segments)
    source.capture.refresh_schemas()
    source.capture.refresh_schemas()
    assert state(source)[0] == "RESYNC"
    assert state(source)[1].startswith("the table is gone")


def test_changes_of_a_paused_table_are_noticed_when_it_continues(
    item: Follower, application: Any, source: OracleSource
) -> None:
    source.registry.set_table_state(2, "PAUSED", "")
    application.execute("UPDATE DICTIONARY.SEGMENTS SET DATA_OBJECT_ID = 777")
    source.capture.refresh_schemas()
    assert state(source)[0] == "PAUSED"
    source.registry.set_table_state(2, "ACTIVE", "")
    source.capture.refresh_schemas()
    assert state(source)[0] == "RESYNC"


def disable_and_enable(application: Any, trigger: str) -> None:
    """Disable and enable a trigger as the dictionary shows it: only its time has changed."""
    application.execute(f"REPLACE INTO DICTIONARY.ALTERED_TRIGGERS VALUES ('{trigger}', NOW() + INTERVAL 1 HOUR)")


def test_a_trigger_that_was_disabled_for_a_moment_marks_the_table(
    item: Follower, application: Any, source: OracleSource
) -> None:
    disable_and_enable(application, "VENUS_U_00002")
    note(application, "ALTER")  # DDL of the table at the same time does not explain the trigger's change
    source.capture.refresh_schemas()
    now, reason = state(source)
    assert now == "RESYNC"
    assert reason.startswith("VENUS_U_00002 altered: disabled and enabled again")
    source.capture.restart_fill(2)
    item.drain()
    source.capture.refresh_schemas()
    assert state(source) == ("ACTIVE", "")


def test_a_trigger_that_was_disabled_before_a_new_fill_has_missed_nothing(
    item: Follower, application: Any, source: OracleSource
) -> None:
    source.capture.restart_fill(2)
    disable_and_enable(application, "VENUS_I_00002")
    source.capture.refresh_schemas()
    assert state(source) == ("ACTIVE", "")
    item.drain()
    source.capture.refresh_schemas()
    assert state(source) == ("ACTIVE", "")
    alter_again = "UPDATE DICTIONARY.ALTERED_TRIGGERS SET ALTERED = NOW() + INTERVAL 2 HOUR"
    application.execute(alter_again)
    source.capture.refresh_schemas()
    assert state(source)[0] == "RESYNC"


def test_a_truncate_does_not_explain_an_altered_trigger(item: Follower, application: Any, source: OracleSource) -> None:
    application.execute('TRUNCATE TABLE "ITEM"')
    note(application, "TRUNCATE")
    disable_and_enable(application, "VENUS_D_00002")
    item.drain()  # the cut forgets the segments, but not the triggers
    source.capture.refresh_schemas()
    assert state(source)[1].startswith("VENUS_D_00002 altered")


def test_an_older_installation_cannot_store_segments(item: Follower, application: Any, source: OracleSource) -> None:
    application.execute("DROP TABLE VENUS_SEGMENT")
    application.execute('TRUNCATE TABLE "ITEM"')
    note(application, "TRUNCATE")
    item.drain()
    assert state(source) == ("ACTIVE", "")
    made = [s.what for s in source.installer.install(["*"], []) if not s.exists]
    assert "table VENUS_SEGMENT" in made


def test_a_trigger_that_oracle_recompiles_has_missed_nothing(
    item: Follower, application: Any, source: OracleSource
) -> None:
    application.execute("INSERT INTO DICTIONARY.INVALID_TRIGGERS VALUES ('VENUS_U_00002')")
    source.capture.refresh_schemas()
    assert state(source) == ("ACTIVE", "")
    application.execute("DELETE FROM DICTIONARY.INVALID_TRIGGERS")
    disable_and_enable(application, "VENUS_U_00002")  # recompiled when it fired
    source.capture.refresh_schemas()
    assert state(source) == ("ACTIVE", "")
    application.execute("UPDATE DICTIONARY.ALTERED_TRIGGERS SET ALTERED = NOW() + INTERVAL 2 HOUR")
    source.capture.refresh_schemas()
    assert state(source)[1].startswith("VENUS_U_00002 altered")


def test_a_server_upgrade_that_recompiles_all_triggers_causes_no_new_fill(
    item: Follower, application: Any, source: OracleSource, standin: StandIn
) -> None:
    for letter in "IUD":
        disable_and_enable(application, f"VENUS_{letter}_00002")
    application.execute("UPDATE DICTIONARY.PRODUCT_COMPONENT_VERSION SET VERSION_FULL = '19.28.0.0.0'")
    try:
        with closing(OracleSource(standin)) as upgraded:
            upgraded.capture.refresh_schemas()
            assert state(upgraded) == ("ACTIVE", "")
            application.execute("UPDATE DICTIONARY.ALTERED_TRIGGERS SET ALTERED = NOW() + INTERVAL 2 HOUR")
            upgraded.capture.refresh_schemas()
            assert state(upgraded)[1].startswith("VENUS_D_00002, VENUS_I_00002, VENUS_U_00002 altered")
    finally:
        application.execute("UPDATE DICTIONARY.PRODUCT_COMPONENT_VERSION SET VERSION_FULL = '19.3.0.0.0'")
