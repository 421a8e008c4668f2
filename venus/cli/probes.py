"""Reads of the state of source, broker and targets, each separately: an unreachable one does not hide the others.

An age that the broker has measured by a monotonic clock takes precedence over the difference of two times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from venus.adapters.targets.switching import SideState
from venus.adapters.targets.views import TargetView, age_s
from venus.cli.invocation import may_fall_back
from venus.cli.overview import (
    BrokerView,
    ConsumerView,
    FallBackView,
    HalfView,
    LeaseView,
    Overview,
    SourceTableView,
    SourceView,
)
from venus.cli.traffic import MirrorView, OverlayView, ReplicationView, ReplicaView, RetentionView, traffic_view
from venus.errors import LockTimeout, NotInstalled, Refused, VenusError
from venus.rpc.conditions import own_table_condition, released_tables, source_condition, uncaptured_condition
from venus.rpc.reports import decode

if TYPE_CHECKING:
    from venus.adapters.dialects.contract import RegisteredTable, Source
    from venus.config import Settings
    from venus.wire.broker_pb2 import (
        BrokerStatus,
        BusinessStatus,
        ConsumerStatus,
        HalfRef,
        LeaseStatus,
        MirrorStatus,
        ReplicationStatus,
        RetentionStatus,
    )


def status_time_us(status: BrokerStatus) -> int:
    """Return the time of a status in microseconds, by the broker's clock, which may differ from this machine's."""
    return status.now_us or time.time_ns() // 1000


def half_age_s(half: HalfRef, now_us: int) -> float:
    """Return how long a half message has been undecided; an older broker reports only its arrival."""
    return half.waited_ms / 1000 if half.waited_ms else max(0.0, (now_us - half.received_at_us) / 1e6)


def committed_age_s(own: BusinessStatus, now_us: int) -> float | None:
    """Return the age of the newest commit; None before the first one."""
    if own.HasField("committed_ago_ms"):
        return own.committed_ago_ms / 1000
    moment_us = own.last_committed_at_us or own.last_captured_at_us
    return max(0.0, (now_us - moment_us) / 1e6) if moment_us else None


T = TypeVar("T")

#: A broker that does not answer within this time is unreachable.
BROKER_TIMEOUT_S = 5.0
#: From this age of an open transaction at the source, its session is looked up.
BLOCKED_S = 10.0


def read_overview(base: Settings, *, rows: bool = False) -> Overview:
    """Read the state of source, broker and targets at the same time; with `rows` also estimated row counts.

    After a cut-over with a way back, source and target are those of the present direction.
    """
    # here and not in the threads: two threads cannot import SQLAlchemy at once
    import venus.adapters.dialects.registry  # noqa: F401

    settings, fall_back = read_direction(base)
    looks = [target_reader(settings, name) for name in settings.targets]
    with ThreadPoolExecutor(max_workers=2 + len(settings.targets)) as pool:
        source = pool.submit(read_source, settings, rows=rows)
        broker = pool.submit(read_broker, settings)
        found = [pool.submit(look_at) for look_at in looks]
        counts = {name: pool.submit(read_target_rows, settings, name) for name in settings.targets} if rows else None
        targets, at_broker = tuple(target.result() for target in found), broker.result()
        if at_broker.known and any(target.offset > at_broker.next_offset for target in targets):
            at_broker = read_broker(settings)  # the broker answered before the target applied newer changes
        return Overview(
            business=settings.business.name,
            heartbeat_s=settings.capture.heartbeat_s,
            source=source.result(),
            broker=at_broker,
            targets=tuple(with_lag(target, at_broker) for target in targets),
            rows_about={name: count.result() for name, count in counts.items()} if counts is not None else None,
            fall_back=fall_back,
        )


def read_direction(base: Settings) -> tuple[Settings, FallBackView | None]:
    """Return the settings of the present direction, and the view of the two databases after a switch, if any."""
    from venus.adapters.cutover.direction import read_state

    state = read_state(base) if may_fall_back(base) else None
    if state is None:
        return base, None
    try:
        settings = state.settings
    except Refused as error:
        return base, FallBackView(problem=f"{error}: {error.hint}")
    follower, newest = state.follower, max(filter(None, state.records.values()), key=lambda record: record.switch)
    if not newest.switch or state.is_switching:
        waiting = follower if state.state_of(follower) is SideState.STOPPED else ""
        return settings, FallBackView(problem=state.advice, waiting=waiting) if state.advice else None
    since_s = (datetime.now(UTC) - newest.changed_at).total_seconds() if newest.changed_at else None
    owner = state.pair.other(follower)
    return settings, FallBackView(owner=owner, follower=follower, switch=newest.switch, since_s=since_s)


def with_lag(target: TargetView, broker: BrokerView) -> TargetView:
    """Return a target with its end-to-end lag by the clocks of source and broker, not by that of this machine.

    Each difference uses one clock: the source's from the heartbeat to its newest cut, the broker's since then. The
    travel time of the newest cut is left out. If a time is missing, the age comes from the clocks of two machines.
    """
    if not (target.heartbeat_at_us and broker.captured_at_us) or broker.committed_age_s is None:
        return target
    behind_s = max(0.0, (broker.captured_at_us - target.heartbeat_at_us) / 1e6)
    return replace(target, heartbeat_age_s=behind_s + broker.committed_age_s)


def read_target_rows(settings: Settings, name: str) -> dict[int, int]:
    """Read the estimated row counts of a target's tables; none if it is unreachable, which its view reports."""
    from venus.adapters.targets.registry import open_target

    try:
        return open_target(settings, name).read_row_counts()
    except VenusError:
        return {}


