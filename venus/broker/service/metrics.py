"""Prometheus metrics of a broker, computed from its status on each request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from venus.alarms.notifier import DeliveryState
from venus.broker.service import traffic_status
from venus.rpc.conditions import HELD_STATES, MOVING_STATES, NOT_CAPTURED
from venus.rpc.reports import decode
from venus.text.alarm_rules import NAMES
from venus.wire import broker_pb2

F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)

_MIRROR_GAUGES: tuple[tuple[str, str, Callable[[broker_pb2.MirrorStatus], float]], ...] = (
    ("venus_mirror_lag_offsets", "Offsets that the set above has and this one lacks", lambda m: m.lag),
    ("venus_mirror_lag_seconds", "How long this set has been behind the set above", lambda m: m.lag_ms / 1000),
    (
        "venus_mirror_hop_seconds",
        "From the commit at the home until visible here, newest batch",
        lambda m: m.hop_ms / 1000,
    ),
    ("venus_mirror_hop_mean_seconds", "Its mean over the last minutes", lambda m: m.hop_mean_s),
    ("venus_mirror_hop_variance", "Its variance over the last minutes, in square seconds", lambda m: m.hop_variance),
    ("venus_mirror_following", "1 while this set follows the set above", lambda m: float(m.state == "following")),
    ("venus_mirror_predicates", "Tables of which only some rows are mirrored", lambda m: float(len(m.where))),
    ("venus_mirror_away", "1 while it is pulled from another set than the nearest", lambda m: float(bool(m.nearest))),
    ("venus_mirror_cut_off", "1 while no broker of the set above answers", lambda m: float(m.state == "cut off")),
)


def mirror_families(status: broker_pb2.BrokerStatus) -> Iterable[Metric]:
    """Yield the metric families of mirrors; none at the home."""
    rows = [(entry.business, entry.mirror) for entry in status.businesses if entry.HasField("mirror")]
    if not rows:
        return
    for name, text, read in _MIRROR_GAUGES:
        family = GaugeMetricFamily(name, text, labels=["business"])
        for business, mirror in rows:
            family.add_metric([business], read(mirror))
        yield family
    nbytes = CounterMetricFamily("venus_mirror_bytes", "Bytes pulled from the set above", labels=["business"])
    fills = CounterMetricFamily("venus_mirror_fills", "How often the full data was taken", labels=["business"])
    for business, mirror in rows:
        nbytes.add_metric([business], mirror.bytes)
        fills.add_metric([business], mirror.fills)
    yield nbytes
    yield fills


_OVERLAY_GAUGES: tuple[tuple[str, str, Callable[[broker_pb2.OverlayStatus], float]], ...] = (
    ("venus_overlay_members", "Brokers of the own top cluster, itself included", lambda o: len(o.members)),
    ("venus_overlay_neighbours", "Other brokers of the overlay that it knows", lambda o: o.neighbours),
    ("venus_overlay_load", "Matching, in processor seconds a second", lambda o: o.load),
    ("venus_overlay_installed_interests", "Subscriptions of other brokers here", lambda o: o.installed_interests),
    ("venus_overlay_subspaces", "Parts of the own subscriptions that others match", lambda o: o.subspaces),
    ("venus_overlay_uninstalled", "Of these: no cluster has them as they are", lambda o: o.uninstalled),
)
_OVERLAY_COUNTERS: tuple[tuple[str, str, Callable[[broker_pb2.OverlayStatus], float]], ...] = (
    ("venus_overlay_exchanges", "Exchanges of neighbours that it began", lambda o: o.exchanges),
    ("venus_overlay_pairs", "Changes times subscriptions compared here", lambda o: o.pairs),
    ("venus_overlay_requests", "Batches sent to other brokers", lambda o: o.requests),
    ("venus_overlay_unanswered", "Batches without an answer in time", lambda o: o.unanswered),
    ("venus_overlay_unknown", "Parts whose subscriptions the other broker did not have", lambda o: o.unknown),
    ("venus_overlay_changes_elsewhere", "Own changes that other brokers have matched", lambda o: o.changes_elsewhere),
    ("venus_overlay_changes_here", "Own changes matched here", lambda o: o.changes_here),
)


def overlay_families(status: broker_pb2.BrokerStatus) -> Iterable[Metric]:
    """Yield the metric families of the overlay; none if it is off."""
    if not status.HasField("overlay"):
        return
    for name, text, read in _OVERLAY_GAUGES:
        yield GaugeMetricFamily(name, text, value=read(status.overlay))
    for name, text, read in _OVERLAY_COUNTERS:
        yield CounterMetricFamily(name, text, value=read(status.overlay))


#: Name, help text, and how to read the value from a business's status.
BUSINESS_GAUGES: tuple[tuple[str, str, Callable[[broker_pb2.BusinessStatus], float]], ...] = (
    ("venus_next_offset", "Offset that the next committed change gets", lambda b: b.next_offset),
    ("venus_log_start", "First offset that increments can be read from", lambda b: b.log_start),
    ("venus_materialised_offset", "Every change below it is in the full data", lambda b: b.materialised_offset),
    ("venus_log_bytes", "Bytes of the replicated log", lambda b: b.log_bytes),
    ("venus_epoch", "Producer epoch", lambda b: b.epoch),
    ("venus_last_batch", "Newest committed batch", lambda b: b.last_batch),
    ("venus_last_sequence", "Sequence of the newest committed change", lambda b: b.last_sequence),
    ("venus_last_committed_seconds", "Unix time of the newest commit", lambda b: b.last_committed_at_us / 1e6),
    ("venus_last_captured_seconds", "Unix time of the newest cut at the source", lambda b: b.last_captured_at_us / 1e6),
    ("venus_last_scrub_seconds", "Unix time of the end of the last scrub", lambda b: b.last_scrub_at_us / 1e6),
    ("venus_producer_connected", "1 while a producer is connected", lambda b: float(bool(b.producer))),
    ("venus_halves", "Half messages without a decision", lambda b: b.halves_total),
    ("venus_alarms", "Active alarms", lambda b: len(b.alarms)),
    ("venus_tables", "Tables with committed changes", lambda b: b.tables_total),
)

#: Gauges of the part of the queue kept for unknown readers, with retain = "measured".
RETENTION_GAUGES: tuple[tuple[str, str, Callable[[broker_pb2.RetentionStatus], float]], ...] = (
    ("venus_retained_bytes", "Bytes kept for readers that are not known", lambda r: r.bytes),
    ("venus_write_bytes_per_second", "Bytes written a second, of the last half minute", lambda r: r.bytes_per_s),
    ("venus_mean_absence_seconds", "Mean absence of readers that returned", lambda r: r.mean_absence_ms / 1000),
    ("venus_absences", "Absences of the last day that count", lambda r: r.absences),
)

#: Gauges of replicated businesses.
REPLICATION_GAUGES: tuple[tuple[str, str, Callable[[broker_pb2.ReplicationStatus], float]], ...] = (
    ("venus_term", "Leadership of the business", lambda r: r.term),
    ("venus_leads", "1 if this broker leads the business", lambda r: float(bool(r.mode))),
    ("venus_high_watermark", "Newest log entry that is safe, as this broker knows", lambda r: r.high),
    ("venus_log_end", "Index that the next entry of this broker's log gets", lambda r: r.log_end),
    ("venus_in_sync_replicas", "Replicas that are in sync", lambda r: sum(x.in_sync for x in r.replicas)),
    ("venus_replicas", "Configured replicas", lambda r: len(r.replicas)),
    ("venus_loss_windows", "Unclean elections whose losses are not repaired", lambda r: len(r.losses)),
    (
        "venus_lost_changes",
        "Changes in these windows, as far as they are known",
        lambda r: sum(x.rows for x in r.losses),
    ),
    ("venus_writable", "1 if this broker takes writes for the business", lambda r: float(not r.refusal)),
)

#: Gauges of replicas that install a leader's copy.
INSTALLATION_GAUGES: tuple[tuple[str, str, Callable[[broker_pb2.InstallationStatus], float]], ...] = (
    ("venus_installation_records", "Records received of a leader's copy", lambda i: i.records),
    ("venus_installation_records_expected", "Records of the whole copy, about", lambda i: i.records_expected),
    ("venus_installation_bytes", "Bytes received of a leader's copy", lambda i: i.bytes),
    ("venus_installation_bytes_per_second", "Rate of the transfer", lambda i: i.bytes_per_s),
    ("venus_installation_seconds_left", "Estimated time left; -1 = not known", lambda i: i.seconds_left),
)

CONSUMER_GAUGES: tuple[tuple[str, str, Callable[[broker_pb2.ConsumerStatus], float]], ...] = (
    ("venus_consumer_acknowledged", "Every change below this offset is applied", lambda c: c.acknowledged),
    ("venus_consumer_backlog_rows", "Changes committed and not acknowledged", lambda c: c.backlog_rows),
    ("venus_consumer_backlog_bytes", "Bytes committed and not acknowledged", lambda c: c.backlog_bytes),
    ("venus_consumer_kept", "The queue is kept from this offset on for the group", lambda c: c.kept),
    ("venus_consumer_held_bytes", "Bytes of the queue kept for held tables alone", lambda c: c.held_bytes),
    ("venus_consumer_connected", "1 while the consumer group is connected", lambda c: float(c.connected)),
)

BROKER_GAUGES: tuple[tuple[str, str, Callable[[broker_pb2.BrokerStatus], float]], ...] = (
    ("venus_started_seconds", "Unix time of the start", lambda s: s.started_at_us / 1e6),
    ("venus_free_bytes", "Free space of the data directory", lambda s: s.free_bytes),
    ("venus_buffer_bytes", "Bytes in the buffer", lambda s: s.buffer_bytes),
    ("venus_buffer_limit_bytes", "Limit of the buffer", lambda s: s.buffer_limit_bytes),
    ("venus_load_mean", "Load rate of the machine over the last minutes, 0 to 1", lambda s: s.load_mean),
    ("venus_load_variance", "Its variance", lambda s: s.load_variance),
    ("venus_network_sets", "Broker sets that the directory knows", lambda s: s.network.sets_known),
    ("venus_broker_alarms", "Active alarms of the whole broker", lambda s: len(s.alarms)),
)


#: Counters that AccessControl keeps.
SECURITY_COUNTERS: tuple[tuple[str, str], ...] = (
    ("venus_refused_calls", "Calls and page requests refused for lack of a role"),
    ("venus_refused_connections", "Connections that never authenticated"),
    ("venus_certificate_renewals", "How often renewed certificates were loaded"),
)


def age_s(since_us: int, now_us: int) -> float:
    """Return the age of a moment in seconds; 0 if the moment is not set."""
    return max(0.0, (now_us - since_us) / 1e6) if since_us else 0.0


def adapter_reports(status: broker_pb2.BrokerStatus) -> Iterable[tuple[str, str, broker_pb2.Reported]]:
    """Yield business, place and report of every adapter that has reported."""
    for business in status.businesses:
        if business.HasField("source"):
            yield business.business, "source", business.source
        for consumer in business.consumers:
            if consumer.HasField("reported"):
                yield business.business, consumer.group, consumer.reported


def add_samples(family: F, samples: Iterable[tuple[Sequence[str], float]]) -> F:
    """Add samples (labels and value) to a metric family, and return the family."""
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


class StatusCollector(Collector):
    """Metric families of one status."""

    def __init__(
        self,
        status: broker_pb2.BrokerStatus,
        now_us: int,
        refused: Mapping[str, int],
        alarms: Sequence[Mapping[str, Any]],
        sent: Sequence[DeliveryState],
    ) -> None:
        self._status, self._now_us, self._refused = status, now_us, refused
        self._alarms, self._sent = alarms, sent

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family of the status."""
        for name, text, read in BROKER_GAUGES:
            yield GaugeMetricFamily(name, text, value=read(self._status))
        rss = psutil.Process().memory_info().rss
        yield GaugeMetricFamily("venus_resident_bytes", "Resident memory of the broker process", value=rss)
        for name, text, read_business in BUSINESS_GAUGES:
            rows = (([b.business], read_business(b)) for b in self._status.businesses)
            yield add_samples(GaugeMetricFamily(name, text, labels=["business"]), rows)
        kept = [(b.business, b.retention) for b in self._status.businesses if b.HasField("retention")]
        for name, text, read_retention in RETENTION_GAUGES if kept else ():
            samples = (([business], read_retention(found)) for business, found in kept)
            yield add_samples(GaugeMetricFamily(name, text, labels=["business"]), samples)
        yield self._oldest_half()
        yield from self._consumers()
        yield from self._replicas()
        yield from self._installations()
        yield from self._load()
        yield from mirror_families(self._status)
        yield from overlay_families(self._status)
        if not traffic_status.has_degraded_details(self._status):
            yield self._tables()
        yield from self._reports()
        yield from self._counters()
        yield from self._active_alarms()
        yield from self._notifications()
        yield from traffic_status.traffic_families(self._status)
        for name, text in SECURITY_COUNTERS:
            yield CounterMetricFamily(name, text, value=self._refused.get(name.removeprefix("venus_"), 0))

    def _active_alarms(self) -> Iterable[Metric]:
        """Return the alarms by rule. Every rule has a series, so that each graph starts at zero."""
        count = GaugeMetricFamily(
            "venus_alarms_standing",
            "Active alarms; business is empty for the broker's own",
            labels=["business", "rule"],
        )
        since = GaugeMetricFamily(
            "venus_alarm_since_seconds",
            "Unix time at which the oldest active alarm of a rule began",
            labels=["business", "rule"],
        )
        found = Counter((alarm["business"], alarm["rule"]) for alarm in self._alarms)
        for business in ("", *(b.business for b in self._status.businesses)):
            for rule in NAMES:
                count.add_metric([business, rule], found[business, rule])
        oldest: dict[tuple[str, str], float] = {}
        for alarm in self._alarms:
            oldest.setdefault((alarm["business"], alarm["rule"]), int(alarm["since_us"]) / 1e6)
        for labels, first in oldest.items():
            since.add_metric(labels, first)
        return count, since

    def _notifications(self) -> Iterable[Metric]:
        """Return the results of the notifications to each recipient."""
        sent = CounterMetricFamily(
            "venus_alarm_messages", "Notifications by recipient and result", labels=["to", "result"]
        )
        failing = GaugeMetricFamily("venus_alarm_unsent", "1 while a recipient cannot be reached", labels=["to"])
        for state in self._sent:
            for result, count in (("sent", state.sent), ("failed", state.failed), ("given_up", state.given_up)):
                sent.add_metric([state.name, result], count)
            failing.add_metric([state.name], float(bool(state.problem)))
        return sent, failing

    def _oldest_half(self) -> Metric:
        """Return the age of the oldest undecided half message of each business."""
        family = GaugeMetricFamily(
            "venus_oldest_half_age_seconds", "Age of the oldest half message without a decision", labels=["business"]
        )
        oldest_ms = (([b.business], max((h.waited_ms for h in b.halves), default=0)) for b in self._status.businesses)
        return add_samples(family, ((labels, ms / 1000) for labels, ms in oldest_ms))

    def _consumers(self) -> Iterable[Metric]:
        """Yield the positions, backlogs and unaccounted rows of the consumer groups."""
        rows = [([b.business, c.group], c) for b in self._status.businesses for c in b.consumers]
        labels = ["business", "group"]
        for name, text, read in CONSUMER_GAUGES:
            yield add_samples(GaugeMetricFamily(name, text, labels=labels), ((at, read(c)) for at, c in rows))
        text = "Age of the oldest change not acknowledged"
        ages = ((at, age_s(c.oldest_unacknowledged_us, self._now_us)) for at, c in rows)
        yield add_samples(GaugeMetricFamily("venus_consumer_backlog_age_seconds", text, labels=labels), ages)
        text = "Changes below the applied offset of a target that are neither applied, quarantined, skipped nor held"
        counts = ((at, c.unaccounted_rows) for at, c in rows if c.HasField("unaccounted_rows"))
        yield add_samples(GaugeMetricFamily("venus_unaccounted_rows", text, labels=labels), counts)

    def _replicas(self) -> Iterable[Metric]:
        """Yield the metric families of replication; none for a standalone broker."""
        rows = [(b.business, b.replication) for b in self._status.businesses if b.HasField("replication")]
        for name, text, read in REPLICATION_GAUGES if rows else ():
            yield add_samples(GaugeMetricFamily(name, text, labels=["business"]), (([b], read(r)) for b, r in rows))
        behind = GaugeMetricFamily(
            "venus_replica_behind_entries", "Log entries that a replica does not have", labels=["business", "broker"]
        )
        for business, found in rows:
            for replica in found.replicas:
                if replica.HasField("behind"):
                    behind.add_metric([business, replica.broker], replica.behind)
        if rows:
            yield behind

    def _installations(self) -> Iterable[Metric]:
        """Yield the progress of replicas that install a copy; nothing while there is none."""
        for name, text, read in INSTALLATION_GAUGES if self._status.installations else ():
            found = (([one.business], read(one)) for one in self._status.installations)
            yield add_samples(GaugeMetricFamily(name, text, labels=["business"]), found)

    def _load(self) -> Iterable[Metric]:
        """Yield this broker's load; nothing for a standalone broker."""
        own = [broker for broker in self._status.brokers if broker.broker == self._status.broker_id]
        shares = GaugeMetricFamily("venus_load", "Used share of the machine's resource", labels=["resource"])
        counts = GaugeMetricFamily("venus_businesses", "Businesses that this broker leads or follows", labels=["role"])
        for broker in own:
            for resource in ("cpu", "memory", "disk", "network") if broker.reported else ():
                shares.add_metric([resource], getattr(broker, resource))
            for role in ("leads", "follows"):
                counts.add_metric([role], getattr(broker, role))
        yield from (shares, counts) if own else ()

    def _reports(self) -> Iterable[Metric]:
        """Return the reports of the adapters; `place` is "source" or the consumer group."""
        labels = ["business", "place"]
        paused = GaugeMetricFamily("venus_paused", "1 while the whole adapter is paused", labels=labels)
        held = GaugeMetricFamily(
            "venus_tables_not_following", "Tables in a state that needs an operator", labels=[*labels, "state"]
        )
        waiting = GaugeMetricFamily(
            "venus_quarantined_changes", "Refused changes that wait for an operator", labels=labels
        )
        age = GaugeMetricFamily(
            "venus_report_unknown_seconds", "How long the adapter has been away, 0 while connected", labels=labels
        )
        for business, place, reported in adapter_reports(self._status):
            service_status = decode(reported.report)
            paused.add_metric([business, place], float(service_status.paused))
            waiting.add_metric([business, place], service_status.quarantined)
            age.add_metric([business, place], age_s(reported.unknown_since_us, self._now_us))
            states = Counter(t.state for t in service_status.tables if t.state not in MOVING_STATES)
            always = {*HELD_STATES, *((NOT_CAPTURED,) if place == "source" else ())}
            for state in sorted(states.keys() | always):
                held.add_metric([business, place, state], states[state])
        return paused, held, waiting, age

    def _tables(self) -> Metric:
        """Return the committed changes of each table."""
        family = CounterMetricFamily(
            "venus_table_changes", "Committed changes of a table", labels=["business", "table"]
        )
        tables = ((b.business, table) for b in self._status.businesses for table in b.tables)
        return add_samples(family, (([b, f"{t.namespace}.{t.name}"], t.committed_changes) for b, t in tables))

    def _counters(self) -> Iterable[Metric]:
        """Yield the broker's counters of each business."""
        for name in sorted({name for business in self._status.businesses for name in business.counters}):
            family = CounterMetricFamily(f"venus_{name}", f"Counter {name} of the broker", labels=["business"])
            yield add_samples(family, (([b.business], b.counters.get(name, 0)) for b in self._status.businesses))


def build_registry(
    status: broker_pb2.BrokerStatus,
    now_us: int | None = None,
    *,
    refused: Mapping[str, int] | None = None,
    alarms: Sequence[Mapping[str, Any]] = (),
    sent: Sequence[DeliveryState] = (),
) -> CollectorRegistry:
    """Return a registry with the metrics of this status."""
    made = CollectorRegistry()
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    made.register(StatusCollector(status, now_us, refused or {}, alarms, sent))
    return made
