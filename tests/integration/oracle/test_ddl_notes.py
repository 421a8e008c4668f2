"""The DDL trigger notes the DDL of captured tables, and no error of it makes a DDL statement fail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.oracle.standin import ddl_trigger_body
from venus.adapters.dialects.contract import RegisteredTable
from venus.adapters.dialects.oracle.language import ddl
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

SALES = """CREATE TABLE "SALES" ("ID" NUMBER(9) NOT NULL PRIMARY KEY, "V" VARCHAR2(40))
  PARTITION BY RANGE ("ID") (PARTITION P1 VALUES LESS THAN (10), PARTITION P2 VALUES LESS THAN (20))"""


class Application:
    """Runs DDL, and after each statement the body of the installed DDL trigger."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor

    def ddl(self, event: str, name: str, text: str, shown: str = "") -> None:
        self.cursor.execute(text)
        self.fire_trigger(event, name, shown or text)

    def fire_trigger(self, event: str, name: str, text: str) -> None:
        self.cursor.execute("SELECT TEXT FROM DICTIONARY.DDL_TRIGGERS")
        ((trigger,),) = self.cursor.fetchall()
        self.cursor.execute(ddl_trigger_body(trigger, event, name, text))

    def notes(self) -> list[tuple[str, str]]:
        self.cursor.execute("SELECT EVENT, OBJ_NAME FROM VENUS_DDL ORDER BY SEQ")
        return list(self.cursor.fetchall())


@pytest.fixture
def app(application: Any, source: OracleSource) -> Application:
    application.execute(SALES)
    application.execute('CREATE TABLE "OTHER" ("ID" NUMBER(9) PRIMARY KEY)')
    application.execute("INSERT INTO \"SALES\" VALUES (1, 'one'), (11, 'eleven')")
    source.installer.install(["SALES"], [])
    return Application(application)


@pytest.fixture
def sales(app: Application, source: OracleSource) -> Follower:
    follower = Follower(source)
    follower.drain()
    return follower


def state(source: OracleSource) -> str:
    return {t.schema.name: t.state for t in source.registry.read_registered_tables()}["SALES"]


def test_only_captured_tables_are_noted(app: Application, sales: Follower, source: OracleSource) -> None:
    app.ddl("ALTER", "OTHER", 'ALTER TABLE "OTHER" ADD "V" NUMBER(9)')
    app.ddl("DROP", "OTHER", 'DROP TABLE "OTHER"')
    assert app.notes() == []
    assert source.capture.open_cut([]) is None
    app.ddl("ALTER", "SALES", 'ALTER TABLE "SALES" ADD "W" NUMBER(9)')
    assert app.notes() == [("ALTER", "SALES")]
    assert sales.cut() is None  # the cut finds the new version
    sales.drain()
    assert app.notes() == []
    assert [row["W"] for row in sales.rows("SALES").values()] == [None, None]


def test_a_note_of_an_older_trigger_about_another_table_affects_no_cut(
    app: Application, sales: Follower, source: OracleSource
) -> None:
    app.cursor.execute("INSERT INTO VENUS_DDL VALUES (VENUS_SEQ.NEXTVAL, 'ALTER', 'APP', 'OTHER', NULL)")
    app.cursor.execute("INSERT INTO \"SALES\" VALUES (2, 'two')")
    cut = source.capture.open_cut([])
    assert cut is not None
    cut.rollback()
    source.capture.refresh_schemas()
    assert app.notes() == []


def test_a_new_partition_is_no_resync(app: Application, sales: Follower, source: OracleSource) -> None:
    app.ddl("ALTER", "SALES", 'ALTER TABLE "SALES" ADD PARTITION (PARTITION P3 VALUES LESS THAN (30))')
    app.cursor.execute("INSERT INTO \"SALES\" VALUES (21, 'twenty-one')")
    sales.drain()
    assert state(source) == "ACTIVE"
    assert set(sales.rows("SALES")) == {("1",), ("11",), ("21",)}


def table(source: OracleSource) -> RegisteredTable:
    return {t.schema.name: t for t in source.registry.read_registered_tables()}["SALES"]


def test_a_table_with_an_emptied_partition_is_compared(app: Application, sales: Follower, source: OracleSource) -> None:
    app.cursor.execute("INSERT INTO DICTIONARY.SEGMENTS VALUES ('SALES', 'P1', 101), ('SALES', 'P2', 102)")
    source.capture.refresh_schemas()
    app.ddl("ALTER", "SALES", 'ALTER TABLE "SALES" TRUNCATE PARTITION P1')
    app.cursor.execute("UPDATE DICTIONARY.SEGMENTS SET DATA_OBJECT_ID = 103 WHERE SUBOBJECT_NAME = 'P1'")
    source.capture.refresh_schemas()
    before = table(source)
    assert (before.state, before.is_compared) == ("ACTIVE", True)

    app.ddl("ALTER", "SALES", 'ALTER TABLE "SALES" TRUNCATE PARTITION P2')
    source.capture.refresh_schemas()
    again = table(source)
    assert again.is_compared
    assert again.reason != before.reason, "the comparison that runs does not end the fill"

    sales.drain()  # without a broker the table is read again
    assert sales.rows("SALES") == {}
    assert (table(source).state, table(source).reason) == ("ACTIVE", "")


