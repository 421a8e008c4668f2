"""The plan of a full load, kept at the target, so that an interrupted load can resume (VENUS 3.4)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from venus.adapters.targets.columns import UNKNOWN_SPLITS, mask_splits, masks_keys
from venus.adapters.targets.predicates import check_predicates
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.own_tables import TablePlace
from venus.adapters.targets.relational.session import RelationalSession, transaction
from venus.adapters.targets.relational.states import LOADING
from venus.codec import schema as schemas_codec
from venus.errors import SnapshotExpired, TargetError, Unavailable, VenusError
from venus.masking.projection import columns_of
from venus.model import TableSchema
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

SPLITS_PER_WORKER = 4

# States of a load at the target.
LOAD = "loading"
OVERLAPPING = "overlapping"  # loading, while the first read of the source continues; the tables then follow
FOLLOWING = "following"  # the tables follow the rest of the first read (own.sql, position)
DONE = "done"


class UnequalRowCount(TargetError):
    """The number of rows in a table differs from the number that was loaded into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Plan of a full load: its snapshot, and the tables with their versions and row filters."""

    load_id: str
    snapshot: broker_pb2.Snapshot
    versions: dict[int, tuple[TableSchema, ...]]
    placed: dict[int, TablePlace]
    #: The predicates of the tables of which the target gets only some rows.
    predicates: dict[int, str]
    #: The source is still being read: the tables follow the rest after the snapshot (first_load.py).
    overlaps: bool = False

    @property
    def names(self) -> dict[int, str]:
        """The names of the tables at the target."""
        return {table_id: placed.qualified_name for table_id, placed in self.placed.items()}

    @property
    def every_version(self) -> list[TableSchema]:
        """Every version of every table, as the target gets it."""
        return [schema for known in self.versions.values() for schema in known]

    @property
    def rows_estimate(self) -> int:
        return sum(s.rows_estimate for s in self.snapshot.splits)


class LoadPlanner:
    """Planner of full loads; also reads the plan that is stored at the target."""

    def __init__(self, target: RelationalDatabase, session: RelationalSession, snapshots: SnapshotClient) -> None:
        self._target = target
        self._session = session
        self._snapshots = snapshots
        #: Why the stored plan cannot be used; empty = it can, or there is none.
        self.obstacle = ""

    def read_plan(self) -> LoadPlan | None:
        """Return the stored plan; None if there is none or it cannot be used."""
        rows = self._target.read_own_rows(self._session, "job")
        if not rows or rows[0][1] == DONE:
            return None
        load_id, state, wire = rows[0]
        snapshot = broker_pb2.Snapshot.FromString(bytes(wire))
        try:
            self._snapshots.renew(snapshot.snapshot_id)
        except SnapshotExpired:
            self.obstacle = "the broker no longer has its snapshot"
            return None
        except Unavailable:
            raise
        except VenusError as error:
            self.obstacle = str(error)
            return None
        predicates = {t.table_id: t.predicate for t in self._target.read_tables(self._session) if t.predicate}
        plan = self._build_plan(load_id, snapshot, predicates, overlaps=state == OVERLAPPING)
        stored = {(s.table_id, s.version): s for s in self._target.read_schemas(self._session)}
        if any(columns_of(stored.get((s.table_id, s.version), s)) != columns_of(s) for s in plan.every_version):
            self.obstacle = "the rules for columns have changed"
            return None
        if masks_keys(plan.every_version):
            self.obstacle = UNKNOWN_SPLITS
            return None
        return plan

    def _build_plan(
        self,
        load_id: str,
        snapshot: broker_pb2.Snapshot,
        predicates: dict[int, str] | None = None,
        *,
        overlaps: bool,
    ) -> LoadPlan:
        """Build a plan; `predicates` = None means the configured ones. Raises ConfigError."""
        versions: dict[int, tuple[TableSchema, ...]] = {}
        known = [schemas_codec.from_wire(wire) for wire in snapshot.schemas]
        for schema in self._target.columns.project_all(known):
            versions[schema.table_id] = (*versions.get(schema.table_id, ()), schema)
        newest = [max(known, key=lambda s: s.version) for known in versions.values()]
        placed = {p.schema.table_id: p for p in self._target.place_all(newest)}
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
        """Open a snapshot, create the tables, and store a new plan. `overlaps`: the source is still being read."""
        workers = self._target.settings.apply.load_workers
        snapshot = self._snapshots.open(
            self._target.business, splits=workers * SPLITS_PER_WORKER, holder=f"load of {self._target.group}"
        )
        try:
            plan = self._build_plan(uuid.uuid4().hex, snapshot, overlaps=overlaps)
            self._target.prepare_load(self._session, list(plan.placed.values()))
            with transaction(self._session):
                self._prepare(plan)
        except BaseException:
            self._snapshots.close(snapshot.snapshot_id)
            raise
        return plan

    def _prepare(self, plan: LoadPlan) -> None:
        """Create the tables and store the plan. Raises Refused with every difference of every table."""
        target, session = self._target, self._session
        position = target.read_position(session)
        for name in ("remove_position", "forget_manifest", "forget_quarantine", "forget_sweeps", "forget_held"):
            target.run_own(session, name)
        before = {(t.namespace, t.name): t for t in target.read_tables(session)}
        if position is None or position.loading:
            before = {name: replace(t, state=LOADING) for name, t in before.items()}
        target.run_own(session, "forget_tables")
        target.run_own(session, "forget_schemas")
        created = target.make_tables(session, list(plan.placed.values()), before)
        for placed in plan.placed.values():
            predicate = plan.predicates.get(placed.schema.table_id, "")
            is_created = placed.schema.table_id in created
            target.put_table(session, placed, LOADING, plan.snapshot.offset, created=is_created, predicate=predicate)
        for schema in plan.every_version:
            target.put_schema(session, schema)
        wire = mask_splits(plan.snapshot, plan.every_version).SerializeToString()
        state = OVERLAPPING if plan.overlaps else LOAD
        target.run_own(session, "put_job", load_id=plan.load_id, snapshot=wire, state=state)
