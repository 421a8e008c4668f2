"""What VENUS has made is what its installation recorded: nothing is taken for VENUS's because of its name."""

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


def test_tables_of_the_application_that_are_named_like_ours_are_captured(
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


def test_uninstall_of_what_was_never_installed_removes_nothing(application: Any, source: OracleSource) -> None:
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


def test_an_installation_of_before_there_was_a_record_is_recognised(application: Any, source: OracleSource) -> None:
    make(application, "ORDERS", "VENUS_L_HISTORY")
    source.installer.install(["ORDERS"], [])
    application.execute("DROP TABLE VENUS_OWNED")
    assert source.installer.install(["ORDERS"], [])
    follower = Follower(source)
    follower.drain()
    assert [t.state for t in source.registry.read_registered_tables()] == ["ACTIVE", "ACTIVE"]
    application.execute("DELETE FROM VENUS_OWNED")  # cut short between making the record and filling it
    source.installer.uninstall()
    assert tables(application) == {"ORDERS", "VENUS_L_HISTORY"}


def test_a_removal_that_was_cut_short_is_finished_by_another(
    application: Any, source: OracleSource, standin: StandIn
) -> None:
    make(application, "ORDERS")
    source.installer.install(["*"], [])
    for sql in [step.sql for step in source.installer.plan_uninstall()][:-3]:
        with suppress(Exception):
            standin.server.execute(sql.replace(" PURGE", ""), "APP")
    source.installer.uninstall()
    assert tables(application) == {"ORDERS"}
