"""One target transaction: whole cuts together with the applied offset (VENUS 3.4).

The content of a cut takes three paths. New table versions go to `schema/tables.py`, and `Markers` executes the markers
of a whole table; both act after all earlier changes. Changes go to `writer.py`, which depends on neither of the two.
While a sweep or a resync runs, the target records the keys of all changes of its table, in the transactions that apply
them. A refusal of the target ends the transaction with `RowsRefused`. The caller decides and tries again with a
verdict, which the new transaction carries out.

A refusal at COMMIT names no table, because deferred constraints and constraint triggers act there. The cut is then
applied again, and `commit_one_by_one` makes each constraint act before COMMIT, so that its name leads to the table
(features 2.16).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from venus.adapters.targets.postgresql.apply.parking import ChangeCounts, QuarantineWriter
from venus.adapters.targets.postgresql.apply.writer import RowWriter
from venus.adapters.targets.postgresql.catalogue import TargetCatalogue
from venus.adapters.targets.postgresql.database import (
    ACTIVE,
    HALTED,
    RESYNC,
    SWEEP,
    PostgresDatabase,
    find_referred_table,
)
from venus.adapters.targets.postgresql.naming import quote
from venus.adapters.targets.postgresql.rows.verdicts import (
    CommitRefused,
    RowsRefused,
    Verdicts,
    halt_on_refusal,
    run_or_halt,
)
from venus.adapters.targets.postgresql.rowsql import RowSql
from venus.adapters.targets.postgresql.schema.tables import SchemaChanges
from venus.adapters.targets.postgresql.session import Refusal, Superseded, TargetSession, statement
from venus.adapters.under.cut_assembler import HELD, NEW_VERSION, ROWS, CutPiece, SectionRole, SectionWalk
from venus.adapters.under.row_changes import ChangedKeys
from venus.codec.batch import TableChanges
from venus.errors import TargetError, VenusError
from venus.model import ChangeKind, TableSchema
from venus.network.row_filters import RowsIdentity
from venus.predicates.ranges import differing_column
from venus.predicates.syntax import PredicateRefused

logger = logging.getLogger(__name__)


class ApplyTransaction:
    """Transaction that applies pieces of cuts.

    `only` catches up this one table and leaves the applied offset unchanged. `whole` lists the tables whose cuts must
    not be merged piece by piece; None means all tables.
    """

    def __init__(
        self,
        target: PostgresDatabase,
        session: TargetSession,
        catalogue: TargetCatalogue,
        verdicts: Verdicts,
        *,
        start: int,
        defer_constraints: bool,
        only: int | None = None,
        whole: frozenset[int] | None = None,
        changed_keys: ChangedKeys | None = None,
    ) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._verdicts = verdicts
        self._start = start
        self._only = only
        self._defer = defer_constraints
        self._halted: set[int] = set()
        self.walk = SectionWalk(catalogue.schema, self._find_version, only)
        #: Rows identity of the broker's set behind the added pieces; None = unchanged.
        self.rows: RowsIdentity | None = None
        self.recording = KeyRecording(target, session, catalogue)
        self._counts = ChangeCounts(catalogue)
        self._parking = QuarantineWriter(target, session, catalogue, verdicts, self._counts)
        self._schemas = SchemaChanges(target, session, catalogue, start)
        self._markers = Markers(target, session, catalogue, self.recording)
        self._writer = RowWriter(
            target,
            session,
            catalogue,
            self._counts,
            self._parking,
            start=start,
            catching_up=only is not None,
            whole=whole,
            changed_keys=changed_keys,
        )

    @property
    def changed(self) -> bool:
        """Whether this transaction has outdated the catalogue in memory."""
        return bool(self._verdicts) or self._schemas.changed or self.recording.changed or self.rows is not None

    def begin(self) -> None:
        """Begin, and lock the applied offset. Raises Superseded if the state of the target has changed."""
        defer = "SET CONSTRAINTS ALL DEFERRED; " if self._defer else ""
        text = f"BEGIN; {defer}{self._target.own_text(self._session, 'hold_position')}"
        found = self._session.row(text)
        position = self._catalogue.position
        if found != (position.offset, position.control):
            raise Superseded("another process has changed the state of this target")
        for table_id, reason in self._verdicts.halts.items():
            self._halt(table_id, reason)

    def add(self, piece: CutPiece) -> None:
        """Add the next increment."""
        for schema in piece.batch.schemas:
            self._add_schema(schema)
        self.rows = piece.rows or self.rows
        for role, section, offset in self.walk.walk(piece):
            self._add_section(role, section, offset, piece)
        self._writer.make_room()

    def evolve_to_newest(self, table_id: int) -> None:
        """Bring a table that was held to its newest received version, which may have come without any row."""
        newest = self._catalogue.newest_schema(table_id)
        if newest.version > self._catalogue.tables[table_id].schema_version:
            self._refuse_unfit(newest)
            self._evolve(newest)

    def flush(self) -> None:
        """Write all added changes."""
        self._writer.flush()

    def finish(self, end: Callable[[], str]) -> None:
        """Write everything, run the statement of `end` and commit. Raises CommitRefused; one by one, RowsRefused."""
        self.flush()
        if self._verdicts.one_by_one:
            self._session.run("; ".join([*self._counts.statements(self._target, self._session), end()]))
            commit_one_by_one(self._session, self._catalogue, self._counts.written)
            return
        try:
            if self._defer:
                self._check_constraints()
            self._session.run("; ".join([*self._counts.statements(self._target, self._session), end(), "COMMIT"]))
        except (RowsRefused, Superseded):
            raise
        except TargetError as refusal:
            raise CommitRefused(str(refusal)) from refusal

    # -- schema changes, before the rows ---------------------------------------------------------------------------

    def _add_schema(self, schema: TableSchema) -> None:
        """Add a table version that an increment describes."""
        self._schemas.store(schema)
        if self._only is not None or schema.is_heartbeat or schema.table_id in self._halted:
            return
        known = self._catalogue.tables.get(schema.table_id)
        if known is None:
            self._schemas.create(schema)
        elif known.state == ACTIVE and schema.version > known.schema_version:
            self._refuse_unfit(schema)
            self._evolve(schema)

    def _refuse_unfit(self, schema: TableSchema) -> None:
        """Refuse a version that lacks a column of the table's predicate, or has another column of that name."""
        found, state = self._catalogue, self._catalogue.tables[schema.table_id]
        try:
            now = found.predicate(schema.table_id, schema.version)
        except PredicateRefused as refused:
            raise RowsRefused(
                schema.table_id,
                f"its predicate ({state.predicate}) does not fit version {schema.version}: {refused}; "
                f"change [targets.{self._target.name}.where] and start `venus sync` again",
                [],
            ) from None
        if now is None or state.schema_version == schema.version:
            return
        other = differing_column(found.predicate(schema.table_id, state.schema_version), now)
        if other:
            raise RowsRefused(
                schema.table_id,
                f"its predicate ({state.predicate}) names {other}, which is another column since version "
                f"{schema.version}: the former column has selected the rows here; "
                f"`venus resync {state.source_name} --target {self._target.name}` selects them again",
                [],
            )

    def _evolve(self, schema: TableSchema) -> None:
        if schema.types:  # other tables may use a renamed label, too
            self._writer.flush()
        self._writer.flush_table(schema.table_id)
        self._schemas.evolve(schema)

    # -- sections --------------------------------------------------------------------------------------------------

    def _find_version(self, table_id: int) -> int | None:
        """Return the version of a table that this transaction writes to."""
        if table_id in self._halted:
            return None
        if self._only is None:
            return self._catalogue.find_version(table_id)
        return self._catalogue.tables[table_id].schema_version

    def _add_section(self, role: SectionRole, section: TableChanges, offset: int, piece: CutPiece) -> None:
        schema = self._catalogue.schema(section.table_id, section.schema_version)
        if role is HELD:
            self._hold(section, offset, piece, schema)
            return
        self._refuse_unfit(schema)
        if role is NEW_VERSION:  # it arrived while the table was held
            self._evolve(schema)
            return
        if self._only is not None:
            self._counts.for_table(section.table_id).held -= section.count
        if role is ROWS:
            self._writer.add(section, offset, piece, schema)
        else:
            self._apply_marker(section, offset)

    def _hold(self, section: TableChanges, offset: int, piece: CutPiece, schema: TableSchema) -> None:
        """Leave a section to the table's catch-up."""
        if section.table_id in self._halted:
            self._parking.store_refused(section, offset, piece, schema)
        if self._only is None:  # otherwise it already counts as held
            self._counts.count_held(section, offset)

    def _apply_marker(self, section: TableChanges, offset: int) -> None:
        """Apply a marker of a whole table after all earlier changes."""
        table_id = section.table_id
        sql = self._catalogue.sql(self._target, table_id, section.schema_version)
        self._counts.for_table(table_id).applied += section.count
        if section.kind is ChangeKind.TRUNCATE:
            self._writer.discard_table(table_id)
            self._markers.truncate(table_id, sql)
            self._parking.on_truncate(table_id, offset)
            return
        self._writer.flush_table(table_id)
        if section.kind is ChangeKind.SWEEP_BEGIN:
            self._markers.begin_sweep(table_id, offset, sql)
        else:
            self._markers.end_sweep(table_id, sql)

    # -- refusals of the target ------------------------------------------------------------------------------------

    def _halt(self, table_id: int, reason: str) -> None:
        state = self._catalogue.tables[table_id]
        dependants = self._catalogue.referring_tables(table_id)
        if dependants:
            reason += f" (referred to by {', '.join(dependants)})"
        if not self._verdicts.suspects.get(table_id) and "`venus " not in reason:  # there is no row to show
            retry = f"`venus quarantine retry --table {state.source_name} --target {self._target.name}`"
            reason += f"; correct the table at the target, then {retry}"
        self._target.set_state(self._session, table_id, HALTED, held_from=self._start, reason=reason)
        self._halted.add(table_id)
        logger.error("table %s is halted at offset %s: %s", state.source_name, self._start, reason)

    def _check_constraints(self) -> None:
        try:
            self._session.run("SET CONSTRAINTS ALL IMMEDIATE")
        except Refusal as refusal:
            table_id = find_refused_table(self._session, self._catalogue, refusal)
            if table_id is None:
                raise
            raise RowsRefused(table_id, refusal.summary, []) from refusal


