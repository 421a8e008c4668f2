"""Which network a store belongs to: drawn once at the home, told to every mirror, and never changed there.

And which set it is, whatever that is called.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable

from venus.broker.core import Core
from venus.broker.pipeline.group import Group
from venus.broker.store import keys
from venus.rpc.limits import NETWORKS_MAX

WAIT_S = 60.0


def read(core: Core) -> tuple[str, ...]:
    """Return the ids of the network, none if the store was never told."""
    value = core.store.get(keys.STATE, keys.NETWORK)
    return tuple(json.loads(value)) if value is not None else ()


def of_home(core: Core, cluster: str = "") -> tuple[str, ...]:
    """Return the ids of a home's network; one is drawn the first time.

    That of its cluster is kept as well: mirrors may know the home by another broker, and a home that was replaced
    mirrors one of them.
    """
    drawn = () if read(core) else (uuid.uuid4().hex,)
    return remember(core, (*drawn, *([cluster] if cluster else [])))


def of_set(core: Core) -> str:
    """Return the id of this broker's set where it is alone: two sets of one name must not be taken for one."""
    value = core.store.get(keys.STATE, keys.SET)
    if value is not None:
        return str(json.loads(value))
    drawn = uuid.uuid4().hex

    def work(group: Group) -> None:
        group.stage(keys.STATE, keys.SET, json.dumps(drawn).encode())
        group.durable = True

    core.commits.submit(work).result(WAIT_S)
    return drawn


def remember(core: Core, ids: Iterable[str]) -> tuple[str, ...]:
    """Keep more ids of the network, on disk when this returns; return all of them: no more than a message may name."""
    known = read(core)
    found = tuple(dict.fromkeys([*known, *ids]))[: max(len(known), NETWORKS_MAX)]

    def work(group: Group) -> None:
        group.stage(keys.STATE, keys.NETWORK, json.dumps(found).encode())
        group.durable = True

    if found != known:
        core.commits.submit(work).result(WAIT_S)
    return found
