"""Writers of the rows of one target transaction: set-based, or in one string for a small group (VENUS 3.4).

Changes wait in memory up to a limit, then in temporary staging tables of the session (`rows/merging.py`): few
statements for each table. Neither this module nor those below it create, alter or empty any other table:
`transaction.py` does that between two calls. A refusal of the target ends the transaction with `RowsRefused`.

A small group of cuts is one round trip: BEGIN, the applied offset, keyed statements, COMMIT in one string. This path
serves a trickle of changes, where a round trip is most of the latency. It leaves everything unusual (a marker, a new
schema version, a parked key, a refusal) to `ApplyTransaction`, and has changed nothing in that case.
"""

from __future__ import annotations

from collections.abc import Sequence

from venus.adapters.targets.postgresql.apply.parking import ChangeCounts, QuarantineWriter
from venus.adapters.targets.postgresql.catalogue import TargetCatalogue
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.postgresql.rows.merging import PendingChanges, RowMerger
from venus.adapters.targets.postgresql.rows.verdicts import halt_on_refusal
from venus.adapters.targets.postgresql.rowsql import RowSql, key_values, keyed_statements
from venus.adapters.targets.postgresql.session import Superseded, TargetSession
from venus.adapters.under.cut_assembler import GROUP_BYTES_MAX, HELD, ROWS, CutPiece, DeliveredCut, SectionWalk
from venus.adapters.under.row_changes import (
    ChangedKeys,
    RowChanges,
    apply_predicate,
    join_changes,
    net_changes,
    to_row_changes,
)
from venus.codec.batch import TableChanges
from venus.codec.row_bytes import Layout
from venus.errors import TargetError
from venus.model import TableSchema
from venus.network.row_filters import RowsIdentity
from venus.predicates.syntax import PredicateRefused


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
    not be merged piece by piece; None means all tables. `changed_keys` remembers the changes during a first load.
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
        changed_keys: ChangedKeys | None = None,
    ) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._counts = counts
        self._parking = parking
        self._catching_up = catching_up
        self._changed_keys = changed_keys
        self._merging = RowMerger(target, session, catalogue, start, whole)
        self._rows_max = target.settings.apply.cut_group_rows_max
        self._pending: dict[int, PendingChanges] = {}
        self._waiting = self._waiting_bytes = 0

    def add(self, section: TableChanges, offset: int, piece: CutPiece, schema: TableSchema) -> None:
        """Add the changes of one table, which has their version."""
        table_id = section.table_id
        sql, layout = self._catalogue.sql(self._target, table_id, schema.version), Layout.of(schema)
        changes = to_row_changes(section, offset)
        if self._changed_keys is not None:
            changes = self._changed_keys.mark_new(changes, table_id, first_read=section.first_read)
        changes = apply_predicate(changes, self._catalogue.predicate(table_id, schema.version), schema)
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


#: Limits of one string: changes, as a multiple of `keyed_rows_max`, and their bytes. With many tables in a transaction,
#: separate statements cost three times as much.
ROWS_TIMES_KEYED = 40
BYTES_MAX = 4 << 20


def is_small(target: PostgresDatabase, cuts: Sequence[DeliveredCut]) -> bool:
    """Return whether cuts are small enough for one string; the limit per table is checked later."""
    rows, keyed_max = sum(cut.rows for cut in cuts), target.settings.apply.keyed_rows_max
    if rows > ROWS_TIMES_KEYED * keyed_max:
        return False
    return sum(s.nbytes for cut in cuts for piece in cut.pieces for s in piece.batch.sections) <= BYTES_MAX


def apply_at_once(
    target: PostgresDatabase,
    session: TargetSession,
    catalogue: TargetCatalogue,
    pieces: Sequence[CutPiece],
    *,
    defer_constraints: bool,
) -> bool:
    """Apply whole cuts in one string; return False if that is not possible and nothing was changed."""
    shot = _SingleString(target, catalogue)
    if not all(shot.try_add(piece) for piece in pieces):
        return False
    try:
        text = shot.transaction_text(session, pieces[-1], defer_constraints=defer_constraints)
        session.run(text)
    except Superseded:
        session.rollback()
        raise
    except TargetError:
        session.rollback()
        return False
    return True


class _SingleString:
    """The content of one string."""

    def __init__(self, target: PostgresDatabase, catalogue: TargetCatalogue) -> None:
        self._target = target
        self._catalogue = catalogue
        self._rows_max = target.settings.apply.keyed_rows_max
        self._parts: dict[int, list[RowChanges]] = {}
        self._versions: dict[int, int] = {}
        self._walk = SectionWalk(catalogue.schema, catalogue.find_version)
        self._counts = ChangeCounts(catalogue)

    def try_add(self, piece: CutPiece) -> bool:
        """Add an increment; return False if this path cannot apply it."""
        if piece.rows is not None:
            return False
        if any((s.table_id, s.version) not in self._catalogue.schemas for s in piece.batch.schemas):
            return False
        for role, section, offset in self._walk.walk(piece):
            table_id = section.table_id
            if role is HELD and table_id in self._catalogue.tables:
                self._counts.count_held(section, offset)
            elif role is not ROWS or not self._try_add_rows(table_id, section, offset):
                return False
        return True

    def _try_add_rows(self, table_id: int, section: TableChanges, offset: int) -> bool:
        catalogue = self._catalogue
        if table_id in catalogue.parked or catalogue.is_recording(table_id):
            return False
        parts = self._parts.setdefault(table_id, [])
        try:
            predicate = catalogue.predicate(table_id, section.schema_version)
        except PredicateRefused:
            return False
        changes = to_row_changes(section, offset)
        if predicate is not None:
            changes = apply_predicate(changes, predicate, catalogue.schema(table_id, section.schema_version))
        parts.append(changes)
        self._versions[table_id] = section.schema_version
        return sum(map(len, parts)) <= self._rows_max

    def transaction_text(self, session: TargetSession, last: CutPiece, *, defer_constraints: bool) -> str:
        """Return the transaction as text."""
        target, catalogue = self._target, self._catalogue
        texts = ["BEGIN"]
        if defer_constraints:
            texts.append("SET CONSTRAINTS ALL DEFERRED")
        texts.append(advance_text(target, session, catalogue, last, self._walk))
        for table_id, parts in self._parts.items():
            version = self._versions[table_id]
            sql, layout = catalogue.sql(target, table_id, version), catalogue.layout(table_id, version)
            rows = join_changes(parts)
            if not len(rows):
                continue
            texts.append(keyed_statements(session, sql, layout, net_changes(rows)))
            self._counts.for_table(table_id).applied += len(rows)
        return "; ".join([*texts, *self._counts.statements(target, session), "COMMIT"])


def advance_text(
    target: PostgresDatabase,
    session: TargetSession,
    catalogue: TargetCatalogue,
    last: CutPiece,
    walk: SectionWalk,
    rows: RowsIdentity | None = None,
) -> str:
    """Return the statement that moves the applied offset behind `last`, if it is still at its expected value.

    `rows` is the broker's rows identity behind `last`; None means that it is unchanged.
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
