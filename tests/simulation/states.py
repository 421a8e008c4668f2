"""Counts of rare states: a simulation that never reaches a state proves nothing about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from venus.replication.messages import Entries, Event, FetchReply, FetchRequest, LeaseChanged, LogsDiverge, RecordRead
from venus.replication.records import Leadership, Policy

if TYPE_CHECKING:
    from tests.simulation.host import Host

#: Histories reach each of them at least 100 times in 10,000.
RARE = (
    "acknowledged while another record was current",
    "an answer came that was not to the latest fetch",
    "elected from those who left last",
    "elected though the old leader may still lead",
    "election lost to another",
    "fail-over of a whole cluster",
    "fetched before the leader's term began in its log",
    "handed over",
    "hand-over given up",
    "leader changed while the log was about to change",
    "leader needed a new term",
    "log truncated",
    "minimum changed",
    "message delivered twice",
    "power loss that took a part",
    "power loss that took everything unsynced",
    "record older than the one known",
    "reinstalled after diverging",
    "reinstalled",
    "replicas changed",
    "swap that was lost",
    "swap that was refused",
    "swap without an answer that may have happened",
    "the leader's lease ended and began again",
    "unclean election",
    "unclean election that lost something",
)


def notice(host: Host, event: Event) -> None:
    """Count the rare states that an event reveals; called before the replica handles the event."""
    replica, counts = host.replica, host.loop.counts
    leading = replica.leading
    match event:
        case RecordRead():
            known = replica.known
            if known is not None and event.leadership.version < known.version:
                counts["record older than the one known"] += 1
            elif known is None or event.leadership.term > known.term:
                _name_states(host, event.leadership)
        case LeaseChanged() if leading is not None and replica.lease_until <= host.loop.now:
            counts["the leader's lease ended and began again"] += leading.known.policy is Policy.AVAILABILITY
        case FetchReply(answer=Entries(first=index)) | FetchReply(answer=LogsDiverge(index=index)):
            counts["an answer came that was not to the latest fetch"] += index != replica.position.end
        case FetchRequest() if leading is not None and replica.position.terms.newest < leading.known.term == event.term:
            counts["fetched before the leader's term began in its log"] += 1
        case _:
            pass


def _name_states(host: Host, record: Leadership) -> None:
    """Count rare states of a replica when a record names a new leader."""
    position, counts = host.replica.position, host.loop.counts
    if record.leader == host.me and not position.whole:
        counts["chosen while its installation was not done"] += 1
    if position.done < position.ordered or position.durable_end < position.end:
        counts["leader changed while the log was about to change"] += 1


def count_swap(host: Host, before: Leadership, after: Leadership, stored: Leadership | None) -> None:
    """Count the rare states that the coordinator's answer to a swap reveals."""
    counts = host.loop.counts
    if stored is None:
        counts["swap that was refused"] += 1
        counts["election lost to another"] += after.term > before.term
        return
    if after.term == before.term:
        return
    old = host.world.hosts[before.leader.broker] if before.leader is not None else None
    if before.leader == after.leader:
        counts["leader needed a new term"] += 1
    elif before.in_sync == after.in_sync:
        counts["handed over"] += 1
    else:
        counts["elected from those who left last"] += after.leader in before.last_in_sync
        counts["elected though the old leader may still lead"] += old is not None and old.up and old.replica.leads
