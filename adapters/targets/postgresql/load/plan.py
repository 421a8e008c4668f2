"""The plan of a full load, which is kept at the target so that an interrupted load can resume."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from venus.adapters.targets.postgresql.database import LOADING, PostgresDatabase, transaction
from venus.adapters.targets.postgresql.naming import PlacedTable, place_all
from venus.adapters.targets.postgresql.schema import existing
from venus.adapters.targets.postgresql.schema.tables import prepare_table
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.predicates import check_predicates
from venus.codec import schema as schemas_codec
from venus.errors import Refused, SnapshotExpired, Unavailable, VenusError
from venus.model import TableSchema
from venus.rpc.snapshots import SnapshotClient
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

SPLITS_PER_WORKER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The plan of one load."""

    load_id: str
    snapshot: broker_pb2.Snapshot
    versions: dict[int, tuple[TableSchema, ...]]
    placed: dict[int, PlacedTable]
    #: The predicates of the tables of which the target does not get every row.
    predicates: dict[int, str]

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
        if not rows or rows[0][1] == "done":
            return None
        load_id, _, wire = rows[0]
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
        return self._build_plan(load_id, snapshot, predicates)

    def _build_plan(
        self, load_id: str, snapshot: broker_pb2.Snapshot, predicates: dict[int, str] | None = None
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
        return LoadPlan(load_id=load_id, snapshot=snapshot, versions=versions, placed=placed, predicates=predicates)

    def make_plan(self) -> LoadPlan:
        workers = self._target.settings.apply.load_workers
        snapshot = self._snapshots.open(
            self._target.business, splits=workers * SPLITS_PER_WORKER, holder=f"load of {self._target.group}"
        )
        try:
            plan = self._build_plan(uuid.uuid4().hex, snapshot)
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
        target.run_own(session, "put_job", load_id=plan.load_id, snapshot=plan.snapshot.SerializeToString())
