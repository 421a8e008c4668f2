"""Verdicts on rows that the target refuses: the row is parked in the quarantine, or its table halts (features 2.16).

A refusal ends the target transaction. The same cuts are then applied again with the verdict: one transaction leaves the
table out, or sends the row to quarantine, and applies everything else. The refused rows among many are found by halving
under savepoints, never row by row.

A parked change holds back all later changes of its key, in order; changes of every other key are applied. The row that
halted a whole table is kept for the operator to see, but is applied again from the stream. `ChangeCounts` records the
fate of each change in a group of cuts. The sum equals the number of committed changes (features 2.17).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from venus.adapters.targets.postgresql.catalogue import TargetCatalogue
from venus.adapters.targets.postgresql.database import HALTED, RESYNC, PostgresDatabase
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import Refusal, Superseded, TargetSession
from venus.adapters.under.cut_assembler import CutPiece
from venus.adapters.under.row_changes import Mask, RowChanges, slice_changes, to_row_changes
from venus.codec.changes import TableChanges
from venus.codec.columns import keys_to_columns
from venus.codec.copy_text import to_copy
from venus.codec.layout import Layout
from venus.errors import TargetError
from venus.model import ChangeKind, TableSchema

#: With more refused rows in one group of cuts, a table halts as a whole.
SUSPECTS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedChange:
    """A change that the target refused."""

    record_id: bytes
    offset: int
    sqlstate: str
    message: str
    summary: str  # without values of the row


class RowsRefused(TargetError):
    """The target refuses changes of one table; the transaction is over."""

    def __init__(
        self, table_id: int, reason: str, suspects: list[RefusedChange], candidates: Sequence[int] = ()
    ) -> None:
        super().__init__(reason)
        self.table_id = table_id
        self.reason = reason
        #: Empty: the table as a whole is at fault.
        self.suspects = suspects
        #: The tables of which one is at fault, if only that is known.
        self.candidates = tuple(candidates)


class CommitRefused(TargetError):
    """The target refuses the transaction at its COMMIT, where the error names no table."""


@contextmanager
def halt_on_refusal(session: TargetSession, table_id: int) -> Iterator[None]:
    """Turn any error of the target within the block into RowsRefused for one table, so that only this table halts."""
    try:
        yield
    except (RowsRefused, Superseded):
        raise
    except TargetError as error:
        if session.closed:
            raise
        raise RowsRefused(table_id, str(error), []) from error


def run_or_halt(session: TargetSession, table_id: int, text: str) -> None:
    """Run a statement on a whole table. Raises RowsRefused if it fails, so that only this table halts."""
    with halt_on_refusal(session, table_id):
        session.run(text)


@dataclass(slots=True)
class Verdicts:
    """The verdicts on one group of cuts."""

    #: table -> reason why it halts.
    halts: dict[int, str] = field(default_factory=dict)
    #: table -> record_id -> the refused change; later changes of the key wait behind it.
    suspects: dict[int, dict[bytes, RefusedChange]] = field(default_factory=dict)
    #: Whether deferred constraints act before COMMIT, one by one.
    one_by_one: bool = False
    #: A table that halts on trial because one of several is at fault, and those whose trial did not help.
    _on_trial: int | None = None
    _acquitted: set[int] = field(default_factory=set)

    def record_refusal(self, refused: RowsRefused | CommitRefused, *, quarantine: bool) -> None:
        """Record a refusal. Each one makes the next attempt smaller, so the attempts end."""
        if isinstance(refused, CommitRefused):
            self.one_by_one = True  # this raises RowsRefused instead the next time
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
        """Return the table to halt: of several candidates the next one that was not on trial yet."""
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
    """Return the keys as text for operators, one JSON object each."""
    names = layout.schema.key
    columns = keys_to_columns(rows.record_ids, layout)
    found = []
    for key in zip(*columns, strict=True):
        shown = {n: v.hex() if isinstance(v, bytes) else v for n, v in zip(names, key, strict=True)}
        # PostgreSQL's text has no NUL; JSON writes it as an escape.
        found.append(json.dumps(shown, ensure_ascii=False))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRowSearch:
    """A search for at most `limit` refused rows."""

    session: TargetSession
    sql: RowSql
    layout: Layout
    limit: int

    def find_bad_values(self, rows: RowChanges) -> list[RefusedChange]:
        """Return changes with a value that its column's type cannot hold."""
        return self._search([rows], [], into_target=False)

    def find_refused(self, parts: Iterable[RowChanges], first: Sequence[str] = ()) -> list[RefusedChange]:
        """Return changes that the table refuses after the statements `first`, which delete the old rows."""
        return self._search(parts, first, into_target=True)

    def _search(self, parts: Iterable[RowChanges], first: Sequence[str], *, into_target: bool) -> list[RefusedChange]:
        found: list[RefusedChange] = []
        self.session.run("; ".join(["SAVEPOINT venus_search", self.sql.create_probe, *first]))
        try:
            for rows in parts:
                found += self._halve(rows.where(~rows.is_deleted), self.limit - len(found), into_target=into_target)
                if len(found) >= self.limit:
                    break
        finally:
            self.session.run("ROLLBACK TO SAVEPOINT venus_search; RELEASE SAVEPOINT venus_search")
        return found

    def _halve(self, rows: RowChanges, limit: int, *, into_target: bool) -> list[RefusedChange]:
        found: list[RefusedChange] = []
        ranges = [(0, len(rows))] if len(rows) else []
        while ranges and len(found) < limit:
            low, high = ranges.pop()
            part = slice_changes(rows, low, high)
            refusal = self._probe(part, into_target=into_target)
            if refusal is None:
                continue
            if high - low == 1:
                found.append(_to_refused_change(part, refusal))
            else:
                middle = (low + high) // 2
                ranges += [(middle, high), (low, middle)]
        return found

    def _probe(self, rows: RowChanges, *, into_target: bool) -> Refusal | None:
        """Try to write these rows and keep them; return the target's refusal, if any."""
        session, sql = self.session, self.sql
        session.run(f"SAVEPOINT venus_probe; TRUNCATE {sql.probe}")
        try:
            session.copy_in(sql.text("copy_in", table=sql.probe), to_copy(rows.record_ids, rows.rows, self.layout))
            if into_target:
                session.run(sql.text("insert_staged", stage=sql.probe))
        except Refusal as refusal:
            session.run("ROLLBACK TO SAVEPOINT venus_probe; RELEASE SAVEPOINT venus_probe")
            return refusal
        session.run("RELEASE SAVEPOINT venus_probe")
        return None


