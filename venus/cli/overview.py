"""State of a whole pipeline as one value, and its problems. Pure: the field of an unreachable part holds its error.

Lag is measured per hop from the heartbeat that travels with the data. From source to broker, it is the age of the
newest committed cut; from broker to target, the age of the oldest committed increment that the target has not
acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from venus.adapters.targets.views import TargetView
from venus.cli.traffic import MirrorView, OverlayView, ReplicationView, RetentionView, TrafficView
from venus.model import count_phrase
from venus.network.topology import PULLS_AS
from venus.rpc.conditions import (
    HEARTBEATS_LATE,
    RELEASED,
    AdapterCondition,
    TableCondition,
    TableFillFigures,
    apply_problems,
    clock_problem,
    problems,
    released_tables,
    set_problems,
    silence_sentence,
    unaccounted_problem,
)
from venus.text.alarm_rules import WAITS, classify_sentence

#: Allowance beyond the heartbeat for a poll, a flush and a transaction on a busy machine.
GRACE_S = 5.0
#: A target further behind than this is unhealthy.
APPLY_LAG_MAX_S = 60.0
#: An undecided half message is normal for the duration of one cut.
HALF_AGE_MAX_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTableView:
    """State of a captured table at the source."""

    table_id: int
    name: str
    state: str
    reason: str = ""
    log_rows: int = 0
    blocked_s: float = 0.0
    fill_done: bool = True
    fill_rows: int = 0
    fill_estimate: int = 0
    #: The estimated number of rows, if requested and known to the database.
    rows_about: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """State of the source. With an `error` nothing else is known. `asked` is False if no source is configured."""

    error: str = ""
    asked: bool = True
    #: Database and host.
    place: str = ""
    epoch: int = 0
    last_batch: int = 0
    captured_sequence: int = 0
    tables: tuple[SourceTableView, ...] = ()
    #: Why this may be a copy of the database that was captured, with the remedy.
    identity: str = ""
    #: VENUS's own tables that its user may not use; if there are any, nothing else is known.
    unusable: tuple[TableCondition, ...] = ()
    #: Tables that match the patterns but are not captured.
    uncaptured: tuple[TableCondition, ...] = ()
    #: The sessions with open transactions that capture waits for.
    blocked_by: str = ""
    #: Why the length of the log, or the tables that are not captured, could not be read without waiting for a lock.
    busy: str = ""

    @property
    def condition(self) -> AdapterCondition:
        """The condition of the tables, as capture reports it."""
        found = [TableCondition(table_id=t.table_id, name=t.name, state=t.state, reason=t.reason) for t in self.tables]
        return AdapterCondition.of([*self.unusable, *found, *self.uncaptured])


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfView:
    """An undecided half message."""

    batch_no: int
    rows: int
    bytes: int
    last_sequence: int
    age_s: float
    reviews: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerView:
    """A consumer group as the broker sees it."""

    group: str
    acknowledged: int
    connected: bool
    backlog_rows: int
    backlog_bytes: int
    oldest_s: float  # age of the oldest committed increment that is not acknowledged
    kept: int = 0  # the queue is kept for the group from this offset
    held_bytes: int = 0  # bytes of the queue that are kept only for its held tables


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """A lease on a snapshot, which also keeps the queue from `offset`."""

    holder: str
    offset: int
    left_s: float
    rows_read: int = 0
    rows_expected: int = 0  # approximate
    reading_s: float = 0.0

    @property
    def load_left_s(self) -> float | None:
        """The remaining time of the load at its pace so far; None if unknown."""
        left = self.rows_expected - self.rows_read
        return self.reading_s * left / self.rows_read if left > 0 and self.rows_read and self.reading_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """State of the broker, and of the configured business in it."""

    error: str = ""
    address: str = ""
    version: str = ""
    known: bool = False  # whether the broker knows the business
    producer: str = ""
    epoch: int = 0
    last_batch: int = 0
    committed_sequence: int = 0
    next_offset: int = 0
    log_start: int = 0
    materialised_offset: int = 0
    log_bytes: int = 0
    free_bytes: int = 0
    scrub_age_s: float | None = None  # time since the whole store was last read and found undamaged
    captured_age_s: float | None = None  # time since the newest committed cut was captured, by the source's clock
    committed_age_s: float | None = None  # time since it was committed, by the broker's clock
    ship_s: float | None = None  # from its capture to its commit, by both clocks; below 0 = the source's clock is ahead
    captured_at_us: int = 0  # when it was captured, by the source's clock
    halves: tuple[HalfView, ...] = ()
    halves_total: int = 0  # the number of half messages; `halves` has the oldest
    consumers: tuple[ConsumerView, ...] = ()
    consumers_total: int = 0  # the number of groups; `consumers` has those that are disconnected or behind
    leases: tuple[LeaseView, ...] = ()
    #: Tables that capture reads for the first time or again, from its report.
    fills: tuple[TableFillFigures, ...] = ()
    #: About how often capture compares the source's dictionary with the registry; 0 = not known.
    compares_every_s: int = 0
    committed_changes: dict[int, int] = field(default_factory=dict)
    #: Alarms of the broker itself, without the reports of adapters.
    alarms: tuple[str, ...] = ()
    #: Problems reported by the adapters, by consumer group; "" = capture.
    reported: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Sentences of capture about released tables.
    released: tuple[str, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    #: None = the broker is not in a cluster.
    replication: ReplicationView | None = None
    #: Limiters and windows of this business; lanes, facts of health and gauges of the whole broker.
    traffic: TrafficView = field(default_factory=TrafficView)
    #: None = it is the home of the business.
    mirror: MirrorView | None = None
    overlay: OverlayView | None = None
    retention: RetentionView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FallBackView:
    """The two databases between which the application can switch."""

    #: The database that accepts writes, and the one that gets its changes; both empty while a switch is unfinished.
    owner: str = ""
    follower: str = ""
    switch: int = 0
    since_s: float | None = None
    #: What to do about an unfinished switch, or about records that contradict each other; empty = nothing.
    problem: str = ""
    #: The database that will get the changes once an unfinished switch is complete.
    waiting: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of source, broker and targets, and its problems."""

    business: str
    heartbeat_s: float
    source: SourceView
    broker: BrokerView
    targets: tuple[TargetView, ...]
    #: The estimated number of rows of each table at each target, by target name, if requested.
    rows_about: dict[str, dict[int, int]] | None = None
    #: None = the application has one database.
    fall_back: FallBackView | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each problem, in the order of a row's path."""
        found = [self.fall_back.problem] if self.fall_back is not None and self.fall_back.problem else []
        found += [*source_problems(self.source, self.broker), *self._reported_problems(), *broker_problems(self.broker)]
        if not self.broker.error and self.broker.known:
            found += capture_problems(self) if self.broker.mirror is None else []
        elif not self.broker.error and (
            self.source.last_batch or any(t.loaded and not t.cut_over for t in self.targets)
        ):
            found.append(
                f"broker: it does not know business {self.business}, although it had batches of it: "
                "its data is lost, or another broker answers at this address"
            )
        found += [problem for below in self.sets_below for problem in downstream_problems(below)]
        for target in self.targets:
            if self.fall_back is not None and target.name == self.fall_back.waiting and not target.error:
                continue  # not loaded: it gets the changes once the switch is complete
            if target.cut_over:
                found += late_write_problems(target, self.broker)
            else:
                found += target_problems(target, self.find_consumer(target))
                found += missing_data_problems(target, self.find_consumer(target), self.broker)
            if target.error:
                found += self.broker.reported.get(target.group, ())
        return tuple(found)

    @property
    def release_notices(self) -> tuple[str, ...]:
        """A sentence for each released table, from the source or else from the report at the broker."""
        if self.source.error or not self.source.asked:
            return self.broker.released
        return (*released_tables(self.source.condition), *forgotten_table_problems(self.source, self.targets))

    def _reported_problems(self) -> tuple[str, ...]:
        """Return the problems that only reports at the broker show: of an unreachable source and of targets elsewhere.

        Of a reachable source, only the cuts that wait for other sessions are added, which capture alone knows.
        """
        known = {target.group for target in self.targets}
        elsewhere = [
            p for group, sentences in self.broker.reported.items() if group and group not in known for p in sentences
        ]
        of_source = self.broker.reported.get("", ())
        if self.source.asked and not self.source.error:
            of_source = tuple(p for p in of_source if classify_sentence(p)[0].name == WAITS)
        return (*of_source, *elsewhere)

    @property
    def sets_below(self) -> tuple[ConsumerView, ...]:
        """The consumer groups of the broker sets that pull from this one."""
        return tuple(c for c in self.broker.consumers if c.group.startswith(PULLS_AS))

    @property
    def is_healthy(self) -> bool:
        """Whether neither source, broker nor a target has a problem."""
        return not self.problems

    def find_consumer(self, target: TargetView) -> ConsumerView | None:
        """Return the consumer group of a target, as the broker sees it; None if the broker does not list it."""
        return next((c for c in self.broker.consumers if c.group == target.group), None)


