"""ALTER TABLE changes values without a trigger; the segment stays, and the columns may look unchanged.

The stand-in runs the statements; the test writes TIMESTAMP, the time of the last specification, after each one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.oracle.standin import ddl_trigger_body
from venus.adapters.dialects.oracle.source import OracleSource
from venus.cli.prove.follower import Follower

pytestmark = pytest.mark.integration

ITEM = """CREATE TABLE "ITEM" ("ID" NUMBER(9) PRIMARY KEY, "A" NUMBER(9), "C" CHAR(4), "B" NUMBER(9))"""


@dataclass
class Shop:
    """An application that alters a captured table."""

    cursor: Any
    source: OracleSource
    follower: Follower
    altered: int = 0

    def alter_table(self, clauses: str, *, noted: bool = True, specified: bool = True, shown: str = "") -> None:
        """Alter the table as the application, whose DDL the trigger notes, or as a user whose DDL it does not note."""
        if clauses:
            self.cursor.execute(f'ALTER TABLE "ITEM" {clauses}')
        self.altered += specified
        self.cursor.execute(f"REPLACE INTO DICTIONARY.SPECIFIED VALUES ('ITEM', '2026-11-25:05:00:{self.altered:02}')")
        if noted:
            self.cursor.execute("SELECT TEXT FROM DICTIONARY.DDL_TRIGGERS")
            ((trigger,),) = self.cursor.fetchall()
            text = f'ALTER TABLE "ITEM" {shown or clauses}'
            self.cursor.execute(ddl_trigger_body(trigger, "ALTER", "ITEM", text))

    def refresh(self) -> None:
        self.source.capture.refresh_schemas()
        self.follower.read_registry()

    @property
    def state(self) -> tuple[str, str]:
        return next(
            (t.state, t.reason) for t in self.source.registry.read_registered_tables() if t.schema.name == "ITEM"
        )

    @property
    def is_read_again(self) -> bool:
        return bool(self.follower.due())

    def captured_values(self) -> dict[Any, Any]:
        """Return the target's values of B after everything was read."""
        self.follower.drain()
        return {key: row.get("B") for (key,), row in self.follower.rows("ITEM").items()}

    def actual_values(self) -> dict[str, Any]:
        self.cursor.execute('SELECT "ID", "B" FROM "ITEM"')
        return {str(key): None if b is None else str(b) for key, b in self.cursor.fetchall()}


@pytest.fixture
def shop(application: Any, source: OracleSource) -> Shop:
    application.execute(ITEM)
    application.execute("""INSERT INTO "ITEM" VALUES (1, 10, 'a', 100), (2, 20, 'b', 200)""")
    source.installer.install(["*"], [])
    follower = Follower(source)
    follower.drain()
    shop = Shop(application, source, follower)
    shop.refresh()
    assert not shop.is_read_again
    return shop


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize(
    "clauses",
    [
        'DROP COLUMN "B"; ADD "B" NUMBER(9)',  # the last case changes no letter of the dictionary
        'DROP COLUMN "B"; ADD "B" NUMBER(9) DEFAULT 9',
        'DROP COLUMN "A"; RENAME COLUMN "B" TO "A"; ADD "B" NUMBER(9) DEFAULT 7',
        'RENAME COLUMN "A" TO "X"; RENAME COLUMN "B" TO "A"; RENAME COLUMN "X" TO "B"',
    ],
)
def test_values_that_alter_table_has_changed_are_read_again(shop: Shop, clauses: str, noted: bool) -> None:
    for each in clauses.split("; "):
        shop.alter_table(each, noted=noted)
    shop.refresh()
    assert shop.state == ("ACTIVE", "")
    assert shop.is_read_again
    assert shop.captured_values() == shop.actual_values()
    shop.refresh()
    assert not shop.is_read_again


def test_columns_that_exchange_names_within_a_second_of_a_look_are_noticed_by_their_order(shop: Shop) -> None:
    for each in ('RENAME COLUMN "A" TO "X"', 'RENAME COLUMN "B" TO "A"', 'RENAME COLUMN "X" TO "B"'):
        shop.alter_table(each, noted=False, specified=False)
    shop.refresh()
    assert shop.captured_values() == shop.actual_values()


def test_a_column_dropped_and_added_within_a_second_of_a_look_is_noticed_by_its_note(shop: Shop) -> None:
    shop.alter_table('DROP COLUMN "B"', specified=False)
    shop.alter_table('ADD "B" NUMBER(9)', specified=False)
    shop.refresh()
    assert shop.captured_values() == shop.actual_values()


def test_an_older_installation_relies_on_the_notes(shop: Shop) -> None:
    shop.cursor.execute("DROP TABLE VENUS_SEGMENT")
    assert "installation" in [found.where for found in shop.source.installer.check(["*"], [])]
    shop.alter_table('DROP COLUMN "B"')
    shop.alter_table('ADD "B" NUMBER(9)')
    shop.refresh()
    assert shop.captured_values() == shop.actual_values()


