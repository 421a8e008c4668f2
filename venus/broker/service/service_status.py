"""What the service knows and the core does not: who is connected, what consumers say, and the alarms of the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from venus.alarm_rules import placed
from venus.broker.core import Core
from venus.broker.mirrors.network import Network
from venus.broker.service.replication_status import ReplicationStatus
from venus.broker.service.reported import Reports
from venus.broker.service.traffic_status import TrafficStatus
from venus.broker.service.watching import Watch
from venus.broker.status.tables import Tables
from venus.broker.store.space import Space, too_full
from venus.errors import VenusError
from venus.wire import broker_pb2

ALARMS_MAX = 20
#: Businesses that have alarms of the wire at once; names that nothing is ever shipped for have them too.
ALARMED_MAX = 100


def now_us() -> int:
    """Return Unix microseconds."""
    return time.time_ns() // 1000


class ServiceStatus:
    """Live producers, adapters' reports and alarms, laid over the core's status."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.producers: dict[str, str] = {}
        self.reports = Reports()
        self.replication: ReplicationStatus | None = None
        self.network: Network | None = None
        self.watch: Watch | None = None
        self.traffic: TrafficStatus | None = None
        #: What else needs somebody: certificates that end, an audit log that cannot be written.
        self.standing: Callable[[], list[str]] = list
        self._alarms: dict[str, list[str]] = {}

    def alarm(self, business: str, text: str) -> None:
        """Raise an alarm; it stands until the business's half messages arrive again."""
        if business not in self._alarms and len(self._alarms) >= ALARMED_MAX:
            del self._alarms[next(iter(self._alarms))]
        alarms = self._alarms.setdefault(business, [])
        if text not in alarms and len(alarms) < ALARMS_MAX:
            alarms.append(text)

    def clear(self, business: str) -> None:
        """Take the wire's alarms of a business back."""
        if self._alarms:
            self._alarms.pop(business, None)

    def forget(self, business: str) -> None:
        """Forget what consumers of a business said, and its alarms."""
        self._alarms.pop(business, None)
        self.reports.forget_business(business)

    def without_tables(self) -> broker_pb2.BrokerStatus:
        """Return the status as it is wanted every few seconds, for what needs somebody."""
        return self.status(tables=Tables(most=0))

    def status(self, business: str = "", tables: Tables | None = None) -> broker_pb2.BrokerStatus:
        """Return the core's status with what the service adds; reads the store, so not in the loop.

        Whoever asks for one business may have no role for the others: what stands for each of them is left out.
        """
        tables = tables or Tables()
        tables.told = self.reports.tables()
        status = self._core.status(business, tables)
        if self.replication is not None:
            self.replication.lay_over(status, business)
        if self.network is not None:
            self.network.lay_over(status, business)
        if self.traffic is not None:
            self.traffic.lay_over(status, business)
        for entry in status.businesses:
            entry.producer = self.producers.get(entry.business, "")
            entry.alarms.extend(self._alarms.get(entry.business, ()))
            self.reports.lay_over(entry, now_us())
        status.alarms.extend(self.standing())
        status.alarms.extend(self._apart(business, {entry.business for entry in status.businesses}))
        if self.watch is not None:
            self.watch.lay_over(status)
        return status

    def _apart(self, business: str, known: Set[str]) -> list[str]:
        """Return what stands of producers that have gone before they shipped anything: nobody has their business."""
        gone = ((name, texts) for name, texts in list(self._alarms.items()) if name not in known)
        wire = [placed(name, text) for name, texts in gone if business in ("", name) for text in texts]
        return [*wire, *self.reports.apart(business, known, now_us())]


class Health:
    """Whether the broker serves, and why not."""

    def __init__(
        self, service_status: ServiceStatus, space: Space, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._service_status = service_status
        self._space = space
        self.stopping = False

    def reason(self) -> str:
        """Return why the broker cannot do its work, or an empty string."""
        return self.look()[0]

    def look(self) -> tuple[str, list[str]]:
        """Return why the broker cannot do its work, or an empty string; and the alarms, with which it can."""
        if self.stopping:
            return "the broker is stopping", []
        try:
            status = self._service_status.without_tables()
        except VenusError as error:
            return str(error), []
        if status.free_bytes < self._space.free_bytes_min:
            return too_full(self._space.path, status.free_bytes, self._space.free_bytes_min), []
        businesses = [placed(entry.business, alarm) for entry in status.businesses for alarm in entry.alarms]
        return "", [*status.alarms, *businesses]
