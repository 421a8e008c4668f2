"""Decides exactly whether a suspect is a fault or a change on its way, and pure.

The target's snapshot has its applied offset. The source's snapshot has the Sequence that it has shipped and the keys
that still wait in the log. The queue defines what both must contain there (history.py). So a row is wrong or right for
the position of its side. Only a suspect whose change waits, or whose target is behind, is checked again.
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.adapters.dialects.verifying import Subject
from venus.adapters.verify.findings import ColumnDifference, Difference, Fault, Kind
from venus.adapters.verify.history import History, Known
from venus.adapters.verify.rows import Row, differing, equal, inside_of, key_as_dict
from venus.adapters.verify.tasks import Place, Suspect


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """Judgement of one side: the row that the queue expects there, or why that is not known."""

    place: Place
    expected: Known | None = None
    right: bool = False
    reason: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the expected row is known and differs."""
        return self.expected is not None and not self.right


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision on a suspect: `difference`, or `reason` to check again, or neither if the change was on its way."""

    difference: Difference | None = None
    reason: str = ""


def decide(subject: Subject, suspect: Suspect, history: History) -> Decision:
    """Decide a suspect."""
    if suspect.repeated:  # no change on its way makes two rows of one
        return Decision(difference=_repeated(subject, suspect))
    legs = [
        _judged(subject, suspect, history, place) for place in (Place.SOURCE, Place.TARGET) if place in suspect.rows
    ]
    wrong = [leg for leg in legs if leg.wrong]
    open_ = next((leg.reason for leg in legs if leg.reason), "")
    if open_:
        # one side may be wrong already; wait for the other side, so that the fault is named completely
        return Decision(difference=_difference(subject, suspect, legs) if wrong else None, reason=open_)
    return Decision(difference=_difference(subject, suspect, legs)) if wrong else Decision()


def _judged(subject: Subject, suspect: Suspect, history: History, place: Place) -> Leg:
    positions, row = suspect.positions, suspect.rows[place]
    if place is Place.TARGET:
        assert positions.reached is not None
        expected = _for_target(subject, history.at_offset(suspect.key, positions.reached.offset))
        reason = positions.reached.held or (
            f"the target is at offset {positions.reached.offset:,}, the full data at {history.pinned:,}"
        )
    else:
        assert positions.next_sequence is not None
        if suspect.waiting:
            return Leg(place=place, reason="its change waits in the source's log")
        expected = history.at_sequence(suspect.key, positions.next_sequence)
        reason = f"the broker has not committed everything below Sequence {positions.next_sequence:,}"
    if expected is None:
        return Leg(place=place, reason=reason)
    return Leg(place=place, expected=expected, right=equal(subject.schema, expected.row, row))


def _for_target(subject: Subject, known: Known | None) -> Known | None:
    """Return the row that the target must have: none if its predicate excludes it."""
    if known is None or known.row is None or not subject.predicate:
        return known
    gets = inside_of(subject.predicate, [[value] for value in known.row], subject.schema)[0]
    return known if gets else Known(row=None)


def _repeated(subject: Subject, suspect: Suspect) -> Difference:
    counts = ", ".join(f"{rows} rows in the {place.value}" for place, rows in suspect.repeated.items())
    faults = {Fault.APPLY if place is Place.TARGET else Fault.CAPTURE for place in suspect.repeated}
    return Difference(
        table=subject.schema.qualified, key=key_as_dict(suspect.key, subject.schema), kind=Kind.REPEATED,
        fault=faults.pop() if len(faults) == 1 else Fault.BOTH, columns=(), note=counts, forms=suspect.key,
        present=tuple(p.value for p in Place if suspect.rows.get(p) is not None),
    )  # fmt: skip


def _difference(subject: Subject, suspect: Suspect, legs: list[Leg]) -> Difference:
    capture = next((leg for leg in legs if leg.place is Place.SOURCE and leg.wrong), None)
    apply = next((leg for leg in legs if leg.place is Place.TARGET and leg.wrong), None)
    rows: dict[Place, Row | None] = dict(suspect.rows)
    full = next((leg.expected for leg in legs if leg.wrong and leg.expected is not None), Known(row=None))
    rows[Place.FULL] = full.row
    if capture is not None:
        wanted = rows[Place.SOURCE]
        actual = rows[Place.TARGET] if apply is not None else rows[Place.FULL]
        fault = Fault.BOTH if apply is not None else Fault.CAPTURE
    else:
        wanted, actual, fault = rows[Place.FULL], rows[Place.TARGET], Fault.APPLY
    kind = Kind.MISSING if actual is None else Kind.EXTRA if wanted is None else Kind.DIFFERENT
    return Difference(
        table=subject.schema.qualified, key=key_as_dict(suspect.key, subject.schema), kind=kind, fault=fault,
        columns=_columns(subject, rows), present=tuple(p.value for p in Place if rows.get(p) is not None),
        forms=suspect.key,
    )  # fmt: skip


def _columns(subject: Subject, rows: dict[Place, Row | None]) -> tuple[ColumnDifference, ...]:
    """Return the columns that differ between sides; all but the key's where a side has no row."""
    schema = subject.schema
    there = {place: row for place, row in rows.items() if row is not None}
    if len(there) < len(rows):
        numbers = range(len(schema.key), len(schema.columns))
    else:
        first, *others = there.values()
        numbers = sorted({n for other in others for n in differing(schema, first, other)})  # type: ignore[assignment]
    return tuple(
        ColumnDifference(
            column=schema.wire_columns[n].name,
            values={place.value: there[place][n] for place in Place if place in there},
        )
        for n in numbers
    )
