"""The replicas from which a consumer reads its increments, and when it should choose among them again."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from venus.model import is_name
from venus.replication.records import LiveBroker
from venus.wire import broker_pb2

#: A consumer chooses again once another replica has been there for this long: after an election several come back.
OTHERS_AFTER_S = 10.0


class ReplicaWatch:
    """Replicas that one consumer was given to read from. `found` are those that are alive and in sync."""

    def __init__(self, found: Iterable[LiveBroker]) -> None:
        self.given = {broker.address: broker.site for broker in found if _is_preferred(broker)}
        self._others_since: float | None = None  # since when there is a replica that was not given

    def to_messages(self) -> list[broker_pb2.ReadReplica]:
        """Return the replicas as the consumer gets them.

        An older broker may report a site that is no valid name, which a consumer refuses (venus/rpc/limits.py).
        """
        sites = {address: site if is_name(site) else "" for address, site in self.given.items()}
        return [broker_pb2.ReadReplica(address=address, site=site) for address, site in sites.items()]

    def find_change(self, found: Collection[LiveBroker], now: float) -> str:
        """Return why the consumer should choose again; empty = it should not.

        A replica that drains or is degraded can be read until it leaves: a lane that flaps moves no consumer.
        """
        if not self.given.keys() <= {broker.address for broker in found}:
            return "a replica that can be read is no longer in sync"
        if all(broker.address in self.given for broker in found if _is_preferred(broker)):
            self._others_since = None
            return ""
        if self._others_since is None:
            self._others_since = now
        return "another replica can be read" if now - self._others_since >= OTHERS_AFTER_S else ""


def _is_preferred(broker: LiveBroker) -> bool:
    """Return whether a broker neither drains nor is degraded."""
    return not broker.draining and not broker.is_degraded
