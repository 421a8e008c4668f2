"""The product's upstream; what it asks each second takes virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.tiers.clients import request
from venus.broker.mirrors.upstream import Seen, Upstream
from venus.errors import VenusError
from venus.wire import broker_pb2

if TYPE_CHECKING:
    from tests.simulation.tiers.host import TierHost


class SimulatedUpstream(Upstream):
    """Asks the sets above in turn."""

    def __init__(self, host: TierHost, product: Upstream) -> None:
        super().__init__(product.reach, product.group, product._looked)
        self._host = host
        self._at = 0

    def start(self) -> None:
        self._host.every(1.0, self._ask_one)

    def stop(self) -> None:
        """Do nothing: the process ends by itself."""

    def _ask_one(self) -> None:
        host = self._host
        upper = host.world.hosts[host.upstream[self._at % len(host.upstream)]]

        def answered(status: broker_pb2.BrokerStatus | None, error: VenusError | None) -> None:
            if status is not None:
                self._looked(self.said(status, host.loop.now))
            elif error is not None:
                self._at += 1
                self._looked(self.silent(error, host.loop.now))

        request(host, upper, lambda found: found.status(), answered)

    def look(self) -> Seen:
        raise AssertionError("nobody may wait here")