def source_problems(source: SourceView, broker: BrokerView) -> list[str]:
    """Return the problems of the source. A process near a remote target may have no source configured."""
    if not source.asked:
        unknown = not broker.error and not broker.known
        problem = "source: source.url is not set, and the broker does not know this business either"
        return [problem] if unknown else []
    if source.error:
        return [prefix_place("source", source.error)]
    found = problems(source.condition)
    if source.identity:
        found.append(prefix_place("source", source.identity))
    if not source.unusable and all(t.state == RELEASED for t in source.tables):
        found.append("source: no table is captured; run `venus install-triggers`")
    return found


def forgotten_table_problems(source: SourceView, targets: Iterable[TargetView]) -> list[str]:
    """Return a sentence for each table of the targets that a source, restored from a backup, does not know."""
    if source.unusable or not source.tables:
        return []  # other sentences report such a source
    known = {table.table_id for table in source.tables}
    names = {table.name for target in targets for table in target.tables if table.table_id not in known}
    return [
        f"{name} is not known to the source, which was restored to a time before its capture: broker and targets "
        "keep its last captured rows; `venus install-triggers` captures it, if it exists"
        for name in sorted(names)
    ]


def broker_problems(broker: BrokerView) -> list[str]:
    """Return the problems of the broker."""
    if broker.error:
        return [prefix_place("broker", broker.error)]
    found = [f"broker: {alarm}" for alarm in broker.alarms]
    found += [
        f"broker: batch {half.batch_no} is undecided for {half.age_s:.0f} s after "
        f"{count_phrase(half.reviews, 'review')}; "
        "start `venus sync`, or decide with `venus half`"
        for half in broker.halves[:1]
        if half.age_s > HALF_AGE_MAX_S
    ]
    return found