def commit_one_by_one(session: TargetSession, catalogue: TargetCatalogue, written: Sequence[int]) -> None:
    """Make each deferred constraint act before COMMIT, then commit. Raises RowsRefused for the table at fault.

    Names of constraints need not be unique, and COMMIT itself may still be refused by a trigger of another table. In
    both cases the error names several candidates.
    """
    by_name = {_quoted_name(catalogue, table_id): table_id for table_id in written}
    deferred: dict[str, list[int]] = {}
    for table, constraint in session.rows(statement("dictionary", "deferred"), {"tables": list(by_name)}):
        deferred.setdefault(constraint, []).append(by_name[table])
    for constraint, table_ids in deferred.items():
        try:
            session.run(f"SET CONSTRAINTS {constraint} IMMEDIATE")
        except Superseded:
            raise
        except TargetError as refusal:
            named = find_refused_table(session, catalogue, refusal)
            raise _commit_refusal(refusal, table_ids if named is None else [named]) from refusal
    try:
        session.run("COMMIT")
    except TargetError as refusal:
        if not written:
            raise
        raise _commit_refusal(
            refusal, written, f" of a transaction that has written to {', '.join(by_name)}"
        ) from refusal


def find_refused_table(session: TargetSession, catalogue: TargetCatalogue, refusal: TargetError) -> int | None:
    """Return the table that violates a constraint, or to which a table outside of VENUS refers. May roll back."""
    if not isinstance(refusal, Refusal):
        return None
    by_name = {(t.namespace, t.name): t.table_id for t in catalogue.tables.values()}
    if refusal.table in by_name or not refusal.constraint:
        return by_name.get(refusal.table)
    session.rollback()
    return by_name.get(find_referred_table(session, refusal))


