"""The plan of a full load, and the steps after its rows (VENUS 3.4).

The plan is kept at the target, so that an interrupted load can resume. The steps add keys, indexes, foreign keys,
statistics and sequences. Each checks whether it was done already, because a load may be killed between any two of them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from venus.adapters.targets.postgresql.database import LOADING, PostgresDatabase, transaction
from venus.adapters.targets.postgresql.naming import PlacedTable, place_all
from venus.adapters.targets.postgresql.schema import existing
from venus.adapters.targets.postgresql.schema.constraints import (
    ConstraintNames,
    add_key,
    check_statements,
    foreign_key_statements,
    index_statements,
)
from venus.adapters.targets.postgresql.schema.ddl import is_counted, is_identity
from venus.adapters.targets.postgresql.schema.tables import prepare_table
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.adapters.targets.predicates import check_predicates
from venus.codec import schema as schemas_codec
from venus.errors import Refused, SnapshotExpired, TargetError, Unavailable, VenusError
from venus.model import TableSchema
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

SPLITS_PER_WORKER = 4

# States of a load at the target.
LOAD = "loading"
OVERLAPPING = "overlapping"  # the same; then it follows
FOLLOWING = "following"  # the tables follow the rest of the first read (own.sql, position)
DONE = "done"


class UnequalRowCount(TargetError):
    """A table has another number of rows than was loaded into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The plan of one load."""

    load_id: str
    snapshot: broker_pb2.Snapshot
    versions: dict[int, tuple[TableSchema, ...]]
    placed: dict[int, PlacedTable]
    #: The predicates of the tables of which the target does not get every row.
    predicates: dict[int, str]
    #: The source is still being read: the tables follow the rest after the snapshot (first_load.py).
    overlaps: bool = False

    @property
    def names(self) -> dict[int, str]:
        """The names of the tables at the target."""
        return {table_id: placed.qualified for table_id, placed in self.placed.items()}

    @property
    def rows_estimate(self) -> int:
        return sum(s.rows_estimate for s in self.snapshot.splits)


class LoadPlanner:
    """Maker of plans, and reader of the kept one."""

    def __init__(self, target: PostgresDatabase, session: TargetSession, snapshots: SnapshotClient) -> None:
        self._target = target
        self._session = session
        self._snapshots = snapshots

    def read_plan(self) -> LoadPlan | None:
        rows = self._target.read_own_rows(self._session, "job")
        if not rows or rows[0][1] == DONE:
            return None
        load_id, state, wire = rows[0]
        snapshot = broker_pb2.Snapshot.FromString(bytes(wire))
        try:
            self._snapshots.renew(snapshot.snapshot_id)
        except SnapshotExpired:
            logger.warning("target %s: the snapshot of the interrupted load has expired", self._target.name)
            return None
        except Unavailable:
            raise
        except VenusError as error:
            logger.warning("target %s: cannot resume the interrupted load: %s", self._target.name, error)
            return None
        predicates = {t.table_id: t.predicate for t in self._target.read_tables(self._session) if t.predicate}
        return self._build_plan(load_id, snapshot, predicates, overlaps=state == OVERLAPPING)

    def _build_plan(
        self,
        load_id: str,
        snapshot: broker_pb2.Snapshot,
        predicates: dict[int, str] | None = None,
        *,
        overlaps: bool,
    ) -> LoadPlan:
        """Build a plan; `predicates` None means those of the configuration. Raises ConfigError."""
        versions: dict[int, tuple[TableSchema, ...]] = {}
        for wire in snapshot.schemas:
            schema = schemas_codec.from_wire(wire)
            versions[schema.table_id] = (*versions.get(schema.table_id, ()), schema)
        newest = [max(known, key=lambda s: s.version) for known in versions.values()]
        placed = {p.schema.table_id: p for p in place_all(newest, self._target.settings, self._target.name)}
        if predicates is None:
            predicates = check_predicates(self._target.config.where, newest, self._target.name)
        return LoadPlan(
            load_id=load_id,
            snapshot=snapshot,
            versions=versions,
            placed=placed,
            predicates=predicates,
            overlaps=overlaps,
        )

    def make_plan(self, *, overlaps: bool) -> LoadPlan:
        workers = self._target.settings.apply.load_workers
        snapshot = self._snapshots.open(
            self._target.business, splits=workers * SPLITS_PER_WORKER, holder=f"load of {self._target.group}"
        )
        try:
            plan = self._build_plan(uuid.uuid4().hex, snapshot, overlaps=overlaps)
            with transaction(self._session):
                self._prepare(plan)
        except BaseException:
            self._snapshots.close(snapshot.snapshot_id)
            raise
        return plan

    def _prepare(self, plan: LoadPlan) -> None:
        """Create the tables and store the plan. Raises Refused with every difference of every table."""
        target, session = self._target, self._session
        before = {(t.namespace, t.name): t for t in target.read_tables(session)}
        for name in ("remove_position", "forget_manifest", "forget_quarantine", "forget_sweeps", "forget_held"):
            target.run_own(session, name)
        target.run_own(session, "forget_tables")
        target.run_own(session, "forget_schemas")
        differences: list[str] = []
        hint = ""
        for placed in plan.placed.values():
            known = before.get((placed.namespace, placed.name))
            try:
                created = prepare_table(target, session, placed, own=known is not None)
            except Refused as refused:
                differences += str(refused).split("\n")
                hint = refused.hint
                continue
            if known is not None:
                existing.empty_table(session, placed, target.config.empty_by)
                created = created or known.created
            predicate = plan.predicates.get(placed.schema.table_id, "")
            target.put_table(session, placed, LOADING, plan.snapshot.offset, created=created, predicate=predicate)
        if differences:
            raise Refused("\n".join(differences), hint=hint)
        for known_versions in plan.versions.values():
            for schema in known_versions:
                target.put_schema(session, schema)
        wire = plan.snapshot.SerializeToString()
        state = OVERLAPPING if plan.overlaps else LOAD
        target.run_own(session, "put_job", load_id=plan.load_id, snapshot=wire, state=state)


#: SQLSTATEs for an index or constraint that exists already.
_THERE = ("42P07", "42710")


def finish_table(session: TargetSession, placed: PlacedTable) -> None:
    """Add the key unless it exists."""
    there = existing.read_table(session, placed)
    if there is not None and any(existing.NO_KEY in line for line in existing.table_differences(placed, there)):
        session.run(add_key(placed))


def finish_tables(
    session: TargetSession, created: Sequence[PlacedTable], everything: Sequence[PlacedTable]
) -> list[str]:
    """Add indexes, checks and foreign keys to the tables that VENUS has created; return what the target rejects."""
    warnings: list[str] = []
    # a foreign key shares its name space with its table's constraints; the cut-over gives it the same name
    names, of_keys = existing.free_names(session, everything), ConstraintNames(everything)
    for placed in created:
        index_statements(placed, of_keys)
        check_statements(placed, of_keys)
        for text in index_statements(placed, names):
            warnings += _try_statement(session, text)
    for placed in created:
        for add, validate in check_statements(placed, names):
            warnings += _add_check(session, add, validate)
    for placed in created:
        for add, validate in foreign_key_statements(placed, everything, of_keys):
            warnings += _try_statement(session, add) or (_try_statement(session, validate) if validate else [])
    for placed in everything:
        session.run(f"ANALYZE {placed.sql}")
        _set_sequences(session, placed)
    return warnings


def _add_check(session: TargetSession, add: str, validate: str) -> list[str]:
    """Add a check if all rows satisfy it. Otherwise the next of the violating rows would halt the table.

    A check that is NOT VALID at the source also refuses such rows there, and is created as NOT VALID.
    """
    lines = _try_statement(session, add)
    if lines or not validate:
        return lines
    if lines := _try_statement(session, validate):
        session.run(validate.replace(" VALIDATE CONSTRAINT ", " DROP CONSTRAINT "))
    return lines


def _try_statement(session: TargetSession, text: str) -> list[str]:
    """Run a statement that the data may violate: SQLite, for example, does not enforce all that it declares."""
    try:
        session.run(text)
    except TargetError as error:
        if any(f"({code})" in str(error) for code in _THERE):
            return []
        logger.warning("%s: %s", text, error)
        return [f"{text}: {error}"]
    return []


def _set_sequences(session: TargetSession, placed: PlacedTable) -> None:
    """Continue the target's sequences behind the loaded rows."""
    for column in placed.schema.columns:
        if is_identity(placed, column) or is_counted(placed, column):
            name, rows = placed.column(column.name), placed.rows_sql
            # a statement with parameters needs %% for a literal %
            text = statement(
                "dictionary", "set_sequence", column=name.replace("%", "%%"), table=rows.replace("%", "%%")
            )
            session.run(text, {"table": placed.sql, "column": placed.fold(column.name)})
