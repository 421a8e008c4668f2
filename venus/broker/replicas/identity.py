"""Which member of which cluster a store is: a broker that comes back with another store is another member."""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import asdict, dataclass

from venus.broker.core import Core
from venus.broker.pipeline.group import Group
from venus.broker.replicas.placement import Wanted
from venus.broker.store import keys
from venus.errors import Refused
from venus.replication.coordinator import Coordinator
from venus.replication.records import Member

logger = logging.getLogger(__name__)

WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`store` is drawn once; `cluster` is the id of the cluster in which its businesses are, empty = none yet."""

    store: str
    cluster: str = ""


def read(core: Core) -> Identity | None:
    """Return what the store says of itself; None = it was never in a cluster."""
    value = core.store.get(keys.STATE, keys.MEMBER)
    return None if value is None else Identity(**json.loads(value))


def write(core: Core, identity: Identity | None) -> None:
    """Keep an identity, on disk when this returns; None = the store is in no cluster any more."""
    value = None if identity is None else json.dumps(asdict(identity)).encode()

    def work(group: Group) -> None:
        group.stage(keys.STATE, keys.MEMBER, value)
        group.durable = True

    core.commits.submit(work).result(WAIT_S)


def enter(core: Core, coordinator: Coordinator, cluster: str, broker: str, wanted: Wanted) -> tuple[Member, set[str]]:
    """Make a store a member of a cluster, which is told of its businesses; return who it is and what it told.

    Raises Refused if the cluster has a business of the same name with another history; Unavailable.
    """
    known = read(core)
    if known is None or known.cluster not in ("", cluster):
        known = Identity(store=uuid.uuid4().hex)
        write(core, known)
    me = Member(broker=broker, store=known.store)
    if known.cluster == cluster:
        _forget(core, coordinator)
    if known.cluster == cluster:
        return me, set()
    leaderships = {found.business: found for found in coordinator.leaderships()}
    for business in core.catalogue.stored():
        if business.name in leaderships and me not in leaderships[business.name].candidates:
            raise Refused(
                f"this store and the cluster both have a business {business.name!r}, each with its own history",
                hint="give this broker an empty broker.data_dir, or forget the business on one side first",
            )
    told = set[str]()
    for business in core.catalogue.stored():
        if business.name not in leaderships:
            coordinator.create(wanted.first(business.name, me, (), business.log.terms.newest + 1))
            told.add(business.name)
    write(core, Identity(store=known.store, cluster=cluster))
    return me, told


def _forget(core: Core, coordinator: Coordinator) -> None:
    """Remove businesses that the cluster has forgotten while this broker was away."""
    leaderships = {found.business for found in coordinator.leaderships()}
    for business in core.catalogue.stored():
        if business.name not in leaderships and coordinator.forgotten(business.name) >= business.log.terms.newest > 0:
            logger.info("%s: the cluster has forgotten it; what this broker has of it is removed", business.name)
            core.forget_business(business.name)