def _commit_refusal(refusal: TargetError, table_ids: Sequence[int], where: str = "") -> RowsRefused:
    message = refusal.summary if isinstance(refusal, Refusal) else str(refusal)
    return RowsRefused(table_ids[0], f"refused at the COMMIT{where}: {message}", [], candidates=table_ids)


def _quoted_name(catalogue: TargetCatalogue, table_id: int) -> str:
    state = catalogue.tables[table_id]
    return f"{quote(state.namespace)}.{quote(state.name)}"


class KeyRecording:
    """Records of changed keys, within one transaction. `changed` means that the catalogue must be read again."""

    def __init__(self, target: PostgresDatabase, session: TargetSession, catalogue: TargetCatalogue) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self.changed = False

    def start(self, table_id: int, purpose: str, offset: int, sql: RowSql) -> None:
        """Record the key of every change of this table from now on."""
        self._session.run(sql.text("create_touched"))
        if self._session.row(sql.text("has_key")) is None:
            self._session.run(sql.text("key_touched"))
        self._store(table_id, purpose, offset)

    def request(self, table_id: int, purpose: str) -> None:
        """Request a record; the apply loop starts it later."""
        self._store(table_id, purpose, -1)

    def _store(self, table_id: int, purpose: str, offset: int) -> None:
        self._target.run_own(self._session, "put_sweep", table_id=table_id, purpose=purpose, offset=offset)
        self._catalogue.sweeps.setdefault(table_id, {})[purpose] = offset
        self.changed = True

    def stop(self, table_id: int, purpose: str, sql: RowSql) -> None:
        """End a record; the table of keys is dropped with its last purpose."""
        self._target.run_own(self._session, "end_sweep", table_id=table_id, purpose=purpose)
        self._catalogue.sweeps.get(table_id, {}).pop(purpose, None)
        if not self._catalogue.is_recording(table_id):
            self._session.run(sql.text("drop_touched"))
        self.changed = True