def read_source(settings: Settings, *, rows: bool = False) -> SourceView:
    """Read the source: the registry, the checkpoint row and the length of the log."""
    from venus.cli.install import open_configured_source

    if not settings.source.url.get_secret_value():
        return SourceView(asked=False)
    try:
        with open_configured_source(settings) as source:
            source.capture.limit_lock_waits()
            if lacks := source.capture.find_missing_grants():
                return SourceView(unusable=tuple(own_table_condition(lack.table, lack.grant) for lack in lacks))
            return _read_registered(source, settings, rows=rows)
    except NotInstalled:
        return SourceView()
    except VenusError as error:
        return SourceView(error=str(error))


def _read_registered(source: Source, settings: Settings, *, rows: bool) -> SourceView:
    """Read the captured tables, the changes that wait in their logs, and the checkpoint row."""
    from venus.adapters.dialects.registry import describe_database
    from venus.adapters.dialects.registry_rules import describe_identity

    registered = [table for table in source.registry.read_registered_tables() if not table.schema.is_heartbeat]
    registered += source.registry.read_released_tables()
    if not registered:
        return SourceView()
    state, locked = source.registry.read_state(), LockedReads()
    backlog = locked.read(source.capture.read_backlog) or {}
    chosen = settings.source.tables, settings.source.exclude
    uncaptured = locked.read(lambda: source.dictionary.find_uncaptured_tables(*chosen)) or []
    counts = (locked.read(source.registry.read_row_counts) if rows else None) or {}
    is_blocked = any(age >= BLOCKED_S for _, age in backlog.values())
    return SourceView(
        epoch=state.epoch,
        last_batch=state.last_batch,
        captured_sequence=state.next_sequence - 1,
        blocked_by=source.capture.describe_blockers() if is_blocked else "",
        busy=locked.error,
        identity=describe_identity(source.registry.read_identity()),
        uncaptured=tuple(uncaptured_condition(table.name, table.obstacle) for table in uncaptured),
        place=describe_database(settings.source.url.get_secret_value()),
        tables=tuple(
            table_view(t, backlog.get(t.schema.table_id, (0, 0)), counts.get(t.schema.table_id)) for t in registered
        ),
    )


class LockedReads:
    """Reads that give up if they would wait for a lock of another session, and the first such error."""

    def __init__(self) -> None:
        self.error = ""

    def read(self, read: Callable[[], T]) -> T | None:
        """Return the result of a read, or None if the read would have to wait for a lock."""
        try:
            return read()
        except LockTimeout as error:
            self.error = self.error or str(error)
            return None


