"""Where a fill continues: single ranges of the key's index, in key order, with exactly the binds that they name."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.support.oracle.scripts import make_full_table
from venus.adapters.dialects.oracle.dictionary.tables import OracleTable
from venus.adapters.dialects.oracle.rows import build_access
from venus.adapters.dialects.rows import FillCursor

AFTER, END = [["number", "7"], ["text", " 2026-01-01 00:00:00.000000"]], [["number", "9"], ["text", " 2026-02-01"]]


def where_clause(text: str) -> str:
    found = re.search(r"WHERE (.*) ORDER BY", text)
    assert found is not None
    return found[1]


def test_after_a_key_come_the_rest_of_its_group_and_then_later_groups() -> None:
    first, second = build_access(make_full_table()).fill.build_reads(FillCursor(AFTER).cursor, 10)
    taken = "TO_TIMESTAMP(:p2, 'SYYYY-MM-DD HH24:MI:SS.FF')"
    assert where_clause(first[0]) == f'T."STUDENT_ID" = :p1 AND T."TAKEN" > {taken}'
    assert where_clause(second[0]) == 'T."STUDENT_ID" > :p1'
    assert list(first[1]) == ["lines", "p1", "p2"]
    assert list(second[1]) == ["lines", "p1"]


def test_the_end_also_limits_the_leading_column() -> None:
    first, second = build_access(make_full_table()).fill.build_reads(FillCursor(AFTER, END).cursor, 10)
    for text, binds in (first, second):
        assert ' AND T."STUDENT_ID" <= :e1 AND NOT (' in text
        assert set(re.findall(r":([a-z]\w*)", text.replace(":MI:SS", ""))) == set(binds)
    assert where_clause(second[0]).startswith('T."STUDENT_ID" > :p1 AND T."STUDENT_ID" <= :e1 AND NOT ')


def with_long(table: OracleTable) -> OracleTable:
    readings = dict(table.readings)
    readings["NAME"] = replace(readings["NAME"], declared=replace(readings["NAME"].declared, data_type="LONG"))
    return replace(table, readings=readings)


def test_a_long_is_in_no_subquery() -> None:
    for table, wrapped in ((make_full_table(), True), (with_long(make_full_table()), False)):
        fill = build_access(table).fill
        for text in (fill.first, *fill.behind, *fill.up_to_end):
            assert ("SELECT * FROM (" in text) is wrapped
            assert (":lines" in text) is wrapped
        assert ":lines" in fill.last
        assert "NAME" not in fill.last
