"""Starting over from the full data when the queue no longer has the applied offset; readers keep their rows.

A mirror that lost its disk, or a queue that was trimmed, no longer has the changes after the applied offset. The
applied offset then moves to the cut of a snapshot. Every table keeps its old rows and waits until a resync has made it
equal to the full data (`resync.py`). Changes after the cut are held for each table until its resync. Offset and tables
change in one transaction, so a restarted process continues with the resyncs.

A target starts over automatically if the broker has only lost increments. If the broker has another history or other
rows, the target follows only after an operator's request: `venus resync --all`.

A changed predicate in the configuration also leads to resyncs (SREM 2), and so does a changed rule for columns. The
stream fits only the former columns, so a table with changed columns waits for its resync, and keeps its rows until
then.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from venus.adapters.targets.columns import dropped_columns
from venus.adapters.targets.predicates import AssignedPredicate, assign_predicates
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.session import RelationalSession
from venus.adapters.targets.relational.states import (
    ACCOUNT,
    HALTED,
    LOADING,
    PAUSED,
    RESYNC,
    SWEEP,
    TableState,
    rows_to_text,
)
from venus.adapters.targets.relational.transaction import KeyRecording
from venus.adapters.targets.views import describe_rows
from venus.codec import schema as schemas_codec
from venus.errors import ConfigError, Diverged, OffsetTrimmed, VenusError
from venus.masking.projection import ProjectedSchema, columns_of, describe_columns, project_schema, source_of
from venus.masking.rules import TableColumns
from venus.model import TableSchema
from venus.network.row_filters import RowsIdentity, find_differing
from venus.predicates.ranges import is_same
from venus.rpc import reports
from venus.rpc.admin import AdminClient
from venus.rpc.conditions import COLUMNS_CHANGED, STARTING_OVER
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: An offset above all others: the full data contains every held or refused change.
_EVERYTHING = 1 << 62


def start_over(
    target: RelationalDatabase, session: RelationalSession, catalogue: TargetCatalogue, error: Diverged
) -> bool:
    """Move the target to a cut of the full data and request the resync of every table. Return False if not allowed.

    If it returns True, the caller reads the catalogue again. If an operator's command came first, nothing was changed.
    """
    with SnapshotClient(target.broker) as snapshots:
        snapshot = snapshots.open(target.business, holder=f"resync of {target.group}")
        try:
            if not is_allowed(error, catalogue, reports.rows_identity(snapshot)):
                return False
            _StartOver(target, session, catalogue, snapshot).run(error)
        finally:
            session.rollback()
            with suppress(VenusError):
                snapshots.close(snapshot.snapshot_id)
    return True


def is_allowed(error: Diverged, catalogue: TargetCatalogue, there: RowsIdentity | None) -> bool:
    """Return whether a diverged target may start over from the full data. Pure.

    Rows that the upstream has only stopped selecting must not disappear from the target without an operator's request.
    """
    if ACCOUNT in catalogue.sweeps.get(0, {}):
        return True
    here = catalogue.position.rows
    has_same_rows = here is None or there is None or not find_differing(here, there)
    return isinstance(error, OffsetTrimmed) and has_same_rows


class _StartOver:
    """Transaction that moves the applied offset to the cut of a snapshot."""

    def __init__(
        self,
        target: RelationalDatabase,
        session: RelationalSession,
        catalogue: TargetCatalogue,
        snapshot: broker_pb2.Snapshot,
    ) -> None:
        self._target, self._session, self._catalogue, self._snapshot = target, session, catalogue, snapshot
        self._recording = KeyRecording(target, session, catalogue)

    def run(self, error: Diverged) -> None:
        """Move the applied offset, and request the resync of every table, unless a command came first."""
        target, session, before = self._target, self._session, self._catalogue.position
        found = session.row(f"BEGIN; {target.own_text(session, 'hold_position')}")
        if found != (before.offset, before.control):
            return
        for state in self._catalogue.tables.values():
            self._halt(state)
        for schema in self._received_schemas():
            self._add_version(schema)
        snapshot = self._snapshot
        target.run_own(
            session,
            "start_over",
            offset=snapshot.offset,
            epoch=snapshot.epoch,
            sequence=snapshot.sequence,
            rows=rows_to_text(reports.rows_identity(snapshot)),
        )
        target.run_own(session, "put_sweep", table_id=0, purpose=ACCOUNT, offset=target.count_unaccounted(session) or 0)
        session.run("COMMIT")
        logger.warning(
            "target %s: %s; resyncing every table with the full data, the stream continues from offset %s",
            target.name,
            error,
            snapshot.offset,
        )

    def _halt(self, state: TableState) -> None:
        """Halt a table until its resync. The table keeps its rows; the full data has the waiting changes."""
        target, session, table_id = self._target, self._session, state.table_id
        everything = {"table_id": table_id, "offset": _EVERYTHING}
        for name in ("count_contained", "count_superseded"):
            target.run_own(session, name, **everything)
        target.run_own(session, "supersede_quarantine", reason="resync", **everything)
        target.run_own(session, "end_held", table_id=table_id)
        sql = self._catalogue.sql(target, table_id, state.schema_version)
        # the end of a sweep would delete the rows whose keys were in the lost changes
        self._recording.stop(table_id, SWEEP, sql)
        self._recording.request(table_id, RESYNC)
        if state.state == PAUSED:
            target.set_state(session, table_id, PAUSED, held_from=self._held_from, reason=state.reason)
        else:
            target.set_state(session, table_id, HALTED, held_from=self._held_from, reason=self._halt_reason)

    @property
    def _held_from(self) -> int:
        """Offset from which a table lacks changes; 0 if the new queue has another change at that offset."""
        offset = self._catalogue.position.offset
        return offset if offset < self._snapshot.offset else 0

    @property
    def _halt_reason(self) -> str:
        return f"{STARTING_OVER} from offset {self._catalogue.position.offset} on are gone from the queue"

    def _received_schemas(self) -> list[TableSchema]:
        """Return the table versions of the snapshot as the target gets them, in order."""
        every = [schemas_codec.from_wire(wire) for wire in self._snapshot.schemas]
        received = list(self._catalogue.schemas.values())
        found = [self._target.columns.project_received(received, schema, every) for schema in every]
        return sorted(found, key=lambda schema: (schema.table_id, schema.version))

    def _add_version(self, schema: TableSchema) -> None:
        """Store a table version that the queue may no longer describe; create the table if it is new."""
        known = self._catalogue.current_schema(schema.table_id) if schema.table_id in self._catalogue.tables else None
        self._target.store_version(self._session, schema, known)
        newest = max(s.version for s in self._received_schemas() if s.table_id == schema.table_id)
        if schema.is_heartbeat or schema.table_id in self._catalogue.tables or schema.version < newest:
            return
        target, session = self._target, self._session
        target.add_stream_table(session, schema, self._snapshot.offset)
        if columns_of(schema).misfit:
            return
        (made,) = target.read_tables(session, schema.table_id)
        reason = made.reason or self._halt_reason
        target.set_state(session, schema.table_id, HALTED, held_from=self._held_from, reason=reason)
        target.run_own(session, "put_sweep", table_id=schema.table_id, purpose=RESYNC, offset=-1)


def apply_configuration(target: RelationalDatabase, session: RelationalSession, catalogue: TargetCatalogue) -> bool:
    """Put changed predicates and rules for columns in force; return whether the catalogue must be read again."""
    changed = _apply_predicates(target, session, catalogue)
    return changed or _apply_columns(target, session, catalogue)


def _apply_predicates(target: RelationalDatabase, session: RelationalSession, catalogue: TargetCatalogue) -> bool:
    """Put changed predicates of the configuration in force; return whether the catalogue must be read again.

    Raises ConfigError for a predicate that does not fit its table. If an unfit predicate is already in force, its table
    halts instead.
    """
    wanted = _configured_predicates(target, catalogue)
    states = [s for s in catalogue.tables.values() if s.state != LOADING]
    changed = [s for s in states if not _is_in_force(catalogue, s, wanted)]
    for state in changed:
        if state.table_id in wanted:
            wanted[state.table_id].check()
    begun = [s for s in states if s.predicate_before is not None and s not in changed]
    begun = [s for s in begun if RESYNC not in catalogue.sweeps.get(s.table_id, {})]  # the table's resync has failed
    if changed or begun:
        _set_predicates(target, session, catalogue, changed + begun, wanted)
    return bool(changed or begun)


def _configured_predicates(target: RelationalDatabase, catalogue: TargetCatalogue) -> dict[int, AssignedPredicate]:
    """Return the configured predicates, each with the newest received version of its table."""
    where, newest = target.config.where, catalogue.newest_versions().values()
    schemas = [schema for schema in newest if not columns_of(schema).misfit]  # others are halted
    try:
        return assign_predicates(where, schemas, target.name)
    except ConfigError:
        return assign_predicates(where, schemas, target.name, elsewhere=_broker_tables(target))


def _broker_tables(target: RelationalDatabase) -> list[str]:
    """Return the tables of the broker, including tables that have not reached the target yet."""
    with AdminClient(target.broker) as admin:
        found = admin.status(target.business).businesses
    return [f"{t.namespace}.{t.name}" for business in found for t in business.tables]


def _is_in_force(catalogue: TargetCatalogue, state: TableState, wanted: dict[int, AssignedPredicate]) -> bool:
    """Return whether the configured predicate of a table is the one that the target applies."""
    text = wanted[state.table_id].text if state.table_id in wanted else ""
    versions = [source_of(s) for (table_id, _), s in catalogue.schemas.items() if table_id == state.table_id]
    return is_same(state.predicate, text, versions)


def _set_predicates(
    target: RelationalDatabase,
    session: RelationalSession,
    catalogue: TargetCatalogue,
    states: list[TableState],
    wanted: dict[int, AssignedPredicate],
) -> None:
    """Put the predicates in force and request the resyncs; do nothing if an operator's command came first."""
    found = session.row(f"BEGIN; {target.own_text(session, 'hold_position')}")
    if found == (catalogue.position.offset, catalogue.position.control):
        for state in states:
            text = wanted[state.table_id].text if state.table_id in wanted else ""
            target.run_own(session, "set_predicate", table_id=state.table_id, predicate=text, before=state.predicate)
            target.run_own(session, "put_sweep", table_id=state.table_id, purpose=RESYNC, offset=-1)
            logger.info(
                "target %s: %s gets %s, previously %s",
                target.name,
                state.source_name,
                describe_rows(text),
                describe_rows(state.predicate),
            )
    session.run("COMMIT")


