"""Choice of the next leader among the complete replicas (VENUS 3.1; Tensor IV-C).

Health only breaks ties inside the set: excluding sub-healthy brokers first, as Tensor does, loses acknowledged writes.
So does the scheduler's order (venus/replication/leaders.py): complete replicas have everything acknowledged, and may
differ by what was proposed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from venus.replication.in_sync import NEAR_ENTRIES
from venus.replication.records import Leadership, LiveBroker, Member, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """State of a replica's log on disk, as a candidate reports it."""

    member: Member
    last_term: int
    end: int
    high: int
    healthy: bool = True


def eligible_members(known: Leadership, live: Iterable[Member]) -> frozenset[Member]:
    """Return the members to request ballots from; empty = no member may lead now."""
    living = frozenset(live)
    clean = known.candidates & living
    if clean or known.policy is Policy.CONSISTENCY:
        return clean
    return frozenset(member for member in living if member.broker in known.replicas)


def explain_hindrance(known: Leadership, live: Iterable[Member]) -> str:
    """Return why writes are refused until a broker returns; empty = the living brokers can accept them."""
    living = frozenset(live)
    leads = known.leader is not None and known.leader in living
    if not leads and not eligible_members(known, living):
        missing = ", ".join(sorted({member.broker for member in known.candidates}))
        return f"no broker leads, and no complete replica is alive: {missing}"
    able = sum(member.broker in known.replicas or member == known.leader for member in living)
    if able < known.min_in_sync:
        return f"{able} of {len(known.replicas)} replicas are alive, {known.min_in_sync} are needed"
    return ""


def choose_leader(
    known: Leadership,
    ballots: Mapping[Member, Ballot],
    live: Mapping[Member, LiveBroker],
    ranks: Mapping[str, int],
) -> Leadership | None:
    """Return the leadership of the next term; None = no member may lead. `ranks` is the scheduler's order."""
    clean = [ballots[member] for member in known.candidates if member in ballots]
    if clean:
        end = max(ballot.end for ballot in clean) - NEAR_ENTRIES
        chosen = min(
            clean,
            key=lambda ballot: (
                *_suitability(ballot, live[ballot.member], end),
                ballot.member != known.leader,  # it was just named, or has restarted within its lease
                *_preference(ballot, live[ballot.member], ranks),
            ),
        )
    elif known.policy is Policy.AVAILABILITY and ballots:
        chosen = min(ballots.values(), key=lambda ballot: _unclean_order(ballot, live[ballot.member]))
    else:
        return None
    # above the terms of all logs: records may be lost if the coordinator was restored from a backup
    term = max([known.term, *(ballot.last_term for ballot in ballots.values())]) + 1
    rest = frozenset[Member]()
    if clean and known.min_in_sync > 1:  # a leader alone acknowledges nothing, so the others stay complete
        rest = known.candidates - {chosen.member}
    return replace(
        known,
        term=term,
        leader=chosen.member,
        in_sync=frozenset({chosen.member}),
        last_in_sync=rest,
        unclean_terms=known.unclean_terms if clean else (*known.unclean_terms, term),
    )


def _suitability(ballot: Ballot, broker: LiveBroker, near_end: int) -> tuple[bool, ...]:
    return broker.draining, not ballot.healthy, ballot.end < near_end


def _preference(ballot: Ballot, broker: LiveBroker, ranks: Mapping[str, int]) -> tuple[object, ...]:
    return ranks.get(ballot.member.broker, inf), -ballot.last_term, -ballot.end, broker.priority, ballot.member


def _unclean_order(ballot: Ballot, broker: LiveBroker) -> tuple[object, ...]:
    return (-ballot.last_term, -ballot.end, not ballot.healthy, broker.draining, broker.priority, ballot.member)
