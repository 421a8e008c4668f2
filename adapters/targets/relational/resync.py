"""Resync: make one table equal to the broker's full data while everything else streams.

During a resync, the apply loop records the key of every change of the table. A second connection loads the full data of
the table, as of a cut S, into a side table. Then one transaction of the loop removes and replaces the rows that differ,
except for rows that have changed after S, which are newer. The table stays readable during the resync. The durable
record of keys begins before the snapshot, so an interrupted resync simply loads its side table again.

If the key of a table has changed, a resync also gives the table its new key, and all rows by that key (VENUS 3.4).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase, TableSql
from venus.adapters.targets.relational.session import RelationalSession, Superseded
from venus.adapters.targets.relational.start_over import configured_columns
from venus.adapters.targets.relational.states import ACCOUNT, ACTIVE, CATCHUP, HALTED, PAUSED, RESYNC, SWEEP, TableState
from venus.adapters.targets.relational.transaction import ApplyTransaction
from venus.adapters.targets.relational.verdicts import Verdicts
from venus.codec import schema as schemas_codec
from venus.codec.masked_rows import project_full_rows
from venus.errors import SnapshotExpired, TargetError, VenusError
from venus.masking.projection import columns_of, project_schema, source_of
from venus.masking.rules import TableColumns
from venus.model import TableSchema
from venus.network.row_filters import RowsIdentity
from venus.predicates.ranges import compile_predicate
from venus.rpc import reports
from venus.rpc.conditions import RESYNC_FAILED
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: A record that was requested but has not begun.
REQUESTED = -1
#: How many side tables load at once: each has a connection to the target and one to the broker.
SIDE_LOADS_MAX = 4
_RETRY_S = 0.1
#: How many snapshots a side load may lose: one may be closed just as the load opens it, when its last other user ends.
SNAPSHOTS_MAX = 5


class SideLoad(threading.Thread):
    """Thread that loads the full data of one table into a side table, in its own connection."""

    def __init__(
        self,
        target: RelationalDatabase,
        sql: TableSql,
        recorded_from: int,
        project: Callable[[TableSchema], TableSchema],
        predicate: str = "",
        rows: RowsIdentity | None = None,
    ) -> None:
        super().__init__(name=f"venus-resync-{sql.placed.name}", daemon=True)
        self._target = target
        self._sql = sql
        self._recorded_from = recorded_from
        self._project = project
        self._predicate = predicate
        self._rows = rows
        self._stop_asked = threading.Event()
        #: The cut of the side table; set when it is complete.
        self.cut: int | None = None
        self.schema: TableSchema | None = None
        self.error: VenusError | None = None

    def stop(self) -> None:
        """Abort the load and wait for the thread."""
        self._stop_asked.set()
        self.join()

    def run(self) -> None:
        try:
            session = self._target.connect("resync")
            try:
                with SnapshotClient(self._target.broker) as snapshots:
                    self._load(session, snapshots)
            finally:
                session.rollback()
                session.close()
        except VenusError as error:
            self.error = error

    def _load(self, session: RelationalSession, snapshots: SnapshotClient) -> None:
        """Load the table's rows from a snapshot that is not older than the record of changed keys."""
        table_id, lost = self._sql.placed.schema.table_id, 0
        while not self._stop_asked.is_set():
            holder = f"resync of {self._sql.placed.qualified_name} at {self._target.group}"
            snapshot = snapshots.open(self._target.business, table_ids=[table_id], holder=holder)
            try:
                reports.check_table(snapshot, self._rows, table_id)
                if snapshot.offset >= self._recorded_from:
                    self._copy(session, snapshots, snapshot)
                    return
            except SnapshotExpired:
                session.rollback()
                lost += 1
                if lost == SNAPSHOTS_MAX:
                    raise
            finally:
                snapshots.close(snapshot.snapshot_id)
            self._stop_asked.wait(_RETRY_S)  # the full data lags behind this target

    def _copy(self, session: RelationalSession, snapshots: SnapshotClient, snapshot: broker_pb2.Snapshot) -> None:
        """Copy the table's rows of a snapshot into a new side table."""
        table_id = self._sql.placed.schema.table_id
        known = [schemas_codec.from_wire(wire) for wire in snapshot.schemas if wire.table_id == table_id]
        if not known:
            raise TargetError(f"the broker has no full data of {self._sql.placed.qualified_name}")
        newest = max(known, key=lambda s: s.version)
        schema = self._project(newest)
        if reason := self._target.columns.reason_to_halt(schema):
            raise TargetError(reason)
        schemas = {s.version: project_schema(s, columns_of(schema)) for s in known}
        sql, maskers = self._target.row_sql(schema), self._target.columns.maskers
        predicate = compile_predicate(self._predicate, newest) if self._predicate else None
        self._target.create_side_table(session, sql)
        for split in snapshot.splits:
            session.run("BEGIN")
            for chunk in snapshots.read_split(snapshot.snapshot_id, split):
                if self._stop_asked.is_set():
                    return
                for rows in chunk.sections:
                    version = schemas[rows.schema_version]
                    refuse_former_key(schema, version, self._target.name)
                    inside = project_full_rows(rows, predicate, version, maskers)
                    if len(inside):
                        self._target.copy_side(session, sql, inside, version)
                snapshots.renew(snapshot.snapshot_id)
            session.run("COMMIT")
        session.run(sql.text("key_side"))
        self.schema, self.cut = schema, snapshot.offset