@pytest.mark.parametrize("statement", ["DROP PARTITION P1", "TRUNCATE PARTITION P1 DROP STORAGE"])
def test_partition_ddl_that_also_changes_the_table_lets_it_be_compared(
    app: Application, sales: Follower, source: OracleSource, statement: str
) -> None:
    """Oracle updates TIMESTAMP with partition DDL: without the note, values might have changed as well."""
    source.capture.refresh_schemas()
    app.cursor.execute("INSERT INTO DICTIONARY.SPECIFIED VALUES ('SALES', '2026-11-25:05:00:01')")
    app.fire_trigger("ALTER", "SALES", f'ALTER TABLE "SALES" {statement}')
    source.capture.refresh_schemas()
    assert (table(source).state, table(source).is_compared) == ("ACTIVE", True)
    sales.drain()
    source.capture.refresh_schemas()
    assert (table(source).fill.done, table(source).is_compared) == (True, False), "once is enough"


def test_a_comparison_starts_over_if_a_changed_row_has_vanished(
    app: Application, sales: Follower, source: OracleSource
) -> None:
    app.cursor.execute('UPDATE "SALES" SET "V" = \'changed\' WHERE "ID" = 1')
    app.ddl("ALTER", "SALES", 'ALTER TABLE "SALES" TRUNCATE PARTITION P1')
    source.capture.refresh_schemas()
    before = table(source)
    assert sales.cut(fill=False) is not None
    assert table(source).is_compared
    assert table(source).reason != before.reason


def test_triggers_that_are_disabled_during_a_comparison_mark_the_table(
    app: Application, sales: Follower, source: OracleSource
) -> None:
    app.ddl("ALTER", "SALES", 'ALTER TABLE "SALES" TRUNCATE PARTITION P1')
    source.capture.refresh_schemas()
    assert table(source).is_compared
    app.fire_trigger("ALTER", "SALES", 'ALTER TABLE "SALES" DISABLE ALL TRIGGERS')
    source.capture.refresh_schemas()
    assert state(source) == "RESYNC"


def test_a_table_that_is_still_being_read_is_read_again(app: Application, source: OracleSource) -> None:
    follower = Follower(source)
    assert follower.cut(fill_rows=1) is not None
    app.ddl("ALTER", "SALES", 'ALTER TABLE "SALES" TRUNCATE PARTITION P1')
    source.capture.refresh_schemas()
    assert (table(source).fill.done, table(source).is_compared) == (False, False)
    follower.drain()
    assert set(follower.rows("SALES")) == {("11",)}


def test_a_paused_table_is_read_again_when_it_is_resumed(
    app: Application, sales: Follower, source: OracleSource
) -> None:
    source.registry.set_table_state(table(source).schema.table_id, "PAUSED", "by hand")
    app.ddl("ALTER", "SALES", 'ALTER TABLE "SALES" TRUNCATE PARTITION P1')
    source.capture.refresh_schemas()
    assert not table(source).is_compared
    source.registry.set_table_state(table(source).schema.table_id, "ACTIVE", "")
    sales.read_registry()
    sales.drain()
    assert set(sales.rows("SALES")) == {("11",)}


def test_a_trigger_that_cannot_write_its_note_lets_the_statement_pass(app: Application, source: OracleSource) -> None:
    app.cursor.execute("DROP TABLE VENUS_DDL")
    app.fire_trigger("ALTER", "SALES", 'ALTER TABLE "SALES" ADD "W" NUMBER(9)')
    app.cursor.execute("DROP TABLE VENUS_CAPTURED_TABLE")
    app.fire_trigger("TRUNCATE", "SALES", 'TRUNCATE TABLE "SALES"')


def test_the_ddl_trigger_names_venus_only_in_dynamic_sql() -> None:
    """A static reference makes the trigger invalid when its object is dropped, and then every DDL fails (ORA-04098)."""
    text = ddl.ddl_trigger(owner="O'NEIL", whole_database=True).sql
    static = text.replace(text[text.index("'INSERT") : text.index("USING")], "")
    assert static.count("VENUS_") == 1  # the trigger's own name
    assert "\"O''NEIL\".VENUS_DDL" in text
    assert text.endswith("EXCEPTION\n  WHEN OTHERS THEN\n    NULL;\nEND;")


def test_an_older_installation_gets_the_column_and_the_new_trigger(
    app: Application, sales: Follower, source: OracleSource
) -> None:
    app.cursor.execute("ALTER TABLE VENUS_DDL DROP COLUMN SQL_TEXT")
    app.cursor.execute("UPDATE DICTIONARY.DDL_TRIGGERS SET TEXT = 'BEGIN NULL; END;'")
    made = [step.what for step in source.installer.install(["SALES"], []) if not step.exists]
    assert made == [
        "column SQL_TEXT of VENUS_DDL",
        "trigger VENUS_DDL_TRG",
        "check of trigger VENUS_DDL_TRG",
        "enabling of trigger VENUS_DDL_TRG",
    ]
    app.ddl("ALTER", "SALES", 'ALTER TABLE "SALES" ADD "W" NUMBER(9)')
    assert app.notes() == [("ALTER", "SALES")]
