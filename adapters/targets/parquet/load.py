"""`venus migrate` into a lake: planned once and kept in load.json, so that an interrupted load goes on where it was.

The manifest with the snapshot's cut as its offset is the last thing written; increments follow from there, with no gap
and no overlap. A lake that can no longer follow is loaded again beside the states that readers have: the manifest
replaces all of them at once, and the history so far is kept beside the new one.
"""

from __future__ import annotations

import base64
import json
import logging
import shutil
import time
from collections.abc import Callable

from venus.adapters.targets.contract import LoadReport
from venus.adapters.targets.parquet.folder import LakeTarget
from venus.adapters.targets.parquet.layout import remove_hidden, replace_text
from venus.adapters.targets.parquet.manifest import LakeTable, Manifest
from venus.adapters.targets.parquet.states import SPLITS_PER_WORKER, StateLoad, state_name
from venus.codec.chunk import Totals
from venus.errors import Diverged, OffsetTrimmed, SnapshotExpired, TargetError, Unavailable, VenusError
from venus.network.rows_identity import differing
from venus.rpc import reports
from venus.rpc.snapshots import Snapshots
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

#: How often a snapshot may expire under a load.
PLANS_MAX = 3
CREDIT_BYTES = 1 << 16

#: Rows so far, and about how many there are.
Report = Callable[[int, int], None]


def load_lake(target: LakeTarget, report: Report) -> LoadReport:
    """Load everything, or find that the lake can follow; goes on after interruptions."""
    try:
        return _loaded(target, report)
    except OSError as error:
        raise TargetError(f"target {target.name}: {error}", hint="check the disk, then try again") from error


def _loaded(target: LakeTarget, report: Report) -> LoadReport:
    began = time.monotonic()
    with target.locked(), Snapshots(target.broker) as snapshots:
        manifest = target.recovered()
        if manifest is not None and can_follow(target, manifest):
            return LoadReport(target=target.name, offset=manifest.offset, rows={}, already=True)
        return _load_until_done(target, snapshots, report, began)


def _load_until_done(target: LakeTarget, snapshots: Snapshots, report: Report, began: float) -> LoadReport:
    for _ in range(PLANS_MAX):
        try:
            return _load(target, snapshots, report, began)
        except SnapshotExpired as expired:
            logger.warning("target %s: %s; loading again from the start", target.name, expired)
            target.layout.load.unlink(missing_ok=True)
    raise SnapshotExpired("the snapshot kept expiring", hint="raise broker.snapshot_lease_s")


def start_over(target: LakeTarget, manifest: Manifest, error: Diverged) -> bool:
    """Load a lake again whose place in the queue is gone. Return False if only an operator may ask for that.

    The process that follows calls it, with the lock. Rows that the set above merely stopped choosing must not disappear
    by themselves.
    """
    with Snapshots(target.broker) as snapshots:
        is_asked = set(manifest.tables) <= set(target.asked_resyncs())
        if not is_asked and not _is_only_trimmed(target, snapshots, manifest, error):
            return False
        logger.warning("target %s: %s; it is loaded again, and readers keep what they have", target.name, error)
        for table_id in manifest.tables:
            target.ask_resync(table_id)  # status shows what is going on, and another process goes on with it
        _load_until_done(target, snapshots, lambda _rows, _estimate: None, time.monotonic())
    for table_id in target.asked_resyncs():
        target.resynced(table_id)
    return True


def _is_only_trimmed(target: LakeTarget, snapshots: Snapshots, manifest: Manifest, error: Diverged) -> bool:
    """Return whether the broker lacks increments, and has the rows that it had."""
    if not isinstance(error, OffsetTrimmed):
        return False
    snapshot = snapshots.open(target.business, holder=f"load of {target.group}")
    there = reports.said_in(snapshot)
    snapshots.close(snapshot.snapshot_id)
    return manifest.rows is None or there is None or not differing(manifest.rows, there)


def can_follow(target: LakeTarget, manifest: Manifest) -> bool:
    """Whether a lake that was loaded before can go on with increments."""
    group = f"{target.group}/check"
    with Subscriber(target.broker, target.business, group, credit_bytes=CREDIT_BYTES, transient=True) as subscriber:
        try:
            subscriber.open(manifest.offset, manifest.epoch, rows=manifest.rows)
        except Diverged as error:
            logger.warning("target %s is loaded again: %s", target.name, error)
            return False
    return True


