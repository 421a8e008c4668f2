"""The service's part of the status: live producers, reports of adapters, and alarms of connections.

Reports are in memory only: an adapter reports again after it reconnects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from venus.broker.core import Core
from venus.broker.matching.overlay import MatchingOverlay
from venus.broker.mirrors.directory_exchange import DirectoryExchange
from venus.broker.mirrors.network_membership import NetworkMembership
from venus.broker.replicas.replication_status import ReplicationStatus
from venus.broker.service.alarm_monitor import AlarmMonitor
from venus.broker.service.traffic_status import TrafficStatus
from venus.broker.status.table_selection import TableSelection
from venus.broker.store.files import FreeSpace, full_disk_message
from venus.errors import VenusError
from venus.rpc.reports import SOURCE, check, reported_problems
from venus.text.alarm_rules import prefix_business
from venus.wire import broker_pb2

#: How an alarm of the upper adapter begins.
PLACE = "source"
#: Limit of kept reports; beyond it the oldest are dropped.
REPORTS_MAX = 1000
#: How long the report of a disconnected upper adapter that shipped nothing stays: its name may be a mistake.
APART_S = 3600.0


class AdapterReports:
    """The newest report of each adapter, by business and consumer group."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], broker_pb2.Reported] = {}
        self._unaccounted: dict[tuple[str, str], int] = {}

    def record(self, business: str, group: str, report: broker_pb2.AdapterReport, now_us: int) -> None:
        """Keep the report of an adapter. Raises ProtocolError."""
        check(report)
        if (business, group) not in self._reported and len(self._reported) >= REPORTS_MAX:
            self.forget(*next(iter(self._reported)))
        self._reported[business, group] = broker_pb2.Reported(report=report, reported_at_us=now_us)

    def record_unaccounted(self, business: str, group: str, rows: int) -> None:
        """Record how many changes a group cannot account for."""
        self._unaccounted[business, group] = rows

    def record_disconnect(self, business: str, group: str, now_us: int) -> None:
        """Record that an adapter has disconnected: its report was valid until now."""
        known = self._reported.get((business, group))
        if known is not None and not known.unknown_since_us:
            gone = broker_pb2.Reported(unknown_since_us=now_us)
            gone.MergeFrom(known)
            self._reported[business, group] = gone

    def forget(self, business: str, group: str) -> None:
        """Drop the report of a group."""
        self._reported.pop((business, group), None)
        self._unaccounted.pop((business, group), None)

    def forget_business(self, business: str) -> None:
        """Drop all reports of a business."""
        for key in [*self._reported, *self._unaccounted]:
            if key[0] == business:
                self.forget(*key)

    def add_to_status(self, entry: broker_pb2.BusinessStatus, now_us: int) -> None:
        """Add the reports to a business's status, and their problems to its alarms."""
        self._drop_expired(entry)
        source = self._reported.get((entry.business, SOURCE))
        if source is not None:
            entry.source.CopyFrom(source)
        for consumer in entry.consumers:
            reported = self._reported.get((entry.business, consumer.group))
            if reported is not None:
                consumer.reported.CopyFrom(reported)
            missing = self._unaccounted.get((entry.business, consumer.group))
            if missing is not None:
                consumer.unaccounted_rows = missing
        found = [alarm for _, alarm in reported_problems(entry, now_us)]
        entry.alarms.extend(found)
        entry.reported_alarms = len(found)

    def orphan_alarms(self, business: str, known: Set[str], now_us: int) -> list[str]:
        """Return alarms of upper adapters for businesses that are not `known`, for one business or for all.

        An adapter that is refused before it ships anything leaves no business behind.
        """
        found = []
        for (name, group), reported in list(self._reported.items()):
            if group != SOURCE or name in known or business not in ("", name):
                continue
            if reported.unknown_since_us and abs(now_us - reported.unknown_since_us) > APART_S * 1e6:
                self.forget(name, group)
                continue
            entry = broker_pb2.BusinessStatus(business=name, source=reported)
            found += [
                text.replace(f"{PLACE}: ", f"{PLACE}: {name}: ", 1) for _, text in reported_problems(entry, now_us)
            ]
        return found

    def reported_tables(self) -> dict[str, set[int]]:
        """Return by business the ids of the tables that the adapters' reports name: those with a problem."""
        found: dict[str, set[int]] = {}
        for (business, _), reported in list(self._reported.items()):
            found.setdefault(business, set()).update(table.table_id for table in reported.report.tables)
        return found

    def _drop_expired(self, entry: broker_pb2.BusinessStatus) -> None:
        """Drop the reports of groups that the broker no longer knows."""
        known = {SOURCE, *(consumer.group for consumer in entry.consumers)}
        for (business, group), reported in list(self._reported.items()):
            # a connected group may have arrived after this status was made
            if business == entry.business and group not in known and reported.unknown_since_us:
                self.forget(business, group)


