"""Operators' changes of a business's replicas, leader and policy, and a cluster's problems that need an operator. Pure.

Most changes are requests in the record, which leaders carry out (venus/broker/replicas/host.py). So an
operator's command may end at any moment, and repeating it is harmless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Protocol

from venus.errors import ConfigError, Refused, Unavailable
from venus.replication.records import Leadership, LiveBroker, Member, Policy
from venus.text.formatting import suggest_nearest

#: Maximum number of attempts while brokers change the record concurrently.
TRIES_MAX = 5


def request_leader(known: Leadership, broker: str, living: Collection[LiveBroker]) -> Leadership:
    """Return the record with the request that `broker` leads. Raises Refused, ConfigError."""
    business = known.business
    if known.leader is not None and known.leader.broker == broker:
        return replace(known, successor="")
    _check_replica(known, broker)
    if known.leader not in {one.member for one in living}:
        raise Refused(
            f"{business} has no leader that could hand over",
            hint="an election takes seconds; `venus cluster status` names the brokers it needs if it does not end",
        )
    if broker not in _in_sync(known, living):
        raise Refused(
            f"broker {broker} is not in sync for {business}: it cannot lead yet",
            hint="wait until `venus cluster status` shows it in sync",
        )
    if _find_broker(broker, living).draining:
        raise Refused(f"broker {broker} is draining", hint=f"`venus cluster drain {broker} --undo` ends that")
    return replace(known, successor=broker)


def move_replica(known: Leadership, source: str, target: str, living: Collection[LiveBroker]) -> Leadership:
    """Return the record in which `target` gets the replica that `source` has. Raises Refused, ConfigError."""
    if target in known.replicas and source not in known.replicas:
        return known  # it was moved already
    _check_replica(known, source)
    if target in known.replicas and source in known.leaving:
        return known  # the move is in progress
    if target in known.replicas:
        raise Refused(
            f"broker {target} has a replica of {known.business} already",
            hint=f"`venus cluster remove {source} --business {known.business}` takes one away without a substitute",
        )
    _check_target(target, living)
    return replace(known, replicas=(*known.replicas, target), leaving=(*known.leaving, source))


def add_replica(known: Leadership, broker: str, living: Collection[LiveBroker], wanted: int) -> Leadership:
    """Return the record with a replica at `broker`; `wanted` is `[cluster] replicas`. Raises Refused."""
    stay = known.staying_replicas
    if broker in stay:
        return known
    _check_target(broker, living)
    replicas = known.replicas if broker in known.replicas else (*known.replicas, broker)
    after = replace(known, replicas=replicas, leaving=tuple(name for name in known.leaving if name != broker))
    return replace(after, replicas_wanted=max(known.replicas_wanted or wanted, len(stay) + 1))


def remove_replica(known: Leadership, broker: str, living: Collection[LiveBroker], *, fewer: bool) -> Leadership:
    """Return the record without the replica of `broker`; `fewer`: without a substitute.

    Raises Refused if the remaining replicas are fewer than the policy needs.
    """
    if broker not in known.replicas:
        return known
    stay = tuple(name for name in known.replicas if name != broker)
    ready = [name for name in stay if name in _in_sync(known, living)]
    needed = known.min_in_sync if known.policy is Policy.CONSISTENCY else 1
    if len(ready) < needed:
        others = ", ".join(ready) or "none"
        raise Refused(
            f"{known.business} needs {needed} replicas in sync, and without broker {broker} there would be "
            f"{len(ready)} ({others})",
            hint=f"give it another one first: `venus cluster add BROKER --business {known.business}`; "
            "to continue with one broker alone: `venus cluster dissolve`",
        )
    after = replace(known, replicas=stay, leaving=(), successor="" if known.successor == broker else known.successor)
    return replace(after, replicas_wanted=len(stay)) if fewer else after


def keep_replica(known: Leadership, broker: str) -> Leadership:
    """Return the record without the request to remove the replica of `broker`."""
    return replace(known, leaving=tuple(name for name in known.leaving if name != broker))


def check_broker(broker: str, names: Collection[str]) -> None:
    """Raise ConfigError for an unknown broker."""
    if broker not in names:
        raise ConfigError(
            f"the cluster has no broker {broker!r}{suggest_nearest(broker, sorted(names))}",
            hint=f"known: {', '.join(sorted(names)) or 'none'}",
        )


def is_drained(known: Leadership, broker: str, living: Collection[LiveBroker]) -> bool:
    """Whether a broker can be stopped without refused writes, and has no replica that another broker could have."""
    spare = [one for one in living if not one.draining and one.member.broker not in known.replicas]
    if known.leader is not None and known.leader.broker == broker:
        return False
    if broker in known.replicas and (spare or broker in known.leaving):
        return False
    in_sync = _in_sync(known, living) - {broker}
    return known.leader is not None and len(in_sync) >= known.min_in_sync


def check_drain(known: Leadership, broker: str, living: Collection[LiveBroker]) -> None:
    """Raise Refused if the cluster could never do without a broker, however long the operator waits."""
    spare = [one for one in living if not one.draining and one.member.broker not in (*known.replicas, broker)]
    rest = _in_sync(known, living) - {broker}
    if spare or len(rest) >= known.min_in_sync:
        return
    raise Refused(
        f"without broker {broker}, {known.business} would have {len(rest)} of the {known.min_in_sync} replicas in sync "
        "that a write needs",
        hint="start one more broker, or wait until the others are in sync (`venus cluster status`)",
    )


def has_too_few_replicas(known: Leadership, wanted: int) -> bool:
    """Whether a business has too few replicas; `wanted` is `[cluster] replicas`."""
    return len(known.staying_replicas) < (known.replicas_wanted or wanted)


def pending_requests(known: Leadership, living: Collection[LiveBroker]) -> list[str]:
    """Return an operator's requests that are not carried out yet, and why."""
    in_sync, said = _in_sync(known, living), []
    if known.leaving:
        late = [name for name in known.staying_replicas if name not in in_sync]
        why = f"once {', '.join(late)} {'is' if len(late) == 1 else 'are'} in sync" if late else "now"
        said.append(f"the replica at {', '.join(known.leaving)} is taken away {why}")
    if known.successor:
        said.append(f"it is handed over to {known.successor}")
    return said


