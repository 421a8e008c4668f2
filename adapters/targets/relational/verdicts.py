"""Verdicts on rows that the target refuses: the row waits in quarantine, or its table halts.

A refusal ends the target transaction. After a refusal, the same cuts are applied again with the verdict: one
transaction leaves the table out, or sends the row to quarantine, and applies everything else.

The refused rows among many are found by halving under savepoints, never row by row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from venus.adapters.targets.relational.session import Refusal, RelationalSession, Superseded
from venus.adapters.under.row_changes import Mask, RowChanges, slice_changes
from venus.codec.columns import keys_to_columns
from venus.codec.row_bytes import Layout
from venus.errors import TargetError

#: With more refused rows in one group of cuts, a table halts as a whole.
SUSPECTS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedChange:
    """A change that the target refused."""

    record_id: bytes
    offset: int
    sqlstate: str
    message: str
    summary: str  # a message without values of the row


class RowsRefused(TargetError):
    """The target refuses changes of one table; the transaction is over."""

    def __init__(
        self, table_id: int, reason: str, suspects: list[RefusedChange], candidates: Sequence[int] = ()
    ) -> None:
        super().__init__(reason)
        self.table_id = table_id
        self.reason = reason
        #: The refused changes; empty = the table as a whole is at fault.
        self.suspects = suspects
        #: Candidates, if it is only known that one of these tables is at fault.
        self.candidates = tuple(candidates)


class CommitRefused(TargetError):
    """The target refuses the transaction at its COMMIT, where the error names no table."""


@contextmanager
def halt_on_refusal(session: RelationalSession, table_id: int) -> Iterator[None]:
    """Turn any error of the target within the block into RowsRefused for one table, so that only this table halts."""
    try:
        yield
    except (RowsRefused, Superseded):
        raise
    except TargetError as error:
        if session.is_closed:
            raise
        raise RowsRefused(table_id, str(error), []) from error


def run_or_halt(session: RelationalSession, table_id: int, text: str) -> None:
    """Run a statement on a whole table. Raises RowsRefused if the statement fails, so that only this table halts."""
    with halt_on_refusal(session, table_id):
        session.run(text)


@dataclass(slots=True)
class Verdicts:
    """Verdicts on the refused rows of one group of cuts: tables that halt, and changes for the quarantine."""

    #: The reasons why tables halt, by table.
    halts: dict[int, str] = field(default_factory=dict)
    #: The refused changes, by table and record id; later changes of the key wait behind them.
    suspects: dict[int, dict[bytes, RefusedChange]] = field(default_factory=dict)
    #: Whether to make deferred constraints act before COMMIT, one by one.
    one_by_one: bool = False
    #: A table that halts on trial, because one of several is at fault, and tables whose trial did not help.
    _on_trial: int | None = None
    _acquitted: set[int] = field(default_factory=set)

    def record_refusal(self, refused: RowsRefused | CommitRefused, *, quarantine: bool) -> None:
        """Record a refusal. Each refusal makes the next attempt smaller, so that the attempts end."""
        if isinstance(refused, CommitRefused):
            self.one_by_one = True  # makes the next attempt raise RowsRefused instead
            return
        if self._on_trial is not None:
            self._acquitted.add(self._on_trial)
            del self.halts[self._on_trial]
            self._on_trial = None
        known = self.suspects.setdefault(refused.table_id, {})
        fresh = [s for s in refused.suspects if s.record_id not in known]
        known.update((s.record_id, s) for s in fresh)
        if not quarantine or not fresh or len(known) > SUSPECTS_MAX:
            self.halts[self._choose_halted_table(refused)] = refused.reason

    def _choose_halted_table(self, refused: RowsRefused) -> int:
        """Return the table to halt: the first candidate whose halt has not been tried yet."""
        left = [table_id for table_id in refused.candidates if table_id not in self._acquitted]
        chosen = left[0] if left else refused.table_id
        self._on_trial = chosen if len(left) > 1 else None
        return chosen

    def __bool__(self) -> bool:
        return bool(self.halts or self.suspects)


PARKED = "PARKED"
#: Offset of rows that the target refused during the full load; it is below every increment.
LOADED = -1


def key_texts(rows: RowChanges, layout: Layout) -> list[str]:
    """Return the keys as text for operators, each as a JSON object."""
    names = layout.schema.key
    columns = keys_to_columns(rows.record_ids, layout)
    found = []
    for key in zip(*columns, strict=True):
        shown = {n: v.hex() if isinstance(v, bytes) else v for n, v in zip(names, key, strict=True)}
        # PostgreSQL's text has no NUL; JSON writes it as an escape.
        found.append(json.dumps(shown, ensure_ascii=False))
    return found


def find_refused(rows: RowChanges, probe: Callable[[RowChanges], Refusal | None], limit: int) -> list[RefusedChange]:
    """Return at most `limit` refused changes. `probe` keeps the rows and returns None, or returns the refusal."""
    found: list[RefusedChange] = []
    ranges = [(0, len(rows))] if len(rows) else []
    while ranges and len(found) < limit:
        low, high = ranges.pop()
        part = slice_changes(rows, low, high)
        refusal = probe(part)
        if refusal is None:
            continue
        if high - low == 1:
            found.append(_to_refused_change(part, refusal))
        else:
            middle = (low + high) // 2
            ranges += [(middle, high), (low, middle)]
    return found


def _to_refused_change(rows: RowChanges, refusal: Refusal) -> RefusedChange:
    return RefusedChange(
        record_id=rows.record_ids.data,
        offset=int(rows.offsets[0]),
        sqlstate=refusal.sqlstate,
        message=str(refusal),
        summary=refusal.summary,
    )


def waiting_mask(rows: RowChanges, first_of: Callable[[bytes], int | None]) -> Mask:
    """Mark the changes at or after the first waiting offset of their key; `first_of` returns None if it has none."""
    pairs = zip(map(first_of, rows.record_ids.split()), rows.offsets.tolist(), strict=True)
    marks = (first is not None and first <= offset for first, offset in pairs)
    return np.fromiter(marks, dtype=np.bool_, count=len(rows))
