"""Obstacles that keep a database from continuing the capture of another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from venus.adapters.dialects.handover_rules import find_handover_obstacles
from venus.model import Column, Kind, LogicalType, TableSchema

INT, TEXT = LogicalType(kind=Kind.INT, length=4), LogicalType(kind=Kind.TEXT, length=5)
COLUMNS = (
    Column(name="id", number=1, type=INT, source_type="integer"),
    Column(name="v", number=2, type=TEXT, source_type="varchar(5)"),
)
KNOWN = TableSchema(table_id=1, version=1, namespace="s", name="t", columns=COLUMNS, key=("id",))
WIDER = replace(COLUMNS[1], type=LogicalType(kind=Kind.TEXT), source_type="text")

#: The table in the new database, and the obstacle.
CASES = {
    "missing": (None, "s.t does not exist under this name in the new database"),
    "key": (replace(KNOWN, key=("v",)), "s.t has another key in the new database: v instead of id"),
    "column": (replace(KNOWN, columns=COLUMNS[:1]), "s.t has no column v in the new database"),
    "type": (
        replace(KNOWN, columns=(COLUMNS[0], WIDER)),
        "s.t.v is text in the new database and varchar(5) in the old one",
    ),
    "number": (
        replace(KNOWN, columns=(COLUMNS[0], replace(COLUMNS[1], number=4))),
        "s.t.v is column 4 of the new table and number 2 of the old one, which has dropped columns",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_table_that_differs_is_named(case: str) -> None:
    table, obstacle = CASES[case]
    assert list(find_handover_obstacles(KNOWN, table)) == [obstacle]


def test_the_same_table_or_one_with_more_columns_is_no_obstacle() -> None:
    assert list(find_handover_obstacles(KNOWN, KNOWN)) == []
    more = replace(COLUMNS[1], name="w", number=3)
    assert list(find_handover_obstacles(KNOWN, replace(KNOWN, columns=(*COLUMNS, more)))) == []
