"""What became of each change of one group of cuts; all of it together is what was committed (features 2.17).

Counted where it happens and written with the applied offset, so that what is missing from the counters was lost on the
way. The offsets of heartbeats and of empty batches belong to no table (`other`).
"""

from __future__ import annotations

from dataclasses import dataclass

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import RESYNC, PostgresTarget
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.under.cuts import Piece
from venus.codec.changes import TableChanges


@dataclass(slots=True)
class Count:
    """The changes of one table."""

    applied: int = 0
    quarantined: int = 0
    skipped: int = 0
    held: int = 0  # negative while it catches up


class Counts:
    """The changes of every table in one transaction."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.other = 0
        self._catalogue = catalogue
        self._tables: dict[int, Count] = {}
        self._held: list[tuple[int, int, int]] = []

    def of(self, table_id: int) -> Count:
        """Return the count of a table, to be added to."""
        return self._tables.setdefault(table_id, Count())

    @property
    def written(self) -> list[int]:
        """The tables that this transaction has written to."""
        return [table_id for table_id, count in self._tables.items() if count.applied]

    def met(self, piece: Piece) -> None:
        """Count the offset that an increment without changes takes."""
        self.other += piece.end - piece.start - piece.batch.count

    def held(self, section: TableChanges, offset: int) -> None:
        """Count what waits because its table does not follow."""
        table_id = section.table_id
        state = self._catalogue.tables.get(table_id)
        if state is None:
            return  # a table that this target does not know: not accounted for, which is the alarm
        if state.held_from is not None and offset < state.held_from:
            self.of(table_id).applied += section.count  # a resync has brought a later state already
            return
        self.of(table_id).held += section.count
        if RESYNC in self._catalogue.sweeps.get(table_id, {}):
            self._held.append((table_id, offset, section.count))

    def texts(self, target: PostgresTarget, session: Session) -> list[str]:
        """Return the statements that add these to the counters at the target."""
        counts = [(table_id, c.applied, c.quarantined, c.skipped, c.held) for table_id, c in self._tables.items()]
        if len(counts) == 1:
            counted = [target.own_prepared(session, "count", *counts[0])]
        else:
            counted = [target.own_prepared(session, "count_all", *zip(*counts, strict=True))] if counts else []
        return counted + [
            target.own_text(session, "put_held", table_id=table_id, offset=offset, rows=rows)
            for table_id, offset, rows in self._held
        ]
