"""The status of the broker (disk, memory, alarms) and of each business: production, consumption, lag (VENUS 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import venus
from venus.broker.machine import loss
from venus.broker.machine.business import Business
from venus.broker.machine.catalogue import BusinessCatalogue
from venus.broker.machine.consumers import ConsumerState
from venus.broker.machine.half_messages import HalfMessage, HalfState
from venus.broker.machine.mirror import home_to_wire
from venus.broker.machine.review_schedule import ASKED_MAX
from venus.broker.pipeline.commit_thread import CommitThread
from venus.broker.pipeline.home_commands import BECOME_A_MIRROR
from venus.broker.pipeline.producer_commands import describe_half
from venus.broker.queue import reader
from venus.broker.queue.buffer import BodyBuffer
from venus.broker.snapshot.snapshots import SnapshotManager
from venus.broker.status.table_selection import EntrySelection, TableSelection
from venus.broker.store.files import FreeSpace, full_disk_message
from venus.broker.store.rocks import Store
from venus.config import BrokerSettings
from venus.model import count_phrase
from venus.wire import broker_pb2


def loss_windows(state: HalfState) -> list[broker_pb2.LossWindow]:
    """Return the losses of promotions that are not closed."""
    return [
        broker_pb2.LossWindow(
            home_term=window.home_term,
            first_offset=window.first_offset,
            rows=window.rows,
            end_offset=window.end_offset if window.is_measured else None,
            first_batch=window.first_batch,
            last_batch=window.last_batch,
            verified=window.verified,
        )
        for window in loss.promotion_losses(state.losses)
    ]


def home_alarms(business: Business) -> list[str]:
    """Return the alarms of a business whose home has moved."""
    state, said = business.committed, []
    if state.is_replaced:
        said.append(
            f"this home was replaced: {state.home} has become it, and producers and targets are sent there; "
            f"{BECOME_A_MIRROR}"
        )
    return said + [
        f"the promotion of this set to the home (home term {window.home_term}) may have lost {window.window}: "
        "`venus verify --repair` finds and ships them"
        for window in loss.promotion_losses(state.losses)
    ]


#: Limit of tables with unreadable rows that alarms name; the rest are counted.
UNDESCRIBED_SHOWN_MAX = 20

#: Counters that are always present, so that their graphs start at zero.
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
    """Limits beyond which a figure of a business is an alarm."""

    half_age_s: float
    behind_bytes_max: int
    held_bytes_max: int


def business_status(
    store: Store,
    business: Business,
    *,
    now: float,
    thresholds: Thresholds,
    tables: TableSelection,
    naming: EntrySelection,
    leases: Sequence[broker_pb2.LeaseStatus] = (),
) -> broker_pb2.BusinessStatus:
    """Describe a business; `now` is monotonic."""
    state = business.committed  # a snapshot: a decision that is being written is still undecided and invisible in it
    with business.lock:
        counters = dict(business.counters)
        halves = [_describe_half(business, found, now) for found in naming.select_halves(state.halves)]
    groups = _by_group(business.list_consumers())
    consumers = [_describe_consumer(store, business, consumer) for consumer in naming.select_consumers(groups)]
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
        committed_ago_ms=_ago_ms(business.committed_seen_at, now),
        tables=tables.describe(business),
        tables_total=len(business.tables),
        counters={**dict.fromkeys(COUNTERS, 0), **counters},
        alarms=[
            *_alarms(business, state, now, thresholds),
            *_held_alarms(consumers, thresholds.held_bytes_max),
            *_standing_alarms(business),
        ],
        home=home_to_wire(state.home),
        replaced=state.is_replaced,
        losses=loss_windows(state),
        held_bytes=max((consumer.held_bytes for consumer in consumers), default=0),
        retention=_describe_retention(business, now),
    )


def _describe_retention(business: Business, now: float) -> broker_pb2.RetentionStatus | None:
    """Describe the measured retention for readers that may return; None = it is not measured here."""
    with business.lock:
        found = business.retention
        if found is None:
            return None
        return broker_pb2.RetentionStatus(
            bytes=found.size(now),
            bytes_per_s=int(found.bytes_per_s),
            mean_absence_ms=_ms(found.mean_absence_s),
            absences=found.absences,
            raised_ago_ms=_ms(now - found.raised_at),
        )


def _standing_alarms(business: Business) -> list[str]:
    """Return the alarms that stay until an operator acts."""
    return [
        *_undescribed_alarms(business),
        *([business.halted] if business.halted else []),
        *home_alarms(business),
    ]


def _by_group(attached: list[ConsumerState]) -> list[ConsumerState]:
    """Return one record for each name: the group's, or that of the slowest transient reader."""
    found: dict[str, ConsumerState] = {}
    for consumer in sorted(attached, key=lambda c: (c.transient, c.kept)):
        found.setdefault(consumer.group, consumer)
    return [found[name] for name in sorted(found)]