class Resyncs:
    """The resyncs of one apply session."""

    def __init__(self, target: RelationalDatabase) -> None:
        self._target = target
        self._loads: dict[int, SideLoad] = {}

    @property
    def is_active(self) -> bool:
        return bool(self._loads)

    def close(self) -> None:
        """Stop the loads; the next apply session starts them again."""
        for load in self._loads.values():
            load.stop()
        self._loads.clear()

    def step(self, session: RelationalSession, catalogue: TargetCatalogue) -> bool:
        """Advance every resync; return whether the catalogue must be read again."""
        wanted = {t: purposes[RESYNC] for t, purposes in catalogue.sweeps.items() if RESYNC in purposes}
        for table_id in set(self._loads) - set(wanted):
            self._loads.pop(table_id).stop()
        changed = False
        for table_id, recorded_from in wanted.items():
            state = catalogue.tables.get(table_id)
            if state is None:
                continue
            if recorded_from == REQUESTED:
                if table_id in self._loads:  # the load is outdated: the table was emptied or swept since then
                    self._loads.pop(table_id).stop()
                self._start_recording(session, catalogue, state)
                changed = True
            elif table_id not in self._loads and len(self._loads) >= SIDE_LOADS_MAX:
                continue  # the table waits for a free slot
            elif table_id not in self._loads:
                load = self._make_load(catalogue, state, recorded_from)
                self._loads[table_id] = load
                load.start()
            else:
                changed |= self._check_load(session, catalogue, state)
        return changed

    def _make_load(self, catalogue: TargetCatalogue, state: TableState, recorded_from: int) -> SideLoad:
        """Return a thread that loads the side table of this table, with the configured rules for columns."""
        target, table_id = self._target, state.table_id
        columns = configured_columns(target, catalogue).get(table_id, TableColumns())
        project = partial(target.columns.project_as, catalogue.newest_schema(table_id), columns)
        sql = catalogue.sql(target, table_id, state.schema_version)
        return SideLoad(target, sql, recorded_from, project, state.predicate, catalogue.position.rows)

    def _transaction(self, session: RelationalSession, catalogue: TargetCatalogue, table_id: int) -> ApplyTransaction:
        """Return a transaction that changes this table only and leaves the applied offset unchanged."""
        return ApplyTransaction(
            self._target,
            session,
            catalogue,
            Verdicts(),
            start=catalogue.position.offset,
            defer_constraints=False,
            only=table_id,
        )

    def _start_recording(self, session: RelationalSession, catalogue: TargetCatalogue, state: TableState) -> None:
        """Start to record keys exactly from the applied offset."""
        transaction = self._transaction(session, catalogue, state.table_id)
        sql = catalogue.sql(self._target, state.table_id, state.schema_version)
        try:
            transaction.begin()
            transaction.recording.start(state.table_id, RESYNC, catalogue.position.offset, sql)
        except TargetError as error:  # a dropped table ends its own resync only
            session.rollback()
            misfit = self._target.columns.reason_to_halt(catalogue.newest_schema(state.table_id))
            self._give_up(session, catalogue, state, misfit or str(error))  # without fitting rules there is no table
        else:
            session.run("COMMIT")

    def _check_load(self, session: RelationalSession, catalogue: TargetCatalogue, state: TableState) -> bool:
        """End a resync that has failed, or whose cut the stream has reached; return whether it has ended."""
        load = self._loads[state.table_id]
        if load.is_alive():
            return False
        behind = self._target.is_version_missing(load.error) and state.state in (ACTIVE, CATCHUP)
        if behind or (load.error is not None and load.error.retryable):
            del self._loads[state.table_id]  # the next step loads again; the labels may arrive in the stream
            return False
        if load.cut is None or load.schema is None:
            return self._give_up(session, catalogue, state, str(load.error or "stopped"))
        if state.state == ACTIVE and catalogue.position.offset < load.cut:
            return False  # the stream has not reached the cut yet
        current = catalogue.current_schema(state.table_id)
        if state.state in (ACTIVE, CATCHUP) and not current.has_same_key(load.schema):
            return False  # the stream has not reached the version that halts it
        try:
            self._replace(session, catalogue, state, load.cut, load.schema)
        except Superseded:
            raise
        except TargetError as error:
            session.rollback()
            return self._give_up(session, catalogue, state, str(error))
        del self._loads[state.table_id]
        logger.info("table %s is equal to the full data at offset %s", state.source_name, load.cut)
        return True

    def _replace(
        self, session: RelationalSession, catalogue: TargetCatalogue, state: TableState, cut: int, schema: TableSchema
    ) -> None:
        """Replace a table's rows by its side table, and end the resync, in one transaction."""
        transaction = self._transaction(session, catalogue, state.table_id)
        transaction.begin()
        if state.state == ACTIVE and state.reason.startswith(RESYNC_FAILED):
            self._target.set_state(session, state.table_id, ACTIVE)
        sql = self._target.row_sql(schema)
        removed, brought = self._replace_rows(session, catalogue, state, cut, sql, transaction)
        self._target.run_own(session, "end_predicate", table_id=state.table_id, brought=brought, removed=removed)
        settled = {"table_id": state.table_id, "offset": cut}
        self._target.run_own(session, "count_superseded", **settled)
        self._target.run_own(session, "supersede_quarantine", reason="resync", **settled)
        if state.state != ACTIVE:
            self._catch_up_from(session, state, cut)
        self._target.run_own(session, "end_held", table_id=state.table_id)
        transaction.recording.stop(state.table_id, RESYNC, sql)
        self._target.run_own(session, "settle_account")
        session.run(f"{sql.text('drop_side_table')}; COMMIT")

    def _replace_rows(
        self,
        session: RelationalSession,
        catalogue: TargetCatalogue,
        state: TableState,
        cut: int,
        sql: TableSql,
        transaction: ApplyTransaction,
    ) -> tuple[int, int]:
        """Make the table equal to the side table; return how many rows were removed and added."""
        schema, before = sql.placed.schema, catalogue.current_schema(state.table_id)
        if not before.has_same_key(schema):
            transaction.recording.stop(state.table_id, SWEEP, sql)  # the record has the old keys
            evolve = partial(self._evolve, session, catalogue, state, schema, rekeying=True)
            return self._target.replace_key_by_side(session, state, self._target.place(before), sql, evolve)
        return self._target.replace_by_side(session, sql, cut, partial(self._evolve, session, catalogue, state, schema))

    def _evolve(
        self,
        session: RelationalSession,
        catalogue: TargetCatalogue,
        state: TableState,
        schema: TableSchema,
        *,
        rekeying: bool = False,
    ) -> None:
        """Bring the table to the snapshot's schema version, which may be newer, and to the rules for its columns."""
        self._target.adopt_columns(session, state, schema)
        before = catalogue.current_schema(state.table_id)
        has_new_rules = columns_of(schema) != columns_of(before)
        if schema.version < state.schema_version or (schema.version == state.schema_version and not has_new_rules):
            return
        if has_new_rules:
            self._store_rules(session, catalogue, schema)
        self._target.store_version(session, schema, before)
        step = self._target.plan_step(session, catalogue, schema, rekeying=rekeying)
        if step.refused:
            raise TargetError(step.refused)
        for text in step.statements:
            session.run(text)
        self._forget_values(session, state, before, schema)
        remarks = "; ".join(step.remarks)
        if remarks:
            logger.warning("table %s: %s", state.source_name, remarks)
        self._target.run_own(session, "set_version", table_id=state.table_id, version=schema.version, reason=remarks)

    def _store_rules(self, session: RelationalSession, catalogue: TargetCatalogue, schema: TableSchema) -> None:
        """Store the rules of `schema` with every version of its table."""
        for (table_id, version), known in catalogue.schemas.items():
            if table_id == schema.table_id and version != schema.version:
                self._target.put_schema(session, project_schema(source_of(known), columns_of(schema)))

    def _forget_values(
        self, session: RelationalSession, state: TableState, before: TableSchema, schema: TableSchema
    ) -> None:
        """Remove the values of columns that a rule now drops; a column that the source has dropped keeps them."""
        kept, there = {c.number for c in schema.columns}, {c.number for c in source_of(schema).columns}
        for column in before.columns:
            if column.number in there and column.number not in kept:
                self._target.forget_values(session, self._target.place(before), column.name, is_own=state.created)

    def _catch_up_from(self, session: RelationalSession, state: TableState, cut: int) -> None:
        """Let a table that did not follow continue from the cut, or from its `held_from` if that is later."""
        after = {HALTED: CATCHUP, CATCHUP: CATCHUP, PAUSED: PAUSED}[state.state]
        reason = state.reason if after == PAUSED else ""
        now = next(t for t in self._target.read_tables(session) if t.table_id == state.table_id)
        held_from = max(cut, now.held_from or 0)  # a catch-up may have moved `held_from` since the catalogue was read
        self._target.run_own(session, "count_contained", table_id=state.table_id, offset=held_from)
        self._target.set_state(session, state.table_id, after, held_from=held_from, reason=reason)

    def _give_up(self, session: RelationalSession, catalogue: TargetCatalogue, state: TableState, why: str) -> bool:
        """End the resync of a table; its state keeps the reason."""
        logger.error("resync of %s failed: %s", state.source_name, why)
        self._loads.pop(state.table_id, None)
        sql = catalogue.sql(self._target, state.table_id, state.schema_version)
        transaction = self._transaction(session, catalogue, state.table_id)
        transaction.begin()
        reason = f"{RESYNC_FAILED}{why}"
        self._target.set_state(session, state.table_id, state.state, held_from=state.held_from, reason=reason)
        self._target.run_own(session, "end_held", table_id=state.table_id)
        self._target.run_own(session, "end_sweep", table_id=0, purpose=ACCOUNT)
        transaction.recording.stop(state.table_id, RESYNC, sql)
        session.run(f"{sql.text('drop_side_table')}; COMMIT")
        return True


def refuse_former_key(newest: TableSchema, version: TableSchema, target: str) -> None:
    """Raise TargetError for rows of the full data that have another key than the newest version."""
    if not newest.has_same_key(version):
        name, former = newest.qualified_name, ", ".join(version.key)
        raise TargetError(
            f"the broker still has rows by the former key ({former}): run `venus resync {name}`, which reads the table "
            f"again at the source, and then `venus resync {name} --target {target}`"
        )