def downstream_problems(below: ConsumerView) -> list[str]:
    """Return the problems of a broker set that pulls from this one."""
    return list(
        set_problems(
            below.group,
            connected=below.connected,
            backlog_rows=below.backlog_rows,
            late_s=below.oldest_s,
            late_max_s=APPLY_LAG_MAX_S,
        )
    )


def capture_problems(overview: Overview) -> list[str]:
    """Return the problems between source and broker."""
    broker, limit = overview.broker, HEARTBEATS_LATE * overview.heartbeat_s + GRACE_S
    age = broker.captured_age_s
    silent = age if broker.committed_age_s is None else broker.committed_age_s
    blockers = [t for t in overview.source.tables if t.blocked_s > limit]
    found = [f"source -> broker: {t.name} waits for a transaction open for {t.blocked_s:.0f} s" for t in blockers]
    if blockers and overview.source.blocked_by:
        found[-1] += f"; open: {overview.source.blocked_by}"
    has_ended = overview.fall_back is not None and overview.fall_back.problem
    if not broker.producer:
        found += [no_capture_problem(broker)] if not has_ended else []
    elif silent is not None and silent > limit:
        found.append(silence_sentence(silent, broker.halves_total))
    elif problem := clock_problem(broker.ship_s or 0.0, APPLY_LAG_MAX_S):
        found.append(problem)
    return found


