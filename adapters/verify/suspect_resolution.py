"""From suspects to findings: reads the history of their keys, decides, and checks open ones again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.verify_contract import Key, Subject
from venus.adapters.verify.fault_decision import Decision, decide
from venus.adapters.verify.findings import RowDifference, UndecidedRow
from venus.adapters.verify.full_data import PinnedFullData
from venus.adapters.verify.history import KeyHistory, read_increments, read_queue_end
from venus.adapters.verify.rows import key_as_dict, record_ids
from venus.adapters.verify.slice_tasks import ComparisonEnds, SuspectRow, open_sides, recheck_suspects
from venus.errors import OffsetTrimmed
from venus.rpc.address import broker_address
from venus.wire import broker_pb2

FIRST_PAUSE_S = 0.05
PAUSE_MAX_S = 1.0


@dataclass(slots=True)
class SettlingResult:
    """Decided suspects of one table."""

    differences: dict[Key, RowDifference] = field(default_factory=dict)
    undecided: dict[Key, str] = field(default_factory=dict)
    in_flight: int = 0


class SuspectResolver:
    """State machine of one table's suspects."""

    def __init__(
        self, ends: ComparisonEnds, subject: Subject, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._ends = ends
        self._subject = subject
        self._monotonic = monotonic
        self._address = broker_address(ends.settings)
        self._business = ends.settings.business.name
        self._snapshot = broker_pb2.Snapshot.FromString(ends.snapshot)
        self._history = KeyHistory(
            pinned=self._snapshot.offset, sequence=self._snapshot.sequence, start=self._snapshot.offset,
            end=self._snapshot.offset, end_sequence=self._snapshot.sequence + 1,
        )  # fmt: skip
        self._keys: tuple[Key, ...] = ()

    def settle(self, suspects: Seq[SuspectRow], wait_s: float) -> SettlingResult:
        """Decide all suspects, or after `wait_s` return why some are undecided."""
        settled = SettlingResult()
        if not suspects:
            return settled
        self._learn(suspects)
        decisions = self._decide(suspects)
        deadline, pause_s = self._monotonic() + wait_s, FIRST_PAUSE_S
        while open_ := [key for key, decision in decisions.items() if decision.reason]:
            if self._monotonic() >= deadline:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            decisions |= self._decide(recheck_suspects(self._ends, self._subject, open_))
        self._sort(decisions, settled)
        return settled

    def wait_until_right(self, keys: Seq[Key], wait_s: float) -> dict[Key, Decision]:
        """Check these keys until each is right at both ends, for `wait_s` at most; return those that are not.

        A target is right only when it has received what was shipped; equality at its present position is not enough.
        """
        suspects = recheck_suspects(self._ends, self._subject, keys)
        self._learn(suspects)
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
        """Return whether a row is right, and the target, if compared, has reached the queue's end of that time."""
        if decision.reason or decision.difference:
            return False
        goal, reached = goals.setdefault(suspect.key, self._history.end), suspect.positions.reached
        return reached is None or reached.offset >= goal

    def _learn(self, suspects: Seq[SuspectRow]) -> None:
        """Read the full data of these keys, and the increments from the first relevant offset."""
        self._keys = tuple(s.key for s in suspects)
        full = PinnedFullData(self._address, self._snapshot)
        try:
            self._history.base = full.find(self._subject, self._keys)
            self._versions = full.versions(self._subject.schema.table_id)
        finally:
            full.close()
        reached = [s.positions.reached.offset for s in suspects if s.positions.reached is not None]
        first = min([self._snapshot.offset, *reached])
        if first < self._snapshot.offset:
            self._read_before(first)

    def _read_before(self, first: int) -> None:
        """Read the increments between a target that is behind and the full data, if they still exist."""
        before = KeyHistory(pinned=self._history.pinned, sequence=self._history.sequence)
        try:
            self._read(before, first, self._history.pinned, self._history.end_sequence)
        except OffsetTrimmed:
            return
        self._history.steps, self._history.removals = before.steps, before.removals
        self._history.start = first

    def _read(self, history: KeyHistory, start: int, end: int, end_sequence: int) -> None:
        read_increments(
            history, address=self._address, business=self._business, subject=self._subject,
            versions=self._versions, keys=self._keys, start=start, end=end, end_sequence=end_sequence,
        )  # fmt: skip

    def _decide(self, suspects: Seq[SuspectRow]) -> dict[Key, Decision]:
        end, end_sequence = read_queue_end(self._address, self._business, self._history)
        if end > self._history.end:
            self._read(self._history, self._history.end, end, end_sequence)
        return {s.key: decide(self._subject, s, self._history) for s in suspects}

    def _sort(self, decisions: Mapping[Key, Decision], settled: SettlingResult) -> None:
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
        """Return the rows that the target has refused, with the reason: that is why they differ."""
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
        UndecidedRow(table=subject.schema.qualified, key=key_as_dict(key, subject.schema), reason=reason)
        for key, reason in reasons.items()
    ]
