"""A business gets another policy while it is in use: one swap of its record, which its brokers see within a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from venus.errors import ConfigError, Unavailable
from venus.replication.records import Leadership, Policy
from venus.suggest import nearest

#: How often the record is read again when a broker was faster.
TRIES_MAX = 5


class Records(Protocol):
    """What is needed of a coordinator."""

    def leaderships(self) -> tuple[Leadership, ...]: ...

    def read(self, business: str) -> Leadership | None: ...

    def swap(self, before: Leadership, after: Leadership) -> Leadership | None: ...


def switched(known: Leadership, policy: Policy, min_in_sync: int = 0) -> Leadership:
    """Return the record under another policy; `min_in_sync` 0 = the majority of its replicas, or one.

    Who left last is known to have everything only as long as nothing could be acknowledged without them.
    """
    majority = max(len(known.replicas), 1) // 2 + 1
    wanted = min_in_sync or (majority if policy is Policy.CONSISTENCY else 1)
    stuck = len(known.in_sync) < min(known.min_in_sync, wanted)
    last = known.last_in_sync if stuck else frozenset()
    return replace(known, policy=policy, min_in_sync=wanted, last_in_sync=last, min_in_sync_wanted=0)


def switch(records: Records, business: str, policy: Policy, min_in_sync: int = 0) -> tuple[Leadership, Leadership]:
    """Change the policy of a business; return the record before and after.

    Raises ConfigError if there is no such business; Unavailable if etcd does not answer or the record keeps changing.
    """
    for _ in range(TRIES_MAX):
        known = records.read(business)
        if known is None:
            names = sorted(found.business for found in records.leaderships())
            raise ConfigError(
                f"the cluster has no business {business!r}{nearest(business, names)}",
                hint=f"it has: {', '.join(names) or 'none yet'}",
            )
        after = switched(known, policy, min_in_sync)
        stored = known if after == known else records.swap(known, after)
        if stored is not None:
            return known, stored
    raise Unavailable(f"the record of {business} keeps changing", hint="try again")