def table_view(table: RegisteredTable, waiting: tuple[int, float], rows_about: int | None) -> SourceTableView:
    """Build the view of one captured table."""
    return SourceTableView(
        table_id=table.schema.table_id,
        name=table.schema.qualified_name,
        state=source_condition(table.schema.table_id, table.schema.qualified_name, table.state, table.reason).state,
        reason=table.reason,
        log_rows=waiting[0],
        rows_about=rows_about,
        blocked_s=waiting[1],
        fill_done=table.fill.done,
        fill_rows=table.fill.rows_done,
        fill_estimate=table.fill.rows_estimate,
    )


def read_broker(settings: Settings) -> BrokerView:
    """Read the status of the broker from its Admin service."""
    from venus.rpc.address import broker_address
    from venus.rpc.admin import AdminClient

    address: str = broker_address(settings)
    try:
        with AdminClient(broker_address(settings), timeout_s=BROKER_TIMEOUT_S) as admin:
            status = admin.whole_status(settings.business.name)
            address = admin.address
    except VenusError as error:
        return BrokerView(error=str(error), address=address)
    view = broker_view(status, settings.business.name, address, status_time_us(status))
    return replace(view, overlay=overlay_view(status))


def broker_view(status: BrokerStatus, business: str, address: str, now_us: int) -> BrokerView:
    """Build the view of a broker from its status, with ages instead of times."""
    own = next((b for b in status.businesses if b.business == business), None)
    broker = BrokerView(
        address=address,
        version=status.version,
        free_bytes=status.free_bytes,
        alarms=tuple(status.alarms),
        traffic=traffic_view(status.traffic, own, now_us),
    )
    if own is None:
        return broker
    return replace(
        broker,
        known=True,
        producer=own.producer,
        epoch=own.epoch,
        last_batch=own.last_batch,
        committed_sequence=own.last_sequence,
        next_offset=own.next_offset,
        log_start=own.log_start,
        materialised_offset=own.materialised_offset,
        log_bytes=own.log_bytes,
        scrub_age_s=age_s(own.last_scrub_at_us, now_us),
        captured_age_s=age_s(own.last_captured_at_us, now_us),
        committed_age_s=committed_age_s(own, now_us),
        captured_at_us=own.last_captured_at_us,
        ship_s=ship_time_s(own),
        halves=half_views(own, now_us),
        halves_total=max(own.halves_total, len(own.halves)),
        consumers=tuple(consumer_view(found, now_us) for found in own.consumers),
        consumers_total=max(own.consumers_total, len(own.consumers)),
        leases=tuple(lease_view(lease) for lease in own.leases),
        committed_changes={t.table_id: t.committed_changes for t in own.tables},
        alarms=(*broker.alarms, *own.alarms[: len(own.alarms) - own.reported_alarms]),
        reported=reported_views(own, now_us),
        counters=dict(own.counters),
        **source_views(own),
        **optional_views(own, list(status.network.path), now_us),
    )


def optional_views(own: BusinessStatus, path: list[str], now_us: int) -> dict[str, Any]:
    """Return the views that only some businesses have: replication, retention and mirror."""
    return {
        "replication": replication_view(own.replication) if own.HasField("replication") else None,
        "retention": retention_view(own.retention) if own.HasField("retention") else None,
        "mirror": mirror_view(own.mirror, path, now_us) if own.HasField("mirror") else None,
    }


def ship_time_s(own: BusinessStatus) -> float | None:
    """Return how long the newest batch took from the source to its commit; None before the first one."""
    if not (own.last_committed_at_us and own.last_captured_at_us):
        return None
    return (own.last_committed_at_us - own.last_captured_at_us) / 1e6


def consumer_view(found: ConsumerStatus, now_us: int) -> ConsumerView:
    """Build the view of a consumer group."""
    return ConsumerView(
        group=found.group,
        acknowledged=found.acknowledged,
        connected=found.connected,
        backlog_rows=found.backlog_rows,
        backlog_bytes=found.backlog_bytes,
        oldest_s=age_s(found.oldest_unacknowledged_us, now_us) or 0.0,
        kept=found.kept,
        held_bytes=found.held_bytes,
    )


def source_views(own: BusinessStatus) -> dict[str, Any]:
    """Return the report of capture on released tables, on fills and on its comparisons of the dictionary."""
    condition = decode(own.source.report)  # empty without a report
    figures = condition.figures
    return {
        "released": tuple(released_tables(condition)),
        "fills": figures.fills,
        "compares_every_s": figures.compares_every_s,
    }


