"""One target transaction: whole cuts together with the applied offset (VENUS 3.4).

The content of a cut takes three paths. New table versions go to `schema/tables.py`, and markers for a whole table go to
`markers.py`; both act after all earlier changes. Changes go to `writer.py`, which does not depend on the other two. A
refusal of the target ends the transaction with `RowsRefused`. The caller decides and tries again with a verdict, which
the new transaction carries out.

A refusal at COMMIT names no table, because deferred constraints and constraint triggers act there. The cut is then
applied again, and `commit_one_by_one` makes each constraint act before COMMIT, so that its name leads to the table
(features 2.16).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from venus.adapters.targets.postgresql.apply.markers import KeyRecording, Markers
from venus.adapters.targets.postgresql.apply.parking import ChangeCounts, QuarantineWriter
from venus.adapters.targets.postgresql.apply.writer import RowWriter
from venus.adapters.targets.postgresql.apply_role import find_referred_table
from venus.adapters.targets.postgresql.catalogue import TargetCatalogue
from venus.adapters.targets.postgresql.database import ACTIVE, HALTED, PostgresDatabase
from venus.adapters.targets.postgresql.naming import quote
from venus.adapters.targets.postgresql.rows.verdicts import CommitRefused, RowsRefused, Verdicts
from venus.adapters.targets.postgresql.schema.tables import SchemaChanges
from venus.adapters.targets.postgresql.session import Refusal, Superseded, TargetSession
from venus.adapters.targets.postgresql.statements import statement
from venus.adapters.under.cut_assembler import CutPiece
from venus.adapters.under.sections import SectionRole, SectionWalk
from venus.codec.changes import TableChanges
from venus.errors import TargetError
from venus.model import ChangeKind, TableSchema
from venus.network.rows_identity import RowsIdentity
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
    ) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._verdicts = verdicts
        self._start = start
        self._only = only
        self._defer = defer_constraints
        self._halted: set[int] = set()
        self.walk = SectionWalk(find_schema=catalogue.schema, find_version=self._find_version, only=only)
        #: Rows identity of the broker's set behind the added pieces; None = unchanged.
        self.rows: RowsIdentity | None = None
        self.recording = KeyRecording(target, session, catalogue)
        self._counts = ChangeCounts(catalogue)
        self._parking = QuarantineWriter(target, session, catalogue, verdicts, self._counts)
        self._schemas = SchemaChanges(target, session, catalogue, start)
        self._markers = Markers(target, session, catalogue, self.recording)
        self._writer = RowWriter(
            target, session, catalogue, self._counts, self._parking, start=start, catching_up=only is not None,
            whole=whole,
        )  # fmt: skip

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
                f"change [targets.{self._target.name}.where] and start `venus sync` again", [],
            ) from None  # fmt: skip
        if now is None or state.schema_version == schema.version:
            return
        other = differing_column(found.predicate(schema.table_id, state.schema_version), now)
        if other:
            raise RowsRefused(
                schema.table_id,
                f"its predicate ({state.predicate}) names {other}, which is another column since version "
                f"{schema.version}: the former column has selected the rows here; "
                f"`venus resync {state.source_name} --target {self._target.name}` selects them again", [],
            )  # fmt: skip

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
        if role is SectionRole.HELD:
            self._hold(section, offset, piece, schema)
            return
        self._refuse_unfit(schema)
        if role is SectionRole.NEW_VERSION:  # it arrived while the table was held
            self._evolve(schema)
            return
        if self._only is not None:
            self._counts.for_table(section.table_id).held -= section.count
        if role is SectionRole.ROWS:
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