def _to_refused_change(rows: RowChanges, refusal: Refusal) -> RefusedChange:
    return RefusedChange(
        record_id=rows.record_ids.data,
        offset=int(rows.offsets[0]),
        sqlstate=refusal.sqlstate,
        message=str(refusal),
        summary=refusal.summary,
    )


def waiting_mask(rows: RowChanges, first_of: Callable[[bytes], int | None]) -> Mask:
    """Mark the changes at or behind the first offset of their key; `first_of` returns None for a key without one."""
    pairs = zip(map(first_of, rows.record_ids.split()), rows.offsets.tolist(), strict=True)
    marks = (first is not None and first <= offset for first, offset in pairs)
    return np.fromiter(marks, dtype=np.bool_, count=len(rows))


@dataclass(slots=True)
class TableChangeCounts:
    """Numbers of changes of one table."""

    applied: int = 0
    quarantined: int = 0
    skipped: int = 0
    held: int = 0  # negative while it catches up


class ChangeCounts:
    """Numbers of changes of every table in one transaction."""

    def __init__(self, catalogue: TargetCatalogue) -> None:
        self._catalogue = catalogue
        self._tables: dict[int, TableChangeCounts] = {}
        self._held: list[tuple[int, int, int]] = []

    def for_table(self, table_id: int) -> TableChangeCounts:
        """Return the mutable count of a table."""
        return self._tables.setdefault(table_id, TableChangeCounts())

    @property
    def written(self) -> list[int]:
        """The tables that this transaction has written to."""
        return [table_id for table_id, count in self._tables.items() if count.applied]

    def count_held(self, section: TableChanges, offset: int) -> None:
        """Count a section that waits because its table does not follow."""
        table_id = section.table_id
        state = self._catalogue.tables.get(table_id)
        if state is None:
            return  # an unknown table stays unaccounted for, which raises the alarm
        if state.held_from is not None and offset < state.held_from:
            self.for_table(table_id).applied += section.count  # a resync has already brought a later state
            return
        self.for_table(table_id).held += section.count
        if RESYNC in self._catalogue.sweeps.get(table_id, {}):
            self._held.append((table_id, offset, section.count))

    def statements(self, target: PostgresDatabase, session: TargetSession) -> list[str]:
        """Return the statements that add these numbers to the counters at the target."""
        counts = [(table_id, c.applied, c.quarantined, c.skipped, c.held) for table_id, c in self._tables.items()]
        if len(counts) == 1:
            counted = [target.own_execute_text(session, "count", *counts[0])]
        else:
            counted = [target.own_execute_text(session, "count_all", *zip(*counts, strict=True))] if counts else []
        return counted + [
            target.own_text(session, "put_held", table_id=table_id, offset=offset, rows=rows)
            for table_id, offset, rows in self._held
        ]


#: Message of a change that waits because an earlier change of its key waits.
BEHIND = "behind an earlier change of its key"


