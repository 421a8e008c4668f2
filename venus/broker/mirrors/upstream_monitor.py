"""Monitor of the upstream sets: polls each in a thread of its own, and groups addresses by set.

`[cluster] upstream` is a list of addresses. Each broker reports the set that it belongs to; an address without a
report counts as a set of its own. A set's position in the list is that of its first address.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from venus.errors import ConfigError, Denied, Unproven, Untrusted, VenusError
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
ANSWER_S = 5.0
ASKED_AT_ONCE = 8
#: Poll interval of a set that no business is pulled from, while no business has a problem.
OTHERS_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamStatus:
    """Newest status of an upstream set, and its problem since `since`. `at` and `since` are of the monotonic clock."""

    network: broker_pb2.NetworkStatus | None = None
    businesses: dict[str, broker_pb2.BusinessStatus] = field(default_factory=dict)
    at: float = 0.0
    trouble: str = ""
    since: float = 0.0
    #: A broker answers, but certificates or roles do not permit the call.
    barred: bool = False


class UpstreamClient:
    """Client for the status of one upstream set; used by one thread. `group` is the consumer group of the mirrors."""

    def __init__(self, reach: str, group: str) -> None:
        self.reach, self.group = reach, group
        #: The tables whose status this set needs; the upstream may have hundreds of thousands more.
        self.named: tuple[str, ...] = ()
        self.status = UpstreamStatus()
        self._admin: AdminClient | None = None

    def poll(self) -> UpstreamStatus:
        """Poll once and record the result."""
        now = time.monotonic()
        try:
            if self._admin is None:
                self._admin = AdminClient(self.reach, timeout_s=ANSWER_S)
            return self.record_status(self._admin.status(named=self.named), now)
        except VenusError as error:
            self._close()
            return self.record_silence(error, now)

    def record_status(self, status: broker_pb2.BrokerStatus, now: float) -> UpstreamStatus:
        """Record the status of an upstream broker, received at `now`."""
        network = status.network if status.HasField("network") else None
        trouble = "" if network is not None else "the broker above does not know networks: it is older"
        businesses = {entry.business: entry for entry in status.businesses}
        self.status = UpstreamStatus(network=network, businesses=businesses, at=now, trouble=trouble, since=now)
        return self.status

    def record_silence(self, error: VenusError, now: float) -> UpstreamStatus:
        """Record that no upstream broker has answered; the last status stays valid."""
        known = self.status
        barred = isinstance(error, Denied | Untrusted | ConfigError)
        since = known.since if known.trouble else now
        self.status = replace(known, trouble=self._describe(error), since=since, barred=barred)
        return self.status

    def _describe(self, error: VenusError) -> str:
        """Return an error in words; a refused call names several roles, but a mirror needs exactly one."""
        if isinstance(error, Denied) and not isinstance(error, Unproven):
            identity = str(error).partition(" may not ")[0]
            return f"{identity} has no role consumer({self.group}, *) at the set above"
        return str(error)

    def _close(self) -> None:
        """Close the connection; the next poll opens another one."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None


class UpstreamPoller(UpstreamClient):
    """Poller of one upstream set. `answered_by` is the broker that answered last."""

    def __init__(
        self, reach: str, group: str, looked: Callable[[UpstreamPoller], None], pace: Callable[[UpstreamPoller], float]
    ) -> None:
        super().__init__(reach, group)
        self.name = reach.partition(",")[0]
        self.answered_by = ""
        self.has_looked = False
        self._looked, self._pace = looked, pace
        self._stop, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="venus-upstream", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def wake(self) -> None:
        """Poll now, without waiting for the next turn."""
        self._woken.set()

    def end(self) -> None:
        """Stop polling without waiting for the thread."""
        self._stop.set()
        self._woken.set()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self.end()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def set_addresses(self, reach: str) -> None:
        """Use these addresses from now on."""
        if str(reach) != str(self.reach):
            self.reach = reach
            self.answered_by = ""

    def _run(self) -> None:
        """Poll the set and report each result, until stopped."""
        while not self._stop.is_set():
            self._woken.clear()
            reach = self.reach
            try:
                self.poll()
                self.has_looked = True
                self._looked(self)
            except Exception:
                logger.exception("cannot use the status of set %s; retrying", self.name)
            if reach is not self.reach:
                self._close()
            self._woken.wait(self._pace(self))
        self._close()

    def poll(self) -> UpstreamStatus:
        """Poll once; record the result and the broker that answered."""
        seen = super().poll()
        self.answered_by = self._admin.address if self._admin is not None else ""
        return seen


#: A function that creates the poller of a set, with the parameters of UpstreamPoller.
PollerMaker = Callable[[str, str, Callable[[UpstreamPoller], None], Callable[[UpstreamPoller], float]], UpstreamPoller]


