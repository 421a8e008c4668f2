"""One target transaction: whole cuts together with the applied offset (VENUS 3.4).

The content of a cut takes three paths. `SchemaChanges` follows new table versions, and `Markers` executes the markers
of a whole table; both act after all earlier changes. Row changes go to `writer.py`, which depends on neither of these
classes. While a sweep or a resync runs, the target records the keys of all changes of its table, in the transactions
that apply them. A refusal of the target ends the transaction with `RowsRefused`. The caller then decides on a verdict
and tries again, and the new transaction carries out the verdict.

If a refusal at COMMIT names no table, the cut is applied again, and the target commits in a way that makes the refusal
name the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase, TableSql
from venus.adapters.targets.relational.parking import ChangeCounts, QuarantineWriter
from venus.adapters.targets.relational.session import Refusal, RelationalSession, Superseded
from venus.adapters.targets.relational.states import ACTIVE, HALTED, RESYNC, SWEEP
from venus.adapters.targets.relational.verdicts import (
    CommitRefused,
    RowsRefused,
    Verdicts,
    halt_on_refusal,
    run_or_halt,
)
from venus.adapters.targets.relational.writer import RowWriter
from venus.adapters.under.cut_assembler import HELD, NEW_VERSION, ROWS, CutPiece, SectionRole, SectionWalk
from venus.adapters.under.row_changes import ChangedKeys
from venus.codec.batch import TableChanges
from venus.errors import TargetError
from venus.model import ChangeKind, TableSchema
from venus.network.row_filters import RowsIdentity
from venus.predicates.ranges import differing_column
from venus.predicates.syntax import PredicateRefused

logger = logging.getLogger(__name__)


class ApplyTransaction:
    """Transaction that applies pieces of cuts.

    `only`: catch up this one table, and leave the applied offset unchanged. `whole` lists the tables whose cuts must
    not be merged piece by piece; None means all tables.
    """

    def __init__(
        self,
        target: RelationalDatabase,
        session: RelationalSession,
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
        #: Rows identity of the broker's set after the added pieces; None = unchanged.
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
    def has_changed_catalogue(self) -> bool:
        """Whether this transaction has outdated the catalogue in memory."""
        return bool(self._verdicts) or self._schemas.changed or self.recording.changed or self.rows is not None

    def begin(self) -> None:
        """Begin the transaction and lock the applied offset. Raises Superseded if the target's state has changed."""
        defer = "SET CONSTRAINTS ALL DEFERRED; " if self._defer else ""
        text = f"BEGIN; {defer}{self._target.own_text(self._session, 'hold_position')}"
        found = self._session.row(text)
        position = self._catalogue.position
        if found != (position.offset, position.control):
            raise Superseded("another process has changed the state of this target")
        for table_id, reason in self._verdicts.halts.items():
            self._halt(table_id, reason)

    def add(self, piece: CutPiece) -> None:
        """Add the next increment: its table versions, changes and markers."""
        for schema in piece.batch.schemas:
            self._add_schema(schema)
        self.rows = piece.rows or self.rows
        for role, section, offset in self.walk.walk(piece):
            self._add_section(role, section, offset, piece)
        self._writer.make_room()

    def evolve_to_newest(self, table_id: int) -> None:
        """Bring a table that was held to its newest received version, which may have arrived without any row."""
        newest = self._catalogue.newest_schema(table_id)
        self._refuse_unfit(newest)
        if newest.version > self._catalogue.tables[table_id].schema_version:
            self._evolve(newest)

    def flush(self) -> None:
        """Write all added changes."""
        self._writer.flush()

    def finish(self, end: Callable[[], str]) -> None:
        """Write everything, run the statement that `end` returns, commit. Raises CommitRefused or RowsRefused."""
        self.flush()
        if self._verdicts.one_by_one:
            self._session.run("; ".join([*self._counts.statements(self._target, self._session), end()]))
            self._target.commit_one_by_one(self._session, self._catalogue, self._counts.written_tables)
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
        """Store a table version that an increment describes, and bring the table to it."""
        schema = self._schemas.store(schema)
        if self._only is not None or schema.is_heartbeat or schema.table_id in self._halted:
            return
        known = self._catalogue.tables.get(schema.table_id)
        if known is None:
            self._schemas.create(schema)
        elif known.state == ACTIVE and schema.version > known.schema_version:
            self._refuse_unfit(schema)
            self._evolve(schema)

    def _refuse_unfit(self, schema: TableSchema) -> None:
        """Raise RowsRefused if the rules for columns, or the table's predicate, do not fit a version of a table."""
        if reason := self._target.columns.reason_to_halt(schema):
            raise RowsRefused(schema.table_id, reason, [])
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
        """Write the earlier changes of a table, then bring the table to this version."""
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
        """Write, hold or count a section of changes, or apply its marker or new version, as its role demands."""
        schema = self._catalogue.schema(section.table_id, section.schema_version)
        if role is HELD:
            self._hold(section, offset, piece, schema)
            return
        self._refuse_unfit(schema)
        if role is NEW_VERSION:  # the version arrived while the table was held
            self._evolve(schema)
            return
        if self._only is not None:
            self._counts.for_table(section.table_id).held -= section.count
        if role is ROWS:
            self._writer.add(section, offset, piece, schema)
        else:
            self._apply_marker(section, offset)

    def _hold(self, section: TableChanges, offset: int, piece: CutPiece, schema: TableSchema) -> None:
        """Leave a section to the table's catch-up, and count its changes as held."""
        if section.table_id in self._halted:
            self._parking.store_refused(section, offset, piece, schema)
        if self._only is None:  # otherwise the section already counts as held
            self._counts.count_held(section, offset)

    def _apply_marker(self, section: TableChanges, offset: int) -> None:
        """Carry out a TRUNCATE, or the beginning or end of a sweep, after all earlier changes of the table."""
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
        """Halt a table at this transaction's start, and name the remedy in its reason."""
        state = self._catalogue.tables[table_id]
        dependants = self._catalogue.referring_tables(table_id)
        if dependants:
            reason += f" (referred to by {', '.join(dependants)})"
        if not self._verdicts.suspects.get(table_id) and "`venus " not in reason:  # no single row is at fault
            retry = f"`venus quarantine retry --table {state.source_name} --target {self._target.name}`"
            reason += f"; correct the table at the target, then {retry}"
        self._target.set_state(self._session, table_id, HALTED, held_from=self._start, reason=reason)
        self._halted.add(table_id)
        logger.error("table %s is halted at offset %s: %s", state.source_name, self._start, reason)

    def _check_constraints(self) -> None:
        """Check deferred constraints before COMMIT. Raises RowsRefused for the table at fault."""
        try:
            self._target.check_deferred(self._session)
        except Refusal as refusal:
            table_id = self._target.find_refused_table(self._session, self._catalogue, refusal)
            if table_id is None:
                raise
            raise RowsRefused(table_id, refusal.summary, []) from refusal


