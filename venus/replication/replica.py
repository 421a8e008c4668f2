"""State machine of one replica of one business: `step(event, now) -> effects` (network.md 2; broker.md 2.10, 2.11).

The two roles, leading and following, have a file each. This one dispatches events, handles records of the coordinator,
and runs elections. Deterministic: no clock, no thread, no randomness.

The rules, each of which the simulation takes out once:

1. A replica ignores a record older than the one it knows.
2. A replica leads only in a term that began after its process did: a restarted leader needs a new term, because other
   disks may have entries that it had sent but not stored.
3. A member is a broker *with its store*: one that lost its disk is no longer in the in-sync set.

A ballot promises nothing: the next leader had everything that was acknowledged when the record was swapped, and later
acknowledgements need a fetch of it as well (docs/REPLICATION.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from venus.replication.ballots import Elections
from venus.replication.election import Ballot
from venus.replication.following import Following
from venus.replication.leading import Leading
from venus.replication.messages import (
    NO_LEASE,
    Answered,
    BallotAsked,
    BallotCame,
    Effect,
    Event,
    Fetched,
    GiveBallot,
    HandOver,
    Installed,
    Lead,
    Leased,
    Living,
    LogChanged,
    NotLeading,
    Read,
    Reply,
    Retire,
    Seen,
    Swapped,
    Tick,
)
from venus.replication.position import Patience, Position
from venus.replication.records import Leadership, LiveBroker, Member, Policy

_Handler: TypeAlias = Callable[["Replica", Any, float], list[Effect]]


class Replica:
    """State of one replica. `position` is that of its log; `high` is the newest index known to be safe."""

    def __init__(self, me: Member, position: Position, *, patience: Patience, begins: bool = False) -> None:
        self.me = me
        self.position = position
        self.patience = patience
        self.known: Leadership | None = None
        self.live: dict[Member, LiveBroker] | None = None  # None = never read
        self._live_is_newer = False  # than the known record
        self.healthy = True
        self.lease_until = NO_LEASE
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

    def step(self, event: Event, now: float) -> list[Effect]:
        """Handle one event; return the effects to carry out, in order."""
        effects: list[Effect] = _HANDLERS[type(event)](self, event, now)
        return effects

    def _seen(self, event: Seen, now: float) -> list[Effect]:
        known, leadership = self.known, event.leadership
        if known is not None and leadership.version <= known.version:
            return []
        if self._floor is None:
            self._floor = leadership.term
        self.known = leadership
        self._live_is_newer = False
        if known is not None and known.term == leadership.term:
            if isinstance(self._role, Leading):
                self._role.taken_up(leadership)
            elif isinstance(self._role, Following):
                return self._role.taken_up(leadership, now, counts=self.me in leadership.in_sync)
            return self._advance(now)
        self._elections.end()
        return self._take_role(leadership, now)

    def _take_role(self, known: Leadership, now: float) -> list[Effect]:
        retiring: list[Effect] = [Retire(leader=known.leader)] if self.leads else []
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
            return [Lead(term=known.term), *self._advance(now)]
        self._role = Following(self.position, known.leader, known, self.patience)
        return [*retiring, *self._role.begin(now)]

    def _log_changed(self, event: LogChanged, now: float) -> list[Effect]:
        self.position.changed(event)
        if isinstance(self._role, Leading):
            return [*self._advance(now), *self._role.log_changed(now)]
        return self._role.log_changed(now) if isinstance(self._role, Following) else []

    def _installed(self, event: Installed, now: float) -> list[Effect]:
        if self.position.whole:
            return []  # a cancelled installation
        self.position.whole = True
        self.position.high = event.log.end - 1
        return self._log_changed(event.log, now)

    def _living(self, event: Living, now: float) -> list[Effect]:
        self.live = dict(event.brokers)
        self._live_is_newer = True
        return self._tick(Tick(), now)

    def _leased(self, event: Leased, now: float) -> list[Effect]:
        lapsed = self.lease_until <= now
        self.lease_until = event.until if event.until == NO_LEASE else max(self.lease_until, event.until)
        if lapsed and isinstance(self._role, Leading):
            self._role.lease_had_ended()
        return self._advance(now)

    def _answered(self, event: Answered, now: float) -> list[Effect]:
        return self._role.answered(event, now) if isinstance(self._role, Following) else []

    def _ballot_came(self, event: BallotCame, now: float) -> list[Effect]:
        if self.known is None or self.live is None or not self._live_is_newer:
            return []
        return self._elections.came(event, self.known, self.live, now)

    def _hand_over(self, event: HandOver, now: float) -> list[Effect]:
        return self._role.hand_over(event.to, now) if isinstance(self._role, Leading) else []

    def _fetched(self, event: Fetched, now: float) -> list[Effect]:
        known = self.known
        if not isinstance(self._role, Leading) or known is None or event.term != known.term:
            newest = known.term if known is not None else 0
            refusal = Reply(to=event.follower, answer=NotLeading(term=newest))
            return [refusal, Read()] if event.term > newest else [refusal]
        effects = self._role.fetched(event, now)
        return [*self._advance(now), *effects]

    def _ballot_asked(self, event: BallotAsked, now: float) -> list[Effect]:
        newest = self.known.term if self.known is not None else 0
        if event.term <= newest or not self.position.whole:
            return []
        return [GiveBallot(to=event.by, term=event.term, ballot=self.ballot(now))]

    def ballot(self, now: float) -> Ballot:
        """Return a ballot with what this replica has on disk."""
        position = self.position
        end = position.durable_end
        return Ballot(
            member=self.me,
            last_term=position.terms.of(end - 1),
            end=end,
            high=position.high,
            healthy=self.healthy and not self._elections.stands_back(now),
        )

    def _swapped(self, event: Swapped, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(self._role, Leading):
            self._role.swapped(event)
        if event.stored is not None:
            effects += self._seen(Seen(leadership=event.stored), now)
        else:
            effects.append(Read())
        return [*effects, *self._advance(now)]

    def _advance(self, now: float) -> list[Effect]:
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

    def _tick(self, _: Tick, now: float) -> list[Effect]:
        known = self.known
        if known is None:
            return []
        effects: list[Effect] = []
        if isinstance(self._role, Leading):
            effects += self._role.tick(None if self.live is None else frozenset(self.live), now)
        elif isinstance(self._role, Following):
            effects += self._role.tick(now)
        return [*effects, *self._elect(known, now), *self._advance(now)]

    def _elect(self, known: Leadership, now: float) -> list[Effect]:
        """Run an election if no living broker leads.

        The living brokers must have been read after the record: a leader whose lease had ended has a newer record
        before it leads again, and an election on an older one fails.
        """
        if self.live is None or not self._live_is_newer:
            return []
        leader_lives = known.leader is not None and known.leader in self.live
        if self.leads or (leader_lives and known.leader != self.me):
            self._elections.end()
            return []
        if known.leader == self.me and not self.position.whole:
            return self._elections.resign(known, now)
        own = self.ballot(now) if self.position.whole else None
        return self._elections.tick(known, self.live, own, now)


_HANDLERS: dict[type, _Handler] = {
    Seen: Replica._seen,
    Living: Replica._living,
    Leased: Replica._leased,
    LogChanged: Replica._log_changed,
    Installed: Replica._installed,
    Fetched: Replica._fetched,
    Answered: Replica._answered,
    BallotAsked: Replica._ballot_asked,
    BallotCame: Replica._ballot_came,
    Swapped: Replica._swapped,
    HandOver: Replica._hand_over,
    Tick: Replica._tick,
}


def refusal(replica: Replica, now: float, silent_s: float) -> str:
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