def _load(target: LakeTarget, snapshots: Snapshots, report: Report, began: float) -> LoadReport:
    snapshot, text_columns = _kept(target, snapshots) or _new(target, snapshots)
    load = StateLoad(target, snapshot, text_columns)
    tables = load.tables()
    estimate, before = sum(s.rows_estimate for s in snapshot.splits), 0
    for table in tables.values():
        load.run(table, lambda rows, before=before: report(before + rows, estimate))  # type: ignore[misc]
        before += table.base.rows
        _keep(target, snapshot, text_columns)
        snapshots.renew(snapshot.snapshot_id)
    loaded = {table_id: Totals(table.base.rows) for table_id, table in tables.items()}
    snapshots.confirm(snapshot.snapshot_id, loaded, {table_id: table.name for table_id, table in tables.items()})
    register(target, snapshot)
    _finish(target, snapshot, load, tables, text_columns)
    snapshots.close(snapshot.snapshot_id)
    return LoadReport(
        target=target.name, offset=snapshot.offset, rows={t.name: t.base.rows for t in tables.values()},
        seconds=time.monotonic() - began, warnings=tuple(f"{t.name}: {t.note}" for t in tables.values() if t.note),
    )  # fmt: skip


def _finish(
    target: LakeTarget, snapshot: broker_pb2.Snapshot, load: StateLoad, tables: dict[int, LakeTable],
    text_columns: dict[int, list[str]],
) -> None:  # fmt: skip
    before = target.manifest()
    for table_id, table in tables.items():
        if before is not None and table_id in before.tables:
            table.previous = before.tables[table_id].base.folder  # readers have it open
    history = f"history-until-{before.offset}-{int(time.time())}" if before is not None else ""
    _keep(target, snapshot, text_columns, history=history)
    target.commit(
        Manifest(
            group=target.group, offset=snapshot.offset, epoch=snapshot.epoch, sequence=snapshot.sequence,
            counted_from=snapshot.offset, applied_at_us=time.time_ns() // 1000, tables=tables, schemas=load.schemas,
            rows=reports.said_in(snapshot),
        ),
        [],
    )  # fmt: skip
    target.end_load()


def register(target: LakeTarget, snapshot: broker_pb2.Snapshot) -> None:
    """Let the broker know the group before the snapshot goes: it keeps the increments from the cut on."""
    with Subscriber(target.broker, target.business, target.group, credit_bytes=CREDIT_BYTES) as subscriber:
        subscriber.open(snapshot.offset, 0, rows=reports.said_in(snapshot))
        subscriber.acknowledge(snapshot.offset)


# -- the plan --------------------------------------------------------------------------------------------------------

Plan = tuple[broker_pb2.Snapshot, dict[int, list[str]]]


def _kept(target: LakeTarget, snapshots: Snapshots) -> Plan | None:
    """Return the plan of an interrupted load, if its snapshot is still there."""
    try:
        tree = json.loads(target.layout.load.read_text(encoding="utf-8"))
        snapshot = broker_pb2.Snapshot.FromString(base64.b64decode(tree["snapshot"]))
        snapshots.renew(snapshot.snapshot_id)
    except FileNotFoundError:
        return None
    except Unavailable:
        raise
    except (VenusError, ValueError, KeyError) as error:
        logger.warning("target %s: the interrupted load cannot go on: %s", target.name, error)
        return None
    remove_hidden(target.layout.root / "versions")
    return snapshot, {int(table_id): names for table_id, names in tree["text_columns"].items()}


def _new(target: LakeTarget, snapshots: Snapshots) -> Plan:
    splits = target.settings.apply.load_workers * SPLITS_PER_WORKER
    snapshot = snapshots.open(target.business, splits=splits, holder=f"load of {target.group}")
    versions = target.layout.root / "versions"
    if versions.exists() and target.manifest() is None:
        shutil.rmtree(versions)
    _keep(target, snapshot, {})
    return snapshot, {}


def _keep(
    target: LakeTarget, snapshot: broker_pb2.Snapshot, text_columns: dict[int, list[str]], *, history: str = ""
) -> None:
    """Keep the plan; `history` = the load is about to be committed, and what the history so far is named then."""
    wire = base64.b64encode(snapshot.SerializeToString()).decode()
    states = state_name(snapshot)
    tree = {"snapshot": wire, "text_columns": text_columns, "states": states, "history": history}
    replace_text(target.layout.load, json.dumps(tree))