def _in_sync(known: Leadership, living: Collection[LiveBroker]) -> set[str]:
    """Return the living brokers that are in sync."""
    members: set[Member] = {one.member for one in living}
    return {member.broker for member in known.in_sync & members}


def _find_broker(broker: str, living: Collection[LiveBroker]) -> LiveBroker:
    return next(one for one in living if one.member.broker == broker)


def _check_replica(known: Leadership, broker: str) -> None:
    """Raise ConfigError if a broker has no replica of the business."""
    if broker not in known.replicas:
        raise ConfigError(
            f"broker {broker!r} has no replica of {known.business}{suggest_nearest(broker, list(known.replicas))}",
            hint=f"it has replicas at {', '.join(known.replicas)}; `venus cluster add` gives it one",
        )


def _check_target(broker: str, living: Collection[LiveBroker]) -> None:
    """Raise Refused if a broker cannot get a replica."""
    names = {one.member.broker for one in living}
    if broker not in names:
        raise Refused(
            f"broker {broker!r} is not alive{suggest_nearest(broker, sorted(names))}",
            hint=f"start it first; alive: {', '.join(sorted(names)) or 'none'}",
        )
    if _find_broker(broker, living).draining:
        raise Refused(f"broker {broker} is draining", hint=f"`venus cluster add {broker}` lets it take part again")


def find_problems(leaderships: Collection[Leadership], living: Collection[LiveBroker]) -> list[str]:
    """Return one line for each problem of a business."""
    members = {broker.member for broker in living}
    return [line for leadership in leaderships for line in _problems_of(leadership, members)]


def _problems_of(business: Leadership, living: Collection[Member]) -> Iterator[str]:
    """Yield what is wrong with one business: its leader, its in-sync set, possible losses."""
    name = business.business
    candidates = sorted(map(str, business.candidates & set(living)))
    if business.leader is None or business.leader not in living:
        what = "has no leader" if business.leader is None else f"is led by {business.leader.broker}, which is not alive"
        if candidates:
            yield f"{name} {what}: {', '.join(candidates)} can take over within seconds"
        else:
            needed = ", ".join(sorted(map(str, business.candidates)))
            yield f"{name} {what}, and no complete replica is alive: start one of {needed}"
    in_sync = len(business.in_sync & set(living))
    if in_sync < business.min_in_sync:
        what = f"{name} has {in_sync} of the {business.min_in_sync} replicas in sync that a write needs"
        refused = business.policy is Policy.CONSISTENCY
        yield f"{what}: writes are {'refused' if refused else 'acknowledged without them'} until one more has caught up"
    behind = [broker for broker in business.replicas if broker not in {member.broker for member in business.in_sync}]
    if behind:
        yield f"{name} is not in sync at {', '.join(behind)}"
    if business.unclean_terms:
        windows = {window.term: str(window) for window in business.losses}
        for term in business.unclean_terms:
            what = windows.get(term, "changes that were acknowledged before it")
            yield f"{name}: the unclean election of term {term} may have lost {what}: `venus verify --repair` closes it"


class RecordStore(Protocol):
    """The part of a coordinator that a policy change needs."""

    def leaderships(self) -> tuple[Leadership, ...]: ...

    def read(self, business: str) -> Leadership | None: ...

    def swap(self, before: Leadership, after: Leadership) -> Leadership | None: ...


def with_policy(known: Leadership, policy: Policy, min_in_sync: int = 0) -> Leadership:
    """Return the record under another policy; `min_in_sync` 0 = a majority of its replicas for CONSISTENCY, else one.

    The members that left the in-sync set last stay known as complete only if nothing could be acknowledged without
    them.
    """
    majority = max(len(known.replicas), 1) // 2 + 1
    wanted = min_in_sync or (majority if policy is Policy.CONSISTENCY else 1)
    stuck = len(known.in_sync) < min(known.min_in_sync, wanted)
    last = known.last_in_sync if stuck else frozenset()
    return replace(known, policy=policy, min_in_sync=wanted, last_in_sync=last, min_in_sync_wanted=0)


def change_policy(
    records: RecordStore, business: str, policy: Policy, min_in_sync: int = 0
) -> tuple[Leadership, Leadership]:
    """Change the policy of a business; return the record before and after.

    Raises ConfigError if the business does not exist; Unavailable if etcd does not answer or the record keeps changing.
    """
    for _ in range(TRIES_MAX):
        known = records.read(business)
        if known is None:
            names = sorted(found.business for found in records.leaderships())
            raise ConfigError(
                f"the cluster has no business {business!r}{suggest_nearest(business, names)}",
                hint=f"it has: {', '.join(names) or 'none yet'}",
            )
        after = with_policy(known, policy, min_in_sync)
        stored = known if after == known else records.swap(known, after)
        if stored is not None:
            return known, stored
    raise Unavailable(f"the record of {business} keeps changing", hint="try again")
