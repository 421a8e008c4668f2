"""Writer of the rows of one target transaction (VENUS 3.4).

Changes wait in memory up to a limit. At the limit, the `PendingWriter` of the kind of target moves the changes to the
server, with few statements for each table. This module and the modules that it calls create and empty only staging
tables. `transaction.py` creates, alters and empties the tables themselves, between two calls of the writer. A refusal
of the target ends the transaction with `RowsRefused`.
"""

from __future__ import annotations

from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.parking import ChangeCounts, QuarantineWriter
from venus.adapters.targets.relational.session import RelationalSession
from venus.adapters.targets.relational.verdicts import halt_on_refusal
from venus.adapters.under.cut_assembler import GROUP_BYTES_MAX, CutPiece, SectionWalk
from venus.adapters.under.row_changes import (
    ChangedKeys,
    PendingChanges,
    RowChanges,
    net_changes,
    project_changes,
    to_row_changes,
)
from venus.codec.batch import TableChanges
from venus.codec.row_bytes import Layout
from venus.model import TableSchema
from venus.network.row_filters import RowsIdentity


def record_keys(
    target: RelationalDatabase,
    session: RelationalSession,
    catalogue: TargetCatalogue,
    rows: RowChanges,
    schema: TableSchema,
) -> None:
    """Add the keys of these rows to the record of keys if their table has one.

    The record also contains the keys of parked changes, because their rows exist at the source.
    """
    if catalogue.is_recording(schema.table_id):
        sql = catalogue.sql(target, schema.table_id, schema.version)
        target.record_keys(session, sql, schema, net_changes(rows).record_ids, int(rows.offsets[-1]))


class RowWriter:
    """Writer of changes to the tables that follow.

    With `catching_up`, the writer leaves out changes that operators have skipped. `whole` lists the tables whose cuts
    must not be merged piece by piece; None means all tables. `changed_keys` remembers the keys of changes in a first
    load.
    """

    def __init__(
        self,
        target: RelationalDatabase,
        session: RelationalSession,
        catalogue: TargetCatalogue,
        counts: ChangeCounts,
        parking: QuarantineWriter,
        *,
        start: int,
        catching_up: bool,
        whole: frozenset[int] | None,
        changed_keys: ChangedKeys | None = None,
    ) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._counts = counts
        self._parking = parking
        self._catching_up = catching_up
        self._changed_keys = changed_keys
        self._merging = target.open_merger(session, catalogue, start, whole)
        self._rows_max = target.settings.apply.cut_group_rows_max
        self._pending: dict[int, PendingChanges] = {}
        self._waiting = self._waiting_bytes = 0

    def add(self, section: TableChanges, offset: int, piece: CutPiece, schema: TableSchema) -> None:
        """Add changes of one table, which is at the version of the changes."""
        table_id = section.table_id
        sql, layout = self._catalogue.sql(self._target, table_id, schema.version), Layout.of(schema)
        changes = to_row_changes(section, offset)
        if self._changed_keys is not None:
            changes = self._changed_keys.mark_new(changes, table_id, first_read=section.first_read)
        predicate = self._catalogue.predicate(table_id, schema.version)
        changes = project_changes(changes, predicate, schema, self._target.columns.maskers)
        rows, parked = self._parking.park_waiting(changes, piece, schema, catching_up=self._catching_up)
        if parked is not None:
            record_keys(self._target, self._session, self._catalogue, parked, schema)
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
        """Move changes to staging tables while more changes than the limit wait in memory."""
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


def advance_text(
    target: RelationalDatabase,
    session: RelationalSession,
    catalogue: TargetCatalogue,
    last: CutPiece,
    walk: SectionWalk,
    rows: RowsIdentity | None = None,
) -> str:
    """Return the statement that moves the applied offset past `last`, if it still has its expected value.

    `rows`: the broker's rows identity after `last`; None means that it is unchanged.
    """
    position, batch = catalogue.position, last.batch
    text = target.own_execute_text(
        session,
        "advance",
        position.offset,
        position.control,
        last.end,
        last.epoch,
        batch.first_sequence + batch.count - 1,
        batch.captured_at_us or None,
        last.committed_at_us or None,
        walk.heartbeat_us,
        walk.other,
    )
    return text if rows is None else f"{text}; {target.set_rows_text(session, rows)}"
