"""What the broker says of itself: production, consumption, lag and alarms of each business (VENUS 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from venus.broker.machine import home as homes
from venus.broker.machine.business import Business
from venus.broker.machine.consumers import Consumer
from venus.broker.machine.half import Half, State
from venus.broker.machine.review_schedule import ASKED_MAX
from venus.broker.pipeline.producer_commands import half_ref
from venus.broker.queue import places
from venus.broker.status.home_status import home_alarms, loss_windows
from venus.broker.status.naming import Naming
from venus.broker.status.tables import Tables
from venus.broker.store.rocks import Store
from venus.model import counted
from venus.wire import broker_pb2

#: So many tables without columns are named, each with its way out; the rest are counted.
UNDESCRIBED_SHOWN_MAX = 20

#: Always present, so that a graph of one starts at zero rather than nowhere.
COUNTERS = (
    "received_rows",
    "received_batches",
    "committed_rows",
    "committed_batches",
    "commits",
    "rollbacks",
    "rolled_back_rows",
    "duplicate_batches",
    "duplicate_rows",
    "duplicate_decisions",
    "operator_decisions",
    "stale_rows",
    "scavenged_rows",
    "reviews_sent",
    "resends",
    "digest_mismatches",
    "fenced",
    "refused",
    "expired_consumers",
    "lost_rows",
    "key_only_changes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From where on something of a business is an alarm."""

    half_age_s: float
    behind_bytes_max: int
    held_bytes_max: int


def business_status(
    store: Store,
    business: Business,
    *,
    now: float,
    thresholds: Thresholds,
    tables: Tables,
    naming: Naming,
    leases: Sequence[broker_pb2.LeaseStatus] = (),
) -> broker_pb2.BusinessStatus:
    """Describe a business; `now` is monotonic."""
    state = business.committed  # one moment: a decision that is being written down is still undecided and invisible
    with business.lock:
        counters = dict(business.counters)
        halves = [_half(business, found, now) for found in naming.halves(state.halves)]
    groups = _by_group(business.attached())
    consumers = [_consumer(store, business, consumer) for consumer in naming.consumers(groups)]
    seen_at = business.committed_seen_at
    return broker_pb2.BusinessStatus(
        business=business.name,
        epoch=state.epoch,
        producer=state.producer,
        last_batch=state.last_batch,
        last_sequence=state.last_sequence,
        next_offset=state.next_offset,
        log_start=business.log_start,
        materialised_offset=business.materialised.offset,
        log_bytes=business.nbytes - business.nbytes_trimmed + sum(found.nbytes for found in state.halves),
        last_committed_at_us=business.committed_at_us,
        last_captured_at_us=business.captured_at_us,
        last_scrub_at_us=business.scrubbed_at_us,
        leases=leases,
        halves=halves,
        halves_total=len(state.halves),
        consumers=consumers,
        consumers_total=len(groups),
        committed_ago_ms=None if seen_at is None else _ms(now - seen_at),
        tables=tables.of(business),
        tables_total=len(business.tables),
        counters={**dict.fromkeys(COUNTERS, 0), **counters},
        alarms=[*_alarms(business, state, now, thresholds), *_held_alarms(consumers, thresholds.held_bytes_max),
                *_standing_alarms(business)],
        home=homes.said(state.home),
        replaced=state.is_replaced,
        losses=loss_windows(state),
        held_bytes=max((consumer.held_bytes for consumer in consumers), default=0),
    )  # fmt: skip


def _standing_alarms(business: Business) -> list[str]:
    """Return what stays so until somebody acts."""
    return [
        *_undescribed_alarms(business),
        *([business.halted] if business.halted else []),
        *home_alarms(business),
    ]


def _by_group(attached: list[Consumer]) -> list[Consumer]:
    """Return one record of each name: the group's, or that of the slowest transient reader."""
    found: dict[str, Consumer] = {}
    for consumer in sorted(attached, key=lambda c: (c.transient, c.kept)):
        found.setdefault(consumer.group, consumer)
    return [found[name] for name in sorted(found)]


