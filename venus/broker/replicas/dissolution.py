"""Dissolution of a cluster: one broker continues alone, only with replicas that are known to be complete.

First the records exclude every other leader, then the store leaves the cluster, then the records are removed. So an
interrupted command can be repeated, and at no moment can two brokers accept writes. The broker continues in a new
term, so that entries on another broker's disk are never mistaken for the same history.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from venus.broker.replicas.store_identity import StoreIdentity
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.coordination.cluster_membership import FILE
from venus.errors import ConfigError, Refused, Unavailable
from venus.replication.coordinator import Coordinator
from venus.replication.records import Leadership, LiveBroker, Member

TRIES_MAX = 5
WAY_OUT = "start it with the others, wait until `venus cluster status` shows it in sync, stop all, and repeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class DissolveResult:
    """Result of a command; `member` None = the store was in no cluster."""

    member: Member | None
    businesses: tuple[str, ...]


def dissolve(data_dir: Path, broker: str, coordinator: Coordinator | None) -> DissolveResult:
    """Take a store out of its cluster; no broker may run on it. `coordinator` None: data that the store lacks is lost.

    Raises ConfigError, Refused, Unavailable; the store is unchanged then.
    """
    if not (data_dir / "db").is_dir():
        raise ConfigError(f"{data_dir} has no broker's data", hint="correct broker.data_dir")
    with closing(Store(data_dir / "db")) as store:
        value = store.get(keys.STATE, keys.MEMBER)
        identity = None if value is None else StoreIdentity(**json.loads(value))
        if (identity is None or not identity.cluster) and not (data_dir / FILE).exists():
            return DissolveResult(member=None, businesses=_remove_records(coordinator, broker, None))
        member = Member(broker=broker, store=identity.store if identity is not None else "none")
        if coordinator is not None and store.opened_at < coordinator.newest_write(member.store):
            raise Refused(f"{data_dir} is older than it was: it was restored from a backup, or is a copy", hint=WAY_OUT)
        terms = {} if coordinator is None else _exclude_others(coordinator, member, _find_unfinished(store))
        alone = StoreIdentity(store=member.store, terms=terms)
        batch = store.batch()
        batch.put(keys.STATE, keys.MEMBER, json.dumps(asdict(alone)).encode())
        store.write(batch, durable=True)
    (data_dir / FILE).unlink(missing_ok=True)
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
        f"this replica of {known.business} is not known to be complete; complete are: {able}",
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
            known, term=known.term + 1, leader=None, in_sync=frozenset({member}), last_in_sync=frozenset(),
            replicas=(member.broker,), min_in_sync=1, replicas_wanted=1, successor="", leaving=(),
        )  # fmt: skip
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
    found = store.scan_prefix(keys.STATE, keys.INSTALLING)
    return {key.removeprefix(keys.INSTALLING).decode() for key, _ in found}
