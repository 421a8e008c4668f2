"""Writer of the rows of one target transaction: few statements for each table, set-based (VENUS 3.4).

Changes wait in memory up to a limit, then in temporary staging tables of the session (`rows/merging.py`). Neither this
module nor those below it create, alter or empty any other table: `transaction.py` does that between two calls. A
refusal of the target ends the transaction with `RowsRefused`.
"""

from __future__ import annotations

from venus.adapters.targets.postgresql.apply.parking import ChangeCounts, QuarantineWriter
from venus.adapters.targets.postgresql.catalogue import TargetCatalogue
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.rows.merging import PendingChanges, RowMerger
from venus.adapters.targets.postgresql.rows.verdicts import halt_on_refusal
from venus.adapters.targets.postgresql.rowsql import RowSql, key_values
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.under.cut_assembler import GROUP_BYTES_MAX, CutPiece
from venus.adapters.under.row_changes import RowChanges, apply_predicate, net_changes, to_row_changes
from venus.codec.changes import TableChanges
from venus.codec.layout import Layout
from venus.model import TableSchema


def record_keys(
    session: TargetSession, catalogue: TargetCatalogue, rows: RowChanges, sql: RowSql, layout: Layout
) -> None:
    """Add the keys of these rows to the record of keys if their table has one.

    Keys of parked changes belong there as well, because their rows exist at the source.
    """
    if not catalogue.is_recording(layout.schema.table_id):
        return
    last = int(rows.offsets[-1])
    values = key_values(session, layout, net_changes(rows).record_ids, (last,))
    session.run(sql.text("touch_values", values=values))


class RowWriter:
    """Writer of changes to the tables that follow.

    With `catching_up` it leaves out the changes that operators have skipped. `whole` lists the tables whose cuts must
    not be merged piece by piece; None means all tables.
    """

    def __init__(
        self,
        target: PostgresDatabase,
        session: TargetSession,
        catalogue: TargetCatalogue,
        counts: ChangeCounts,
        parking: QuarantineWriter,
        *,
        start: int,
        catching_up: bool,
        whole: frozenset[int] | None,
    ) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._counts = counts
        self._parking = parking
        self._catching_up = catching_up
        self._merging = RowMerger(target, session, catalogue, start, whole)
        self._rows_max = target.settings.apply.cut_group_rows_max
        self._pending: dict[int, PendingChanges] = {}
        self._waiting = self._waiting_bytes = 0

    def add(self, section: TableChanges, offset: int, piece: CutPiece, schema: TableSchema) -> None:
        """Add the changes of one table, which has their version."""
        table_id = section.table_id
        sql, layout = self._catalogue.sql(self._target, table_id, schema.version), Layout.of(schema)
        changes = apply_predicate(
            to_row_changes(section, offset), self._catalogue.predicate(table_id, schema.version), schema
        )
        rows, parked = self._parking.park_waiting(changes, piece, schema, catching_up=self._catching_up)
        if parked is not None:
            record_keys(self._session, self._catalogue, parked, sql, layout)
        if not len(rows):
            return
        pending = self._pending.get(table_id)
        if pending is None:
            pending = self._pending[table_id] = PendingChanges(table_id=table_id, sql=sql, layout=layout)
        pending.parts.append(rows)
        pending.last_offset = offset + section.count - 1
        pending.waiting_bytes += rows.nbytes
        self._waiting += len(rows)
        self._waiting_bytes += rows.nbytes

    def make_room(self) -> None:
        """Move changes to staging tables while more than the limit wait in memory."""
        while self._waiting > self._rows_max or self._waiting_bytes > GROUP_BYTES_MAX:
            by_bytes = self._waiting_bytes > GROUP_BYTES_MAX
            fullest = max(self._pending.values(), key=lambda p: p.waiting_bytes if by_bytes else p.waiting)
            self._subtract_waiting(fullest)
            self._merging.make_room(fullest)

    def flush(self) -> None:
        """Write all added changes."""
        for table_id in list(self._pending):
            self.flush_table(table_id)

    def flush_table(self, table_id: int) -> None:
        """Write the added changes of one table."""
        pending = self._pending.pop(table_id, None)
        if pending is not None:
            self._subtract_waiting(pending)
            with halt_on_refusal(self._session, table_id):
                self._merging.flush(pending)
            self._counts.for_table(table_id).applied += pending.taken

    def discard_table(self, table_id: int) -> None:
        """Discard the added changes of a table that is emptied next; they count as applied."""
        pending = self._pending.pop(table_id, None)
        if pending is not None:
            self._subtract_waiting(pending)
            self._counts.for_table(table_id).applied += pending.taken + pending.waiting

    def _subtract_waiting(self, pending: PendingChanges) -> None:
        """Subtract a table's waiting changes from the totals."""
        self._waiting -= pending.waiting
        self._waiting_bytes -= pending.waiting_bytes
        pending.waiting_bytes = 0
