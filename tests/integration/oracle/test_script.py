"""The printed script equals what the program executes; VENUS continues after a DBA ran it (`--dry-run`, `--adopt`)."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import pytest

from tests.support.oracle.sqlplus import Script, read
from tests.support.oracle.standin import StandIn, adapt
from venus.adapters.dialects.oracle.session.driver import OracleOptions
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower
from venus.errors import DatabaseUnavailable, Refused, VenusError

pytestmark = pytest.mark.integration

EVERYTHING: tuple[list[str], list[str]] = (["*"], [])
ENROLL = """CREATE TABLE "ENROLL" ("STUDENT_ID" NUMBER(10) NOT NULL, "COURSE" VARCHAR2(20) NOT NULL,
    "ESSAY" CLOB, PRIMARY KEY ("STUDENT_ID", "COURSE"))"""
#: Statements that only read or end a transaction; the frame of the script is no part of the installation either.
_CHANGES = re.compile(r"(?!SELECT|ALTER SESSION|COMMIT$|ROLLBACK$|SET TRANSACTION)")


@pytest.fixture
def school(application: Any) -> Any:
    application.execute(ENROLL)
    application.execute('CREATE TABLE "R&D" ("ID" NUMBER(9) PRIMARY KEY, "V" VARCHAR2(40))')
    application.execute("""INSERT INTO "ENROLL" VALUES (1, 'Math', 'text')""")
    return application


def script_of(source: OracleSource) -> Script:
    return read(source.installer.as_script(source.installer.plan_install(*EVERYTHING), removal=False))


def run_script_by_hand(standin: StandIn, script: Script) -> None:
    """Run a script as SQL*Plus would, without the program."""
    with closing(standin.connect()) as session:
        for statement in script.statements:
            session.cursor().execute(statement)
        session.commit()


def changes(said: list[str]) -> list[str]:
    return [text for text in said if _CHANGES.match(text)]


def test_the_script_has_exactly_the_executed_statements(school: Any, source: OracleSource, standin: StandIn) -> None:
    script = script_of(source)
    adopted = [step.sql for step in source.installer.plan_install(*EVERYTHING) if step.adopted]
    standin.said.clear()
    source.installer.install(*EVERYTHING)
    executed = changes(standin.said)
    guard, *printed = changes(script.statements)
    assert "RAISE_APPLICATION_ERROR" in guard
    assert [text for text in executed if text not in adopted or text in printed] == printed
    assert set(executed) - set(printed) == {text for text in adopted if text not in printed}
    assert len(printed) > 30


def test_the_removal_has_its_own_script(school: Any, source: OracleSource, standin: StandIn) -> None:
    assert "DROP TABLE" not in source.installer.as_script(source.installer.plan_install(*EVERYTHING), removal=False)
    source.installer.install(*EVERYTHING)
    removal = read(source.installer.as_script(source.installer.plan_uninstall(), removal=True))
    standin.said.clear()
    source.installer.uninstall()
    assert changes(removal.statements)[1:] == changes(standin.said)
    assert all("DROP" in text for text in changes(standin.said))


def test_the_script_stops_at_an_error_and_keeps_a_record(school: Any, source: OracleSource) -> None:
    commands = script_of(source).commands
    assert commands.index("SET DEFINE OFF") < commands.index("WHENEVER SQLERROR EXIT FAILURE ROLLBACK")
    assert "SPOOL venus-install.log" in commands
    assert commands[-2:] == ["SPOOL OFF", "EXIT"]


def test_a_dba_installs_and_the_program_continues(school: Any, source: OracleSource, standin: StandIn) -> None:
    script = script_of(source)
    run_script_by_hand(standin, script)
    school.execute("""INSERT INTO "ENROLL" VALUES (2, 'Art', NULL)""")
    assert {t.state for t in source.registry.read_registered_tables()} == {"PAUSED"}
    standin.said.clear()
    source.installer.adopt(*EVERYTHING)
    assert not [text for text in changes(standin.said) if text.startswith(("CREATE", "ALTER", "DROP"))]
    assert {t.state for t in source.registry.read_registered_tables()} == {"ACTIVE"}
    follower = Follower(source)
    follower.drain()
    school.execute("""UPDATE "ENROLL" SET "COURSE" = 'Physics' WHERE "STUDENT_ID" = 1""")
    follower.drain()
    assert set(follower.rows("ENROLL")) == {("1", "Physics"), ("2", "Art")}
    assert all(step.exists for step in source.installer.install(*EVERYTHING))
    source.installer.adopt(*EVERYTHING)
    run_script_by_hand(standin, read(source.installer.as_script(source.installer.plan_uninstall(), removal=True)))
    school.execute("SHOW TABLES LIKE 'VENUS%'")
    assert school.fetchall() == ()


def test_a_script_that_was_interrupted_is_continued(school: Any, source: OracleSource, standin: StandIn) -> None:
    script = script_of(source)
    half = len(script.statements) // 2
    run_script_by_hand(standin, Script(statements=script.statements[:half]))
    with pytest.raises(Refused, match=r"\d+ statements of the installation have not been run, the first: APP\.") as why:
        source.installer.adopt(*EVERYTHING)
    assert "install-triggers --dry-run" in why.value.hint
    assert {t.state for t in source.registry.read_registered_tables()} <= {"PAUSED"}
    rest = script_of(source)
    assert set(rest.statements) < set(script.statements)
    run_script_by_hand(standin, rest)
    source.installer.adopt(*EVERYTHING)
    assert {t.state for t in source.registry.read_registered_tables()} == {"ACTIVE"}


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("DROP TRIGGER VENUS_U_00002", "trigger VENUS_U_00002"),
        ("INSERT INTO DICTIONARY.INVALID_TRIGGERS VALUES ('VENUS_D_00002')", "trigger VENUS_D_00002"),
        ("DROP TABLE VENUS_L_00002", "table VENUS_L_00002"),
        ("ALTER TABLE VENUS_L_00002 DROP COLUMN K2", "VENUS_L_00002 has no column K2"),
        ("DELETE FROM VENUS_CAPTURED_TABLE WHERE TABLE_ID = 2", "row of VENUS_CAPTURED_TABLE"),
    ],
)
def test_steps_that_differ_from_the_script_are_refused_by_name(
    harm: str, said: str, school: Any, source: OracleSource, standin: StandIn
) -> None:
    run_script_by_hand(standin, script_of(source))
    school.execute(harm)
    with pytest.raises(VenusError, match=said):
        source.installer.adopt(*EVERYTHING)


def test_a_trigger_of_another_text_is_refused(school: Any, source: OracleSource, standin: StandIn) -> None:
    script = script_of(source)
    edited = [s.replace("'U'", "'X'") if "VENUS_U_00002\n" in s else s for s in script.statements]
    run_script_by_hand(standin, Script(statements=edited))
    with pytest.raises(Refused, match="trigger VENUS_U_00002"):
        source.installer.adopt(*EVERYTHING)


def test_missing_triggers_cause_a_resync_by_script_too(school: Any, source: OracleSource, standin: StandIn) -> None:
    source.installer.install(*EVERYTHING)
    school.execute("DROP TRIGGER VENUS_U_00002")
    repair = script_of(source)
    assert any("'RESYNC'" in text for text in repair.statements)
    run_script_by_hand(standin, repair)
    source.installer.adopt(*EVERYTHING)
    state = {t.schema.name: t for t in source.registry.read_registered_tables()}["ENROLL"]
    assert (state.state, "its triggers were created again" in state.reason) == ("RESYNC", True)


def test_an_open_transaction_is_waited_for(
    school: Any, source: OracleSource, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("venus.adapters.dialects.oracle.installation.installer.ATTEMPTS", 2)
    run_script_by_hand(standin, script_of(source))
    school.execute('INSERT INTO DICTIONARY.PENDING_DML VALUES (\'"APP"."ENROLL"\')')
    with pytest.raises(DatabaseUnavailable, match=r"ORA-20101: VENUS: a transaction that wrote APP\.ENROLL before"):
        source.installer.adopt(*EVERYTHING)
    assert {t.schema.name: t.state for t in source.registry.read_registered_tables()}["ENROLL"] == "PAUSED"
    school.execute("DELETE FROM DICTIONARY.PENDING_DML")
    source.installer.adopt(*EVERYTHING)
    assert {t.state for t in source.registry.read_registered_tables()} == {"ACTIVE"}


def test_triggers_are_executed_as_they_are_printed(school: Any, source: OracleSource) -> None:
    """No adaptation of the stand-in changes what a row trigger does: the script has the triggers of an Oracle."""
    row_triggers = [
        s for s in script_of(source).statements if re.match(r"CREATE OR REPLACE NONEDITIONABLE TRIGGER VENUS_[IUD]_", s)
    ]
    assert len(row_triggers) == 9
    for text in row_triggers:
        assert adapt(text) == text.replace("\nDISABLE\n", "\n").replace(" NONEDITIONABLE", "", 1)


def test_a_name_that_no_script_can_hold_is_refused(school: Any, source: OracleSource) -> None:
    school.execute('CREATE TABLE "A\n/\nB" ("ID" NUMBER(9) PRIMARY KEY)')
    plan = source.installer.plan_install(*EVERYTHING)
    with pytest.raises(Refused, match=r"APP\.A\?/\?B: its name has a control character"):
        source.installer.as_script(plan, removal=False)


def test_the_papers_own_variant_is_a_script_too(application: Any, standin: StandIn) -> None:
    application.execute('CREATE TABLE "ITEM" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "V" VARCHAR2(40))')
    application.execute("INSERT INTO \"ITEM\" VALUES (1, 'one'), (2, 'two')")
    with closing(OracleSource(standin, OracleOptions(inline=True))) as source:
        run_script_by_hand(standin, script_of(source))
        source.installer.adopt(*EVERYTHING)
        follower = Follower(source)
        follower.drain()
        assert {row["V"] for row in follower.rows("ITEM").values()} == {"one", "two"}
        application.execute('UPDATE "ITEM" SET "V" = \'three\' WHERE "ID" = 1')
        follower.drain()
        assert {row["V"] for row in follower.rows("ITEM").values()} == {"three", "two"}
