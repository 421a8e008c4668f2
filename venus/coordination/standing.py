"""What of a cluster needs somebody, as the coordinator knows it: sentences for status, one for each problem."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from venus.replication.records import Leadership, LiveBroker, Member, Policy


def problems(leaderships: Collection[Leadership], living: Collection[LiveBroker]) -> list[str]:
    """Return one line for each thing that is not as it shall be."""
    members = {broker.member for broker in living}
    return [line for leadership in leaderships for line in _of(leadership, members)]


def _of(business: Leadership, living: Collection[Member]) -> Iterator[str]:
    name = business.business
    candidates = sorted(map(str, business.candidates & set(living)))
    if business.leader is None or business.leader not in living:
        who = "has no leader" if business.leader is None else f"is led by {business.leader.broker}, which is not alive"
        if candidates:
            yield f"{name} {who}: {', '.join(candidates)} can take over within seconds"
        else:
            needed = ", ".join(sorted(map(str, business.candidates)))
            yield f"{name} {who}, and nobody who has everything is alive: start one of {needed}"
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