class QuarantineWriter:
    """The quarantine within one transaction."""

    def __init__(
        self,
        target: PostgresDatabase,
        session: TargetSession,
        catalogue: TargetCatalogue,
        verdicts: Verdicts,
        counts: ChangeCounts,
    ) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._verdicts = verdicts
        self._counts = counts
        #: Keys whose first refused change this transaction has kept: only the first one gets the target's message.
        self._explained: set[tuple[int, bytes]] = set()
        #: table -> offset of a TRUNCATE: earlier refusals are irrelevant.
        self._emptied: dict[int, int] = {}

    def park_waiting(
        self, rows: RowChanges, piece: CutPiece, schema: TableSchema, *, catching_up: bool
    ) -> tuple[RowChanges, RowChanges | None]:
        """Park the changes that have to wait; return the changes to apply, and the parked ones."""
        table_id = schema.table_id
        skipped = self._catalogue.skipped.get(table_id)
        if skipped and catching_up:
            rows = self._without_skipped(rows, skipped, table_id)
        if not self._verdicts.suspects.get(table_id) and not self._catalogue.parked.get(table_id):
            return rows, None
        mask = waiting_mask(rows, self._waits_from(table_id))
        if not mask.any():
            return rows, None
        parked = rows.where(mask)
        self._store(parked, piece, schema, PARKED)
        self._counts.for_table(table_id).quarantined += len(parked)
        return rows.where(~mask), parked

    def _waits_from(self, table_id: int) -> Callable[[bytes], int | None]:
        """Return a function that finds the offset from which a key's changes wait, without a copy of both mappings."""
        suspects, parked = self._verdicts.suspects.get(table_id, {}), self._catalogue.parked.get(table_id, {})
        since = self._emptied.get(table_id, LOADED)

        def first_of(record_id: bytes) -> int | None:
            first = parked.get(record_id)
            if first is None and (suspect := suspects.get(record_id)) is not None:
                first = suspect.offset
            return first if first is not None and first >= since else None

        return first_of

    def _without_skipped(self, rows: RowChanges, skipped: set[tuple[bytes, int]], table_id: int) -> RowChanges:
        pairs = zip(rows.record_ids.split(), rows.offsets.tolist(), strict=True)
        keep = np.fromiter((pair not in skipped for pair in pairs), dtype=np.bool_, count=len(rows))
        self._counts.for_table(table_id).skipped += int((~keep).sum())
        return rows.where(keep)

    def store_refused(self, section: TableChanges, offset: int, piece: CutPiece, schema: TableSchema) -> None:
        """Store the row that halted its table, so that the operator can see it."""
        suspects = self._verdicts.suspects.get(section.table_id, {})
        if not suspects or section.kind is not ChangeKind.CHANGES:
            return
        rows = to_row_changes(section, offset)
        mask = waiting_mask(rows, {record_id: s.offset for record_id, s in suspects.items()}.get)
        if mask.any():
            self._store(rows.where(mask), piece, schema, HALTED)

    def on_truncate(self, table_id: int, offset: int) -> None:
        """Settle the changes that waited before a TRUNCATE at `offset`, because it removes their rows."""
        self._emptied[table_id] = offset
        if not self._catalogue.parked.get(table_id):
            return
        settled = {"table_id": table_id, "offset": offset}
        self._target.run_own(self._session, "count_superseded", **settled)
        self._target.run_own(self._session, "supersede_quarantine", reason="TRUNCATE", **settled)
        self._catalogue.parked.pop(table_id)

    def _store(self, rows: RowChanges, piece: CutPiece, schema: TableSchema, state: str) -> None:
        suspects = self._verdicts.suspects.get(schema.table_id, {})
        record_ids, messages = rows.record_ids.split(), rows.rows.split()
        values = zip(
            record_ids,
            messages,
            rows.offsets.tolist(),
            rows.is_deleted.tolist(),
            key_texts(rows, Layout.of(schema)),
            strict=True,
        )
        texts = []
        for record_id, message, offset, is_deleted, key in values:
            first = self._explanation(schema.table_id, record_id, suspects)
            texts.append(
                self._target.own_text(
                    self._session,
                    "quarantine",
                    table_id=schema.table_id,
                    version=schema.version,
                    record_id=record_id,
                    key=key,
                    offset=offset,
                    sequence=piece.batch.first_sequence + offset - piece.start,
                    sqlstate=first.sqlstate if first else "",
                    message=first.message if first else BEHIND,
                    row_message=record_id + message,
                    is_deleted=is_deleted,
                    state=state,
                )
            )
            if state == PARKED:
                self._catalogue.parked.setdefault(schema.table_id, {}).setdefault(record_id, offset)
        self._session.run("; ".join(texts))

    def _explanation(
        self, table_id: int, record_id: bytes, suspects: dict[bytes, RefusedChange]
    ) -> RefusedChange | None:
        if (table_id, record_id) in self._explained:
            return None
        self._explained.add((table_id, record_id))
        return suspects.get(record_id)