def _describe_consumer(store: Store, business: Business, consumer: ConsumerState) -> broker_pb2.ConsumerStatus:
    """Describe a consumer group: its position, and the part of the queue that waits for it."""
    first = reader.find_batch(store, business, max(consumer.acknowledged, business.log_start))
    kept = first
    if consumer.kept < consumer.acknowledged:
        kept = reader.find_batch(store, business, max(consumer.kept, business.log_start))
    backlog_bytes = business.nbytes - first.before if first else 0
    return broker_pb2.ConsumerStatus(
        group=consumer.group,
        acknowledged=consumer.acknowledged,
        connected=consumer.is_connected,
        backlog_rows=max(0, business.visible_offset - consumer.acknowledged),
        backlog_bytes=backlog_bytes,
        updated_at_us=consumer.updated_at_us,
        oldest_unacknowledged_us=first.committed_at_us if first else 0,
        kept=consumer.kept,
        held_bytes=max(0, business.nbytes - kept.before - backlog_bytes) if kept else 0,
    )


def _held_alarms(consumers: list[broker_pb2.ConsumerStatus], held_bytes_max: int) -> list[str]:
    """Return an alarm for each group whose held tables keep more of the queue than the configured retention."""
    return [
        f"the queue keeps {c.held_bytes / 2**30:.2f} GiB for held tables of {c.group}, from offset {c.kept} on: "
        "`venus resume` or `venus resync` them"
        for c in consumers
        if c.held_bytes > held_bytes_max
    ]


def _undescribed_alarms(business: Business) -> list[str]:
    """Return alarms for tables with rows that an older broker took without their columns."""
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
        alarms.append(f"each of {count_phrase(more, 'more table')} has rows of versions whose columns no producer sent")
    return alarms


def _describe_half(business: Business, found: HalfMessage, now: float) -> broker_pb2.HalfRef:
    """Describe an undecided half message, with its age by this process's clock."""
    ref = describe_half(business, found)
    ref.waited_ms = max(1, _ms(business.reviews.waited_s(found.batch_no, now)))  # 0 means unknown
    return ref


def _ago_ms(at: float | None, now: float) -> int | None:
    """Return how long ago a moment was, None if there was none."""
    return None if at is None else _ms(now - at)


def _ms(seconds: float) -> int:
    """Return seconds as milliseconds, at least 0."""
    return max(0, int(seconds * 1000))


def _alarms(business: Business, state: HalfState, now: float, thresholds: Thresholds) -> list[str]:
    """Return the alarms about half messages and the full data.

    The age of a half message is measured on the monotonic clock, from when this process knew of it. A wall clock that
    was adjusted, or another broker's wall clock, would cause a false alarm or hide one.
    """
    alarms = []
    with business.lock:
        ages = [business.reviews.waited_s(found.batch_no, now) for found in state.halves]
    old = [age_s for age_s in ages if age_s > thresholds.half_age_s]
    if old:
        first = state.halves[0].batch_no
        alarms.append(f"half message {first} has been undecided for {int(max(old))} s ({len(old)} of them)")
    with business.lock:
        exhausted = business.reviews.exhausted_batches()
    if exhausted:
        alarms.append(
            f"half message {exhausted[0]} was asked about {ASKED_MAX} times without a decision: "
            "see `venus half list`, then `venus half commit` or `rollback`"
        )
    behind = business.unmaterialised_bytes()
    if behind > thresholds.behind_bytes_max:
        reason = "producers are slowed" if business.catches_up_since is None else "this replica catches up first"
        alarms.append(f"the full data is {behind >> 20} MiB behind: {reason}")
    return alarms


#: A half message that is undecided for this many review intervals is an alarm.
HALF_ALARM_REVIEWS = 10
HALF_ALARM_MIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusBuilder:
    """Builder of the status from the parts of the broker."""

    settings: BrokerSettings
    catalogue: BusinessCatalogue
    commits: CommitThread
    store: Store
    buffer: BodyBuffer
    space: FreeSpace
    snapshots: SnapshotManager
    started_at_us: int
    clock_us: Callable[[], int]
    monotonic: Callable[[], float]

    def __call__(self, business: str = "", tables: TableSelection | None = None) -> broker_pb2.BrokerStatus:
        """Describe the broker, and one business or all of them."""
        tables, naming = tables or TableSelection(), EntrySelection()
        free, now = self.space.read_free(), self.monotonic()
        alarms = []
        if self.space.is_refusing or free < self.settings.free_bytes_min:
            alarms.append(full_disk_message(self.space.path, free, self.settings.free_bytes_min))
        if self.commits.has_failed:
            alarms.append("the store has failed: the broker must be restarted")
        return broker_pb2.BrokerStatus(
            version=venus.__version__,
            started_at_us=self.started_at_us,
            now_us=self.clock_us(),
            free_bytes=free,
            buffer_bytes=self.buffer.status().nbytes,
            buffer_limit_bytes=self.buffer.bytes_max,
            alarms=alarms,
            businesses=[
                business_status(
                    self.store,
                    found,
                    now=now,
                    thresholds=self._thresholds,
                    tables=tables,
                    naming=naming,
                    leases=self.snapshots.status(found),
                )
                for found in self.catalogue.list_all()
                if business in ("", found.name)
            ],
        )

    @property
    def _thresholds(self) -> Thresholds:
        """The alarm thresholds that follow from the configuration."""
        return Thresholds(
            half_age_s=max(HALF_ALARM_MIN_S, HALF_ALARM_REVIEWS * self.settings.review_after_s),
            behind_bytes_max=self.settings.buffer_bytes_max,
            held_bytes_max=self.settings.retain_bytes,
        )
