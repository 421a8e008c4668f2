"""State machine of one replica of one business: `step(event, now) -> effects`.

The two roles, leading and following, have a file each. This one dispatches events, handles records of the coordinator,
and runs elections. Deterministic: no clock, no thread, no randomness.

The rules, each of which a test of the simulation disables:

1. A replica ignores a record older than the one it knows.
2. A replica leads only in a term that began after its process did: a restarted leader needs a new term, because other
   disks may have entries that it had sent but not stored.
3. A member is a broker *with its store*: one that lost its disk is no longer in the in-sync set.

A ballot promises nothing: the next leader had everything that was acknowledged when the record was swapped, and later
acknowledgements need a fetch by it as well (docs/explanation/replication.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from venus.replication import messages as m
from venus.replication.following import Elections, Following
from venus.replication.leading import Leading
from venus.replication.position import LogChanged, Position, ReplicationTimes
from venus.replication.records import Ballot, Leadership, LiveBroker, Member, Policy

_Handler: TypeAlias = Callable[["Replica", Any, float], list[m.Effect]]


class Replica:
    """State of one replica. `position` is that of its log; `high` is the newest index known to be safe."""

    def __init__(self, me: Member, position: Position, *, patience: ReplicationTimes, begins: bool = False) -> None:
        self.me = me
        self.position = position
        self.patience = patience
        self.known: Leadership | None = None
        self.live: dict[Member, LiveBroker] | None = None  # None = never read
        self._live_is_newer = False  # whether `live` was read after the known record
        self.healthy = True
        self.lease_until = m.NO_LEASE
        self._floor: int | None = (
            0 if begins else None
        )  # the newest term that may have had a leader before this process
        self._role: Leading | Following | None = None
        self._elections = Elections(me, patience)

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def high(self) -> int:
        """The high watermark, as far as it is known here."""
        return self.position.high

    @property
    def leads(self) -> bool:
        """Whether this replica is the leader, as far as it knows."""
        return isinstance(self._role, Leading)

    @property
    def catches_up(self) -> bool:
        """Whether this replica follows and is not in sync, as far as it knows."""
        return isinstance(self._role, Following) and self.known is not None and self.me not in self.known.in_sync

    @property
    def leading(self) -> Leading | None:
        """The state of the leader role; None = this replica does not lead."""
        return self._role if isinstance(self._role, Leading) else None

    def refusal(self, now: float) -> str:
        """Return why writes are refused here now; empty = they are accepted."""
        if not isinstance(self._role, Leading) or self.known is None:
            return "another broker leads" if self.known and self.known.leader else "no broker leads"
        if self._role.handing_over:
            return "another broker is about to lead"
        inside, wanted = len(self.known.in_sync), self.known.min_in_sync
        if inside < wanted:
            return f"{inside} of {len(self.known.replicas)} replicas are in sync, {wanted} are needed"
        if not self._may_acknowledge(now):
            return "the coordinator does not answer, so another broker may lead by now"
        return ""

    # -- the machine -----------------------------------------------------------------------------------------------

    def step(self, event: m.Event, now: float) -> list[m.Effect]:
        """Handle one event; return the effects to carry out, in order."""
        effects: list[m.Effect] = _HANDLERS[type(event)](self, event, now)
        return effects

    def _on_record(self, event: m.RecordRead, now: float) -> list[m.Effect]:
        """Handle a record of the business from the coordinator; an older one is ignored."""
        known, leadership = self.known, event.leadership
        if known is not None and leadership.version <= known.version:
            return []
        if self._floor is None:
            self._floor = leadership.term
        self.known = leadership
        self._live_is_newer = False
        if known is not None and known.term == leadership.term:
            if isinstance(self._role, Leading):
                self._role.on_record(leadership)
            elif isinstance(self._role, Following):
                return self._role.on_record(leadership, now, counts=self.me in leadership.in_sync)
            return self._advance(now)
        self._elections.cancel()
        return self._take_role(leadership, now)

    def _take_role(self, known: Leadership, now: float) -> list[m.Effect]:
        """Begin the role that a record of a new term gives this replica."""
        retiring: list[m.Effect] = [m.Retire(leader=known.leader)] if self.leads else []
        if self.leads and known.leader is None:
            self._elections.stand_back(now)
        self._role = None
        if known.leader is None:
            return retiring
        if known.leader == self.me:
            assert self._floor is not None
            newest = max(self._floor, self.position.terms.newest)
            if known.term <= newest or not self.position.whole:
                return retiring
            stays_until = self._elections.stays_until
            self._role = Leading(self.me, self.position, known, self.patience, now, stays_until=stays_until)
            return [m.Lead(term=known.term), *self._advance(now)]
        self._role = Following(self.position, known.leader, known, self.patience)
        return [*retiring, *self._role.begin(now)]

    def _on_log_changed(self, event: LogChanged, now: float) -> list[m.Effect]:
        """Record the state of the log, then let the role continue."""
        self.position.update(event)
        if isinstance(self._role, Leading):
            return [*self._advance(now), *self._role.on_log_changed(now)]
        return self._role.on_log_changed(now) if isinstance(self._role, Following) else []

    def _on_installed(self, event: m.CopyInstalled, now: float) -> list[m.Effect]:
        """Handle an installed copy: the log now begins after it."""
        if self.position.whole:
            return []  # a cancelled installation
        self.position.whole = True
        self.position.high = event.log.end - 1
        return self._on_log_changed(event.log, now)

    def _on_brokers(self, event: m.BrokersRead, now: float) -> list[m.Effect]:
        """Record the living brokers, then do the periodic work at once."""
        self.live = dict(event.brokers)
        self._elections.ranks = event.ranks
        self._live_is_newer = True
        return self._on_tick(m.Tick(), now)

    def _on_lease(self, event: m.LeaseChanged, now: float) -> list[m.Effect]:
        """Record the end of this broker's lease; a leader whose lease had lapsed must confirm its record."""
        lapsed = self.lease_until <= now
        self.lease_until = event.until if event.until == m.NO_LEASE else max(self.lease_until, event.until)
        if lapsed and isinstance(self._role, Leading):
            self._role.on_lease_gap()
        return self._advance(now)

    def _on_fetch_reply(self, event: m.FetchReply, now: float) -> list[m.Effect]:
        """Pass the leader's reply to the follower role; ignore it if this replica does not follow."""
        return self._role.on_fetch_reply(event, now) if isinstance(self._role, Following) else []

    def _on_ballot(self, event: m.BallotReceived, now: float) -> list[m.Effect]:
        """Pass a ballot to the election that this replica runs."""
        if self.known is None or self.live is None or not self._live_is_newer:
            return []
        return self._elections.on_ballot(event, self.known, self.live, now)

    def _on_hand_over(self, event: m.HandOverRequest, now: float) -> list[m.Effect]:
        """Begin to hand the leadership over, if this replica leads."""
        return self._role.hand_over(event.to, now) if isinstance(self._role, Leading) else []

    def _on_fetch(self, event: m.FetchRequest, now: float) -> list[m.Effect]:
        """Handle a follower's fetch; refuse it if this replica does not lead in its term."""
        known = self.known
        if not isinstance(self._role, Leading) or known is None or event.term != known.term:
            newest = known.term if known is not None else 0
            refusal = m.SendReply(to=event.sender, answer=m.NotLeading(term=newest))
            return [refusal, m.ReadRecords()] if event.term > newest else [refusal]
        effects = self._role.on_fetch(event, now)
        return [*self._advance(now), *effects]

    def _on_ballot_request(self, event: m.BallotRequest, now: float) -> list[m.Effect]:
        """Send a ballot if the term is newer and this replica's data is complete."""
        newest = self.known.term if self.known is not None else 0
        if event.term <= newest or not self.position.whole:
            return []
        return [m.SendBallot(to=event.sender, term=event.term, ballot=self.make_ballot(now))]

    def make_ballot(self, now: float) -> Ballot:
        """Return a ballot with what this replica has on disk."""
        position = self.position
        end = position.durable_end
        return Ballot(
            member=self.me,
            last_term=position.terms.term_at(end - 1),
            end=end,
            high=position.high,
            healthy=self.healthy and not self._elections.is_standing_back(now),
        )

    def _on_swap_result(self, event: m.SwapResult, now: float) -> list[m.Effect]:
        """Handle the result of a swap: take over the stored record, or read the records again."""
        effects: list[m.Effect] = []
        if isinstance(self._role, Leading):
            self._role.on_swap_result(event)
        if event.stored is not None:
            effects += self._on_record(m.RecordRead(leadership=event.stored), now)
        else:
            effects.append(m.ReadRecords())
        return [*effects, *self._advance(now)]

    def _advance(self, now: float) -> list[m.Effect]:
        """Move the high watermark if this leader may acknowledge."""
        if not isinstance(self._role, Leading) or not self._may_acknowledge(now):
            return []
        effects = self._role.advance(now)
        if effects:
            self._elections.record_progress()
        return effects

    def _may_acknowledge(self, now: float) -> bool:
        """Whether this leader may acknowledge, which needs a valid lease if unclean elections are possible.

        Without unclean elections each acknowledgement needs every member that could lead next. So a leader that does
        not reach the coordinator may continue: the next leader stops fetching, and nothing is acknowledged then.
        """
        if not isinstance(self._role, Leading) or self.known is None:
            return False
        return self.known.policy is Policy.CONSISTENCY or (self._role.confirmed and now < self.lease_until)

    def _on_tick(self, _: m.Tick, now: float) -> list[m.Effect]:
        """Do the periodic work of the role and of elections."""
        known = self.known
        if known is None:
            return []
        effects: list[m.Effect] = []
        if isinstance(self._role, Leading):
            effects += self._role.tick(None if self.live is None else frozenset(self.live), now)
        elif isinstance(self._role, Following):
            effects += self._role.tick(now)
        return [*effects, *self._elect(known, now), *self._advance(now)]

    def _elect(self, known: Leadership, now: float) -> list[m.Effect]:
        """Run an election if no living broker leads.

        The living brokers must have been read after the record: a leader whose lease had ended has a newer record
        before it leads again, and an election on an older one fails.
        """
        if self.live is None or not self._live_is_newer:
            return []
        leader_lives = known.leader is not None and known.leader in self.live
        if self.leads or (leader_lives and known.leader != self.me):
            self._elections.cancel()
            return []
        if known.leader == self.me and not self.position.whole:
            return self._elections.resign(known, now)
        own = self.make_ballot(now) if self.position.whole else None
        return self._elections.tick(known, self.live, own, now)