def no_capture_problem(broker: BrokerView) -> str:
    """Return the sentence for a broker without connected capture."""
    age = broker.captured_age_s
    since = "" if age is None else f"; the newest change at the broker is {age:.0f} s old"
    return f"source -> broker: capture is not connected{since}; is `venus sync` running?"


def target_problems(target: TargetView, consumer: ConsumerView | None) -> list[str]:
    """Return the problems of one target and of the hop to it."""
    where = f"target {target.name}"
    found = []
    if target.error:
        found.append(prefix_place(where, target.error))
    elif target.loading_rows is not None:
        so_far = f"{where}: its load has not ended, {target.loading_rows:,} rows so far"
        return [f"{so_far}; if none runs, `venus migrate --target {target.name}` continues it"]
    elif not target.loaded:
        return [f"{where}: not loaded yet; run `venus migrate --target {target.name}`"]
    found += problems(target.condition, target.name)
    if target.unaccounted_rows:
        found.append(unaccounted_problem(target.unaccounted_rows, target.name))
    if consumer is not None and not target.paused:
        found += apply_problems(
            target.name,
            # apply connects to the broker only once its target is reachable again
            connected=consumer.connected or bool(target.error),
            backlog_rows=consumer.backlog_rows,
            late_s=consumer.oldest_s,
            late_max_s=APPLY_LAG_MAX_S,
        )
    return found


def missing_data_problems(target: TargetView, consumer: ConsumerView | None, broker: BrokerView) -> list[str]:
    """Return the problem if the broker knows the business but lacks this target's data, often due to a new store."""
    if broker.error or not broker.known or target.error or not target.loaded:
        return []
    where, way_out = f"broker -> target {target.name}", f"`venus migrate --target {target.name}` loads it again"
    if target.offset > broker.next_offset and broker.mirror is not None:
        return [f"{where}: it waits, {target.offset - broker.next_offset:,} offsets ahead of this mirror"]
    if target.offset > broker.next_offset:
        return [
            f"{where}: the target is at offset {target.offset:,}, the broker's queue ends at {broker.next_offset:,}: "
            f"the broker has lost its data, or another one answers; {way_out}"
        ]
    if consumer is None and broker.consumers_total <= len(broker.consumers):
        return [
            f"{where}: the broker does not know this target and keeps nothing for it; `venus sync` continues if its "
            f"increments are still there, else {way_out}"
        ]
    return []


def late_write_problems(target: TargetView, broker: BrokerView) -> list[str]:
    """Return a sentence for each table written at the source after the cut-over; or the error of the target."""
    where = f"target {target.name}"
    if target.error:
        return [prefix_place(where, target.error)]
    known = {table.table_id: table.name for table in target.tables}
    late = {
        name: broker.committed_changes.get(number, 0) - target.committed_at_cut.get(number, 0)
        for number, name in known.items()
    }
    return [
        f"{where}: {count_phrase(late[name], 'change')} of {name} at the source since the cut-over "
        f"({target.cut_over}); "
        "they are not carried over"
        for name in late
        if late[name] > 0 and not broker.error
    ]


def prefix_place(where: str, error: str) -> str:
    """Return an error with its place as a prefix, unless the error already names the kind of place."""
    return f"{where}: {error.removeprefix(where.partition(' ')[0] + ' ').lstrip()}"
