"""Looks at every set above, each by a thread of its own, and finds out which addresses belong to the same set.

`[cluster] upstream` is a list of addresses. What set a broker belongs to, it says itself; until then each address
counts as a set. The first address of a set is its place in the list.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from venus.errors import ConfigError, Denied, Unproven, Untrusted, VenusError
from venus.rpc.address import Address, Proof
from venus.rpc.admin import Admin
from venus.wire import broker_pb2

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
ANSWER_S = 5.0
ASKED_AT_ONCE = 8
#: How often a set is looked at that nobody pulls from, while all is well.
OTHERS_EVERY_S = 5.0


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


class Look(Upstream):
    """One set. `answered_by` is the broker that spoke last; `wake` has it looked at now."""

    def __init__(self, reach: str, group: str, looked: Callable[[Look], None], pace: Callable[[Look], float]) -> None:
        super().__init__(reach, group)
        self.name = reach.partition(",")[0]
        self.answered_by = ""
        self.has_looked = False
        self._looked, self._pace = looked, pace
        self._stop, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="venus-upstream", daemon=True)

    def start(self) -> None:
        """Look now, and from now on."""
        self._thread.start()

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    def end(self) -> None:
        """Look no more; the thread ends by itself."""
        self._stop.set()
        self._woken.set()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self.end()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def reaches(self, reach: str) -> None:
        """Ask at these addresses from now on."""
        if str(reach) != str(self.reach):
            self.reach = reach
            self.answered_by = ""

    def _run(self) -> None:
        while not self._stop.is_set():
            self._woken.clear()
            reach = self.reach
            try:
                self.look()
                self.has_looked = True
                self._looked(self)
            except Exception:
                logger.exception("what set %s says cannot be used; it is asked again", self.name)
            if reach is not self.reach:
                self._close()
            self._woken.wait(self._pace(self))
        self._close()

    def look(self) -> Seen:
        """Ask once, and note what is said, and who said it."""
        seen = super().look()
        self.answered_by = self._admin.address if self._admin is not None else ""
        return seen


#: Makes the look at a set: of its addresses, the group, and as Look has it.
LookMaker = Callable[[str, str, Callable[[Look], None], Callable[[Look], float]], Look]


@dataclass(slots=True)
class Members:
    """Which of the configured addresses belong to which set, as far as it is known. Pure."""

    addresses: tuple[str, ...]
    _set_of: dict[str, str] = field(default_factory=dict)

    def learn(self, address: str, name: str) -> bool:
        """Note that a broker is of a set; return whether that is news."""
        if address not in self.addresses or not name or self._set_of.get(address) == name:
            return False
        self._set_of[address] = name
        return True

    def learn_from(self, address: str, status: broker_pb2.BrokerStatus) -> bool:
        """Note what a broker says of its set, and of the others in it; return whether that is news."""
        name = status.network.set
        news = self.learn(address, name)
        for entry in status.businesses:
            for replica in entry.replication.replicas:
                if replica.address not in self._set_of:
                    news = self.learn(replica.address, name) or news
        return news

    def sets(self) -> dict[str, tuple[str, ...]]:
        """Return the addresses of each set, the nearest first; one that nobody knows is called like its address."""
        found: dict[str, tuple[str, ...]] = {}
        for address in self.addresses:
            name = self._set_of.get(address, address)
            found[name] = (*found.get(name, ()), address)
        return found


class Looks:
    """All sets above. `looked` is called after each look, in the thread of that set, one at a time."""

    def __init__(
        self,
        addresses: Sequence[str],
        proof: Proof,
        group: str,
        *,
        looked: Callable[[Look, Mapping[str, str]], None],
        pace: Callable[[Look], float] = lambda _look: LOOK_EVERY_S,
        look: LookMaker = Look,
        named: Iterable[str] = (),
    ) -> None:
        self._named = tuple(named)
        self._members = Members(tuple(dict.fromkeys(addresses)))
        self._proof, self._group, self._kind = proof, group, look
        self._looked, self._pace = looked, pace
        self._lock = threading.RLock()
        self._running = False
        self._looks = {name: self._new(name, own) for name, own in self._members.sets().items()}

    def _new(self, name: str, addresses: Sequence[str]) -> Look:
        look = self._kind(Address(",".join(addresses), self._proof), self._group, self._took_in, self._pace)
        look.name, look.named = name, self._named
        return look

    @property
    def all(self) -> tuple[Look, ...]:
        """The sets, the nearest first."""
        return tuple(self._looks.values())

    @property
    def addresses(self) -> str:
        """Every address, for people."""
        return ",".join(self._members.addresses)

    def of(self, name: str) -> Look:
        """Return what is known of a set; the nearest for a name that is known no more."""
        looks = self._looks
        return looks.get(name) or next(iter(looks.values()))

    def start(self) -> None:
        """Look now, and from now on."""
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
        """Look at every set now."""
        for look in self.all:
            look.wake()

    def each(self) -> list[broker_pb2.NetworkStatus]:
        """Ask every address once, and return what those say that answer, in their order. Blocking."""
        addresses = self._members.addresses
        with ThreadPoolExecutor(ASKED_AT_ONCE, "venus-upstream") as pool:
            found = list(pool.map(self._ask, addresses))
        told = [(address, status) for address, status in zip(addresses, found, strict=True) if status is not None]
        with self._lock:
            for address, status in told:
                self._members.learn_from(address, status)
            self._regroup()
        return [status.network for _, status in told if status.HasField("network")]

    def _ask(self, address: str) -> broker_pb2.BrokerStatus | None:
        try:
            with Admin(Address(address, self._proof), timeout_s=ANSWER_S) as admin:
                return admin.status()
        except VenusError:
            return None

    def _took_in(self, look: Look) -> None:
        with self._lock:
            if self._looks.get(look.name) is not look:
                return  # it has become a part of another one
            renamed: Mapping[str, str] = {}
            seen = look.seen
            if not seen.trouble and seen.network is not None:
                said = broker_pb2.BrokerStatus(network=seen.network, businesses=seen.businesses.values())
                if self._members.learn_from(look.answered_by, said):
                    renamed = self._regroup()
            if self._looks.get(look.name) is not look:
                look = self.of(renamed[look.name])
                look.wake()  # it may not know yet that another of its brokers answers
            self._looked(look, renamed)

    def _regroup(self) -> Mapping[str, str]:
        """Have a look for each set that is known by now; return the names that have become others."""
        sets, old = self._members.sets(), self._looks
        at = {address: name for name, own in sets.items() for address in own}
        renamed = {name: at[look.reach.partition(",")[0]] for name, look in old.items()}
        looks: dict[str, Look] = {}
        for name, own in sets.items():
            kept = old.get(name) or next((look for was, look in old.items() if renamed[was] == name), None)
            if kept is None or kept in looks.values():
                kept = self._new(name, own)
                if self._running:
                    kept.start()
            kept.name = name
            kept.reaches(Address(",".join(own), self._proof))
            looks[name] = kept
        self._looks = looks
        for look in old.values():
            if look not in looks.values():
                look.end()
        return {was: name for was, name in renamed.items() if was != name}
