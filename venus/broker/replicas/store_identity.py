"""Identity of a store: which member of which cluster it is. A broker with another store is another member.

A data directory that is restored from a backup, or copied, contains its own witness (venus/broker/store/witness.py), so
it cannot detect that it is older. The cluster would still treat it as the member that has everything, and it could lead
without what was acknowledged since. So each broker stores the sequence number of its newest durable write at the
coordinator every few seconds. A store that returns with a lower one becomes a new member: it follows, and counts once
it has caught up.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from venus.broker.core import Core
from venus.broker.pipeline import replica_commands
from venus.broker.pipeline.group import CommandGroup
from venus.broker.replicas.coordinator_thread import CoordinatorThread
from venus.broker.replicas.placement import ReplicaPlacement
from venus.broker.store import keys
from venus.errors import Refused
from venus.replication.coordinator import Coordinator
from venus.replication.records import Member

logger = logging.getLogger(__name__)

#: A store restored from a backup younger than this is not detected.
NOTE_EVERY_S = 5.0
WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIdentity:
    """Identity of a store. `store` is drawn once; `cluster` is the id of its cluster, empty = none.

    `terms`, for a store that left a cluster, has the term in which each business continues alone. A new term
    distinguishes its entries from those that other brokers may still have under the same index.
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

    def work(group: CommandGroup) -> None:
        group.stage(keys.STATE, keys.MEMBER, value)
        group.durable = True

    core.commits.submit(work).result(WAIT_S)


def enroll_store(
    core: Core, coordinator: Coordinator, cluster: str, broker: str, wanted: ReplicaPlacement
) -> tuple[Member, set[str]]:
    """Make a store a member of a cluster and create records of its businesses. Return the member and these businesses.

    A store that is older than it was becomes a new member.

    Raises Refused if the cluster has a business of the same name with another history; Unavailable.
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
    """Remove businesses that the cluster has forgotten in this broker's absence, even if they exist again."""
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
            replica_commands.begin_term, business=business, term=term, leader=identity.store, at_us=core.clock_us()
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
        core.data_dir, has, had,
    )  # fmt: skip
    return True


class NewestWriteSaver:
    """Stores the newest write at the coordinator. Runs in the service's event loop."""

    def __init__(self, core: Core, coordination: CoordinatorThread, store: str, monotonic: Callable[[], float]) -> None:
        self._core, self._coordination, self._store, self._monotonic = core, coordination, store, monotonic
        self._noted, self._at = 0, float("-inf")

    def tick(self) -> None:
        """Store the newest durable write, if it is time."""
        now, synced = self._monotonic(), self._core.store.synced
        if synced > self._noted and now - self._at >= NOTE_EVERY_S:
            self._noted, self._at = synced, now
            self._coordination.save_newest_write(self._store, synced)
