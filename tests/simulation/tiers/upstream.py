"""The product's poller of a set above, with requests that take virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.tiers.clients import request
from venus.broker.mirrors.upstream_monitor import UpstreamPoller, UpstreamStatus
from venus.errors import VenusError
from venus.wire import broker_pb2

if TYPE_CHECKING:
    from tests.simulation.tiers.host import TierHost


class SimulatedPoller(UpstreamPoller):
    """A poller that runs in the loop."""

    def __init__(
        self,
        host: TierHost,
        reach: str,
        group: str,
        looked: Callable[[UpstreamPoller], None],
        pace: Callable[[UpstreamPoller], float],
    ) -> None:
        super().__init__(reach, group, looked, pace)
        self._host = host
        self._due = 0  # number of the newest planned request
        self._asking = self._again = False

    def start(self) -> None:
        self._plan(0.0)

    def wake(self) -> None:
        self._again = self._asking
        if not self._asking:
            self._plan(0.0)

    def end(self) -> None:
        self._due = -1

    def stop(self) -> None:
        """Do nothing: the process ends by itself."""

    def _plan(self, after: float) -> None:
        """Plan the next request in place of any earlier one."""
        if self._due >= 0:
            self._due += 1
            self._host.soon(after, self._ask, self._due)

    def _ask(self, due: int) -> None:
        """Request the status of the set above."""
        if due != self._due:
            return
        host = self._host
        upper = host.world.hosts[self.reach.partition(":")[0]]
        self._asking, self._again = True, False

        def on_status(status: broker_pb2.BrokerStatus | None, error: VenusError | None) -> None:
            self._asking, self.has_looked = False, True
            self.answered_by = f"{upper.name}:1" if status is not None else ""
            if status is not None:
                self.record_status(status, host.loop.now)
            elif error is not None:
                self.record_silence(error, host.loop.now)
            if self._due >= 0:
                self._looked(self)
                self._plan(0.0 if self._again else self._pace(self))

        request(host, upper, lambda found: found.status(), on_status)

    def poll(self) -> UpstreamStatus:
        raise AssertionError("nothing may wait here")
