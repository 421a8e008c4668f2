"""Objects of VENUS are those that its installation recorded: an object's name alone proves nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.support.oracle.standin import StandIn
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower
from venus.errors import Refused

pytestmark = pytest.mark.integration


def tables(application: Any) -> set[str]:
    application.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'APP'")
    return {name for (name,) in application.fetchall()}


def make(application: Any, *names: str) -> None:
    for name in names:
        application.execute(f'CREATE TABLE "{name}" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "V" VARCHAR2(20))')
        application.execute(f"""INSERT INTO "{name}" VALUES (1, 'mine')""")


def test_tables_of_the_application_with_names_like_venus_tables_are_captured(
    application: Any, source: OracleSource
) -> None:
    make(application, "VENUS_ORDERS", "VENUS_L_00002", "VENUS_L_HISTORY")
    assert {s.name for s in source.dictionary.read_tables(["*"], [])} == {
        "VENUS_ORDERS",
        "VENUS_L_00002",
        "VENUS_L_HISTORY",
    }
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    application.execute("""UPDATE "VENUS_L_00002" SET "V" = 'new'""")
    follower.drain()
    assert follower.rows("VENUS_ORDERS")[("1",)]["V"] == "mine"
    assert follower.rows("VENUS_L_00002")[("1",)]["V"] == "new"


def test_uninstall_leaves_the_applications_tables_however_they_are_named(
    application: Any, source: OracleSource
) -> None:
    before = {"VENUS_ORDERS", "VENUS_L_00002", "VENUS_L_HISTORY", "VENUS_TYPE_MAP", "VENUS_POLLED"}
    make(application, *before)
    source.installer.install(["*"], [])
    source.installer.uninstall()
    assert tables(application) == before
    application.execute('SELECT COUNT(*) FROM "VENUS_L_00002"')
    assert application.fetchall() == ((1,),)


def test_uninstall_without_an_installation_removes_nothing(application: Any, source: OracleSource) -> None:
    make(application, "VENUS_BATCH", "VENUS_L_00001")
    assert source.installer.uninstall() == []
    assert tables(application) == {"VENUS_BATCH", "VENUS_L_00001"}


@pytest.mark.parametrize("taken", ["VENUS_BATCH", "VENUS_LOG", "VENUS_OWNED", "VENUS_CAPTURED_TABLE"])
def test_a_name_that_the_application_has_taken_is_refused(application: Any, source: OracleSource, taken: str) -> None:
    make(application, "ORDERS", taken)
    with pytest.raises(Refused, match=rf"{taken} exists, and VENUS's installation") as refused:
        source.installer.install(["*"], [])
    assert "schema of its own" in refused.value.hint
    assert tables(application) == {"ORDERS", taken}


def test_a_trigger_of_the_applications_is_not_replaced(application: Any, source: OracleSource) -> None:
    make(application, "ORDERS")
    application.execute('CREATE TABLE "NOTES" ("N" NUMBER(9))')
    application.execute(
        'CREATE TRIGGER VENUS_I_00002 AFTER INSERT ON "ORDERS" FOR EACH ROW BEGIN INSERT INTO "NOTES" VALUES (7); END'
    )
    source.installer.install(["ORDERS"], [])
    application.execute("""INSERT INTO "ORDERS" VALUES (2, 'x')""")
    application.execute('SELECT * FROM "NOTES"')
    assert len(application.fetchall()) == 1
    source.installer.uninstall()
    application.execute("SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = 'APP'")
    assert application.fetchall() == (("VENUS_I_00002",),)


def test_an_installation_from_before_the_record_is_recognised(application: Any, source: OracleSource) -> None:
    make(application, "ORDERS", "VENUS_L_HISTORY")
    source.installer.install(["ORDERS"], [])
    application.execute("DROP TABLE VENUS_OWNED")
    assert source.installer.install(["ORDERS"], [])
    follower = Follower(source)
    follower.drain()
    assert [t.state for t in source.registry.read_registered_tables()] == ["ACTIVE", "ACTIVE"]
    application.execute("DELETE FROM VENUS_OWNED")  # interrupted between creating the record and filling it
    source.installer.uninstall()
    assert tables(application) == {"ORDERS", "VENUS_L_HISTORY"}


def test_a_removal_that_was_interrupted_is_finished_by_another(
    application: Any, source: OracleSource, standin: StandIn
) -> None:
    make(application, "ORDERS")
    source.installer.install(["*"], [])
    for sql in [step.sql for step in source.installer.plan_uninstall()][:-3]:
        with suppress(Exception):
            standin.server.execute(sql.replace(" PURGE", ""), "APP")
    source.installer.uninstall()
    assert tables(application) == {"ORDERS"}


def trigger_names(application: Any) -> set[str]:
    application.execute("SELECT TRIGGER_NAME FROM DICTIONARY.USER_TRIGGERS WHERE TABLE_NAME <> ''")
    return {name for (name,) in application.fetchall()}


def rename_trigger(application: Any, table: str, trigger: str, name: str) -> None:
    """Give a trigger the name that FLASHBACK TABLE TO BEFORE DROP or a redefinition leaves it with."""
    application.execute(f"SELECT action_statement FROM information_schema.triggers WHERE trigger_name = '{trigger}'")
    ((body,),) = application.fetchall()
    application.execute(f"DROP TRIGGER {trigger}")
    event = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}[trigger[6]]
    application.execute(f'CREATE TRIGGER "{name}" AFTER {event} ON "{table}" FOR EACH ROW {body}')


@pytest.mark.parametrize("name", ["BIN$9Q7zzQ==$0", "TMP$$_VENUS_I_000020"])
def test_a_trigger_that_was_restored_under_another_name_is_replaced_and_removed(
    application: Any, source: OracleSource, name: str
) -> None:
    make(application, "ORDERS")
    source.installer.install(["*"], [])
    rename_trigger(application, "ORDERS", "VENUS_I_00002", name)
    source.capture.refresh_schemas()
    assert {t.schema.name: t.state for t in source.registry.read_registered_tables()}["ORDERS"] == "RESYNC"
    source.installer.install(["*"], [])
    assert name not in trigger_names(application)
    rename_trigger(application, "ORDERS", "VENUS_D_00002", name)
    source.installer.uninstall()
    assert trigger_names(application) == set()
    application.execute("""INSERT INTO "ORDERS" VALUES (9, 'x')""")


def test_the_release_of_a_table_removes_such_a_trigger(application: Any, source: OracleSource) -> None:
    make(application, "ORDERS", "NOTES")
    source.installer.install(["*"], [])
    number = next(t.schema.table_id for t in source.registry.read_registered_tables() if t.schema.name == "ORDERS")
    rename_trigger(application, "ORDERS", f"VENUS_I_{number:05}", "BIN$x==$0")
    with pytest.raises(Refused, match="has triggers again"):
        source.installer.drop_logs({number: "gone"})
    source.installer.release([number])
    assert "BIN$x==$0" not in trigger_names(application)


def test_triggers_in_the_recycle_bin_or_of_other_owners_stay(application: Any, source: OracleSource) -> None:
    make(application, "ORDERS")
    source.installer.install(["*"], [])
    ours = "BEGIN INSERT INTO VENUS_L_00002 (SEQ, OP, K1) VALUES (VENUS_SEQ.NEXTVAL, 'I', :NEW.ID); END;"
    application.execute(
        "INSERT INTO DICTIONARY.OTHER_TRIGGERS VALUES ('BIN$a', 'BIN$t', %s), ('BIN$b', 'ORDERS', %s)",
        (ours, "BEGIN NULL; END;"),
    )
    assert not [s.what for s in source.installer.plan_uninstall() if "BIN$" in s.what]


def test_a_renamed_table_whose_name_is_taken_again_gets_its_triggers(application: Any, source: OracleSource) -> None:
    make(application, "ORDERS")
    source.installer.install(["ORDERS"], [])
    application.execute('RENAME TABLE "ORDERS" TO "ORDERS_OLD"')
    make(application, "ORDERS")
    plan = [s for s in source.installer.plan_install(["ORDERS"], []) if not s.exists]
    dropped = [s.sql for s in plan].index("DROP TRIGGER VENUS_I_00002")  # CREATE OR REPLACE would raise ORA-04095
    assert plan[dropped + 3].sql.startswith("CREATE OR REPLACE NONEDITIONABLE TRIGGER VENUS_I_00002")
    source.installer.install(["ORDERS"], [])
    application.execute("SELECT event_object_table FROM information_schema.triggers WHERE trigger_schema = 'APP'")
    assert {table for (table,) in application.fetchall()} == {"ORDERS", "VENUS_HEARTBEAT"}


def test_an_older_installation_loses_the_order_of_its_sequence_and_the_edition_of_its_triggers(
    application: Any, source: OracleSource
) -> None:
    make(application, "ORDERS")
    source.installer.install(["*"], [])
    application.execute("INSERT INTO DICTIONARY.ORDERED VALUES ('VENUS_SEQ')")
    application.execute("INSERT INTO DICTIONARY.EDITIONED VALUES ('VENUS_I_00002'), ('VENUS_DDL_TRG')")
    plan = [s.sql for s in source.installer.plan_install(["*"], []) if not s.exists]
    assert "ALTER SEQUENCE VENUS_SEQ NOORDER" in plan
    for name in ("VENUS_I_00002", "VENUS_DDL_TRG"):
        at = plan.index(f"DROP TRIGGER {name}")
        assert any(s.startswith(f"CREATE OR REPLACE NONEDITIONABLE TRIGGER {name}") for s in plan[at:])
    assert not any(s.startswith("CREATE") and "VENUS_U_00002" in s for s in plan)
    source.installer.install(["*"], [])
    application.execute("DELETE FROM DICTIONARY.EDITIONED")
    assert all(s.exists for s in source.installer.plan_install(["*"], []))