def configured_columns(target: RelationalDatabase, catalogue: TargetCatalogue) -> dict[int, TableColumns]:
    """Return the configured rules of each table. Raises ConfigError for a rule that does not fit."""
    newest = list(catalogue.newest_versions().values())
    if target.columns.rules.is_empty and not any(isinstance(schema, ProjectedSchema) for schema in newest):
        return {}
    dropped = dropped_columns(catalogue.schemas.values())
    try:
        return target.columns.configure(newest, dropped=dropped)
    except ConfigError:
        return target.columns.configure(newest, dropped=dropped, elsewhere=_broker_tables(target))


def _apply_columns(target: RelationalDatabase, session: RelationalSession, catalogue: TargetCatalogue) -> bool:
    """Request the resync of each table whose rules for columns have changed; return whether to read states again."""
    newest = catalogue.newest_versions()
    wanted = {
        table_id: project_schema(source_of(newest[table_id]), columns)
        for table_id, columns in configured_columns(target, catalogue).items()
    }
    changed = [
        state
        for state in catalogue.tables.values()
        if state.table_id in wanted
        and state.state != LOADING
        and wanted[state.table_id] != newest[state.table_id]
        and (columns_of(newest[state.table_id]).misfit or not _waits_for_resync(catalogue, state))
    ]
    if not changed:
        return False
    found = session.row(f"BEGIN; {target.own_text(session, 'hold_position')}")
    if found == (catalogue.position.offset, catalogue.position.control):
        for state in changed:
            _change_columns(target, session, catalogue, state, wanted[state.table_id])
    session.run("COMMIT")
    return True


