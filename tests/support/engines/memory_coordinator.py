"""Coordinator in the memory of one process, for tests of several brokers without etcd.

Time is a parameter, and each change calls the watchers at once, so that a simulation is deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from venus.coordination.stored_records import other_broker_error, replaced_error
from venus.errors import Unavailable
from venus.replication.records import Leadership, LiveBroker


@dataclass(slots=True)
class _Lease:
    broker: LiveBroker
    holder: MemoryCoordinator
    ends_at: float


@dataclass(slots=True)
class MemoryCluster:
    """State that the coordinators of one cluster share."""

    clock: Callable[[], float]
    #: The id of the cluster, drawn when the first broker joins.
    new_identity: str = "memory"
    identity: str | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    version: int = 0
    leases: dict[str, _Lease] = field(default_factory=dict)
    leaderships: dict[str, Leadership] = field(default_factory=dict)
    #: The last term of each forgotten business.
    forgotten: dict[str, int] = field(default_factory=dict)
    draining: set[str] = field(default_factory=set)
    #: The newest write of each store.
    newest: dict[str, int] = field(default_factory=dict)
    watchers: list[Callable[[], None]] = field(default_factory=list)

    def living_leases(self) -> dict[str, _Lease]:
        """Return the leases that have not ended; remove the others."""
        now = self.clock()
        self.leases = {name: lease for name, lease in self.leases.items() if lease.ends_at > now}
        return self.leases

    def end_lease(self, name: str) -> None:
        """End a broker's lease before its time."""
        with self.lock:
            if self.leases.pop(name, None) is not None:
                self.notify()

    def notify(self) -> None:
        """Notify every watcher."""
        for watcher in tuple(self.watchers):
            watcher()


