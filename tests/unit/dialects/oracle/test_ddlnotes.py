"""Which ALTER TABLE statements leave the rows of a partitioned table as they are; in doubt, none does."""

from __future__ import annotations

import pytest

from venus.adapters.dialects.oracle.ddlnotes import keeps_rows


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
def test_harmless(text: str) -> None:
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
def test_harmful_or_not_known(text: str) -> None:
    assert not keeps_rows(text)