ALARMS_MAX = 20
#: Limit of businesses with alarms of connections, including names for which nothing was ever shipped.
ALARMED_MAX = 100


def now_us() -> int:
    """Return Unix microseconds."""
    return time.time_ns() // 1000


class ServiceStatus:
    """Adds live producers, adapters' reports and alarms to the core's status."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.producers: dict[str, str] = {}
        self.reports = AdapterReports()
        self.replication: ReplicationStatus | None = None
        self.network: NetworkMembership | None = None
        self.directory: DirectoryExchange | None = None
        self.overlay: MatchingOverlay | None = None
        self.watch: AlarmMonitor | None = None
        self.traffic: TrafficStatus | None = None
        #: Other alarms: certificates that expire, an audit log that cannot be written.
        self.other_alarms: Callable[[], list[str]] = list
        self._alarms: dict[str, list[str]] = {}

    def raise_alarm(self, business: str, text: str) -> None:
        """Raise an alarm that stays until half messages of the business arrive again."""
        if business not in self._alarms and len(self._alarms) >= ALARMED_MAX:
            del self._alarms[next(iter(self._alarms))]
        alarms = self._alarms.setdefault(business, [])
        if text not in alarms and len(alarms) < ALARMS_MAX:
            alarms.append(text)

    def clear_alarms(self, business: str) -> None:
        """Clear the connection alarms of a business."""
        if self._alarms:
            self._alarms.pop(business, None)

    def forget(self, business: str) -> None:
        """Drop the reports and alarms of a business."""
        self._alarms.pop(business, None)
        self.reports.forget_business(business)

    def status_without_tables(self) -> broker_pb2.BrokerStatus:
        """Return the status without tables, for checks every few seconds."""
        return self.status(tables=TableSelection(most=0))

    def status(self, business: str = "", tables: TableSelection | None = None) -> broker_pb2.BrokerStatus:
        """Return the core's status with the service's part. Reads the store, so it must not run in the event loop.

        A client that asks for one business may have no role for the others, so their alarms are left out.
        """
        tables = tables or TableSelection()
        tables.reported = self.reports.reported_tables()
        status = self._core.status(business, tables)
        if self.replication is not None:
            self.replication.add_to_status(status, business)
        if self.network is not None:
            self.network.add_to_status(status, business)
        if self.directory is not None:
            self.directory.add_to_status(status)
        if self.overlay is not None:
            self.overlay.add_to_status(status)
            status.alarms.extend(self.overlay.problems())
        if self.traffic is not None:
            self.traffic.add_to_status(status, business)
        for entry in status.businesses:
            entry.producer = self.producers.get(entry.business, "")
            entry.alarms.extend(self._alarms.get(entry.business, ()))
            self.reports.add_to_status(entry, now_us())
        status.alarms.extend(self.other_alarms())
        status.alarms.extend(self._orphan_alarms(business, {entry.business for entry in status.businesses}))
        if self.watch is not None:
            self.watch.add_to_status(status)
        return status

    def _orphan_alarms(self, business: str, known: Set[str]) -> list[str]:
        """Return alarms of producers that left before they shipped anything: the status has no such business."""
        gone = ((name, texts) for name, texts in list(self._alarms.items()) if name not in known)
        wire = [prefix_business(name, text) for name, texts in gone if business in ("", name) for text in texts]
        return [*wire, *self.reports.orphan_alarms(business, known, now_us())]


class HealthCheck:
    """Health check of the broker."""

    def __init__(
        self, service_status: ServiceStatus, space: FreeSpace, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._service_status = service_status
        self._space = space
        self.stopping = False

    def reason(self) -> str:
        """Return why the broker cannot work, or an empty string."""
        return self.check()[0]

    def check(self) -> tuple[str, list[str]]:
        """Return why the broker cannot work ("" if it can), and the alarms that do not stop it."""
        if self.stopping:
            return "the broker is stopping", []
        try:
            status = self._service_status.status_without_tables()
        except VenusError as error:
            return str(error), []
        if status.free_bytes < self._space.free_bytes_min:
            return full_disk_message(self._space.path, status.free_bytes, self._space.free_bytes_min), []
        businesses = [prefix_business(entry.business, alarm) for entry in status.businesses for alarm in entry.alarms]
        return "", [*status.alarms, *businesses]
