"""One target transaction: the changes of whole cuts, set-based, and the applied offset with them (VENUS 3.4).

Changes wait in memory up to a limit, then in staging tables (`rows/merging.py`). Markers and new schema versions act
behind everything before them. What the target refuses ends the transaction with `RowsRefused`; the caller decides and
tries again with a verdict, which is then carried out in the same transaction as everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from venus.adapters.targets.postgresql import evolve
from venus.adapters.targets.postgresql.apply.counts import Counts
from venus.adapters.targets.postgresql.apply.parking import Parking
from venus.adapters.targets.postgresql.apply.recording import Recording
from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import HALTED, RESYNC, SWEEP, PostgresTarget
from venus.adapters.targets.postgresql.rows.merging import Merging, Pending
from venus.adapters.targets.postgresql.rows.verdicts import RowsRefused, Verdicts
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.session import Refusal, Session, Superseded
from venus.adapters.under.cuts import Piece
from venus.adapters.under.fold import rows_of
from venus.codec.changes import TableChanges
from venus.codec.columns import to_columns
from venus.codec.layout import Layout
from venus.errors import TargetError, VenusError
from venus.model import ChangeKind, TableSchema

logger = logging.getLogger(__name__)


class Writer:
    """Applies pieces in one transaction.

    `only` = catch up this one table and leave the applied offset alone. `whole` = the tables of which a cut must not be
    merged piece by piece, None = all.
    """

    def __init__(
        self,
        target: PostgresTarget,
        session: Session,
        catalogue: Catalogue,
        verdicts: Verdicts,
        *,
        start: int,
        defer_constraints: bool,
        only: int | None = None,
        whole: frozenset[int] | None = None,
    ) -> None:
        self.target = target
        self.session = session
        self.catalogue = catalogue
        self.verdicts = verdicts
        self.start = start
        self.only = only
        self.heartbeat_us: int | None = None
        self.recording = Recording(target, session, catalogue)
        self._changed = bool(verdicts)
        self._defer = defer_constraints
        self._rows_max = target.settings.apply.cut_group_rows_max
        self._counts = Counts(catalogue)
        self._parking = Parking(target, session, catalogue, verdicts, self._counts)
        self._merging = Merging(target, session, catalogue, start, whole)
        self._pending: dict[int, Pending] = {}
        self._waiting = 0
        self._halted: set[int] = set()

    @property
    def other(self) -> int:
        """How many offsets of this transaction belong to no table."""
        return self._counts.other

    @property
    def changed(self) -> bool:
        """Whether the catalogue in memory is behind what this transaction has written."""
        return self._changed or self.recording.changed

    # -- the transaction -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Open the transaction, as the only one who applies."""
        defer = "SET CONSTRAINTS ALL DEFERRED; " if self._defer else ""
        text = f"BEGIN; {defer}{self.target.own_text(self.session, 'hold_position')}"
        found = self.session.row(text)
        position = self.catalogue.position
        if found != (position.offset, position.control):
            raise Superseded("another process has changed the state of this target")
        for table_id, reason in self.verdicts.halts.items():
            self._halt(table_id, reason)

    def add(self, piece: Piece) -> None:
        """Take the next increment."""
        for schema in piece.batch.schemas:
            self._meet(schema)
        self._counts.met(piece)
        offset = piece.start
        for section in piece.batch.sections:
            self._section(section, offset, piece)
            offset += section.count
        while self._waiting > self._rows_max:
            fullest = max(self._pending.values(), key=lambda p: p.waiting)
            self._waiting -= fullest.waiting
            self._merging.make_room(fullest)

    def finish(self, end: Callable[[], str]) -> None:
        """Write everything, then `end`'s statement, and commit."""
        self.flush()
        if self._defer:
            self._check_constraints()
        self.session.run("; ".join([*self._counts.texts(self.target, self.session), end(), "COMMIT"]))

    def flush(self) -> None:
        """Write everything that has come."""
        for table_id in list(self._pending):
            self._flush_table(table_id)

    # -- sections --------------------------------------------------------------------------------------------------

    def _section(self, section: TableChanges, offset: int, piece: Piece) -> None:
        table_id = section.table_id
        if self.only is not None and table_id != self.only:
            return
        schema = self.catalogue.schema(table_id, section.schema_version)
        if schema.is_heartbeat:
            self.heartbeat_us = heartbeat_of(section, Layout.of(schema)) or self.heartbeat_us
            self._counts.other += section.count
            return
        if table_id in self._halted or (self.only is None and not self.catalogue.follows(table_id)):
            self._hold(section, offset, piece, schema)
            return
        if self.only is not None:
            self._counts.of(table_id).held -= section.count
        if section.schema_version != self.catalogue.tables[table_id].schema_version:
            self._evolve(schema)
        if section.kind is not ChangeKind.CHANGES:
            self._marker(section, offset)
            return
        self._changes(section, offset, piece, schema)

    def _hold(self, section: TableChanges, offset: int, piece: Piece, schema: TableSchema) -> None:
        """Leave a change to the table's catching up."""
        if section.table_id in self._halted:
            self._parking.keep_refused(section, offset, piece, schema)
        if self.only is None:  # else it is held already
            self._counts.held(section, offset)

    def _changes(self, section: TableChanges, offset: int, piece: Piece, schema: TableSchema) -> None:
        table_id = section.table_id
        sql, layout = self.catalogue.sql(self.target, table_id, schema.version), Layout.of(schema)
        rows, parked = self._parking.divide(rows_of(section, offset), piece, schema, catching_up=self.only is not None)
        if parked is not None:
            self.recording.touch(parked, sql, layout)
        if not len(rows):
            return
        pending = self._pending.get(table_id)
        if pending is None:
            pending = self._pending[table_id] = Pending(table_id=table_id, sql=sql, layout=layout)
        pending.parts.append(rows)
        pending.inserts_only &= section.inserts_only
        pending.last_offset = offset + section.count - 1
        self._waiting += len(rows)

    def _marker(self, section: TableChanges, offset: int) -> None:
        """Do what concerns the whole table, behind everything before it."""
        table_id = section.table_id
        sql = self.catalogue.sql(self.target, table_id, section.schema_version)
        self._counts.of(table_id).applied += section.count
        if section.kind is ChangeKind.TRUNCATE:
            overtaken = self._pending.pop(table_id, None)
            if overtaken is not None:
                self._waiting -= overtaken.waiting
                self._counts.of(table_id).applied += overtaken.taken + overtaken.waiting
            self._truncate(table_id, sql)
            self._parking.emptied(table_id, offset)
            return
        self._flush_table(table_id)
        if section.kind is ChangeKind.SWEEP_BEGIN:
            self.recording.start(table_id, SWEEP, offset, sql)
        else:
            self._sweep(table_id, sql)

    def _truncate(self, table_id: int, sql: RowSql) -> None:
        """Empty the table: by DELETE, because TRUNCATE empties it for those as well who read an older snapshot.

        Where TRUNCATE is asked for: it cannot be had under foreign keys or a long reader, DELETE always can.
        """
        if self.target.config.empty_by == "delete":
            self._guarded(table_id, sql.text("delete_all"))
            return
        self.session.run("SAVEPOINT venus; SET LOCAL lock_timeout = '1s'")
        try:
            self.session.run(f"{sql.text('truncate')}; SET LOCAL lock_timeout = 0; RELEASE SAVEPOINT venus")
        except VenusError as error:
            if self.session.closed:
                raise
            logger.info("%s is emptied by DELETE: %s", sql.placed.qualified, error)
            self.session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            self._guarded(table_id, sql.text("delete_all"))

    def _sweep(self, table_id: int, sql: RowSql) -> None:
        begun = self.catalogue.sweeps.get(table_id, {}).get(SWEEP)
        if begun is None:
            # Loaded in the middle of the sweep: only the broker's full data knows what it has removed.
            self.recording.request(table_id, RESYNC)
            return
        self._guarded(
            table_id,
            f"SET LOCAL enable_hashjoin = on; {sql.text('sweep', offset=str(begun))}; SET LOCAL enable_hashjoin = off",
        )
        self.recording.stop(table_id, SWEEP, sql)

    def _halt(self, table_id: int, reason: str) -> None:
        state = self.catalogue.tables[table_id]
        dependants = self.dependants(table_id)
        if dependants:
            reason += f" (referred to by {', '.join(dependants)})"
        self.target.set_state(self.session, table_id, HALTED, held_from=self.start, reason=reason)
        self._halted.add(table_id)
        logger.error("table %s is halted at offset %s: %s", state.source_name, self.start, reason)

    def dependants(self, table_id: int) -> list[str]:
        """Return the tables whose foreign keys lead to this one."""
        states = self.catalogue.tables
        schemas = {t: self.catalogue.schema(t, s.schema_version) for t, s in states.items()}
        me = schemas[table_id]
        return sorted(
            other.qualified
            for other in schemas.values()
            if other is not me
            and any((fk.referred_namespace, fk.referred_table) == (me.namespace, me.name) for fk in other.foreign_keys)
        )

    # -- schema versions -------------------------------------------------------------------------------------------

    def _meet(self, schema: TableSchema) -> None:
        key = (schema.table_id, schema.version)
        if key not in self.catalogue.schemas:
            self.target.put_schema(self.session, schema)
            self.catalogue.schemas[key] = schema
            self._changed = True
        if self.only is not None or schema.is_heartbeat or schema.table_id in self._halted:
            return
        known = self.catalogue.tables.get(schema.table_id)
        if known is None:
            evolve.new_table(self.target, self.session, schema, self.start)
            self.catalogue.tables = {t.table_id: t for t in self.target.tables(self.session)}
            self._changed = True
        elif self.catalogue.follows(schema.table_id) and schema.version > known.schema_version:
            self._evolve(schema)

    def _evolve(self, schema: TableSchema) -> None:
        table_id = schema.table_id
        self._flush_table(table_id)
        known = self.catalogue.tables[table_id]
        if schema.version < known.schema_version:
            raise RowsRefused(
                table_id, f"a change of schema version {schema.version} came behind {known.schema_version}", []
            )
        old = self.catalogue.schema(table_id, known.schema_version)
        step = evolve.step(self.target.place(old), self.target.place(schema))
        if step.refused:
            raise RowsRefused(table_id, step.refused, [])
        for text in step.statements:
            self._guarded(table_id, text)
        self.target.own(
            self.session, "set_version", table_id=table_id, version=schema.version, reason="; ".join(step.remarks)
        )
        self.catalogue.tables = {t.table_id: t for t in self.target.tables(self.session)}
        self._changed = True

    def _flush_table(self, table_id: int) -> None:
        pending = self._pending.pop(table_id, None)
        if pending is not None:
            self._waiting -= pending.waiting
            self._merging.flush(pending)
            self._counts.of(table_id).applied += pending.taken

    def _guarded(self, table_id: int, text: str) -> None:
        """Run a statement about a whole table; if it fails, the table halts."""
        try:
            self.session.run(text)
        except TargetError as error:
            if self.session.closed or isinstance(error, Superseded):
                raise
            raise RowsRefused(table_id, str(error), []) from error

    def _check_constraints(self) -> None:
        try:
            self.session.run("SET CONSTRAINTS ALL IMMEDIATE")
        except Refusal as refusal:
            by_name = {(t.namespace, t.name): t.table_id for t in self.catalogue.tables.values()}
            table_id = by_name.get(refusal.table)
            if table_id is None:
                raise
            raise RowsRefused(table_id, refusal.summary, []) from refusal


def heartbeat_of(section: TableChanges, layout: Layout) -> int | None:
    """Return the source's clock in the heartbeat row, Unix microseconds."""
    if section.kind is not ChangeKind.CHANGES or section.is_deleted.all():
        return None
    names = [c.name.lower() for c in layout.columns]
    value = to_columns(section.record_ids, section.rows, layout)[names.index("beat_at")][-1]
    return int(value) if isinstance(value, str) and value.isdecimal() else None
