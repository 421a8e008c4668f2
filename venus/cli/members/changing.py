"""How a command changes a record at the coordinator, and waits until the brokers have done it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from venus.errors import ConfigError, Unavailable
from venus.suggest import nearest

if TYPE_CHECKING:
    from venus.cli.output import Output
    from venus.coordination.etcd import EtcdCoordinator
    from venus.replication.records import Leadership, LiveBroker

TRIES_MAX = 20
LOOK_EVERY_S = 0.05
#: What is waited for is said so often.
SAY_EVERY_S = 5.0
SAFE = "it goes on by itself: `venus cluster status` shows how far it is; to repeat the command is safe"

Make = Callable[["Leadership", Collection["LiveBroker"]], "Leadership"]


def business(coordinator: EtcdCoordinator, name: str) -> Leadership:
    """Return the record of a business. Raises ConfigError, with a guess at what was meant."""
    found = coordinator.read(name)
    if found is None:
        known = [one.business for one in coordinator.leaderships()]
        raise ConfigError(
            f"the cluster has no business {name!r}{nearest(name, known)}", hint=f"it has {', '.join(known) or 'none'}"
        )
    return found


def change(coordinator: EtcdCoordinator, name: str, make: Make) -> Leadership:
    """Replace the record of a business by what `make` returns; nothing happens if that is the record itself."""
    for _ in range(TRIES_MAX):
        known = business(coordinator, name)
        after = make(known, coordinator.brokers())
        stored = known if after == known else coordinator.swap(known, after)
        if stored is not None:
            return stored
    raise Unavailable(f"the record of {name} keeps changing", hint="try again")


def wait(out: Output, seconds: float, look: Callable[[], list[str]]) -> float:
    """Return after how many seconds `look` had nothing more to wait for. Raises Unavailable when time is over."""
    began = said_at = time.monotonic()
    said = ""
    while waiting := look():
        now = time.monotonic()
        if now - began >= seconds:
            raise Unavailable(f"not done after {seconds:g} s: {'; '.join(waiting)}", hint=SAFE)
        text = "; ".join(waiting)
        if text != said and now - began > 1 and (not said or now - said_at > SAY_EVERY_S):
            said, said_at = text, now
            out.say(text)
        time.sleep(LOOK_EVERY_S)
    return time.monotonic() - began


def shown(known: Leadership) -> dict[str, object]:
    """Return a record as the commands answer it."""
    return {
        "business": known.business,
        "leader": None if known.leader is None else known.leader.broker,
        "term": known.term,
        "in_sync": sorted(member.broker for member in known.in_sync),
        "replicas": list(known.replicas),
    }