_HANDLERS: dict[type, _Handler] = {
    m.RecordRead: Replica._on_record,
    m.BrokersRead: Replica._on_brokers,
    m.LeaseChanged: Replica._on_lease,
    LogChanged: Replica._on_log_changed,
    m.CopyInstalled: Replica._on_installed,
    m.FetchRequest: Replica._on_fetch,
    m.FetchReply: Replica._on_fetch_reply,
    m.BallotRequest: Replica._on_ballot_request,
    m.BallotReceived: Replica._on_ballot,
    m.SwapResult: Replica._on_swap_result,
    m.HandOverRequest: Replica._on_hand_over,
    m.Tick: Replica._on_tick,
}


def silence_refusal(replica: Replica, now: float, silent_s: float) -> str:
    """Return why a leader refuses writes that wait for a silent follower; empty = it accepts them, or still waits.

    The follower leaves the in-sync set once it has lagged for `lag_s`, if the coordinator accepts that change and
    enough members are left. Until then writers would wait without an answer. Proposals stay: they are acknowledged
    when the request is repeated, once the follower is back.
    """
    known, leading, position = replica.known, replica.leading, replica.position
    if known is None or leading is None or leading.handing_over is not None or position.end <= position.high + 1:
        return ""  # nothing waits
    silent = [
        member.broker
        for member, progress in leading.followers.items()
        if member in known.in_sync and now - max(progress.heard_at, progress.caught_up_at) > silent_s
    ]
    if not silent or len(known.in_sync) - len(silent) >= known.min_in_sync:
        return ""  # they leave the in-sync set soon
    names = ", ".join(sorted(silent))
    heard = len(known.in_sync) - len(silent)
    return (
        f"no answer from {names} for {silent_s:g} s: {heard} of {len(known.replicas)} replicas "
        f"{'are' if heard != 1 else 'is'} in sync without it, {known.min_in_sync} are needed"
    )
