"""The directory of one broker: what sets report, what is known at sets above, and the answers to clients (Minos 3.4.1).

A thread reports this set and the sets below it to every broker of `[cluster] upstream`, and gets the sets that those
brokers know; brokers of a cluster also ask each other. A home of one broker has no thread and only answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from venus.broker.core import Core
from venus.broker.machine.mirror import home_to_wire
from venus.broker.mirrors.network_membership import NetworkMembership, own_set_id
from venus.broker.mirrors.session_requests import MirrorState
from venus.config import ClusterSettings
from venus.errors import ProtocolError, Unavailable, VenusError
from venus.model import is_every_interface
from venus.network.directory import ClientRole, ReportedSet, SetDirectory
from venus.network.scheduling import load_rate
from venus.network.topology import PULLS_AS, Tier
from venus.rpc.address import BrokerAddress, ClientCredentials
from venus.rpc.directory import NetworkClient
from venus.rpc.network_limits import SET_ADDRESSES_MAX, SET_BUSINESSES_MAX, SETS_MAX, SITES_MAX, TROUBLE_CHARS_MAX
from venus.text.formatting import suggest_nearest
from venus.wire import broker_pb2, network_pb2

logger = logging.getLogger(__name__)

EXCHANGE_S = 5.0
#: The interval until a broker has answered once.
FIRST_S = 1.0
ASKED_AT_ONCE = 8
#: How long the description of this set stays valid.
OWN_S = 1.0
STALE_MS_MAX = 2**32 - 1
#: States of a mirror in which consumers should use another set.
UNREADY = frozenset({MirrorState.WAITING, MirrorState.FILLING, MirrorState.CUT_OFF, MirrorState.REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPeers:
    """The present brokers of the cluster. Without a cluster, `addresses` and `loads` return an empty tuple."""

    #: The addresses of all of its brokers.
    addresses: Callable[[], Sequence[str]] = tuple
    #: The used share of each of its brokers.
    loads: Callable[[], Sequence[float]] = tuple


class DirectoryExchange:
    """Directory of this broker's set. Thread-safe."""

    def __init__(
        self,
        core: Core,
        settings: ClusterSettings,
        network: NetworkMembership,
        *,
        proof: ClientCredentials,
        peers: ClusterPeers,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core, self._settings, self._network = core, settings, network
        self._proof, self._peers, self._monotonic = proof, peers, monotonic
        self._directory = SetDirectory(near={site: tuple(sets) for site, sets in settings.near.items()})
        self._lock = threading.Lock()
        self._own: tuple[str, ...] = ()
        self._set_id = ""
        self._described_at = float("-inf")
        #: The load rate of this broker alone.
        self.load: Callable[[], float] = lambda: 0.0
        self._clients: dict[str, NetworkClient] = {}
        self._has_answer = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, own: Iterable[str], cluster: str) -> None:
        """Start; `own` are the addresses of this set, `cluster` is the id of its cluster. Blocking."""
        self._own = reachable_addresses(own)
        if not self._own:
            logger.warning("the directory names no address of this broker: set [broker] address to one for clients")
        self._set_id = cluster or own_set_id(self._core)
        if self._settings.upstream or self._settings.name:
            self._thread = threading.Thread(target=self._run, name="venus-directory", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for client in self._clients.values():
            client.close()

    # -- calls ---------------------------------------------------------------------------------------------------

    def where(self, request: network_pb2.WhereRequest) -> network_pb2.WhereAnswer:
        """Return the sets for a client, the nearest first. Raises ProtocolError."""
        if request.role not in list(ClientRole):
            raise ProtocolError(f"role {request.role!r} is unknown{suggest_nearest(request.role, list(ClientRole))}")
        with self._lock:
            now = self._renew_own_set()
            found = self._directory.find(ClientRole(request.role), request.business, request.site, now)
        named = (network_pb2.NamedSet(set=one.set.name, addresses=one.set.addresses, rank=one.rank) for one in found)
        return network_pb2.WhereAnswer(sets=named)

    def on_report(self, report: network_pb2.NetworkReport) -> network_pb2.NetworkReport:
        """Record the sets that a set below reports; return the sets known here. Raises ProtocolError."""
        name = report.group.removeprefix(PULLS_AS)
        if name == report.group or not report.sets or report.sets[0].set != name:
            raise ProtocolError(f"group {report.group!r} reports another set than its own")
        with self._lock:
            now = self._renew_own_set()
            self._directory.on_report(name, decode_sets(report.sets, now), now)
            return self._encode_known(now)

    def on_share(self) -> network_pb2.NetworkReport:
        """Return the sets known here, for a broker of the same cluster."""
        with self._lock:
            return self._encode_known(self._renew_own_set())

    def add_to_status(self, status: broker_pb2.BrokerStatus) -> None:
        """Add the number of known sets, and the contradictions among them."""
        with self._lock:
            now = self._monotonic()
            status.network.sets_known = len(self._directory.known_sets(now))
            status.alarms.extend(self._directory.problems(now))

    def _encode_known(self, now: float) -> network_pb2.NetworkReport:
        """Return all sets known here as a message."""
        near = list(self._directory.nearness().items())[:SITES_MAX]
        return network_pb2.NetworkReport(
            sets=encode_sets(self._directory.known_sets(now), now),
            near=(network_pb2.Nearness(site=site, sets=sets[:SETS_MAX]) for site, sets in near),
        )

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Exchange the directory with other brokers every few seconds, until stopped."""
        with ThreadPoolExecutor(ASKED_AT_ONCE, "venus-directory") as pool:
            while not self._stop.is_set():
                try:
                    self._exchange(pool)
                except Exception:
                    logger.exception("cannot exchange the directory of sets; retrying")
                self._stop.wait(EXCHANGE_S if self._has_answer else FIRST_S)

    def _exchange(self, pool: ThreadPoolExecutor) -> None:
        """Report this set and those below to the sets above, and get what they and the cluster's brokers know."""
        with self._lock:
            now = self._renew_own_set()
            group = f"{PULLS_AS}{self._settings.set_name}"
            report = network_pb2.NetworkReport(group=group, sets=encode_sets(self._directory.sets_below(now), now))
        peers = [one for one in self._peers.addresses() if one not in self._own]
        is_home = self._network.succession.is_home
        above = [] if is_home else [one for one in self._settings.upstream if one not in peers]
        for address in self._clients.keys() - {*peers, *above}:
            self._clients.pop(address).close()
        answers = pool.map(lambda one: (one, self._ask(one, None if one in peers else report)), [*above, *peers])
        for address, answer in answers:
            if answer is None:
                continue
            self._has_answer = True
            with self._lock:  # `now` is the time of the question, so ages include the time on the way
                self._directory.on_answer(decode_sets(answer.sets, now), now)
                if address in above:
                    self._directory.near_above = {one.site: tuple(one.sets) for one in answer.near}

    def _ask(self, address: str, report: network_pb2.NetworkReport | None) -> network_pb2.NetworkReport | None:
        """Send `report` to a broker above, or ask one of the cluster; return its directory, None without an answer."""
        try:
            client = self._clients.get(address)
            if client is None:
                client = self._clients[address] = NetworkClient(BrokerAddress(address, self._proof))
            return client.report(report) if report is not None else client.share()
        except VenusError as error:
            logger.debug("broker %s does not report the sets that it knows: %s", address, error)
            if (lost := self._clients.pop(address, None)) is not None:
                lost.close()
            return None

    # -- this set ------------------------------------------------------------------------------------------------

    def _renew_own_set(self) -> float:
        """Renew an old description of this set; return the time. The caller holds the lock. Raises Unavailable."""
        now = self._monotonic()
        if not self._set_id:
            raise Unavailable("the broker is starting")
        if now - self._described_at >= OWN_S:
            self._described_at = now
            self._directory.record_own(self._own_set(now), self._homes())
        return now

    def _homes(self) -> Mapping[str, str]:
        """Return the sets that have replaced this one as the home, by business."""
        states = {business.name: business.committed for business in self._core.catalogue.list_stored()}
        return {name: state.home.set for name, state in states.items() if state.is_replaced and state.home is not None}

    def _own_set(self, now: float) -> ReportedSet:
        """Return the description of this set for the directory."""
        settings, status = self._settings, self._mirror_status()
        mirrors = {entry.business: entry.mirror for entry in status.businesses if entry.HasField("mirror")}
        unready = [name for name, mirror in mirrors.items() if mirror.state in UNREADY]
        is_home = not status.network.upstream and not status.network.former
        names = sorted(entry.business for entry in status.businesses)
        is_empty = not is_home and not names
        return ReportedSet(
            name=settings.set_name,
            set_id=self._set_id,
            tier=Tier(settings.tier),
            level=settings.level,
            site=settings.site,
            addresses=reachable_addresses([*self._own, *self._peers.addresses()])[:SET_ADDRESSES_MAX],
            load=self._mean_load(),
            lag_s=max((mirror.lag_ms for mirror in mirrors.values()), default=0) / 1000,
            trouble=(status.network.refused or ("it has no data yet" if is_empty else ""))[:TROUBLE_CHARS_MAX].strip(),
            unready=_limit_names(unready),
            is_home=is_home,
            promoted=_limit_names(self._network.succession.promoted_homes()),
            replaced=_limit_names(self._homes()),
            businesses=frozenset(names) if settings.labels and len(names) <= SET_BUSINESSES_MAX else frozenset(),
            heard_at=now,
        )

    def _mirror_status(self) -> broker_pb2.BrokerStatus:
        """Return place and mirrors of this set, without the parts that need reads of the store."""
        stored = [
            broker_pb2.BusinessStatus(
                business=business.name,
                next_offset=business.visible_offset,
                home=home_to_wire(business.committed.home),
                replaced=business.committed.is_replaced,
            )
            for business in self._core.catalogue.list_stored()
        ]
        status = broker_pb2.BrokerStatus(businesses=stored)
        self._network.add_to_status(status)
        return status

    def _mean_load(self) -> float:
        """Return the mean load rate of the brokers of this set."""
        rates = [load_rate(used) for used in self._peers.loads()] or [self.load()]
        return min(1.0, max(0.0, sum(rates) / len(rates)))


def _limit_names(names: Iterable[str]) -> frozenset[str]:
    """Return as many names as a message may have."""
    return frozenset(sorted(names)[:SET_BUSINESSES_MAX])


def reachable_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses that a client can use: not the address of every interface."""
    return tuple(one for one in dict.fromkeys(addresses) if not is_every_interface(one))


def encode_sets(sets: Iterable[ReportedSet], now: float) -> list[network_pb2.ReportedSet]:
    """Return sets as messages, with the age of each description."""
    return [
        network_pb2.ReportedSet(
            set=one.name,
            set_id=one.set_id,
            tier=one.tier,
            level=one.level,
            site=one.site,
            addresses=one.addresses,
            load=one.load,
            lag_ms=int(one.lag_s * 1000),
            trouble=one.trouble,
            home=one.is_home,
            promoted=sorted(one.promoted),
            replaced=sorted(one.replaced),
            businesses=sorted(one.businesses),
            unready=sorted(one.unready),
            age_ms=min(STALE_MS_MAX, int((now - one.heard_at) * 1000) + 1),
        )
        for one in sets
    ]


def decode_sets(sets: Iterable[network_pb2.ReportedSet], now: float) -> list[ReportedSet]:
    """Return the sets of checked messages, without sets of a tier that this version does not know."""
    return [
        ReportedSet(
            name=one.set,
            set_id=one.set_id,
            tier=Tier(one.tier),
            level=one.level,
            site=one.site,
            addresses=tuple(one.addresses),
            load=one.load,
            lag_s=one.lag_ms / 1000,
            trouble=one.trouble,
            unready=frozenset(one.unready),
            is_home=one.home,
            promoted=frozenset(one.promoted),
            replaced=frozenset(one.replaced),
            businesses=frozenset(one.businesses),
            heard_at=now - one.age_ms / 1000,
        )
        for one in sets
        if one.tier in list(Tier)
    ]