def test_changes_while_capture_was_away_are_noticed(shop: Shop, source: OracleSource) -> None:
    source.close()
    for each in ('DROP COLUMN "B"', 'ADD "B" NUMBER(9)'):
        shop.alter_table(each, noted=False)
    shop.refresh()
    assert shop.captured_values() == shop.actual_values()


def test_blanks_counted_in_another_unit_are_read_again(shop: Shop) -> None:
    """CHAR(4 BYTE) becomes CHAR(4 CHAR): the registry's declaration stays, but the values are padded differently."""
    shop.cursor.execute("INSERT INTO DICTIONARY.BYTE_CHARS VALUES ('ITEM', 'C')")
    shop.refresh()
    assert shop.is_read_again


@pytest.mark.parametrize("noted", [True, False])
def test_a_paused_table_is_read_again_when_it_continues(shop: Shop, noted: bool) -> None:
    table_id = shop.follower.table_id("ITEM")
    shop.source.registry.set_table_state(table_id, "PAUSED", "")
    for each in ('DROP COLUMN "B"', 'ADD "B" NUMBER(9)'):
        shop.alter_table(each, noted=noted)
    shop.refresh()
    shop.refresh()
    shop.source.registry.set_table_state(table_id, "ACTIVE", "")
    shop.refresh()
    assert shop.captured_values() == shop.actual_values()


@pytest.mark.parametrize(
    ("clauses", "shown"),
    [
        ('ADD CONSTRAINT "POSITIVE" CHECK ("A" > 0)', ""),
        ('MODIFY "B" NUMBER(9) DEFAULT 3', ""),
        ("", "ENABLE ROW MOVEMENT"),
        ("", "NOLOGGING"),
        ("", "NO INMEMORY"),
    ],
)
def test_noted_ddl_that_changes_no_value_causes_no_new_fill(shop: Shop, clauses: str, shown: str) -> None:
    shop.alter_table(clauses, shown=shown)
    shop.refresh()
    assert shop.state == ("ACTIVE", "")
    assert not shop.is_read_again


def test_a_partition_that_oracle_adds_by_itself_causes_no_new_fill(shop: Shop) -> None:
    shop.cursor.execute("INSERT INTO DICTIONARY.SEGMENTS VALUES ('ITEM', 'SYS_P1', 101)")
    shop.alter_table("", noted=False)
    shop.refresh()
    assert shop.state == ("ACTIVE", "")
    assert not shop.is_read_again


def test_a_grant_an_index_or_a_truncate_causes_no_new_fill(shop: Shop) -> None:
    shop.cursor.execute('CREATE INDEX "BY_B" ON "ITEM" ("B")')
    shop.refresh()
    assert not shop.is_read_again


def test_an_installation_of_an_older_version_records_the_current_state(shop: Shop) -> None:
    shop.cursor.execute("DELETE FROM VENUS_SEGMENT WHERE SEGMENT = 'TRIGGER -'")
    shop.refresh()
    assert not shop.is_read_again
    for each in ('DROP COLUMN "B"', 'ADD "B" NUMBER(9)'):
        shop.alter_table(each, noted=False)
    shop.refresh()
    assert shop.captured_values() == shop.actual_values()


def test_triggers_disabled_and_enabled_with_their_table_have_missed_changes(shop: Shop) -> None:
    """Whether Oracle counts this as DDL of each trigger, so that its own time changes, is not documented."""
    shop.alter_table("", shown="DISABLE ALL TRIGGERS", specified=False)
    shop.alter_table("", shown="ENABLE ALL TRIGGERS", specified=False)
    shop.refresh()
    assert shop.state[0] == "RESYNC"
    assert shop.state[1].startswith("ALTER TABLE disabled its triggers")


def test_triggers_that_were_disabled_while_the_table_was_paused_are_noticed(shop: Shop) -> None:
    table_id = shop.follower.table_id("ITEM")
    shop.source.registry.set_table_state(table_id, "PAUSED", "")
    shop.alter_table("", shown="DISABLE ALL TRIGGERS", specified=False)
    shop.refresh()
    shop.source.registry.set_table_state(table_id, "ACTIVE", "")
    assert shop.is_read_again


@pytest.mark.parametrize(
    ("shown", "state"),
    [
        ('ADD CONSTRAINT "POSITIVE" CHECK ("A" > 0)', "RESYNC"),
        ("ADD (MOVE NUMBER)", "RESYNC"),
        ("MOVE TABLESPACE OTHER", "ACTIVE"),
    ],
)
def test_only_statements_that_move_rows_explain_another_segment(shop: Shop, shown: str, state: str) -> None:
    """For example, a table gets a constraint and is then exchanged for a partition of a table that is not captured."""
    shop.alter_table("", shown=shown)
    shop.cursor.execute("INSERT INTO DICTIONARY.SEGMENTS VALUES ('ITEM', NULL, 77)")
    shop.refresh()
    assert shop.state[0] == state