class KeyRecording:
    """Recording of changed keys, within one transaction. `changed` means that the catalogue must be read again."""

    def __init__(self, target: RelationalDatabase, session: RelationalSession, catalogue: TargetCatalogue) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self.changed = False

    def start(self, table_id: int, purpose: str, offset: int, sql: TableSql) -> None:
        """From now on, record the key of every change of this table."""
        self._target.start_recording(self._session, sql, is_recording=self._catalogue.is_recording(table_id))
        self._store(table_id, purpose, offset)

    def request(self, table_id: int, purpose: str) -> None:
        """Request a recording; the apply loop starts it later."""
        self._store(table_id, purpose, -1)

    def _store(self, table_id: int, purpose: str, offset: int) -> None:
        """Store the offset from which keys are recorded for a purpose; -1 = the recording is requested."""
        self._target.run_own(self._session, "put_sweep", table_id=table_id, purpose=purpose, offset=offset)
        self._catalogue.sweeps.setdefault(table_id, {})[purpose] = offset
        self.changed = True

    def stop(self, table_id: int, purpose: str, sql: TableSql) -> None:
        """End the recording for one purpose; when no purpose is left, forget the recorded keys."""
        self._target.run_own(self._session, "end_sweep", table_id=table_id, purpose=purpose)
        self._catalogue.sweeps.get(table_id, {}).pop(purpose, None)
        if not self._catalogue.is_recording(table_id):
            self._target.end_recording(self._session, sql)
        self.changed = True


