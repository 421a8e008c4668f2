"""The status of the broker itself: disk, memory, alarms, and each business (figures.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import venus
from venus.broker.machine.catalogue import Catalogue
from venus.broker.pipeline.commit_thread import CommitThread
from venus.broker.queue.buffer import Buffer
from venus.broker.snapshot.snapshots import Snapshots
from venus.broker.status import figures
from venus.broker.status.naming import Naming
from venus.broker.status.tables import Tables
from venus.broker.store.rocks import Store
from venus.broker.store.space import Space, too_full
from venus.config import Broker
from venus.wire import broker_pb2

#: A half message that is undecided for so many review times is an alarm.
HALF_ALARM_REVIEWS = 10
HALF_ALARM_MIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReport:
    """Asks the parts of the broker how they are."""

    settings: Broker
    catalogue: Catalogue
    commits: CommitThread
    store: Store
    buffer: Buffer
    space: Space
    snapshots: Snapshots
    started_at_us: int
    clock_us: Callable[[], int]
    monotonic: Callable[[], float]

    def __call__(self, business: str = "", tables: Tables | None = None) -> broker_pb2.BrokerStatus:
        """Describe the broker, and one business or all of them."""
        tables, naming = tables or Tables(), Naming()
        free, now = self.space.free(), self.monotonic()
        alarms = []
        if self.space.refusing or free < self.settings.free_bytes_min:
            alarms.append(too_full(self.space.path, free, self.settings.free_bytes_min))
        if self.commits.failed:
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
                figures.business_status(
                    self.store,
                    found,
                    now=now,
                    thresholds=self._thresholds,
                    tables=tables,
                    naming=naming,
                    leases=self.snapshots.status(found),
                )
                for found in self.catalogue.present()
                if business in ("", found.name)
            ],
        )

    @property
    def _thresholds(self) -> figures.Thresholds:
        return figures.Thresholds(
            half_age_s=max(HALF_ALARM_MIN_S, HALF_ALARM_REVIEWS * self.settings.review_after_s),
            behind_bytes_max=self.settings.buffer_bytes_max,
            held_bytes_max=self.settings.retain_bytes,
        )
