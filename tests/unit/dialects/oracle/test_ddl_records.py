"""ALTER TABLE statements that change no rows, values, segments or triggers; an unknown statement is not one of them."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.oracle.installation.table_comparison import (
    DdlRecords,
    disables_triggers,
    keeps_rows,
    keeps_values,
    replaces_segments,
)


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE SALES ADD PARTITION P2027 VALUES LESS THAN (TO_DATE('2027-01-01', 'YYYY-MM-DD'))",
        'alter table "APP"."Sales" add subpartition p1 values (1)',
        "ALTER TABLE APP . SALES ADD (NOTE VARCHAR2(10) DEFAULT 'drop partition p')",
        "ALTER TABLE SALES /* drop partition later */ MODIFY (NOTE VARCHAR2(20))",
        "ALTER TABLE SALES -- exchange partition\n RENAME PARTITION P1 TO P2\x00",
        "ALTER TABLE SALES MOVE PARTITION P1 TABLESPACE OLD",
        "ALTER TABLE SALES SPLIT PARTITION P1 AT (5) INTO (PARTITION A, PARTITION B)",
        "ALTER TABLE SALES DROP COLUMN NOTE",
        "ALTER TABLE SALES DROP (NOTE, MORE)",
        "ALTER TABLE SALES SET INTERVAL (100)",
        "ALTER TABLE SALES NOPARALLEL",
        "ALTER TABLE SALES ADD PARTITION P1 VALUES (" + "1, " * 1000 + "1)",
    ],
)
def test_harmless_statements(text: str) -> None:
    assert keeps_rows(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ALTER TABLE SALES TRUNCATE PARTITION P1",
        "ALTER TABLE SALES DROP\n  PARTITION P1 UPDATE INDEXES",
        "ALTER TABLE SALES DROP SUBPARTITIONS P1, P2",
        "ALTER TABLE SALES EXCHANGE PARTITION P1 WITH TABLE STAGE",
        "ALTER TABLE SALES DROP /* column */ PARTITION P1",
        'ALTER TABLE "ADD" TRUNCATE SUBPARTITION FOR (5)',
        "ALTER TABLE SALES MOVE PARTITION P1 INCLUDING ROWS WHERE KEPT = 1",
        "ALTER TABLE SALES MERGE PARTITIONS P1, P2 INTO PARTITION P3 " + "-" * 2 + " x" * 1000,
        "ALTER TABLE SALES SOMETHING NEW",
        "TRUNCATE TABLE SALES",
    ],
)
def test_harmful_or_unknown_statements(text: str) -> None:
    assert not keeps_rows(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ALTER TABLE T ADD (B NUMBER)", True),
        ("ALTER TABLE T MODIFY (B DEFAULT 'drop column b')", True),
        ("ALTER TABLE T RENAME COLUMN A TO B", True),
        ("ALTER TABLE T DROP CONSTRAINT C", True),
        ("ALTER TABLE T DROP COLUMN B", False),
        ("ALTER TABLE T DROP(B, C) CASCADE CONSTRAINTS", False),
        ("ALTER TABLE T SET UNUSED COLUMN B", False),
        ("ALTER TABLE T SET  UNUSED (B) ONLINE", False),
        ("ALTER TABLE T SOMETHING NEW", False),
        ("", False),
    ],
)
def test_statements_that_change_values_of_unchanged_columns(text: str, kept: bool) -> None:
    assert keeps_values(text) is kept


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("ALTER TABLE T MOVE ONLINE", True),
        ("ALTER TABLE T ADD PARTITION P3", True),  # of a hash-partitioned table: rows are redistributed
        ("ALTER TABLE T RENAME SUBPARTITION P1 TO P2", True),
        ("ALTER TABLE T COALESCE PARTITION", True),
        ("ALTER TABLE T MODIFY PARTITION BY HASH (ID) PARTITIONS 4", True),
        ("ALTER TABLE T ADD (MOVE NUMBER)", False),
        ("ALTER TABLE T ADD CONSTRAINT C CHECK (A > 0)", False),
        ("ALTER TABLE T EXCHANGE PARTITION P WITH TABLE S", False),  # other rows
        ("", False),
    ],
)
def test_statements_that_move_rows_to_other_segments(text: str, replaced: bool) -> None:
    assert replaces_segments(text) is replaced


def test_statements_that_disable_triggers() -> None:
    assert disables_triggers("alter table T disable  all triggers")
    assert disables_triggers("ALTER TABLE T NOLOGGING DISABLE ALL TRIGGERS")
    assert not disables_triggers("ALTER TABLE T ENABLE ALL TRIGGERS")
    assert not disables_triggers("ALTER TABLE T ADD (C VARCHAR2(40) DEFAULT 'DISABLE ALL TRIGGERS')")


def test_notes_concern_their_own_table_only() -> None:
    notes = DdlRecords.from_rows(
        [(1, "ALTER", "APP", "T", "ALTER TABLE T DROP COLUMN B"), (2, "TRUNCATE", "APP", "U", None)]
    )
    assert notes.may_change_values(("APP", "T"))
    assert not notes.may_change_values(("APP", "U"))
    assert not notes.explains_definition(("APP", "U"))
    assert notes.explains_segments(("APP", "U"))
    assert not notes.explains_segments(("APP", "T"))
