"""Identity of a store: which member of which cluster it is. A broker with another store is another member.

A data directory that is restored from a backup, or copied, contains its own witness (venus/broker/store/witness.py),
so it cannot detect that it is older. The cluster would still treat the restored store as the member that has
everything, and that member could lead without what was acknowledged since the backup. So each broker stores the
sequence number of its newest durable write at the coordinator every few seconds. A store that returns with a lower
number becomes a new member, which follows and counts only once it has caught up. The data directory also has the id of
its cluster, written once, so that a broker never joins another cluster with its data.

A cluster is dissolved in favour of one broker, which continues alone and must have replicas that are known to be
complete. First the records exclude every other leader, then the store leaves the cluster, then the records are
removed. In this order, an interrupted command can be repeated, and two brokers can never accept writes at the same
time. The broker continues in a new term, so that entries on another broker's disk are never mistaken for the same
history.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from venus.broker.core import Core
from venus.broker.pipeline import shared_log
from venus.broker.replicas.coordinator_thread import CoordinatorThread
from venus.broker.replicas.placement import ReplicaPlacement
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.coordination.stored_records import VALUE_BYTES_MAX, decode_identity, encode_identity
from venus.errors import ConfigError, Refused, Unavailable
from venus.replication.records import Coordinator, Leadership, LiveBroker, Member

logger = logging.getLogger(__name__)

CLUSTER_FILE = "cluster.json"
_OTHER = "correct broker.data_dir, [cluster] name or etcd; `venus cluster dissolve` takes data out"
_EMPTIED = (
    "correct broker.data_dir, [cluster] name or etcd. If etcd was emptied or replaced, restore its backup; without "
    "one: stop all brokers, `venus cluster dissolve --accept-loss` at the one that led last, and start it first"
)


class IdentityStore(Protocol):
    """The part of a coordinator that stores the id of its cluster."""

    def identity(self, *, create: bool) -> str | None:
        """Return the id of the cluster, drawn once; None = there is none and `create` is False."""


def join_cluster(coordinator: IdentityStore, data_dir: Path, name: str) -> str:
    """Join cluster `name`: write its id into the data directory, which must exist, and return it.

    Raises Refused if the directory belongs to another cluster; directory and coordinator are unchanged then.
    """
    file = data_dir / CLUSTER_FILE
    known = _read_cluster_id(file)
    found = coordinator.identity(create=known is None)
    if known is not None and found != known:
        what = "was never created there" if found is None else f"has the id {found}"
        raise Refused(
            f"{data_dir} belongs to another cluster (id {known}): the cluster {name!r} {what}",
            hint=_EMPTIED if found is None else _OTHER,
        )
    if found is None:
        raise Refused(f"the cluster {name!r} was removed while this broker joined it", hint="start it again")
    if known is None:
        _write_cluster_id(file, encode_identity(found))
    return found


def _read_cluster_id(file: Path) -> str | None:
    """Return the cluster's id from a file, None if there is no file. Raises ConfigError."""
    try:
        with file.open("rb") as stream:
            return decode_identity(str(file), stream.read(VALUE_BYTES_MAX + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def _write_cluster_id(file: Path, content: bytes) -> None:
    """Write the cluster's id to a file, durably and atomically."""
    new = file.with_name(f"{file.name}.new")
    with new.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


#: A store restored from a backup younger than this is not detected.
NOTE_EVERY_S = 5.0
WAIT_S = 60.0
TRIES_MAX = 5
WAY_OUT = "start it with the others, wait until `venus cluster status` shows it in sync, stop all, and repeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """Identity of a store. `store` is drawn once; `cluster` is the id of its cluster, empty = none.

    `terms`, for a store that left a cluster, has the term in which each business continues alone. A new term
    distinguishes entries of the business from those that other brokers may still have under the same index.
    """

    store: str
    cluster: str = ""
    terms: dict[str, int] = field(default_factory=dict)


def read_identity(core: Core) -> StoreIdentity | None:
    """Read the identity of the store; None = it was never in a cluster."""
    value = core.store.get(keys.STATE, keys.MEMBER)
    return None if value is None else StoreIdentity(**json.loads(value))


def write_identity(core: Core, identity: StoreIdentity | None) -> None:
    """Store an identity durably; None = the store is in no cluster."""
    value = None if identity is None else json.dumps(asdict(identity)).encode()
    core.commits.submit(lambda group: group.stage(keys.STATE, keys.MEMBER, value, durable=True)).result(WAIT_S)


def enroll_store(
    core: Core, coordinator: Coordinator, cluster: str, broker: str, wanted: ReplicaPlacement
) -> tuple[Member, set[str]]:
    """Make a store a member of a cluster and record its businesses. Return the member and the newly recorded ones.

    A store that was set back to an older state becomes a new member.

    Raises Unavailable, or Refused if the cluster has a business of the same name with another history.
    """
    known = read_identity(core)
    if known is not None and known.cluster not in ("", cluster):
        raise Refused(
            f"{core.data_dir} belongs to another cluster (id {known.cluster})",
            hint="correct broker.data_dir, [cluster] name or etcd; `venus cluster dissolve` takes data out",
        )
    if known is None:
        known = StoreIdentity(store=uuid.uuid4().hex)
        write_identity(core, known)
    elif was_set_back(core, coordinator, known.store):
        known = replace(known, store=uuid.uuid4().hex)
        write_identity(core, known)
    me = Member(broker=broker, store=known.store)
    if known.cluster == cluster:
        _remove_forgotten(core, coordinator, me)
        return me, set()
    leaderships = {found.business: found for found in coordinator.leaderships()}
    for business in core.catalogue.list_stored():
        if business.name in leaderships and me not in leaderships[business.name].candidates:
            raise Refused(
                f"this store and the cluster both have a business {business.name!r}, each with its own history",
                hint="give this broker an empty broker.data_dir, or forget the business on one side first",
            )
    created = set[str]()
    for business in core.catalogue.list_stored():
        if business.name not in leaderships:
            coordinator.create(wanted.joining_record(business.name, me, business.log.terms.newest + 1))
            created.add(business.name)
    write_identity(core, StoreIdentity(store=known.store, cluster=cluster))
    return me, created


def _remove_forgotten(core: Core, coordinator: Coordinator, me: Member) -> None:
    """Remove businesses that the cluster forgot in this broker's absence, even if it has new ones of their names."""
    leaderships = {found.business: found for found in coordinator.leaderships()}
    for business in core.catalogue.list_stored():
        found = leaderships.get(business.name)
        if found is not None and me in found.candidates:
            continue
        if coordinator.last_forgotten_term(business.name) >= business.log.terms.newest > 0:
            logger.info("%s: the cluster has forgotten it; removing this broker's data of it", business.name)
            core.forget_business(business.name)


def continue_alone(core: Core, identity: StoreIdentity) -> None:
    """Begin a new term in each business of a store that left a cluster, once."""
    for business in core.catalogue.list_stored():
        term = max(identity.terms.get(business.name, 0), business.log.terms.newest + 1)
        begin = partial(
            shared_log.begin_term, business=business, term=term, leader=identity.store, at_us=core.clock_us()
        )
        core.commits.submit(begin).result(WAIT_S)
    write_identity(core, None)


def was_set_back(core: Core, coordinator: Coordinator, store: str) -> bool:
    """Whether a store lacks writes that the coordinator remembers. Raises Unavailable."""
    had, has = coordinator.newest_write(store), core.store.opened_at
    if has >= had:
        return False
    logger.error(
        "%s is older than it was: it ends at write %d and had write %d on disk. It was restored from a backup, or is "
        "a copy: this broker is another member of its cluster now, and installs or fetches what it lacks",
        core.data_dir,
        has,
        had,
    )
    return True


class NewestWriteSaver:
    """Stores the sequence number of the newest durable write at the coordinator. Runs in the service's event loop."""

    def __init__(self, core: Core, coordination: CoordinatorThread, store: str, monotonic: Callable[[], float]) -> None:
        self._core, self._coordination, self._store, self._monotonic = core, coordination, store, monotonic
        self._noted, self._at = 0, float("-inf")

    def tick(self) -> None:
        """Store the number of the newest durable write at the coordinator, if it is time."""
        now, synced = self._monotonic(), self._core.store.synced
        if synced > self._noted and now - self._at >= NOTE_EVERY_S:
            self._noted, self._at = synced, now
            self._coordination.save_newest_write(self._store, synced)


@dataclass(frozen=True, slots=True, kw_only=True)
class DissolveResult:
    """Result of taking a store out of its cluster; `member` None = the store was in no cluster."""

    member: Member | None
    businesses: tuple[str, ...]


def dissolve(data_dir: Path, broker: str, coordinator: Coordinator | None) -> DissolveResult:
    """Take a store that no broker uses out of its cluster. Without `coordinator`, data that the store lacks is lost.

    Raises ConfigError, Refused, Unavailable; the store is unchanged then.
    """
    if not (data_dir / "db").is_dir():
        raise ConfigError(f"{data_dir} has no broker's data", hint="correct broker.data_dir")
    with closing(Store(data_dir / "db")) as store:
        value = store.get(keys.STATE, keys.MEMBER)
        identity = None if value is None else StoreIdentity(**json.loads(value))
        if (identity is None or not identity.cluster) and not (data_dir / CLUSTER_FILE).exists():
            return DissolveResult(member=None, businesses=_remove_records(coordinator, broker, None))
        member = Member(broker=broker, store=identity.store if identity is not None else "none")
        if coordinator is not None and store.opened_at < coordinator.newest_write(member.store):
            raise Refused(f"{data_dir} is older than it was: it was restored from a backup, or is a copy", hint=WAY_OUT)
        terms = {} if coordinator is None else _exclude_others(coordinator, member, _find_unfinished(store))
        alone = StoreIdentity(store=member.store, terms=terms)
        batch = store.batch()
        batch.put(keys.STATE, keys.MEMBER, json.dumps(asdict(alone)).encode())
        store.write(batch, durable=True)
    (data_dir / CLUSTER_FILE).unlink(missing_ok=True)
    return DissolveResult(member=member, businesses=_remove_records(coordinator, broker, member))


def build_refusal(
    known: Leadership, member: Member, living: Collection[LiveBroker], unfinished: Collection[str]
) -> Refused | None:
    """Return why a member must not continue alone with a business; None = it may."""
    others = sorted(one.member.broker for one in living)
    if others:
        return Refused(
            f"brokers of the cluster are alive: {', '.join(others)}", hint="stop every broker, the one that stays last"
        )
    if member in known.candidates and known.business not in unfinished:
        return None
    able = ", ".join(sorted(one.broker for one in known.candidates)) or "none"
    return Refused(
        f"this replica of {known.business} is not known to be complete; complete replicas: {able}",
        hint=f"{WAY_OUT}; or dissolve at one of those",
    )


def _exclude_others(coordinator: Coordinator, member: Member, unfinished: Collection[str]) -> dict[str, int]:
    """Exclude every other leader of every business; return the terms in which the member continues."""
    terms = {}
    living = coordinator.brokers()
    leaderships = coordinator.leaderships()
    if coordinator.invalid:
        raise Refused(f"a record of the cluster cannot be read: {coordinator.invalid[0]}", hint="put it right first")
    for known in leaderships:  # check all of them before the first change
        if (refused := build_refusal(known, member, living, unfinished)) is not None:
            raise refused
    for known in leaderships:
        alone = replace(
            known,
            term=known.term + 1,
            leader=None,
            in_sync=frozenset({member}),
            last_in_sync=frozenset(),
            replicas=(member.broker,),
            min_in_sync=1,
            replicas_wanted=1,
            successor="",
            leaving=(),
        )
        if coordinator.swap(known, alone) is None:
            raise Unavailable(f"the record of {known.business} has changed", hint="is every broker stopped? Try again")
        terms[known.business] = alone.term
    return terms


def _remove_records(coordinator: Coordinator | None, broker: str, member: Member | None) -> tuple[str, ...]:
    """Remove the records of businesses that only this broker may lead."""
    if coordinator is None or any(one.member.broker == broker for one in coordinator.brokers()):
        return ()
    own = [
        known
        for known in coordinator.leaderships()
        if known.leader is None and known.replicas == (broker,) and member in (None, *known.in_sync)
    ]
    for known in own:
        if not coordinator.remove(known):
            raise Unavailable(f"the record of {known.business} has changed", hint="repeat the command")
    return tuple(known.business for known in own)


def _find_unfinished(store: Store) -> set[str]:
    """Return the businesses whose installation is unfinished."""
    found = store.scan_prefix(keys.STATE, keys.INSTALLING)
    return {key.removeprefix(keys.INSTALLING).decode() for key, _ in found}
