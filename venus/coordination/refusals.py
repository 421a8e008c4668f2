"""Who may have a broker's id: one rule and one sentence for every coordinator."""

from __future__ import annotations

from venus.errors import Fenced, Refused
from venus.replication.records import LiveBroker


def another_broker(living: LiveBroker, broker: LiveBroker) -> Refused | None:
    """Return what to tell `broker` if `living`, which has its id, is not itself as it was before a restart."""
    if living.member == broker.member and living.address == broker.address:
        return None
    if living.address != broker.address:
        what, way = f"at {living.address}", "give each broker an id of its own ([cluster] broker_id)"
    else:
        what = f"with another store ({living.member.store})"
        way = "its lease ends within seconds of its end; if its disk was replaced, start it again then"
    return Refused(f"another broker with the id {broker.member.broker} is alive, {what}", hint=way)


def replaced(broker: str) -> Fenced:
    """Return what to tell a process whose place another one has: they share id, address and store, and one may live."""
    return Fenced(
        f"another process has the id, the address and the data of broker {broker}, and was started after this one",
        hint="one of the two has a copy of the other's data directory: stop it for good; each broker needs its own",
    )
