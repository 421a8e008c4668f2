"""A suspect row is a fault only relative to its offset: histories of a queue, with target and source at any offset."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from venus.adapters.dialects.verify_contract import Subject
from venus.adapters.targets.contract import ReachedOffset
from venus.adapters.verify.findings import DifferenceKind, Fault
from venus.adapters.verify.history import KeyChange, KeyHistory
from venus.adapters.verify.rows import Row
from venus.adapters.verify.slice_tasks import ComparisonSide, Positions, SuspectRow
from venus.adapters.verify.suspect_resolution import decide
from venus.model import Column, LogicalType, Sequence, TableSchema
from venus.model import Kind as Type

SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="main",
    name="t",
    key=("id",),
    columns=(
        Column(name="id", number=1, type=LogicalType(kind=Type.INT, length=8)),
        Column(name="v", number=2, type=LogicalType(kind=Type.TEXT)),
    ),
)
SUBJECT = Subject(schema=SCHEMA)
KEY = ("1",)


@dataclass
class Queue:
    """The history of one key at the broker: offset o has Sequence o + 1."""

    steps: list[KeyChange] = field(default_factory=list)

    def history(self, pinned: int, start: int | None = None) -> KeyHistory:
        row, changed = self.at(pinned)
        return KeyHistory(
            pinned=pinned,
            sequence=pinned,
            start=pinned if start is None else start,
            end=len(self.steps),
            end_sequence=len(self.steps) + 1,
            base={} if row is None else {KEY: (row, changed)},
            steps={KEY: [s for s in self.steps if not s.before and s.offset >= (start or 0)]},
            removals=[s for s in self.steps if s.before and s.offset >= (start or 0)],
        )

    def at(self, offset: int) -> tuple[Row | None, int]:
        row: Row | None = None
        changed = 0
        for step in self.steps[:offset]:
            if not step.before:
                row, changed = step.row, step.sequence
            elif changed < step.before:
                row = None
        return row, changed


def random_queue(draw: random.Random, length: int) -> Queue:
    queue = Queue()
    for offset in range(length):
        sequence = offset + 1
        kind = draw.random()
        if kind < 0.6:
            row: Row | None = ("1", f"v{offset}")
            queue.steps.append(KeyChange(offset=offset, sequence=sequence, row=row))
        elif kind < 0.85:
            queue.steps.append(KeyChange(offset=offset, sequence=sequence, row=None))
        else:  # TRUNCATE, or the end of a sweep that began a while ago
            before = sequence if draw.random() < 0.5 else max(1, sequence - draw.randrange(6))
            queue.steps.append(KeyChange(offset=offset, sequence=sequence, row=None, before=before))
    return queue


def suspect(source: Row | None, target: Row | None, *, sequence: int, offset: int, waiting: bool = False) -> SuspectRow:
    positions = Positions(next_sequence=Sequence(sequence), reached=ReachedOffset(offset=offset))
    rows = {ComparisonSide.SOURCE: source, ComparisonSide.TARGET: target}
    return SuspectRow(key=KEY, rows=rows, positions=positions, waiting=waiting)


def test_a_row_that_is_right_for_its_offset_is_never_reported() -> None:
    draw = random.Random(5)
    for _ in range(2000):
        queue = random_queue(draw, 12)
        pinned, offset, shipped = draw.randrange(13), draw.randrange(13), draw.randrange(13)
        shipped = max(shipped, pinned)  # the full data never has a change that the source has not shipped
        history = queue.history(pinned, start=min(pinned, offset))
        one = suspect(queue.at(shipped)[0], queue.at(offset)[0], sequence=shipped + 1, offset=offset)

        decision = decide(SUBJECT, one, history)

        assert decision.difference is None, (queue, pinned, offset, shipped)
        if decision.reason:
            assert offset < pinned, "only a target behind the full data has to be waited for"


def test_a_row_that_is_wrong_for_its_offset_is_always_found() -> None:
    draw = random.Random(6)
    for _ in range(1000):
        queue = random_queue(draw, 12)
        pinned = draw.randrange(13)
        offset, shipped = draw.randrange(pinned, 13), draw.randrange(pinned, 13)
        wrong_target, wrong_source = draw.random() < 0.5, draw.random() < 0.5
        source: Row | None = ("1", "bypassed") if wrong_source else queue.at(shipped)[0]
        target: Row | None = ("1", "written by hand") if wrong_target else queue.at(offset)[0]
        one = suspect(source, target, sequence=shipped + 1, offset=offset)

        found = decide(SUBJECT, one, queue.history(pinned)).difference

        if not (wrong_source or wrong_target):
            assert found is None
            continue
        assert found is not None
        wanted = Fault.BOTH if wrong_source and wrong_target else Fault.CAPTURE if wrong_source else Fault.APPLY
        assert found.fault is wanted


def test_a_change_in_the_log_and_an_undecided_batch_are_waited_for() -> None:
    queue = Queue([KeyChange(offset=0, sequence=1, row=("1", "old"))])
    new: Row = ("1", "new")

    waits = decide(SUBJECT, suspect(new, ("1", "old"), sequence=2, offset=1, waiting=True), queue.history(0))
    shipped = decide(SUBJECT, suspect(new, ("1", "old"), sequence=3, offset=1), queue.history(0))

    assert waits.difference is None
    assert "log" in waits.reason
    assert shipped.difference is None
    assert "Sequence 3" in shipped.reason


def test_a_lagging_target_is_reported_as_wrong_only_for_unchanged_rows() -> None:
    queue = Queue(
        [KeyChange(offset=0, sequence=1, row=("1", "old")), KeyChange(offset=1, sequence=2, row=("1", "new"))]
    )
    behind = suspect(("1", "new"), ("1", "old"), sequence=3, offset=1)

    waits = decide(SUBJECT, behind, queue.history(2, start=1))
    trimmed = decide(SUBJECT, behind, queue.history(2))
    untouched = decide(
        SUBJECT, suspect(("1", "new"), ("1", "by hand"), sequence=3, offset=2), queue.history(2)
    ).difference

    assert waits.difference is None
    assert "offset 1" in waits.reason
    assert trimmed.difference is None
    assert trimmed.reason
    assert untouched is not None
    assert untouched.kind is DifferenceKind.DIFFERENT
    assert {c.column: dict(c.values) for c in untouched.columns} == {
        "v": {"source": "new", "full data": "new", "target": "by hand"}
    }


def test_the_kind_of_a_difference_depends_on_the_origin_of_the_row() -> None:
    empty, there = Queue(), Queue([KeyChange(offset=0, sequence=1, row=("1", "x"))])
    row: Row = ("1", "x")
    cases = [
        (there, row, None, DifferenceKind.MISSING, Fault.APPLY),
        (empty, None, row, DifferenceKind.EXTRA, Fault.APPLY),
        (empty, row, None, DifferenceKind.MISSING, Fault.CAPTURE),
        (there, None, row, DifferenceKind.EXTRA, Fault.CAPTURE),
    ]
    for queue, source, target, kind, fault in cases:
        end = len(queue.steps)
        found = decide(SUBJECT, suspect(source, target, sequence=end + 1, offset=end), queue.history(end)).difference
        assert found is not None
        assert (found.kind, found.fault) == (kind, fault)


def test_a_target_is_asked_only_for_its_own_rows() -> None:
    subject = Subject(schema=SCHEMA, predicate="v = 'in'")

    def find_fault(source: str | None, target: str | None) -> tuple[DifferenceKind, Fault] | None:
        queue = Queue([KeyChange(offset=0, sequence=1, row=None if source is None else ("1", source))])
        rows: dict[ComparisonSide, Row | None] = {
            ComparisonSide.SOURCE: None if source is None else ("1", source),
            ComparisonSide.TARGET: None if target is None else ("1", target),
        }
        positions = Positions(next_sequence=Sequence(2), reached=ReachedOffset(offset=1))
        found = decide(subject, SuspectRow(key=KEY, rows=rows, positions=positions), queue.history(1))
        assert not found.reason
        return (found.difference.kind, found.difference.fault) if found.difference is not None else None

    assert find_fault("in", "in") is None
    assert find_fault("out", None) is None
    assert find_fault("out", "out") == (DifferenceKind.EXTRA, Fault.APPLY)
    assert find_fault("in", None) == (DifferenceKind.MISSING, Fault.APPLY)
    assert find_fault("in", "other") == (DifferenceKind.DIFFERENT, Fault.APPLY)
    assert find_fault(None, "in") == (DifferenceKind.EXTRA, Fault.APPLY)
