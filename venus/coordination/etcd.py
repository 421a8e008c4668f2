"""Coordinator over etcd: keys below /venus/<cluster>/, changed only by compare-and-swap.

The `version` of a leadership is etcd's mod_revision of its key. Each swap writes a unique mark into the value. If an
answer was lost and the swap was retried at another address, the mark shows whether the first attempt succeeded.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import TypeVar
from urllib.parse import quote

from venus.coordination.etcd_client import CALL_TIMEOUT_S, EtcdClient, EtcdKey, LeaseExpired
from venus.coordination.login import NO_LOGIN, Login
from venus.coordination.stored_records import (
    decode_broker,
    decode_draining,
    decode_forgotten,
    decode_identity,
    decode_leadership,
    decode_newest,
    encode_broker,
    encode_draining,
    encode_forgotten,
    encode_identity,
    encode_leadership,
    encode_newest,
    other_broker_error,
    replaced_error,
    writer_of,
)
from venus.errors import ProtocolError, Unavailable
from venus.replication.records import Leadership, LiveBroker

T = TypeVar("T")

LEASE_S = 3.0
#: Maximum number of attempts while another process changes the same key.
TRIES_MAX = 5


class EtcdCoordinator:
    """`venus.replication.records.Coordinator` over etcd, for one cluster and at most one registered broker."""

    def __init__(
        self,
        addresses: Seq[str],
        cluster: str,
        *,
        lease_s: float = LEASE_S,
        timeout_s: float = CALL_TIMEOUT_S,
        login: Login = NO_LOGIN,
    ) -> None:
        self._client = EtcdClient(addresses, timeout_s=timeout_s, login=login)
        self._root = f"/venus/{quote(cluster, safe='')}/"
        #: A separate prefix, because its frequent writes must not wake watchers; no cluster's name begins with "+".
        self._stores = f"/venus/+stores/{quote(cluster, safe='')}/"
        #: etcd counts whole seconds: its lease ends later than the broker's own deadline, never sooner.
        self._lease_s = math.ceil(lease_s)
        self._lock = threading.Lock()  # one `register`, `refresh` or `leave` at a time
        self._lease = 0
        self._registered = ""
        self._process = secrets.token_hex(8)  # prefix of each registration's mark, new for each process
        self._invalid: dict[str, tuple[str, ...]] = {}  # by kind

    # -- brokers -------------------------------------------------------------------------------------------------

    def register(self, broker: LiveBroker) -> None:
        """Register this broker under a lease. Raises Refused if another living broker has its id.

        Raises Fenced if another process of this broker was started later.
        """
        key = self._key("brokers", broker.member.broker)
        with self._lock:
            for _ in range(TRIES_MAX):
                if self._register(key, broker):
                    self._registered = key
                    return
        raise Unavailable(f"broker {broker.member.broker} cannot register: its key keeps changing")

    def _register(self, key: str, broker: LiveBroker) -> bool:
        """Make one attempt to store this broker's key under a lease; False = try again."""
        self._lease = self._lease or self._client.grant(self._lease_s)
        found = self._client.read(key)
        if (
            found is not None
            and (other := other_broker_error(decode_broker(found.key, found.value), broker)) is not None
        ):
            raise other
        if found is not None:
            self._check_owner(found)
        mark = self._process + secrets.token_hex(8)
        try:
            swapped = self._client.swap(
                key, found.revision if found is not None else 0, encode_broker(broker, mark), lease=self._lease
            )
        except LeaseExpired:
            self._lease = 0
            return False
        return swapped.done or _is_ours(swapped.current, mark)

    def refresh(self) -> bool:
        """Renew the lease; False = it has ended, or another process has this broker's key."""
        with self._lock:
            if not self._lease:
                return False
            if self._client.keep_alive(self._lease):
                found = self._client.read(self._registered) if self._registered else None
                if found is not None and found.lease == self._lease:
                    return True
            self._lease = 0
            return False

    def _check_owner(self, found: EtcdKey) -> None:
        """Raise Fenced if another process has stored this broker's key."""
        if found.key == self._registered and not writer_of(found.value).startswith(self._process):
            raise replaced_error(self._registered.rpartition("/")[2])

    @property
    def lease(self) -> int:
        """Id of this broker's lease; 0 = none."""
        return self._lease

    def leave(self) -> None:
        """Revoke the lease."""
        with self._lock:
            lease, self._lease, self._registered = self._lease, 0, ""
            if lease:
                self._client.revoke(lease)

    def brokers(self) -> tuple[LiveBroker, ...]:
        """Return the brokers whose leases have not ended. Raises Fenced if another process has replaced this one.

        Records that the caller read before this call contain nothing that such a process did in this broker's name.
        """
        living = self._read_valid("brokers", self._decode_living)
        drained = self.draining_brokers()
        return tuple(replace(one, draining=one.draining or one.member.broker in drained) for one in living)

    def _decode_living(self, found: EtcdKey) -> LiveBroker:
        """Decode a living broker. Raises Fenced if another process has replaced this one."""
        self._check_owner(found)
        return decode_broker(found.key, found.value)

    def drain(self, broker: str, *, draining: bool) -> None:
        """Set or remove the draining mark of a broker."""
        key = self._key("draining", broker)
        wanted = encode_draining(broker) if draining else None
        for _ in range(TRIES_MAX):
            found = self._client.read(key)
            if (found is not None) == draining:
                return
            if self._client.swap(key, found.revision if found is not None else 0, wanted).done:
                return
        raise Unavailable(f"broker {broker} cannot be marked: its key keeps changing")

    def draining_brokers(self) -> frozenset[str]:
        """Return the brokers with a draining mark."""
        return frozenset(self._read_valid("draining", lambda found: decode_draining(found.key, found.value)))

    # -- stores ----------------------------------------------------------------------------------------------------

    def save_newest_write(self, store: str, sequence: int) -> None:
        """Store the newest durable write of a store; the stored number never decreases."""
        key, value = f"{self._stores}{quote(store, safe='')}", encode_newest(store, sequence)
        for _ in range(TRIES_MAX):
            found = self._client.read(key)
            if found is not None and decode_newest(found.key, found.value) >= sequence:
                return
            if self._client.swap(key, 0 if found is None else found.revision, value).done:
                return
        raise Unavailable(f"the newest write of store {store} cannot be stored: its key keeps changing")

    def newest_write(self, store: str) -> int:
        """Return the newest known durable write of a store; 0 = none is known."""
        found = self._client.read(f"{self._stores}{quote(store, safe='')}")
        return 0 if found is None else decode_newest(found.key, found.value)

    # -- businesses ----------------------------------------------------------------------------------------------

    def leaderships(self) -> tuple[Leadership, ...]:
        """Return the record of every business of the cluster."""
        return self._read_valid("businesses", self._leadership)

    def read(self, business: str) -> Leadership | None:
        """Return the record of a business; None = there is none of this name."""
        found = self._client.read(self._key("businesses", business))
        return None if found is None else self._leadership(found)

    def create(self, leadership: Leadership) -> Leadership | None:
        """Store a new business, in a term above those of an earlier one of this name; None if there is one already."""
        for _ in range(TRIES_MAX):
            key, found = self._read_forgotten(leadership.business)
            last = 0 if found is None else decode_forgotten(key, found.value)
            raised = replace(leadership, term=max(leadership.term, last + 1))
            stored = self._store(raised, 0, also=(key, 0 if found is None else found.revision))
            if stored is not None or self.read(leadership.business) is not None:
                return stored
        raise Unavailable(f"business {leadership.business} cannot be created: it is repeatedly forgotten")

    def swap(self, before: Leadership, after: Leadership) -> Leadership | None:
        """Replace `before` by `after`; None if `before` is no longer current.

        Also None if this broker is registered, but its key is not under its lease: another process may have it.
        """
        assert before.business == after.business, "a swap changes one business"
        assert before.version > 0, "`before` was never stored"
        place, lease = self._registered, self._lease
        if place and not lease:
            return None
        return self._store(after, before.version, held=(place, lease) if place else None)

    def remove(self, leadership: Leadership) -> bool:
        """Store the term of a business and remove its record; False if `leadership` is no longer current."""
        self._save_forgotten_term(leadership)
        swapped = self._client.swap(self._key("businesses", leadership.business), leadership.version, None)
        if swapped.done or not swapped.repeated:
            return swapped.done
        if swapped.current is not None:
            raise _uncertain_error(leadership.business)
        return True  # the attempt whose answer was lost has removed it

    def _save_forgotten_term(self, leadership: Leadership) -> None:
        """Store the term of a business before its removal; a higher term stored by another process stays."""
        for _ in range(TRIES_MAX):
            key, found = self._read_forgotten(leadership.business)
            if found is not None and decode_forgotten(key, found.value) >= leadership.term:
                return  # stored already, perhaps by an earlier attempt whose answer was lost
            value = encode_forgotten(leadership.business, leadership.term)
            if self._client.swap(key, 0 if found is None else found.revision, value).done:
                return
        raise _uncertain_error(leadership.business)

    def last_forgotten_term(self, business: str) -> int:
        """Return the last term of a business of this name that was forgotten; 0 = none is known."""
        key, found = self._read_forgotten(business)
        term = 0 if found is None else decode_forgotten(key, found.value)
        return 0 if term and self._still_has(business, term) else term

    def _still_has(self, business: str, term: int) -> bool:
        """Whether the record of a term still exists: a removal stores the term first, and may not have been completed.

        An unreadable record counts, because it may be that one.
        """
        try:
            record = self.read(business)
        except ProtocolError:
            return True
        return record is not None and record.term <= term

    def _read_forgotten(self, business: str) -> tuple[str, EtcdKey | None]:
        """Return the key of a business's last forgotten term, and what is stored there."""
        key = self._key("forgotten", business)
        return key, self._client.read(key)

    def _store(
        self,
        leadership: Leadership,
        revision: int,
        *,
        also: tuple[str, int] | None = None,
        held: tuple[str, int] | None = None,
    ) -> Leadership | None:
        """Store a record if its key is at `revision`; return it with its version, None if a condition does not hold."""
        mark = secrets.token_hex(8)
        key = self._key("businesses", leadership.business)
        swapped = self._client.swap(key, revision, encode_leadership(leadership, mark), also=also, held=held)
        if swapped.done:
            return replace(leadership, version=swapped.revision)
        if swapped.repeated:
            if swapped.current is not None and _is_ours(swapped.current, mark):
                return replace(leadership, version=swapped.current.revision)
            raise _uncertain_error(leadership.business)
        return None

    def _leadership(self, found: EtcdKey) -> Leadership:
        """Decode a record, and check that it is about the business of its key."""
        leadership = decode_leadership(found.key, found.value, found.revision)
        if self._key("businesses", leadership.business) != found.key:
            raise ProtocolError(f"the record at {found.key} is about business {leadership.business!r}")
        return leadership

    # -- the cluster ---------------------------------------------------------------------------------------------

    @property
    def invalid(self) -> tuple[str, ...]:
        """Problems of records that were unusable at the last listing, one sentence each."""
        return tuple(line for _, lines in sorted(self._invalid.items()) for line in lines)

    def _read_valid(self, kind: str, read: Callable[[EtcdKey], T]) -> tuple[T, ...]:
        """Read every valid record of a kind; invalid ones are listed in `invalid`."""
        usable: list[T] = []
        invalid: list[str] = []
        for found in self._client.list(f"{self._root}{kind}/"):
            try:
                usable.append(read(found))
            except ProtocolError as error:
                invalid.append(f"{error}; {error.hint}")
        self._invalid[kind] = tuple(invalid)
        return tuple(usable)

    def identity(self, *, create: bool) -> str | None:
        """Return the id of the cluster, a random number drawn once; None = there is none and `create` is False."""
        key = f"{self._root}identity"
        found = self._client.read(key)
        if found is None and create:
            swapped = self._client.swap(key, 0, encode_identity(secrets.token_hex(16)))
            found = self._client.read(key) if swapped.done else swapped.current
        return None if found is None else decode_identity(found.key, found.value)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed`, from a thread of its own, when a record of the cluster may have changed."""
        self._client.watch(self._root, changed)

    def close(self) -> None:
        """Close every connection; the lease expires by itself."""
        self._client.close()

    def _key(self, kind: str, name: str) -> str:
        """Return the etcd key of a record."""
        return f"{self._root}{kind}/{quote(name, safe='')}"


def _is_ours(found: EtcdKey | None, mark: str) -> bool:
    """Return whether the write with this mark is the one that is stored."""
    return found is not None and writer_of(found.value) == mark


def _uncertain_error(business: str) -> Unavailable:
    """Return the error for a change whose answer was lost."""
    return Unavailable(f"business {business} may have been changed: an answer of etcd was lost")
