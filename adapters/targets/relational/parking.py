"""Parking of changes that the target refuses, and of later changes of the same keys, in quarantine.

A parked change holds back all later changes of its key, in order; changes of every other key are applied. A row that
halted a whole table is also kept, but only for the operator to see; it is later applied from the stream.

`ChangeCounts` records the fate of each change in a group of cuts. The sum of its counters equals the number of
committed changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.session import RelationalSession
from venus.adapters.targets.relational.states import HALTED, RESYNC
from venus.adapters.targets.relational.verdicts import (
    LOADED,
    PARKED,
    RefusedChange,
    Verdicts,
    key_texts,
    waiting_mask,
)
from venus.adapters.under.cut_assembler import CutPiece
from venus.adapters.under.row_changes import RowChanges, project_changes, to_row_changes
from venus.codec.batch import TableChanges
from venus.codec.row_bytes import Layout
from venus.model import ChangeKind, TableSchema


@dataclass(slots=True)
class TableChangeCounts:
    """Numbers of changes of one table: applied, quarantined, skipped or held."""

    applied: int = 0
    quarantined: int = 0
    skipped: int = 0
    held: int = 0  # negative while the table catches up


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
    def written_tables(self) -> list[int]:
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

    def statements(self, target: RelationalDatabase, session: RelationalSession) -> list[str]:
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


#: Message for a change that waits because an earlier change of its key waits.
BEHIND = "behind an earlier change of its key"


class QuarantineWriter:
    """Writer of refused and waiting changes to the quarantine, within one transaction."""

    def __init__(
        self,
        target: RelationalDatabase,
        session: RelationalSession,
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
        #: The offset of a TRUNCATE, by table: earlier refusals are irrelevant.
        self._emptied: dict[int, int] = {}

    def park_waiting(
        self, rows: RowChanges, piece: CutPiece, schema: TableSchema, *, catching_up: bool
    ) -> tuple[RowChanges, RowChanges | None]:
        """Put changes that must wait for a refused one into quarantine; return the remaining and the parked changes."""
        table_id = schema.table_id
        skipped = self._catalogue.skipped.get(table_id)
        if skipped and catching_up:
            rows = self._drop_skipped(rows, skipped, table_id)
        if not self._verdicts.suspects.get(table_id) and not self._catalogue.parked.get(table_id):
            return rows, None
        mask = waiting_mask(rows, self._waiting_offset_finder(table_id))
        if not mask.any():
            return rows, None
        parked = rows.where(mask)
        self._store(parked, piece, schema, PARKED)
        self._counts.for_table(table_id).quarantined += len(parked)
        return rows.where(~mask), parked

    def _waiting_offset_finder(self, table_id: int) -> Callable[[bytes], int | None]:
        """Return a function that finds the offset from which a key's changes wait: as parked, or as refused now."""
        suspects, parked = self._verdicts.suspects.get(table_id, {}), self._catalogue.parked.get(table_id, {})
        since = self._emptied.get(table_id, LOADED)

        def first_waiting_offset(record_id: bytes) -> int | None:
            first = parked.get(record_id)
            if first is None and (suspect := suspects.get(record_id)) is not None:
                first = suspect.offset
            return first if first is not None and first >= since else None

        return first_waiting_offset

    def _drop_skipped(self, rows: RowChanges, skipped: set[tuple[bytes, int]], table_id: int) -> RowChanges:
        """Return the changes that no operator has skipped, and count the skipped ones."""
        pairs = zip(rows.record_ids.split(), rows.offsets.tolist(), strict=True)
        keep = np.fromiter((pair not in skipped for pair in pairs), dtype=np.bool_, count=len(rows))
        self._counts.for_table(table_id).skipped += int((~keep).sum())
        return rows.where(keep)

    def store_refused(self, section: TableChanges, offset: int, piece: CutPiece, schema: TableSchema) -> None:
        """Store the row that halted its table, so that the operator can see it."""
        suspects = self._verdicts.suspects.get(section.table_id, {})
        if not suspects or section.kind is not ChangeKind.CHANGES:
            return
        rows = project_changes(to_row_changes(section, offset), None, schema, self._target.columns.maskers)
        mask = waiting_mask(rows, {record_id: s.offset for record_id, s in suspects.items()}.get)
        if mask.any():
            self._store(rows.where(mask), piece, schema, HALTED)

    def on_truncate(self, table_id: int, offset: int) -> None:
        """Mark changes that waited before a TRUNCATE at `offset` as superseded, because it removes their rows."""
        self._emptied[table_id] = offset
        if not self._catalogue.parked.get(table_id):
            return
        settled = {"table_id": table_id, "offset": offset}
        self._target.run_own(self._session, "count_superseded", **settled)
        self._target.run_own(self._session, "supersede_quarantine", reason="TRUNCATE", **settled)
        self._catalogue.parked.pop(table_id)

    def _store(self, rows: RowChanges, piece: CutPiece, schema: TableSchema, state: str) -> None:
        """Write changes to the quarantine, each with its refusal or the note that it waits."""
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
        """Return the refusal of a key's first parked change; None for later changes of the key."""
        if (table_id, record_id) in self._explained:
            return None
        self._explained.add((table_id, record_id))
        return suspects.get(record_id)