def lease_view(found: LeaseStatus) -> LeaseView:
    """Build the view of a lease on a snapshot."""
    return LeaseView(
        holder=found.holder,
        offset=found.offset,
        left_s=found.left_s,
        rows_read=found.rows_read,
        rows_expected=found.rows_expected,
        reading_s=found.reading_s,
    )


def mirror_view(found: MirrorStatus, path: list[str], now_us: int) -> MirrorView:
    """Build the view of a mirror."""
    return MirrorView(
        path=tuple(path),
        state=found.state,
        reason=found.reason,
        since_s=age_s(found.since_us, now_us) or 0.0,
        address=found.address,
        lag=found.lag,
        lag_s=found.lag_ms / 1000,
        hop_s=found.hop_ms / 1000,
        hop_mean_s=found.hop_mean_s,
        hop_deviation_s=math.sqrt(found.hop_variance),
        bytes=found.bytes,
        rows=found.rows,
        rows_expected=found.rows_expected,
        only=tuple(found.only),
        where=tuple(f"{one.table} where {one.predicate}" for one in found.where),
        nearest=found.nearest,
        away_s=age_s(found.away_since_us, now_us) or 0.0,
        not_back=found.not_back,
    )


def retention_view(found: RetentionStatus) -> RetentionView:
    """Build the view of the part of the queue that is kept for unknown readers."""
    return RetentionView(
        bytes=found.bytes,
        bytes_per_s=found.bytes_per_s,
        mean_absence_s=found.mean_absence_ms / 1000,
        absences=found.absences,
        raised_ago_s=found.raised_ago_ms / 1000,
    )


def overlay_view(status: BrokerStatus) -> OverlayView | None:
    """Build the view of the overlay, in which brokers share the matching of predicates; None if it is off."""
    found = status.overlay
    if not status.HasField("overlay"):
        return None
    return OverlayView(
        cluster=found.cluster,
        members=tuple(found.members),
        neighbours=found.neighbours,
        installed_interests=found.installed_interests,
        subspaces=found.subspaces,
        uninstalled=found.uninstalled,
        changes_elsewhere=found.changes_elsewhere,
        changes_here=found.changes_here,
        unanswered=found.unanswered,
    )


def replication_view(found: ReplicationStatus) -> ReplicationView:
    """Build the view of the replication of a business."""
    return ReplicationView(
        term=found.term,
        leader=found.leader,
        leader_address=found.leader_address,
        policy=found.policy,
        min_in_sync=found.min_in_sync,
        log_end=found.log_end,
        high=found.high,
        mode=found.mode,
        reason=found.reason,
        refusal=found.refusal,
        replicas=tuple(
            ReplicaView(
                broker=replica.broker,
                address=replica.address,
                alive=replica.alive,
                in_sync=replica.in_sync,
                behind=replica.behind if replica.HasField("behind") else None,
            )
            for replica in found.replicas
        ),
    )


def reported_views(own: BusinessStatus, now_us: int) -> dict[str, tuple[str, ...]]:
    """Return the problems that adapters have reported to the broker, by consumer group."""
    from venus.rpc.reports import reported_problems

    found: dict[str, tuple[str, ...]] = {}
    for group, problem in reported_problems(own, now_us):
        found[group] = (*found.get(group, ()), problem)
    return found


def half_views(own: BusinessStatus, now_us: int) -> tuple[HalfView, ...]:
    """Build the views of the undecided half messages, oldest first."""
    return tuple(
        HalfView(
            batch_no=h.batch_no,
            rows=h.count,
            bytes=h.bytes,
            last_sequence=h.first_sequence + h.count - 1,
            age_s=half_age_s(h, now_us),
            reviews=h.reviews,
        )
        for h in own.halves
    )


def target_reader(settings: Settings, name: str) -> Callable[[], TargetView]:
    """Return the function that reads a target's view; of a misconfigured target, the view has only the error."""
    from venus.adapters.targets.registry import open_target

    try:
        return open_target(settings, name).read_view
    except VenusError as error:
        wrong = TargetView(name=name, group=f"{settings.business.name}/{name}", error=str(error))
        return lambda: wrong
