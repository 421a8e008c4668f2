"""Decides exactly whether a suspect is a fault or a change on its way, and pure.

The target's snapshot has its applied offset. The source's snapshot has the Sequence that it has shipped and the keys
that still wait in the log. The queue defines what both must contain there (history.py). So a row is wrong or right for
the position of its side. Only a suspect whose change waits, or whose target is behind, is checked again.
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.adapters.dialects.verify_contract import Subject
from venus.adapters.verify.findings import ColumnDifference, DifferenceKind, Fault, RowDifference
from venus.adapters.verify.history import KeyHistory, KnownRow
from venus.adapters.verify.rows import Row, differing_columns, is_equal_row, key_as_dict, rows_inside
from venus.adapters.verify.slice_tasks import ComparisonSide, SuspectRow


@dataclass(frozen=True, slots=True, kw_only=True)
class SideJudgement:
    """Judgement of one side: the row that the queue expects there, or why that is not known."""

    place: ComparisonSide
    expected: KnownRow | None = None
    right: bool = False
    reason: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the expected row is known and differs."""
        return self.expected is not None and not self.right


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision on a suspect: `difference`, or `reason` to check again, or neither if the change was on its way."""

    difference: RowDifference | None = None
    reason: str = ""


def decide(subject: Subject, suspect: SuspectRow, history: KeyHistory) -> Decision:
    """Decide a suspect."""
    if suspect.repeated:  # no change on its way makes two rows of one
        return Decision(difference=_repeated_key(subject, suspect))
    legs = [
        _judge_side(subject, suspect, history, place)
        for place in (ComparisonSide.SOURCE, ComparisonSide.TARGET)
        if place in suspect.rows
    ]
    wrong = [leg for leg in legs if leg.wrong]
    open_ = next((leg.reason for leg in legs if leg.reason), "")
    if open_:
        # one side may be wrong already; wait for the other side, so that the fault is named completely
        return Decision(difference=_difference(subject, suspect, legs) if wrong else None, reason=open_)
    return Decision(difference=_difference(subject, suspect, legs)) if wrong else Decision()


def _judge_side(subject: Subject, suspect: SuspectRow, history: KeyHistory, place: ComparisonSide) -> SideJudgement:
    positions, row = suspect.positions, suspect.rows[place]
    if place is ComparisonSide.TARGET:
        assert positions.reached is not None
        expected = _for_target(subject, history.at_offset(suspect.key, positions.reached.offset))
        reason = positions.reached.held or (
            f"the target is at offset {positions.reached.offset:,}, the full data at {history.pinned:,}"
        )
    else:
        assert positions.next_sequence is not None
        if suspect.waiting:
            return SideJudgement(place=place, reason="its change waits in the source's log")
        expected = history.at_sequence(suspect.key, positions.next_sequence)
        reason = f"the broker has not committed everything below Sequence {positions.next_sequence:,}"
    if expected is None:
        return SideJudgement(place=place, reason=reason)
    return SideJudgement(place=place, expected=expected, right=is_equal_row(subject.schema, expected.row, row))


def _for_target(subject: Subject, known: KnownRow | None) -> KnownRow | None:
    """Return the row that the target must have: none if its predicate excludes it."""
    if known is None or known.row is None or not subject.predicate:
        return known
    gets = rows_inside(subject.predicate, [[value] for value in known.row], subject.schema)[0]
    return known if gets else KnownRow(row=None)


def _repeated_key(subject: Subject, suspect: SuspectRow) -> RowDifference:
    counts = ", ".join(f"{rows} rows in the {place.value}" for place, rows in suspect.repeated.items())
    faults = {Fault.APPLY if place is ComparisonSide.TARGET else Fault.CAPTURE for place in suspect.repeated}
    return RowDifference(
        table=subject.schema.qualified, key=key_as_dict(suspect.key, subject.schema), kind=DifferenceKind.REPEATED,
        fault=faults.pop() if len(faults) == 1 else Fault.BOTH, columns=(), note=counts, forms=suspect.key,
        present=tuple(p.value for p in ComparisonSide if suspect.rows.get(p) is not None),
    )  # fmt: skip


def _difference(subject: Subject, suspect: SuspectRow, legs: list[SideJudgement]) -> RowDifference:
    capture = next((leg for leg in legs if leg.place is ComparisonSide.SOURCE and leg.wrong), None)
    apply = next((leg for leg in legs if leg.place is ComparisonSide.TARGET and leg.wrong), None)
    rows: dict[ComparisonSide, Row | None] = dict(suspect.rows)
    full = next((leg.expected for leg in legs if leg.wrong and leg.expected is not None), KnownRow(row=None))
    rows[ComparisonSide.FULL] = full.row
    if capture is not None:
        wanted = rows[ComparisonSide.SOURCE]
        actual = rows[ComparisonSide.TARGET] if apply is not None else rows[ComparisonSide.FULL]
        fault = Fault.BOTH if apply is not None else Fault.CAPTURE
    else:
        wanted, actual, fault = rows[ComparisonSide.FULL], rows[ComparisonSide.TARGET], Fault.APPLY
    kind = (
        DifferenceKind.MISSING
        if actual is None
        else DifferenceKind.EXTRA
        if wanted is None
        else DifferenceKind.DIFFERENT
    )
    return RowDifference(
        table=subject.schema.qualified, key=key_as_dict(suspect.key, subject.schema), kind=kind, fault=fault,
        columns=_columns(subject, rows), present=tuple(p.value for p in ComparisonSide if rows.get(p) is not None),
        forms=suspect.key,
    )  # fmt: skip


def _columns(subject: Subject, rows: dict[ComparisonSide, Row | None]) -> tuple[ColumnDifference, ...]:
    """Return the columns that differ between sides; all but the key's where a side has no row."""
    schema = subject.schema
    there = {place: row for place, row in rows.items() if row is not None}
    if len(there) < len(rows):
        numbers = range(len(schema.key), len(schema.columns))
    else:
        first, *others = there.values()
        numbers = sorted({n for other in others for n in differing_columns(schema, first, other)})  # type: ignore[assignment]
    return tuple(
        ColumnDifference(
            column=schema.wire_columns[n].name,
            values={place.value: there[place][n] for place in ComparisonSide if place in there},
        )
        for n in numbers
    )
