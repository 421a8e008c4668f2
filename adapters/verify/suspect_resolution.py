"""Resolution of suspects, the rows that differ between two snapshots, as faults or as changes on their way.

The history of the keys shows exactly which of the two a suspect is. The target's snapshot contains its applied offset.
The source's snapshot contains the Sequence that it has shipped and the keys that still wait in the log. The queue
defines the rows that source and target must contain at these positions (history.py). So each row is either right or
wrong for the position of its database. A suspect is checked again only if its change still waits, or if the target
lags.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.verify_contract import Key, Subject
from venus.adapters.verify.findings import ColumnDifference, DifferenceKind, Fault, RowDifference, UndecidedRow
from venus.adapters.verify.history import KeyHistory, KnownRow, PinnedFullData, read_increments, read_queue_end
from venus.adapters.verify.rows import Row, differing_columns, is_equal_row, key_as_dict, record_ids, rows_inside
from venus.adapters.verify.slice_tasks import (
    ComparisonEnds,
    ComparisonSide,
    SuspectRow,
    open_maskers,
    open_sides,
    recheck_suspects,
)
from venus.errors import OffsetTrimmed
from venus.masking.projection import ProjectedSchema
from venus.rpc.address import broker_address
from venus.wire import broker_pb2

FIRST_PAUSE_S = 0.05
PAUSE_MAX_S = 1.0


@dataclass(slots=True)
class SettlingResult:
    """Verdicts on the suspect rows of one table, and those that are still undecided."""

    differences: dict[Key, RowDifference] = field(default_factory=dict)
    undecided: dict[Key, str] = field(default_factory=dict)
    in_flight: int = 0


class SuspectResolver:
    """Decides the suspects of one table: each is a fault, a change on its way, or still open."""

    def __init__(
        self, ends: ComparisonEnds, subject: Subject, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._ends = ends
        self._subject = subject
        self._monotonic = monotonic
        self._maskers = open_maskers(ends)
        self._address = broker_address(ends.settings)
        self._business = ends.settings.business.name
        self._snapshot = broker_pb2.Snapshot.FromString(ends.snapshot)
        self._history = KeyHistory(
            pinned=self._snapshot.offset,
            sequence=self._snapshot.sequence,
            start=self._snapshot.offset,
            end=self._snapshot.offset,
            end_sequence=self._snapshot.sequence + 1,
        )
        self._keys: tuple[Key, ...] = ()

    def settle(self, suspects: Seq[SuspectRow], wait_s: float) -> SettlingResult:
        """Decide all suspects, or after `wait_s` return why some are undecided."""
        settled = SettlingResult()
        if not suspects:
            return settled
        self._read_history(suspects)
        decisions = self._decide(suspects)
        deadline, pause_s = self._monotonic() + wait_s, FIRST_PAUSE_S
        while open_ := [key for key, decision in decisions.items() if decision.reason]:
            if self._monotonic() >= deadline:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            decisions |= self._decide(recheck_suspects(self._ends, self._subject, open_))
        self._add_decisions(decisions, settled)
        return settled

    def wait_until_right(self, keys: Seq[Key], wait_s: float) -> dict[Key, Decision]:
        """Check these keys until each is right on both sides, for at most `wait_s`; return those that are not.

        A target is right only once it has received the shipped rows; equality at its present position is not enough.
        """
        suspects = recheck_suspects(self._ends, self._subject, keys)
        self._read_history(suspects)
        goals: dict[Key, int] = {}
        deadline, pause_s = self._monotonic() + wait_s, FIRST_PAUSE_S
        while True:
            decisions = self._decide(suspects)
            wrong = {s.key: decisions[s.key] for s in suspects if not self._is_done(s, decisions[s.key], goals)}
            if not wrong or self._monotonic() >= deadline:
                return wrong
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            suspects = recheck_suspects(self._ends, self._subject, list(wrong))

    def _is_done(self, suspect: SuspectRow, decision: Decision, goals: dict[Key, int]) -> bool:
        """Return whether a row is right, and a compared target has reached its goal, which is an end of the queue."""
        if decision.reason or decision.difference:
            return False
        goal, reached = goals.setdefault(suspect.key, self._history.end), suspect.positions.reached
        return reached is None or reached.offset >= goal

    def _read_history(self, suspects: Seq[SuspectRow]) -> None:
        """Read the full data of these keys, and the increments from the first relevant offset."""
        self._keys = tuple(s.key for s in suspects)
        full = PinnedFullData(self._address, self._snapshot, self._maskers)
        try:
            self._history.base = full.find(self._subject, self._keys)
            self._versions = full.versions(self._subject)
        finally:
            full.close()
        reached = [s.positions.reached.offset for s in suspects if s.positions.reached is not None]
        first = min([self._snapshot.offset, *reached])
        if first < self._snapshot.offset:
            self._read_earlier_increments(first)

    def _read_earlier_increments(self, first: int) -> None:
        """Read the increments between a target that is behind and the full data, unless they are trimmed."""
        before = KeyHistory(pinned=self._history.pinned, sequence=self._history.sequence)
        try:
            self._read_increments(before, first, self._history.pinned, self._history.end_sequence)
        except OffsetTrimmed:
            return
        self._history.steps, self._history.removals = before.steps, before.removals
        self._history.start = first

    def _read_increments(self, history: KeyHistory, start: int, end: int, end_sequence: int) -> None:
        read_increments(
            history,
            address=self._address,
            business=self._business,
            subject=self._subject,
            versions=self._versions,
            maskers=self._maskers,
            keys=self._keys,
            start=start,
            end=end,
            end_sequence=end_sequence,
        )

    def _decide(self, suspects: Seq[SuspectRow]) -> dict[Key, Decision]:
        """Read the queue to its end, then decide these suspects."""
        end, end_sequence = read_queue_end(self._address, self._business, self._history)
        if end > self._history.end:
            self._read_increments(self._history, self._history.end, end, end_sequence)
        return {s.key: decide(self._subject, s, self._history) for s in suspects}

    def _add_decisions(self, decisions: Mapping[Key, Decision], settled: SettlingResult) -> None:
        """Add decisions to the result, with the target's reason for each row that it has refused."""
        notes = self._read_quarantined([key for key, d in decisions.items() if d.difference is not None])
        for key, decision in decisions.items():
            if decision.difference is not None:
                note = "; ".join(filter(None, [decision.difference.note, notes.get(key, ""), decision.reason]))
                settled.differences[key] = replace(decision.difference, note=note)
            elif decision.reason:
                settled.undecided[key] = decision.reason
            else:
                settled.in_flight += 1

    def _read_quarantined(self, keys: Seq[Key]) -> dict[Key, str]:
        """Return the reasons for which the target has refused rows, by key: that is why these rows differ."""
        target = open_sides(self._ends).target
        ids = record_ids(keys, self._subject.schema) if keys and target is not None else None
        if target is None or ids is None:
            return {}
        target.begin(self._subject)
        parked = target.read_parked_rows(self._subject)
        target.end()
        return {key: parked[record_id] for key, record_id in zip(keys, ids, strict=True) if record_id in parked}