class MemoryCoordinator:
    """`venus.replication.records.Coordinator` over a MemoryCluster, for at most one registered broker."""

    def __init__(self, cluster: MemoryCluster, *, lease_s: float) -> None:
        self._cluster = cluster
        self._lease_s = lease_s
        self._registered = ""
        #: Id of this broker's lease.
        self.lease = 0
        self._watchers: list[Callable[[], None]] = []
        #: Unusable records; set by a test.
        self.invalid: tuple[str, ...] = ()
        #: Set by a test: the coordinator does not answer.
        self.away = False
        #: Set by a test: the next write is executed, but its answer is lost.
        self.loses_answer = False

    # -- brokers -------------------------------------------------------------------------------------------------

    def register(self, broker: LiveBroker) -> None:
        """Register this broker under a lease. Raises Refused if another living broker has its id."""
        name = broker.member.broker
        with self._begin_call() as cluster:
            found = cluster.living_leases().get(name)
            if found is not None and (refused := other_broker_error(found.broker, broker)) is not None:
                raise refused
            self._check_owner(cluster)
            self.lease += found is None or found.holder is not self
            cluster.leases[name] = _Lease(broker, self, cluster.clock() + self._lease_s)
            self._registered = name
            self._end_write(cluster)

    def refresh(self) -> bool:
        """Renew the lease; False = it has ended, or another process of this broker has it."""
        with self._begin_call() as cluster:
            found = self._own_lease(cluster)
            if found is not None:
                found.ends_at = cluster.clock() + self._lease_s
            return found is not None

    def leave(self) -> None:
        """Revoke the lease."""
        with self._begin_call() as cluster:
            if self._own_lease(cluster) is not None:
                del cluster.leases[self._registered]
                self._end_write(cluster)
            self._registered = ""

    def brokers(self) -> tuple[LiveBroker, ...]:
        """Return the brokers whose leases have not ended. Raises Fenced if another process has replaced this one."""
        with self._begin_call() as cluster:
            self._check_owner(cluster)
            living = [lease.broker for _, lease in sorted(cluster.living_leases().items())]
            return tuple(replace(one, draining=one.draining or one.member.broker in cluster.draining) for one in living)

    def drain(self, broker: str, *, draining: bool) -> None:
        """Set or remove the draining mark of a broker."""
        with self._begin_call() as cluster:
            (cluster.draining.add if draining else cluster.draining.discard)(broker)
            self._end_write(cluster)

    def draining_brokers(self) -> frozenset[str]:
        """Return the brokers with a draining mark."""
        with self._begin_call() as cluster:
            return frozenset(cluster.draining)

    # -- stores ----------------------------------------------------------------------------------------------------

    def save_newest_write(self, store: str, sequence: int) -> None:
        """Store the newest durable write of a store; the stored number never decreases."""
        with self._begin_call() as cluster:
            cluster.newest[store] = max(sequence, cluster.newest.get(store, 0))

    def newest_write(self, store: str) -> int:
        """Return the newest known durable write of a store; 0 = none is known."""
        with self._begin_call() as cluster:
            return cluster.newest.get(store, 0)

    # -- businesses ----------------------------------------------------------------------------------------------

    def leaderships(self) -> tuple[Leadership, ...]:
        """Return every business of the cluster."""
        with self._begin_call() as cluster:
            return tuple(found for _, found in sorted(cluster.leaderships.items()))

    def read(self, business: str) -> Leadership | None:
        """Return the record of a business; None = no business has this name."""
        with self._begin_call() as cluster:
            return cluster.leaderships.get(business)

    def create(self, leadership: Leadership) -> Leadership | None:
        """Store a new business, in a term above those of a forgotten one of this name; None if the name is in use."""
        with self._begin_call() as cluster:
            last = cluster.forgotten.get(leadership.business, 0)
            return self._store(replace(leadership, term=max(leadership.term, last + 1)), 0)

    def swap(self, before: Leadership, after: Leadership) -> Leadership | None:
        """Replace `before` by `after`; None if `before` is not current, or another process has this broker's lease."""
        assert before.business == after.business, "a swap changes one business"
        assert before.version > 0, "`before` was never stored"
        with self._begin_call() as cluster:
            if self._registered and self._own_lease(cluster) is None:
                return None
        return self._store(after, before.version)

    def remove(self, leadership: Leadership) -> bool:
        """Remove a business; False if `leadership` is no longer current."""
        with self._begin_call() as cluster:
            found = cluster.leaderships.get(leadership.business)
            if found is None or found.version != leadership.version:
                return False
            del cluster.leaderships[leadership.business]
            cluster.forgotten[leadership.business] = leadership.term
            self._end_write(cluster)
            return True

    def last_forgotten_term(self, business: str) -> int:
        """Return the last term of a forgotten business of this name; 0 = none was forgotten."""
        with self._begin_call() as cluster:
            return cluster.forgotten.get(business, 0)

    def _store(self, leadership: Leadership, version: int) -> Leadership | None:
        """Replace the record of this version (0 = none yet); return the stored one, or None if it has changed."""
        with self._begin_call() as cluster:
            found = cluster.leaderships.get(leadership.business)
            if (found.version if found is not None else 0) != version:
                return None
            cluster.version += 1
            stored = replace(leadership, version=cluster.version)
            cluster.leaderships[leadership.business] = stored
            self._end_write(cluster)
            return stored

    # -- the cluster ---------------------------------------------------------------------------------------------

    def identity(self, *, create: bool) -> str | None:
        """Return the id of the cluster, drawn once; None = the cluster has no id and `create` is False."""
        with self._begin_call() as cluster:
            if cluster.identity is None and create:
                cluster.identity = cluster.new_identity
            return cluster.identity

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change, from the thread that makes it; it must not block."""
        with self._cluster.lock:
            self._watchers.append(changed)
            self._cluster.watchers.append(changed)
        changed()

    def close(self) -> None:
        """End the watches."""
        with self._cluster.lock:
            for watcher in self._watchers:
                self._cluster.watchers.remove(watcher)
            self._watchers.clear()

    def _check_owner(self, cluster: MemoryCluster) -> None:
        """Raise Fenced if another process has this broker's lease."""
        found = cluster.living_leases().get(self._registered)
        if found is not None and found.holder is not self:
            raise replaced_error(self._registered)

    def _own_lease(self, cluster: MemoryCluster) -> _Lease | None:
        """Return this broker's lease, or None if it has ended or another process has it."""
        found = cluster.living_leases().get(self._registered)
        return found if found is not None and found.holder is self else None

    @contextmanager
    def _begin_call(self) -> Iterator[MemoryCluster]:
        """Lock the cluster for one call. Raises Unavailable while a test has switched the coordinator off."""
        if self.away:
            raise Unavailable("the coordinator does not answer")
        with self._cluster.lock:
            yield self._cluster

    def _end_write(self, cluster: MemoryCluster) -> None:
        """End a write; its answer is lost if a test has asked for that."""
        cluster.notify()
        if self.loses_answer:
            self.loses_answer = False
            raise Unavailable("the coordinator's answer was lost")
