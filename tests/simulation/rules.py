"""Each rule of the protocol, the edit that removes it from the code, and the seed of a history that then breaks."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.patching import SourceEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule, without which `invariant` breaks in the history of `seed`."""

    text: str
    edits: tuple[SourceEdit, ...]
    seed: int
    invariant: str


def _rule(text: str, where: str, old: str, new: str, seed: int, invariant: str) -> Rule:
    return Rule(text=text, edits=(SourceEdit(where=where, old=old, new=new),), seed=seed, invariant=invariant)


#: Fetches ahead after every reply, because replies in histories have few entries.
_FETCH_AHEAD_ALWAYS = SourceEdit(where="following.Following._on_entries", old=">= AHEAD_BYTES", new=">= 0")

RULES = (
    # -- the high watermark ------------------------------------------------------------------------------------------
    _rule(
        "While a change of the in-sync set is unanswered, the members of both sets count",
        "leading.high_watermark",
        "[known.in_sync] if asked_for is None else [known.in_sync, asked_for.in_sync]",
        "[known.in_sync]",
        seed=6,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "A smaller in-sync set counts once the coordinator has confirmed it",
        "leading.high_watermark",
        "[known.in_sync] if asked_for is None else [known.in_sync, asked_for.in_sync]",
        "[(asked_for or known).in_sync]",
        seed=0,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "Nothing is acknowledged while fewer members than the minimum are in sync",
        "leading.high_watermark",
        "min(map(len, sets)) < known.min_in_sync",
        "False",
        seed=1,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "A follower reports what is on its disk",
        "following.Following._is_ready",
        "self._position.is_settled",
        "self._position.done == self._position.ordered",
        seed=0,
        invariant="each broker that may lead has every safe entry",
    ),
    Rule(
        text="A fetch ahead reports what is on the disk as well",
        edits=(
            _FETCH_AHEAD_ALWAYS,
            SourceEdit(
                where="following.Following._fetch_effect",
                old="index=self._position.end,\n        last_term=self._position.last_term,",
                new="index=max(start, self._position.end), last_term=self.term if start else self._position.last_term,",
            ),
        ),
        seed=0,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "The leader's own disk counts like that of a follower",
        "leading.Leading.advance",
        "position.durable_end, self.known",
        "position.end, self.known",
        seed=1,
        invariant="what is applied is on this disk",
    ),
    _rule(
        "A fetch counts only if the preceding entry equals the leader's",
        "leading.Leading.on_fetch",
        "if parted is not None:",
        "if False:",
        seed=3,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "A follower applies only entries that match the leader's log and are on its disk",
        "following.Following._on_entries",
        "min(answer.high, answer.first - 1)",
        "min(answer.high, answer.first + len(answer.entries) - 1)",
        seed=0,
        invariant="what is applied is on this disk",
    ),
    # -- the in-sync set ---------------------------------------------------------------------------------------------
    _rule(
        "A member joins the in-sync set only with the first entry of the leader's term",
        "leading.followers_in_sync",
        "and progress.end > term_start",
        "",
        seed=89,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "A member joins the in-sync set only with every safe entry",
        "leading.followers_in_sync",
        "and progress.end > high",
        "",
        seed=16,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "Removed members are remembered only while the set is too small, because the minimum may be raised later",
        "leading.with_members",
        "frozenset[Member]() if len(inside) >= known.min_in_sync else (known.last_in_sync | gone) - inside",
        "(known.last_in_sync | gone) - inside",
        seed=5,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "A member whose removal makes the set too small is remembered, because it is complete",
        "leading.with_members",
        "(known.last_in_sync | gone) - inside",
        "known.last_in_sync - inside",
        seed=1,
        invariant="enough members that may lead have what was acknowledged",
    ),
    _rule(
        "No member is remembered after an election with a minimum of one",
        "records.choose_leader",
        "clean and known.min_in_sync > 1",
        "clean",
        seed=4,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "A remembered member may still lead",
        "records.Leadership.candidates",
        "else self.in_sync | self.last_in_sync",
        "else self.in_sync",
        seed=0,
        invariant="enough members that may lead have what was acknowledged",
    ),
    _rule(
        "A member that is gone or lags leaves the in-sync set",
        "leading.members_behind",
        "member not in present or",
        "",
        seed=25,
        invariant="a write is acknowledged within 40 s",
    ),
    Rule(
        text="A member is a broker with its store: with an empty store it is another member",
        edits=(
            SourceEdit(
                where="records.Member.__eq__", old="", new="def __eq__(self, other): return self.broker == other.broker"
            ),
            SourceEdit(where="records.Member.__hash__", old="", new="def __hash__(self): return hash(self.broker)"),
        ),
        seed=16,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "Only replicas named in the record join the in-sync set",
        "leading.followers_in_sync",
        "and member.broker in known.replicas",
        "",
        seed=0,
        invariant="only replicas of the record join the in-sync set",
    ),
    _rule(
        "A replica that was removed from the record leaves the in-sync set",
        "leading.members_behind",
        "or member.broker not in known.replicas",
        "",
        seed=3,
        invariant="all replicas are complete within 40 s",
    ),
    # -- terms and elections -----------------------------------------------------------------------------------------
    _rule(
        "A record older than the known one is ignored",
        "replica.Replica._on_record",
        "leadership.version <= known.version",
        "leadership.version == known.version",
        seed=1,
        invariant="terms and versions never fall",
    ),
    _rule(
        "A leader that restarted needs a new term",
        "replica.Replica._take_role",
        "known.term <= newest or not",
        "not",
        seed=1,
        invariant="one process acknowledges in a term",
    ),
    Rule(
        text="The next leader is chosen among complete members",
        edits=(
            SourceEdit(
                where="records.eligible_members",
                old="clean = known.candidates & living",
                new="return frozenset(member for member in living if member.broker in known.replicas)",
            ),
            SourceEdit(
                where="records.choose_leader",
                old="[ballots[member] for member in known.candidates if member in ballots]",
                new="list(ballots.values())",
            ),
        ),
        seed=5,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "An unclean election waits until no complete replica is alive",
        "records.eligible_members",
        "clean or known.policy is Policy.CONSISTENCY",
        "known.policy is Policy.CONSISTENCY",
        seed=59,
        invariant="no unclean election while a complete replica lives",
    ),
    _rule(
        "Eligibility is checked again when the ballots are counted",
        "following.Elections._decide",
        "if member in may_lead",
        "if member in live",
        seed=149,
        invariant="no unclean election while a complete replica lives",
    ),
    _rule(
        "An election reads the live brokers after the record",
        "replica.Replica._elect",
        "self.live is None or not self._live_is_newer",
        "self.live is None",
        seed=69,
        invariant="nothing is acknowledged after an unclean election",
    ),
    _rule(
        "Under availability, a leader acknowledges only while its lease is valid",
        "replica.Replica._may_acknowledge",
        "self._role.confirmed and now < self.lease_until",
        "self._role.confirmed",
        seed=157,
        invariant="nothing is acknowledged after an unclean election",
    ),
    _rule(
        "Under availability, the record is swapped once after a lease was renewed from scratch",
        "replica.Replica._may_acknowledge",
        "self._role.confirmed and now < self.lease_until",
        "now < self.lease_until",
        seed=79,
        invariant="nothing is acknowledged after an unclean election",
    ),
    _rule(
        "Only a swap requested within the current lease confirms the leader",
        "leading.Leading.on_lease_gap",
        "self.confirmed = self._asked_confirms = False",
        "self.confirmed = False",
        seed=79,
        invariant="nothing is acknowledged after an unclean election",
    ),
    _rule(
        "A leader moves the high watermark once its log has the first entry of its term",
        "leading.Leading.advance",
        "not self._has_begun",
        "False",
        seed=9,
        invariant="no applied entry is reverted",
    ),
    _rule(
        "A leader judges fetches once its log has the first entry of its term",
        "leading.Leading.on_fetch",
        "not self._has_begun",
        "False",
        seed=9,
        invariant="one entry at an index",
    ),
    _rule(
        "Leadership is handed over inside the in-sync set",
        "leading.Leading._wanted_record",
        "successor in known.in_sync and",
        "",
        seed=51,
        invariant="all replicas are complete within 40 s",
    ),
    # -- the follower's log ------------------------------------------------------------------------------------------
    _rule(
        "A follower truncates to the end of the term in its own log, if that is before the leader's",
        "position.truncation_end",
        "terms.end_of(known_term, log_end), log_end",
        "log_end",
        seed=205,
        invariant="all replicas are complete within 40 s",
    ),
    _rule(
        "A reply counts only in the term in which it was sent",
        "following.Following.on_fetch_reply",
        "event.answer.term != self.term",
        "False",
        seed=29,
        invariant="ValueError: term 2 at 14 follows term 3 at 13",
    ),
    _rule(
        "Entries are appended only at the position that they follow",
        "following.Following._on_entries",
        "answer.first != position.end",
        "False",
        seed=407,
        invariant="what is applied is on this disk",
    ),
    _rule(
        "A late divergence reply does not truncate entries fetched since",
        "following.Following._on_diverge",
        "(answer.index, answer.last_term) != (position.end, position.last_term)",
        "False",
        seed=39,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "A late trimmed-log reply does not start an installation",
        "following.Following._on_trimmed",
        "answer.start <= self._position.end",
        "False",
        seed=10,
        invariant="each broker that may lead has every safe entry",
    ),
    _rule(
        "Applied entries are never truncated; the replica is installed again",
        "following.Following._on_diverge",
        "end <= position.high",
        "False",
        seed=5,
        invariant="no applied entry is reverted",
    ),
    _rule(
        "A replica fetches nothing until its installation is complete",
        "following.Following.begin",
        "not self._position.whole",
        "False",
        seed=5,
        invariant="all replicas are complete within 40 s",
    ),
    # -- a leader that does not reach its followers ------------------------------------------------------------------
    _rule(
        "A leader that reaches too few of the live followers resigns",
        "leading.Leading._wanted_record",
        "now >= self._stays_until and is_cut_off(known, live, reached)",
        "False",
        seed=98,
        invariant="writes continue while a leader reaches none of its followers",
    ),
    _rule(
        "A repeated fetch is no progress",
        "leading.FollowerProgress.after_fetch",
        "now if end >= leader_end or end > self.end else self.moved_at",
        "now",
        seed=198,
        invariant="writes continue while a leader reaches none of its followers",
    ),
    _rule(
        "A new leader waits for the same time before it judges which followers are silent",
        "leading.Leading._reachable_members",
        "since <= self._listens_since",
        "False",
        seed=98,
        invariant="writes continue while a leader reaches none of its followers",
    ),
    _rule(
        "A leader that resigned starts no election for a while if another broker can",
        "following.Elections.tick",
        "self.is_standing_back(now) and asked - {self._me}",
        "False",
        seed=598,
        invariant="writes continue while a leader reaches none of its followers",
    ),
    _rule(
        "A leader that resigned is the last choice for a while",
        "replica.Replica.make_ballot",
        "self.healthy and not self._elections.is_standing_back(now)",
        "self.healthy",
        seed=798,
        invariant="a leader that resigned leaves the next term to others",
    ),
    _rule(
        "A leader that resigned in vain waits longer before it resigns again",
        "leading.Leading._wanted_record",
        "now >= self._stays_until and",
        "",
        seed=498,
        invariant="brokers that do not reach each other resign ever more rarely",
    ),
    _rule(
        "A follower without progress leaves the set before its lag limit",
        "leading.Leading._reachable_members",
        "live & moving_followers(self.followers, waiting, since)",
        "live",
        seed=398,
        invariant="one follower that is cut off does not delay writes",
    ),
    # -- liveness ----------------------------------------------------------------------------------------------------
    _rule(
        "An unanswered fetch is repeated",
        "following.Following.tick",
        "self._asked_at is None or now - self._asked_at > self._patience.fetch_s",
        "self._asked_at is None",
        seed=1,
        invariant="a write is acknowledged within 40 s",
    ),
    _rule(
        "A repeated fetch does not restart the wait",
        "leading.Leading.on_fetch",
        "self._parked[follower] = (event, since)",
        "self._parked[follower] = (event, now)",
        seed=5,
        invariant="all replicas are complete within 40 s",
    ),
    _rule(
        "A hand-over has a time limit",
        "leading.Leading.tick",
        "now > self._hand_over_until",
        "False",
        seed=1355,
        invariant="a write is acknowledged within 40 s",
    ),
    _rule(
        "A leader whose replica was removed hands over",
        "leading.Leading._leave_if_removed",
        "known.leader.broker in replicas",
        "True",
        seed=3,
        invariant="all replicas are complete within 40 s",
    ),
    _rule(
        "An uncertain swap is repeated",
        "leading.Leading.tick",
        "now - self._asked_at < self._patience.election_every_s",
        "True",
        seed=46,
        invariant="a write is acknowledged within 40 s",
    ),
)