def undecided_rows(subject: Subject, reasons: Mapping[Key, str]) -> list[UndecidedRow]:
    """Return the undecided rows, for the report."""
    return [
        UndecidedRow(table=subject.schema.qualified_name, key=key_as_dict(key, subject.schema), reason=reason)
        for key, reason in reasons.items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SideJudgement:
    """Judgement of one side: the row that it should have according to the queue, or why that is unknown."""

    place: ComparisonSide
    expected: KnownRow | None = None
    right: bool = False
    reason: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether the expected row is known and differs."""
        return self.expected is not None and not self.right


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision on a suspect: a `difference`, a `reason` to check again, or neither if its change was on the way."""

    difference: RowDifference | None = None
    reason: str = ""


def decide(subject: Subject, suspect: SuspectRow, history: KeyHistory) -> Decision:
    """Decide whether a suspect is wrong on any side, right, or has to be checked again."""
    if suspect.repeated:  # no pending change can turn one row into two
        return Decision(difference=_build_repeated_key_difference(subject, suspect))
    legs = [
        _judge_side(subject, suspect, history, place)
        for place in (ComparisonSide.SOURCE, ComparisonSide.TARGET)
        if place in suspect.rows
    ]
    wrong = [leg for leg in legs if leg.is_wrong]
    open_ = next((leg.reason for leg in legs if leg.reason), "")
    if open_:
        # one side may already be wrong; wait for the other side, so that the fault is complete
        return Decision(difference=_build_difference(subject, suspect, legs) if wrong else None, reason=open_)
    return Decision(difference=_build_difference(subject, suspect, legs)) if wrong else Decision()


def _judge_side(subject: Subject, suspect: SuspectRow, history: KeyHistory, place: ComparisonSide) -> SideJudgement:
    """Compare the row of one side with the row that the queue defines for that side's position."""
    positions, row = suspect.positions, suspect.rows[place]
    if place is ComparisonSide.TARGET:
        assert positions.reached is not None
        expected = _target_row(subject, history.at_offset(suspect.key, positions.reached.offset))
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


def _target_row(subject: Subject, known: KnownRow | None) -> KnownRow | None:
    """Return the row that the target must have: none if the target's predicate excludes it."""
    if known is None or known.row is None or not subject.predicate or isinstance(subject.schema, ProjectedSchema):
        return known  # with rules for its columns, the history of a table has only rows inside the predicate
    gets = rows_inside(subject.predicate, [[value] for value in known.row], subject.schema)[0]
    return known if gets else KnownRow(row=None)


def _build_repeated_key_difference(subject: Subject, suspect: SuspectRow) -> RowDifference:
    """Return the finding about a key that several rows of one side have."""
    counts = ", ".join(f"{rows} rows in the {place.value}" for place, rows in suspect.repeated.items())
    faults = {Fault.APPLY if place is ComparisonSide.TARGET else Fault.CAPTURE for place in suspect.repeated}
    return RowDifference(
        table=subject.schema.qualified_name,
        key=key_as_dict(suspect.key, subject.schema),
        kind=DifferenceKind.REPEATED,
        fault=faults.pop() if len(faults) == 1 else Fault.BOTH,
        columns=(),
        note=counts,
        forms=suspect.key,
        present=tuple(p.value for p in ComparisonSide if suspect.rows.get(p) is not None),
    )


def _build_difference(subject: Subject, suspect: SuspectRow, legs: list[SideJudgement]) -> RowDifference:
    """Return the finding about a wrong row: the component at fault, the kind, and the columns."""
    capture = next((leg for leg in legs if leg.place is ComparisonSide.SOURCE and leg.is_wrong), None)
    apply = next((leg for leg in legs if leg.place is ComparisonSide.TARGET and leg.is_wrong), None)
    rows: dict[ComparisonSide, Row | None] = dict(suspect.rows)
    full = next((leg.expected for leg in legs if leg.is_wrong and leg.expected is not None), KnownRow(row=None))
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
        table=subject.schema.qualified_name,
        key=key_as_dict(suspect.key, subject.schema),
        kind=kind,
        fault=fault,
        columns=_differing_values(subject, rows),
        present=tuple(p.value for p in ComparisonSide if rows.get(p) is not None),
        forms=suspect.key,
    )


def _differing_values(subject: Subject, rows: dict[ComparisonSide, Row | None]) -> tuple[ColumnDifference, ...]:
    """Return the columns that differ between sides; if a side has no row, all columns except the key."""
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
