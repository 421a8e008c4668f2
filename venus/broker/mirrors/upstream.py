"""What a set above says of itself, at whichever of its brokers answers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from venus.errors import ConfigError, Denied, Unproven, Untrusted, VenusError
from venus.rpc.admin import Admin
from venus.wire import broker_pb2

LOOK_EVERY_S = 1.0
ANSWER_S = 5.0
ASKED_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen last, and what is wrong since when; `at` and `since` are of the monotonic clock."""

    network: broker_pb2.NetworkStatus | None = None
    businesses: dict[str, broker_pb2.BusinessStatus] = field(default_factory=dict)
    at: float = 0.0
    trouble: str = ""
    since: float = 0.0
    #: Somebody answers there; certificates or roles stand between us.
    barred: bool = False


class Upstream:
    """Who asks, and what was seen; in one thread. `group` is whose roles the mirrors need."""

    def __init__(self, reach: str, group: str) -> None:
        self.reach, self.group = reach, group
        #: The tables that this set has to know of; others may be there by the hundred thousand.
        self.named: tuple[str, ...] = ()
        self.seen = Seen()
        self._admin: Admin | None = None

    def look(self) -> Seen:
        """Ask once, and note what is said."""
        now = time.monotonic()
        try:
            if self._admin is None:
                self._admin = Admin(self.reach, timeout_s=ANSWER_S)
            return self.said(self._admin.status(named=self.named), now)
        except VenusError as error:
            self._close()
            return self.silent(error, now)

    def said(self, status: broker_pb2.BrokerStatus, now: float) -> Seen:
        """Note what a broker above has said at `now`."""
        network = status.network if status.HasField("network") else None
        trouble = "" if network is not None else "the broker above does not know networks: it is older"
        businesses = {entry.business: entry for entry in status.businesses}
        self.seen = Seen(network=network, businesses=businesses, at=now, trouble=trouble, since=now)
        return self.seen

    def silent(self, error: VenusError, now: float) -> Seen:
        """Note that no broker above has answered; what was said last still counts."""
        known = self.seen
        barred = isinstance(error, Denied | Untrusted | ConfigError)
        since = known.since if known.trouble else now
        self.seen = replace(known, trouble=self._said(error), since=since, barred=barred)
        return self.seen

    def _said(self, error: VenusError) -> str:
        """Return what stands in the way. A mirror needs one role; the call that was refused might do with others."""
        if isinstance(error, Denied) and not isinstance(error, Unproven):
            who = str(error).partition(" may not ")[0]
            return f"{who} has no role consumer({self.group}, *) at the set above"
        return str(error)

    def _close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