class Markers:
    """Executor of the markers of one transaction, which concern a whole table: TRUNCATE, sweep begin, sweep end."""

    def __init__(
        self,
        target: RelationalDatabase,
        session: RelationalSession,
        catalogue: TargetCatalogue,
        recording: KeyRecording,
    ) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._recording = recording

    def truncate(self, table_id: int, sql: TableSql) -> None:
        """Empty the table, because the source's table was emptied by TRUNCATE."""
        self._restart_resync(table_id)
        with halt_on_refusal(self._session, table_id):
            self._target.truncate(self._session, sql)

    def _restart_resync(self, table_id: int) -> None:
        """Restart a running resync: its side table may contain rows that are deleted now without a recorded key."""
        if self._catalogue.sweeps.get(table_id, {}).get(RESYNC, -1) >= 0:
            self._recording.request(table_id, RESYNC)

    def begin_sweep(self, table_id: int, offset: int, sql: TableSql) -> None:
        """Start to record the keys that the second read of the source's table finds."""
        with halt_on_refusal(self._session, table_id):
            self._recording.start(table_id, SWEEP, offset, sql)

    def end_sweep(self, table_id: int, sql: TableSql) -> None:
        """Delete the rows that the second read has not found."""
        begun = self._catalogue.sweeps.get(table_id, {}).get(SWEEP)
        if begun is None:
            # The target was loaded during the sweep: only the broker's full data shows what the sweep has removed.
            self._recording.request(table_id, RESYNC)
            return
        self._restart_resync(table_id)
        run_or_halt(self._session, table_id, sql.text("sweep", offset=str(begun)))
        self._recording.stop(table_id, SWEEP, sql)


class SchemaChanges:
    """The schema changes of one transaction, which starts at offset `start`."""

    def __init__(
        self, target: RelationalDatabase, session: RelationalSession, catalogue: TargetCatalogue, start: int
    ) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._start = start
        #: Whether the catalogue in memory has to be read again.
        self.changed = False

    def store(self, described: TableSchema) -> TableSchema:
        """Store a table version unless this target has it already; return it as the target gets it."""
        key = (described.table_id, described.version)
        if key in self._catalogue.schemas:
            return self._catalogue.schemas[key]
        schema = self._target.columns.project_received(self._catalogue.schemas.values(), described)
        known = self._catalogue.current_schema(schema.table_id) if schema.table_id in self._catalogue.tables else None
        self._target.store_version(self._session, schema, known)
        self._catalogue.schemas[key] = schema
        self.changed = True
        return schema

    def create(self, schema: TableSchema) -> None:
        """Create a table that the target does not have; a table that cannot be created halts."""
        self._target.add_stream_table(self._session, schema, self._start)
        self._reload_tables()

    def evolve(self, schema: TableSchema) -> None:
        """Bring a table to this version. Raises RowsRefused with the reason if the step is impossible."""
        table_id = schema.table_id
        known = self._catalogue.tables[table_id]
        if schema.version < known.schema_version:
            raise RowsRefused(
                table_id, f"a change of schema version {schema.version} came after {known.schema_version}", []
            )
        step = self._target.plan_step(self._session, self._catalogue, schema)
        if step.refused:
            raise RowsRefused(table_id, step.refused, [])
        for text in step.statements:
            run_or_halt(self._session, table_id, text)
        self._target.run_own(
            self._session, "set_version", table_id=table_id, version=schema.version, reason="; ".join(step.remarks)
        )
        self._reload_tables()

    def _reload_tables(self) -> None:
        """Read the states of the tables again."""
        self._catalogue.tables = {t.table_id: t for t in self._target.read_tables(self._session)}
        self.changed = True