def _consumer(store: Store, business: Business, consumer: Consumer) -> broker_pb2.ConsumerStatus:
    first = places.at(store, business, max(consumer.acknowledged, business.log_start))
    kept = first
    if consumer.kept < consumer.acknowledged:
        kept = places.at(store, business, max(consumer.kept, business.log_start))
    backlog_bytes = business.nbytes - first.before if first else 0
    return broker_pb2.ConsumerStatus(
        group=consumer.group,
        acknowledged=consumer.acknowledged,
        connected=consumer.connected,
        backlog_rows=max(0, business.visible_offset - consumer.acknowledged),
        backlog_bytes=backlog_bytes,
        updated_at_us=consumer.updated_at_us,
        oldest_unacknowledged_us=first.committed_at_us if first else 0,
        kept=consumer.kept,
        held_bytes=max(0, business.nbytes - kept.before - backlog_bytes) if kept else 0,
    )


def _held_alarms(consumers: list[broker_pb2.ConsumerStatus], held_bytes_max: int) -> list[str]:
    """Name the groups whose held tables keep more of the queue than is kept for nobody."""
    return [
        f"the queue keeps {c.held_bytes / 2**30:.2f} GiB for held tables of {c.group}, from offset {c.kept} on: "
        "`venus resume` or `venus resync` them"
        for c in consumers
        if c.held_bytes > held_bytes_max
    ]


def _undescribed_alarms(business: Business) -> list[str]:
    """Name the tables with rows that an older broker took without their columns."""
    alarms = []
    undescribed = sorted(business.undescribed.copy().items())
    for table_id, versions in undescribed[:UNDESCRIBED_SHOWN_MAX]:
        figures = business.tables[table_id]
        name = f"{figures.namespace}.{figures.name}" if figures.name else f"table {table_id}"
        way_out = (
            f"`venus resync {name}` reads it again" if figures.name else f"`venus forget --business {business.name}`"
        )
        shown = ", ".join(map(str, versions))
        alarms.append(
            f"{name} has rows of version {shown}, whose columns no producer sent; no target can load: {way_out}"
        )
    if more := len(undescribed) - len(alarms):
        alarms.append(f"each of {counted(more, 'more table')} has rows of versions whose columns no producer sent")
    return alarms


def _half(business: Business, found: Half, now: float) -> broker_pb2.HalfRef:
    """Describe an undecided half message, with its age as this process knows it."""
    ref = half_ref(business, found)
    ref.waited_ms = max(1, _ms(business.reviews.waited_s(found.batch_no, now)))  # 0: not said
    return ref


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1000))


def _alarms(business: Business, state: State, now: float, thresholds: Thresholds) -> list[str]:
    """Return what needs somebody.

    How long a half message waits is told by a clock that nobody sets, from when this process knew of it: a wall clock
    that was set, or that of another broker, would make an alarm of nothing, or hide one.
    """
    alarms = []
    with business.lock:
        ages = [business.reviews.waited_s(found.batch_no, now) for found in state.halves]
    old = [age_s for age_s in ages if age_s > thresholds.half_age_s]
    if old:
        first = state.halves[0].batch_no
        alarms.append(f"half message {first} has been undecided for {int(max(old))} s ({len(old)} of them)")
    with business.lock:
        exhausted = business.reviews.exhausted()
    if exhausted:
        alarms.append(
            f"half message {exhausted[0]} was asked about {ASKED_MAX} times without a decision: "
            "see `venus half list`, then `venus half commit` or `rollback`"
        )
    behind = business.unmaterialised_bytes()
    if behind > thresholds.behind_bytes_max:
        alarms.append(f"the full data is {behind >> 20} MiB behind: producers are slowed")
    return alarms