@dataclass(slots=True)
class SetMembers:
    """Mapping of the configured addresses to sets, as far as it is known. Pure."""

    addresses: tuple[str, ...]
    _set_of: dict[str, str] = field(default_factory=dict)

    def learn(self, address: str, name: str) -> bool:
        """Record to which set a broker belongs. Return True if the mapping has changed."""
        if address not in self.addresses or not name or self._set_of.get(address) == name:
            return False
        self._set_of[address] = name
        return True

    def learn_from(self, address: str, status: broker_pb2.BrokerStatus) -> bool:
        """Record to which set a broker and the set's other brokers belong. Return True if the mapping has changed."""
        name = status.network.set
        news = self.learn(address, name)
        for entry in status.businesses:
            for replica in entry.replication.replicas:
                if replica.address not in self._set_of:
                    news = self.learn(replica.address, name) or news
        return news

    def sets(self) -> dict[str, tuple[str, ...]]:
        """Return the addresses of each set, the nearest first; an unknown set has its address as its name."""
        found: dict[str, tuple[str, ...]] = {}
        for address in self.addresses:
            name = self._set_of.get(address, address)
            found[name] = (*found.get(name, ()), address)
        return found


class UpstreamMonitor:
    """Pollers of all upstream sets. `looked` is called after each poll, in the polling thread, one call at a time."""

    def __init__(
        self,
        addresses: Sequence[str],
        proof: ClientCredentials,
        group: str,
        *,
        looked: Callable[[UpstreamPoller, Mapping[str, str]], None],
        pace: Callable[[UpstreamPoller], float] = lambda _look: LOOK_EVERY_S,
        look: PollerMaker = UpstreamPoller,
        named: Iterable[str] = (),
    ) -> None:
        self._named = tuple(named)
        self._members = SetMembers(tuple(dict.fromkeys(addresses)))
        self._proof, self._group, self._kind = proof, group, look
        self._looked, self._pace = looked, pace
        self._lock = threading.RLock()
        self._running = False
        self._looks = {name: self._create(name, own) for name, own in self._members.sets().items()}

    def _create(self, name: str, addresses: Sequence[str]) -> UpstreamPoller:
        """Create the poller of a set."""
        look = self._kind(BrokerAddress(",".join(addresses), self._proof), self._group, self._on_poll, self._pace)
        look.name, look.named = name, self._named
        return look

    @property
    def all(self) -> tuple[UpstreamPoller, ...]:
        """The sets, the nearest first."""
        return tuple(self._looks.values())

    @property
    def addresses(self) -> str:
        """Every address, for messages."""
        return ",".join(self._members.addresses)

    def poller_of(self, name: str) -> UpstreamPoller:
        """Return the poller of a set; the nearest set's for a name that no longer exists."""
        looks = self._looks
        return looks.get(name) or next(iter(looks.values()))

    def start(self) -> None:
        """Start polling."""
        with self._lock:
            self._running = True
            for look in self._looks.values():
                look.start()

    def stop(self) -> None:
        """End every thread."""
        with self._lock:
            self._running = False
            looks = list(self._looks.values())
        for look in looks:
            look.stop()

    def wake(self) -> None:
        """Poll every set now, without waiting for its next turn."""
        for look in self.all:
            look.wake()

    def ask_all(self) -> list[broker_pb2.NetworkStatus]:
        """Poll every address once; return the networks of those that answer, in their order. Blocking."""
        addresses = self._members.addresses
        with ThreadPoolExecutor(ASKED_AT_ONCE, "venus-upstream") as pool:
            found = list(pool.map(self._ask, addresses))
        answered = [(address, status) for address, status in zip(addresses, found, strict=True) if status is not None]
        with self._lock:
            for address, status in answered:
                self._members.learn_from(address, status)
            self._regroup()
        return [status.network for _, status in answered if status.HasField("network")]

    def _ask(self, address: str) -> broker_pb2.BrokerStatus | None:
        """Return the status of a broker, None if it does not answer."""
        try:
            with AdminClient(BrokerAddress(address, self._proof), timeout_s=ANSWER_S) as admin:
                return admin.status()
        except VenusError:
            return None

    def _on_poll(self, look: UpstreamPoller) -> None:
        """Handle a poll: if it has shown new members of a set, group the addresses by set again."""
        with self._lock:
            if self._looks.get(look.name) is not look:
                return  # it was merged into another set
            renamed: Mapping[str, str] = {}
            seen = look.status
            if not seen.trouble and seen.network is not None:
                said = broker_pb2.BrokerStatus(network=seen.network, businesses=seen.businesses.values())
                if self._members.learn_from(look.answered_by, said):
                    renamed = self._regroup()
            if self._looks.get(look.name) is not look:
                look = self.poller_of(renamed[look.name])
                look.wake()  # it may not have polled the newly known address yet
            self._looked(look, renamed)

    def _regroup(self) -> Mapping[str, str]:
        """Create and end pollers so that each known set has one. Return the new names of renamed sets."""
        sets, old = self._members.sets(), self._looks
        at = {address: name for name, own in sets.items() for address in own}
        renamed = {name: at[look.reach.partition(",")[0]] for name, look in old.items()}
        looks: dict[str, UpstreamPoller] = {}
        for name, own in sets.items():
            kept = old.get(name) or next((look for was, look in old.items() if renamed[was] == name), None)
            if kept is None or kept in looks.values():
                kept = self._create(name, own)
                if self._running:
                    kept.start()
            kept.name = name
            kept.set_addresses(BrokerAddress(",".join(own), self._proof))
            looks[name] = kept
        self._looks = looks
        for look in old.values():
            if look not in looks.values():
                look.end()
        return {was: name for was, name in renamed.items() if was != name}