def _waits_for_resync(catalogue: TargetCatalogue, state: TableState) -> bool:
    """Return whether a table that does not follow has a requested resync."""
    return state.state in (HALTED, PAUSED) and RESYNC in catalogue.sweeps.get(state.table_id, {})


def _change_columns(
    target: RelationalDatabase,
    session: RelationalSession,
    catalogue: TargetCatalogue,
    state: TableState,
    wanted: TableSchema,
) -> None:
    """Request the resync that changes a table's columns; create a table that the rules fit only now."""
    before = catalogue.newest_schema(state.table_id)
    reason = COLUMNS_CHANGED
    if columns_of(before).misfit:
        reason = _create_fitting(target, session, catalogue, state, wanted) or reason
    held_from = catalogue.position.offset if state.held_from is None else state.held_from
    after = (PAUSED, state.reason) if state.state == PAUSED else (HALTED, reason)
    target.set_state(session, state.table_id, after[0], held_from=held_from, reason=after[1])
    if columns_of(wanted).misfit:
        return
    recording = KeyRecording(target, session, catalogue)
    if SWEEP in catalogue.sweeps.get(state.table_id, {}):  # the record has the former keys
        recording.stop(state.table_id, SWEEP, catalogue.sql(target, state.table_id, state.schema_version))
    recording.request(state.table_id, RESYNC)
    logger.info(
        "target %s: %s gets other columns: %s; previously: %s",
        target.name,
        state.source_name,
        describe_columns(wanted),
        describe_columns(before),
    )


def _create_fitting(
    target: RelationalDatabase,
    session: RelationalSession,
    catalogue: TargetCatalogue,
    state: TableState,
    wanted: TableSchema,
) -> str:
    """Create a table that had halted because rules did not fit it; return why that is impossible, empty = created."""
    for (table_id, _), known in catalogue.schemas.items():
        if table_id == state.table_id:
            target.put_schema(session, project_schema(source_of(known), columns_of(wanted)))
    target.add_stream_table(session, wanted, state.counted_from)
    counted = (state.rows_applied, state.rows_quarantined, state.rows_skipped, state.rows_held)
    session.run(target.own_execute_text(session, "count", state.table_id, *counted))
    (made,) = target.read_tables(session, state.table_id)
    return made.reason if made.state == HALTED else ""