class Markers:
    """Executor of the markers of one transaction."""

    def __init__(
        self, target: PostgresDatabase, session: TargetSession, catalogue: TargetCatalogue, recording: KeyRecording
    ) -> None:
        self._session = session
        self._catalogue = catalogue
        self._recording = recording
        self._empty_by = target.config.empty_by

    def truncate(self, table_id: int, sql: RowSql) -> None:
        """Empty the table by DELETE, because TRUNCATE also empties it for readers of an older snapshot.

        If the configuration demands TRUNCATE, use DELETE only where foreign keys or a long reader prevent TRUNCATE.
        """
        self._restart_resync(table_id)
        if self._empty_by == "delete":
            run_or_halt(self._session, table_id, sql.text("delete_all"))
            return
        self._session.run("SAVEPOINT venus; SET LOCAL lock_timeout = '1s'")
        try:
            self._session.run(f"{sql.text('truncate')}; SET LOCAL lock_timeout = 0; RELEASE SAVEPOINT venus")
        except VenusError as error:
            if self._session.closed:
                raise
            logger.info("emptying %s by DELETE: %s", sql.placed.qualified, error)
            self._session.run("ROLLBACK TO SAVEPOINT venus; RELEASE SAVEPOINT venus")
            run_or_halt(self._session, table_id, sql.text("delete_all"))

    def _restart_resync(self, table_id: int) -> None:
        """Restart a running resync: its side table may contain rows that are deleted now without a recorded key."""
        if self._catalogue.sweeps.get(table_id, {}).get(RESYNC, -1) >= 0:
            self._recording.request(table_id, RESYNC)

    def begin_sweep(self, table_id: int, offset: int, sql: RowSql) -> None:
        """Start to record the keys that the second read of the source's table finds."""
        with halt_on_refusal(self._session, table_id):
            self._recording.start(table_id, SWEEP, offset, sql)

    def end_sweep(self, table_id: int, sql: RowSql) -> None:
        """Delete the rows that the second read has not found."""
        begun = self._catalogue.sweeps.get(table_id, {}).get(SWEEP)
        if begun is None:
            # The target was loaded during the sweep: only the broker's full data shows what the sweep has removed.
            self._recording.request(table_id, RESYNC)
            return
        self._restart_resync(table_id)
        run_or_halt(
            self._session,
            table_id,
            f"SET LOCAL enable_hashjoin = on; {sql.text('sweep', offset=str(begun))}; SET LOCAL enable_hashjoin = off",
        )
        self._recording.stop(table_id, SWEEP, sql)
