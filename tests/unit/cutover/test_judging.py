"""Obstacles of a cut-over, the next values of counters, and the differences that a table's hash notices: all pure."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from venus.adapters.cutover.certificate import ComparedTable, TableHash, align_section
from venus.adapters.cutover.comparison import NotAtRest, VersionedTable, hash_source
from venus.adapters.cutover.readiness import (
    Readiness,
    SourceTableState,
    find_alarms,
    find_blocks,
    find_missing,
    find_movement,
    find_pending,
    relevant_alarms,
)
from venus.adapters.dialects.contract import Cut, FillState
from venus.adapters.targets.cutover_contract import CutoverTable
from venus.adapters.targets.relational.sides import next_number
from venus.adapters.targets.views import TargetTable, TargetView
from venus.codec.batch import TableChanges
from venus.codec.columns import from_columns, to_columns
from venus.codec.packed import PackedBytes
from venus.codec.row_bytes import Layout
from venus.model import Column, Kind, LogicalType, TableSchema
from venus.wire import broker_pb2

TEXT = LogicalType(kind=Kind.TEXT)

AT_SOURCE = SourceTableState(name="s.t", state="ACTIVE", reason="", fill_done=True, log_rows=0, blocked_s=0)
AT_TARGET = TargetTable(table_id=1, name="s.t", state="ACTIVE", rows_applied=5)
VIEW = TargetView(name="a", group="main/a", loaded=True, offset=7, applied_sequence=9, tables=(AT_TARGET,))
READY = Readiness(
    target="a",
    source=(AT_SOURCE,),
    producer="p",
    halves=0,
    next_offset=7,
    committed={1: 5},
    applied=True,
    at_target=VIEW,
)
BEHIND = replace(READY, next_offset=9)


def readiness_at_target(**changed: Any) -> Readiness:
    """Return a readiness in which only this state of the target is an obstacle."""
    return replace(READY, at_target=replace(VIEW, **changed))


def table(**changed: Any) -> Readiness:
    """Return a readiness in which only this state of the one table at the target is an obstacle."""
    return readiness_at_target(tables=(replace(AT_TARGET, **changed),))


def test_nothing_forbids_a_cutover_of_a_healthy_pipeline() -> None:
    assert find_blocks(READY) == []
    assert find_missing(READY) == []
    assert find_pending(READY) == []


@pytest.mark.parametrize(
    ("readiness", "said", "remedy"),
    [
        (readiness_at_target(loaded=False), "has not been loaded", "venus migrate --target a"),
        (replace(READY, source=(replace(AT_SOURCE, state="RESYNC"),)), "missed changes", "venus resync s.t"),
        (replace(READY, source=(replace(AT_SOURCE, state="PAUSED"),)), "PAUSED at the source", "venus resume s.t"),
        (readiness_at_target(tables=()), "not at the target", "venus sync"),
        (replace(READY, source=(), released={"s.t": "at 3"}), "not captured any more (at 3)", "takes it up again"),
        (
            replace(READY, source=(), released={"s.t": "at 3"}, gone=frozenset({"s.t"})),
            "s.t was dropped at the source and is still at the target",
            "drop it at the target",
        ),
        (replace(READY, missing=frozenset({"s.t"})), "s.t is captured and not at the target", "venus migrate"),
        (table(state="HALTED", reason="no"), "HALTED at the target (no)", "q"),
        (table(state="PAUSED"), "PAUSED", "venus resume s.t --target a"),
        (table(state="LOADING"), "LOADING", "venus migrate --target a"),
        (table(predicate="v = 1"), "gets a part of its rows: the rows where v = 1", "out of [targets.a.where]"),
        (readiness_at_target(paused=True), "paused", "venus resume --target a"),
        (readiness_at_target(open_quarantine=2), "2 refused changes", "venus quarantine list --target a"),
        (readiness_at_target(unaccounted_rows=3), "unaccounted", "venus resync --all --target a"),
        (replace(READY, alarms=("smoke",)), "smoke", "venus status"),
        (replace(READY, producer="", source=(replace(AT_SOURCE, log_rows=1),)), "no process captures", "venus sync"),
        (replace(BEHIND, applied=False), "no process applies", "--apply-only --target a"),
    ],
)
def test_each_obstacle_is_listed_with_the_command_that_removes_it(readiness: Readiness, said: str, remedy: str) -> None:
    (block,) = find_blocks(readiness) + find_missing(readiness) + find_alarms(readiness, passing=False)
    assert said in block.what
    assert remedy in block.remedy


def test_problems_of_other_targets_forbid_nothing() -> None:
    """A cut-over must not depend on a second target that is away."""
    own = [
        "half message 7 has been undecided for 60 s (1 of them)",
        "broker -> target a: apply is not connected; is `venus sync` running?",
        "source -> broker: nothing has been captured for 90 s",
    ]
    others = [
        "broker -> target b: apply is not connected; is `venus sync` running?",
        "target b: s.t is HALTED; `venus quarantine list --target b` shows the row",
        "target b: 4 changes below its offset are unaccounted for; `venus resync --all --target b` makes it equal",
        "the queue keeps 2.00 GiB for held tables of main/b, from offset 4 on: `venus resume` or `venus resync` them",
        "broker -> set north: it does not pull; the queue is kept for it: is its broker running, and the line up?",
    ]
    consumers = [broker_pb2.ConsumerStatus(group=name) for name in ("main/a", "main/b", "mirror/north")]
    status = broker_pb2.BusinessStatus(business="main", alarms=own + others, consumers=consumers)

    assert relevant_alarms("main/a", status) == own


@pytest.mark.parametrize(
    ("readiness", "said"),
    [
        (replace(READY, source=(replace(AT_SOURCE, log_rows=4),)), "4 changes waiting at the source"),
        (replace(READY, source=(replace(AT_SOURCE, fill_done=False),)), "is being read"),
        (replace(READY, source=(replace(AT_SOURCE, blocked_s=60),)), "a transaction is open at the source for 60 s"),
        (replace(READY, halves=1), "1 undecided batch at the broker"),
        (BEHIND, "2 changes behind the broker"),
        (table(state="CATCHUP"), "catches up"),
        (table(state="RESYNCING"), "catches up"),
    ],
)
def test_temporary_obstacles_are_waited_for(readiness: Readiness, said: str) -> None:
    (wait,) = find_pending(readiness)
    assert said in wait.what


def test_a_lagging_table_is_named_with_its_lag() -> None:
    assert [b.what for b in find_movement({"s.t": 5, "s.u": 1}, {"s.t": 8, "s.u": 1})] == [
        "s.t: 3 changes arrived meanwhile"
    ]
    held = table(held=2, skipped=1, quarantined=1)
    assert find_movement(READY.counters, held.counters)


@pytest.mark.parametrize(
    ("smallest", "largest", "source_next", "step", "expected"),
    [
        (None, None, None, 1, 1),
        (1, 41, None, 1, 42),
        (1, 41, 7, 1, 42),
        (1, 3, 90, 1, 90),
        (-5, -1, None, 1, 1),
        (1, 40, None, 10, 50),
        (None, None, 7, 1, 7),
        (-4, -1, None, -1, -5),
        (-4, -1, -9, -1, -9),
        (None, None, None, -1, -1),
    ],
)
def test_counters_continue_after_the_rows_and_after_the_source(
    smallest: int | None, largest: int | None, source_next: int | None, step: int, expected: int
) -> None:
    assert next_number(smallest, largest, source_next, step) == expected


def hash_rows(rows: list[tuple[bytes, bytes]], at_once: int = 3) -> TableHash:
    found = TableHash()
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        found.add(PackedBytes.of(i for i, _ in part), PackedBytes.of(r for _, r in part))
    return found


def test_a_hash_ignores_the_order_and_nothing_else() -> None:
    rows = [(b"key %d" % n, b"row %d" % (n % 3)) for n in range(50)]
    mixed = random.Random(3).sample(rows, 50)
    assert hash_rows(rows) == hash_rows(mixed, 7)
    assert hash_rows(rows).rows == 50
    for other in (rows[1:], [*rows, rows[0]], [*rows[:-1], (b"key 49", b"row 0")], [*rows[:-2], rows[0], rows[0]]):
        assert hash_rows(other).total != hash_rows(rows).total
    assert len(hash_rows(rows).text) == 32


def test_rows_of_older_versions_are_encoded_like_the_newest() -> None:
    def version(number: int, *names: tuple[str, int]) -> TableSchema:
        columns = tuple(Column(name=n, number=f, type=TEXT) for n, f in names)
        return TableSchema(table_id=1, version=number, namespace="s", name="t", columns=columns, key=("id",))

    old, new = version(1, ("id", 1), ("gone", 2), ("kept", 3)), version(2, ("id", 1), ("kept", 3), ("added", 4))
    ids, rows = from_columns([["a", "b"], ["x", None], ["1", "2"]], Layout.of(old))
    section = TableChanges(
        table_id=1, schema_version=1, record_ids=ids, rows=rows, is_deleted=np.zeros(2, dtype=np.bool_)
    )

    found = to_columns(*align_section(section, old, new), Layout.of(new))

    assert [list(c) for c in found] == [["a", "b"], ["1", "2"], [None, None]]


def test_a_newer_version_is_reported_and_stops_nothing() -> None:
    columns = (Column(name="id", number=1, type=TEXT), Column(name="kept", number=2, type=TEXT))
    known = TableSchema(table_id=1, version=1, namespace="s", name="t", columns=columns, key=("id",))
    ids, rows = from_columns([["a"], ["1"]], Layout.of(known))
    later = TableChanges(
        table_id=1, schema_version=2, record_ids=ids, rows=rows, is_deleted=np.zeros(1, dtype=np.bool_)
    )

    class MovedSnapshot:
        """A source's snapshot whose table has got another version."""

        def read_fill_chunk(self, fill: FillState, **_: int) -> tuple[list[TableChanges], FillState]:
            return [later], replace(fill, done=True)

    table = VersionedTable(CutoverTable(schema=known, name="t"), (known,))
    with pytest.raises(NotAtRest, match=r"s\.t has become version 2 while it was compared") as refused:
        hash_source(cast("Cut", MovedSnapshot()), table, lambda _name, _rows: None, None)
    assert refused.value.hint == "let changes of tables at the source end, and try again"


@pytest.mark.parametrize(
    ("source", "full", "target", "says"),
    [
        ((5, 1), (5, 1), (4, 2), "source 5 rows, full data 5 rows, target 4 rows"),
        ((5, 1), (5, 1), (5, 2), "5 rows, but the rows of the target differ from those of source and full data"),
        ((5, 2), (5, 1), (5, 1), "5 rows, but the rows of the source differ from those of full data and target"),
        ((5, 1), (5, 2), (5, 3), "5 rows, and all three differ"),
    ],
)
def test_a_difference_says_which_side_differs(
    source: tuple[int, int], full: tuple[int, int], target: tuple[int, int], says: str
) -> None:
    sides = {side: TableHash(*found) for side, found in (("source", source), ("full", full), ("target", target))}
    compared = ComparedTable(table="t", target_table="t", converted=False, **sides)
    assert not compared.is_equal
    assert compared.difference.removeprefix("each side has ") == says
