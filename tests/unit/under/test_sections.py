"""How a target interprets the sections of an increment, without a database."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.brokers.feed import column, items, put, section, table
from venus.adapters.under.cut_assembler import CutPiece, SectionRole, SectionWalk
from venus.codec.batch import EMPTY, Batch, TableChanges, marker
from venus.codec.columns import from_columns
from venus.codec.row_bytes import Layout
from venus.model import BatchNo, ChangeKind, Sequence, TableSchema

ITEMS, HELD, NEWER = items(1), items(2, "held"), replace(items(1), version=2)
BEAT = replace(table(3, "heartbeat", column(1, "id"), column(2, "beat_at")), namespace="venus")
SCHEMAS = {(s.table_id, s.version): s for s in (ITEMS, HELD, NEWER, BEAT)}


def beat(at_us: int) -> TableChanges:
    record_ids, rows = from_columns([["1"], [str(at_us)]], Layout.of(BEAT))
    return TableChanges(
        table_id=3, schema_version=1, record_ids=record_ids, rows=rows, is_deleted=np.zeros(1, np.bool_)
    )


def left_out(count: int) -> TableChanges:
    return TableChanges(
        table_id=0,
        schema_version=0,
        kind=ChangeKind.LEFT_OUT,
        record_ids=EMPTY,
        rows=EMPTY,
        is_deleted=np.zeros(0, np.bool_),
        left_out=count,
    )


def rows(schema: TableSchema, count: int = 1) -> TableChanges:
    return section(schema, [put(i, "x", 1, table=schema.table_id) for i in range(count)])


def piece(*sections: TableChanges, start: int = 10, lost: int = 0) -> CutPiece:
    batch = Batch(
        batch_no=BatchNo(1),
        first_sequence=Sequence(1),
        count=sum(s.count for s in sections),
        cut=BatchNo(1),
        cut_end=True,
        captured_at_us=0,
        schemas=(),
        sections=sections,
        lost=lost,
    )
    return CutPiece(start=start, epoch=1, committed_at_us=0, digest=0, decided=True, batch=batch)


def walk(one: CutPiece, **more: int) -> tuple[list[tuple[str, int, int]], SectionWalk]:
    versions = {1: 1}
    made = SectionWalk(lambda t, v: SCHEMAS.get((t, v)), versions.get, **more)
    found = []
    for role, content, offset in made.walk(one):
        found.append((role.name, content.table_id, offset))
        if role is SectionRole.NEW_VERSION:
            versions[content.table_id] = content.schema_version
    return found, made


@pytest.mark.parametrize(
    ("sections", "roles", "other"),
    [
        ([rows(ITEMS, 2), rows(ITEMS)], [("ROWS", 1, 10), ("ROWS", 1, 12)], 0),
        ([marker(1, 1, ChangeKind.TRUNCATE)], [("MARKER", 1, 10)], 0),
        ([rows(HELD)], [("HELD", 2, 10)], 0),
        ([marker(2, 1, ChangeKind.TRUNCATE)], [("HELD", 2, 10)], 0),
        ([rows(NEWER), rows(NEWER)], [("NEW_VERSION", 1, 10), ("ROWS", 1, 10), ("ROWS", 1, 11)], 0),
        ([marker(1, 2, ChangeKind.TRUNCATE)], [("NEW_VERSION", 1, 10), ("MARKER", 1, 10)], 0),
        ([left_out(3), rows(ITEMS), beat(7)], [("ROWS", 1, 13)], 4),
        ([], [], 1),
    ],
)
def test_every_section_has_one_role(
    sections: list[TableChanges], roles: list[tuple[str, int, int]], other: int
) -> None:
    found, made = walk(piece(*sections))
    assert found == roles
    assert made.other == other


def test_the_last_heartbeat_counts() -> None:
    _, made = walk(piece(beat(7), rows(ITEMS), beat(9)))
    assert made.heartbeat_us == 9


def test_the_reader_of_one_table_gets_only_its_sections() -> None:
    found, made = walk(piece(left_out(2), rows(HELD), rows(ITEMS), beat(7)), only=1)
    assert found == [("ROWS", 1, 13)]
    assert made.heartbeat_us is None


@pytest.mark.parametrize(
    ("start", "end", "roles", "other"), [(0, 12, 0, 2), (11, 13, 1, 1), (12, 14, 1, 1), (15, 99, 0, 0)]
)
def test_offsets_outside_of_the_range_are_skipped(start: int, end: int, roles: int, other: int) -> None:
    """10 and 11 are left out, 12 is a row, 13 a heartbeat."""
    found, made = walk(piece(left_out(2), rows(ITEMS), beat(7)), start=start, end=end)
    assert (len(found), made.other) == (roles, other)


def test_each_lost_offset_within_the_range_counts() -> None:
    _, made = walk(piece(lost=6), start=12, end=15)
    assert made.other == 3
