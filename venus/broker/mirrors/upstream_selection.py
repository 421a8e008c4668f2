"""Selection of the upstream set of a business: the nearest one that is fit by its status. Pure: time is an argument.

If the set in use fails, the mirror moves to another set; it moves back once a nearer set has been fit for a minute
without a break (Minos 3.4.1). The mirror also leaves a set that answers but is cut off from its own upstream, if
another set is not cut off. `UpstreamChoice` is the part of the selection that a replicator uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from venus.broker.mirrors.session_requests import MirrorState
from venus.network.directory import BACK_AFTER_S, LOOKS_APART_S
from venus.text.formatting import format_duration
from venus.wire import broker_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionTimes:
    """Time limits of the selection, in seconds."""

    #: How long a nearer set must be fit without a break before the mirror moves back to it.
    back_after_s: float = BACK_AFTER_S
    #: A longer gap between health checks breaks the period in which a set counts as fit.
    looks_apart_s: float = LOOKS_APART_S
    #: After how long a fit set replaces the one in use, if that is cut off, or fails although it counts as fit.
    stale_s: float = 10.0
    failing_s: float = 5.0
    #: How long the replacement must have been fit.
    fit_first_s: float = 5.0
    #: Minimum time between two moves, so that unstable sets cause no oscillation.
    moves_apart_s: float = 5.0
    #: How long a set on trial may fail before the mirror leaves it again.
    trial_s: float = 3.0
    at_once_s: float = 0.0
    never_s: float = float("inf")


TIMES = SelectionTimes()


class FitnessKind(StrEnum):
    """Fitness class of an upstream set at its newest health check."""

    UNKNOWN = "unknown"  # not checked yet
    FIT = "fit"
    LATE = "late"  # it has less than this set, or lags behind its own upstream
    CUT_OFF = "cut off"  # it answers, but does not reach the home
    APART = "apart"  # unusable: another history, an older home, or no data of the business
    SILENT = "silent"  # no broker answers


#: When the mirror leaves a set, by the set's kind: while pulling works, and while it fails.
LEFT_AFTER: Mapping[FitnessKind, tuple[str, str]] = {
    FitnessKind.UNKNOWN: ("never_s", "never_s"),
    FitnessKind.FIT: ("never_s", "stale_s"),
    FitnessKind.LATE: ("never_s", "failing_s"),
    FitnessKind.CUT_OFF: ("stale_s", "stale_s"),
    FitnessKind.APART: ("never_s", "failing_s"),
    FitnessKind.SILENT: ("never_s", "at_once_s"),
}
#: Replacements in order of preference: for a set that is silent, and for one that answers.
INSTEAD_OF_SILENT = (FitnessKind.FIT, FitnessKind.CUT_OFF)
INSTEAD_OF_OTHERS = (FitnessKind.FIT,)


@dataclass(frozen=True, slots=True)
class Fitness:
    """Result of one health check; `why` says in words why the set is not fit."""

    kind: FitnessKind = FitnessKind.UNKNOWN
    why: str = ""


@dataclass(slots=True)
class UpstreamHealth:
    """Health of a set: the newest check, since when it has this fitness class, and since when the set is fit."""

    fitness: Fitness = field(default_factory=Fitness)
    since: float = 0.0
    fit_since: float | None = None
    checked_at: float = float("-inf")
    #: Why a trial failed, because no health check shows it, and until when the failure counts.
    trial_failure: str = ""
    trial_failure_until: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayFromNearest:
    """State of a mirror that does not use the nearest set; `kind` and `why` are of that set's newest health check.

    `left_s` is the number of seconds until the mirror moves back; None = unknown.
    """

    at: str
    nearest: str
    since: float
    kind: FitnessKind
    why: str
    checked_at: float
    left_s: float | None = None


class UpstreamSelection:
    """State machine of the choice for one business. `names` are the sets, the nearest first; times are monotonic."""

    def __init__(self, names: Sequence[str], now: float, times: SelectionTimes = TIMES) -> None:
        assert names, "at least one upstream set is needed"
        self._times = times
        self._standings = {name: UpstreamHealth(since=now) for name in names}
        self.in_use = names[0]
        self._failing_since: float | None = None
        self._moved_at = float("-inf")
        self._away_since = now
        #: Where to return if the set in use, which is on trial, proves unfit; "" = it is not on trial.
        self._back_to = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The sets, the nearest first."""
        return tuple(self._standings)

    @property
    def is_trial(self) -> bool:
        """Whether the set in use is on trial: its data has not been shown to continue the local history."""
        return bool(self._back_to)

    @property
    def is_well(self) -> bool:
        """Whether the set in use is fit."""
        return self._standings[self.in_use].fitness.kind is FitnessKind.FIT

    @property
    def best(self) -> FitnessKind:
        """The best fitness of all sets."""
        kinds = {standing.fitness.kind for standing in self._standings.values()}
        return next(
            kind
            for kind in (
                FitnessKind.FIT,
                FitnessKind.LATE,
                FitnessKind.UNKNOWN,
                FitnessKind.CUT_OFF,
                FitnessKind.APART,
                FitnessKind.SILENT,
            )
            if kind in kinds
        )

    def update_names(self, names: Sequence[str], renamed: Mapping[str, str], now: float) -> None:
        """Update the list of sets and their names."""
        if tuple(names) == self.names and not renamed:
            return
        old: dict[str, UpstreamHealth] = {}
        for name, standing in sorted(self._standings.items(), key=lambda known: known[1].checked_at):
            old[renamed.get(name, name)] = standing
        self._standings = {name: old.get(name) or UpstreamHealth(since=now) for name in names}
        self.in_use = renamed.get(self.in_use, self.in_use)
        self._back_to = renamed.get(self._back_to, self._back_to)
        if self.in_use not in self._standings:
            self._switch_to(names[0], now)
        if self._back_to not in self._standings:
            self._back_to = ""

    # -- observations ----------------------------------------------------------------------------------------------

    def record_check(self, name: str, found: Fitness, now: float) -> None:
        """Record a health check of a set."""
        standing = self._standings[name]
        if found.kind is FitnessKind.FIT and now < standing.trial_failure_until:
            found = Fitness(FitnessKind.APART, standing.trial_failure)
        if found.kind is not standing.fitness.kind:
            standing.since = now
        if found.kind is not FitnessKind.FIT:
            standing.fit_since = None
        elif standing.fit_since is None or now - standing.checked_at > self._times.looks_apart_s:
            standing.fit_since = now
        standing.fitness, standing.checked_at = found, now

    def record_success(self) -> None:
        """Record that the data of the set in use continues the local history."""
        self._failing_since, self._back_to = None, ""

    def record_failure(self, now: float, why: str, *, for_good: bool) -> bool:
        """Record that pulling from the set in use has failed. Return True if that set was on trial and was left.

        `for_good`: the error is final for this set.
        """
        self._failing_since = now if self._failing_since is None else self._failing_since
        if not self._back_to or not (for_good or now - self._moved_at >= self._times.trial_s):
            return False
        back_to = self._back_to
        self._mark_unfit(now, why)
        away_since = self._away_since
        self._switch_to(back_to, now)
        self._away_since = away_since  # the failed trial does not interrupt the absence
        return True

    def record_other_rows(self, now: float, why: str) -> None:
        """Record that the set in use, not on trial, has other rows; another set may have the right ones."""
        self._failing_since = now if self._failing_since is None else self._failing_since
        self._mark_unfit(now, why)

    def _mark_unfit(self, now: float, why: str) -> None:
        """Treat the set in use as unfit for `back_after_s`, whatever its status says."""
        found = self._standings[self.in_use]
        found.trial_failure, found.trial_failure_until, found.fit_since = why, now + self._times.back_after_s, None
        if found.fitness.kind is not FitnessKind.APART:
            found.since = now
        found.fitness = Fitness(FitnessKind.APART, why)

    # -- decisions -------------------------------------------------------------------------------------------------

    def choose_first(self, now: float) -> None:
        """Choose the set to begin with: the nearest fit one, else the nearest cut-off one, else the nearest."""
        wanted = next(
            (name for kind in INSTEAD_OF_SILENT for name in self.names if self._is_kind(name, kind)), self.names[0]
        )
        self._switch_to(wanted, now)
        self._moved_at = float("-inf")

    def move_if_due(self, now: float, *, busy: bool = False) -> bool:
        """Move to a better set if it is time; return True if it moved. `busy`: a move would restart a full copy."""
        wanted = self._find_replacement(now, busy) or (
            "" if busy or self._failing_since is not None else self._find_nearer(now)
        )
        if not wanted or now - self._moved_at < self._times.moves_apart_s:
            return False
        used = self._standings[self.in_use]
        serves = used.fitness.kind is not FitnessKind.SILENT and now >= used.trial_failure_until
        back_to = self.in_use if serves and not busy else ""
        self._switch_to(wanted, now)
        self._back_to = back_to
        return True

    def _switch_to(self, name: str, now: float) -> None:
        """Use this set from now on."""
        nearest = self.names[0]
        if self.in_use == nearest:
            self._away_since = now
        self.in_use, self._moved_at = name, now
        self._failing_since, self._back_to = None, ""

    def _find_replacement(self, now: float, busy: bool) -> str:
        """Return the replacement for the set in use, or "" while that is good enough."""
        used = self._standings[self.in_use]
        pulled, failing = LEFT_AFTER[used.fitness.kind]
        if self._failing_since is None:
            begun, patience_s = used.since, self._times.never_s if busy else getattr(self._times, pulled)
        else:
            begun, patience_s = max(used.since, self._failing_since), getattr(self._times, failing)
        if now - begun < (max(patience_s, self._times.stale_s) if busy else patience_s):
            return ""
        if used.fitness.kind is FitnessKind.SILENT:
            others = [name for kind in INSTEAD_OF_SILENT for name in self.names if self._is_kind(name, kind)]
        else:
            others = [
                n
                for kind in INSTEAD_OF_OTHERS
                for n in self.names
                if self._is_kind(n, kind) and self._is_fit_long_enough(n)
            ]
        return next((name for name in others if name != self.in_use and self._is_fresh(name, now)), "")

    def _find_nearer(self, now: float) -> str:
        """Return the nearest set that has been fit for long enough to move back, or ""."""
        nearer = self.names[: self.names.index(self.in_use)]
        return next((name for name in nearer if self._seconds_left(name) == 0.0 and self._is_fresh(name, now)), "")

    def _is_kind(self, name: str, kind: FitnessKind) -> bool:
        """Return whether the newest health check of a set has this fitness class."""
        return self._standings[name].fitness.kind is kind

    def _is_fresh(self, name: str, now: float) -> bool:
        """Return whether a set was checked recently enough."""
        return now - self._standings[name].checked_at <= self._times.looks_apart_s

    def _is_fit_long_enough(self, name: str) -> bool:
        """Return whether a set has been fit long enough to replace the set in use."""
        standing = self._standings[name]
        return standing.fit_since is not None and standing.checked_at - standing.fit_since >= self._times.fit_first_s

    def _seconds_left(self, name: str) -> float | None:
        """Return for how many more seconds a set must stay fit; None = it is not fit."""
        standing = self._standings[name]
        if standing.fit_since is None:
            return None
        return max(0.0, self._times.back_after_s - (standing.checked_at - standing.fit_since))

    def absence(self) -> AwayFromNearest | None:
        """Return why the nearest set is not in use; None = it is in use."""
        nearest = self.names[0]
        if self.in_use == nearest:
            return None
        found = self._standings[nearest]
        return AwayFromNearest(
            at=self.in_use,
            nearest=nearest,
            since=self._away_since,
            kind=found.fitness.kind,
            why=found.fitness.why,
            checked_at=found.checked_at,
            left_s=self._seconds_left(nearest),
        )


#: Upstreams that have lagged longer than this are not eligible.
LAG_MAX_S = 5.0
#: How long a health check result stays valid.
NEWS_S = 1.5
NOT_YET = "the set above has not answered yet"
#: What the operator can do about the nearest set, by its fitness.
_DO = {
    FitnessKind.SILENT: "start its brokers, or repair the line",
    FitnessKind.CUT_OFF: "repair the line above it",
    FitnessKind.LATE: "no action is needed if it catches up",
    FitnessKind.APART: "see its `venus status`, and [cluster] upstream here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamEndpoint:
    """Connection parameters of an upstream set, and the identity of the mirror."""

    reach: str
    set: str
    network: str
    group: str
    own: tuple[str, ...] = ()  # the ids of the network that this store belongs to
    set_id: str = ""  # of this set
    #: Whether there are other upstream sets: then a silent connection is closed sooner.
    is_one_of: bool = False


class UpstreamChoice(Protocol):
    """Chooses the upstream set for a replicator, and receives its results."""

    def choose_upstream(self) -> UpstreamEndpoint:
        """Return the upstream set to pull from. Raises Refused, Unavailable."""

    def is_current(self, above: UpstreamEndpoint) -> bool:
        """Whether this is still the upstream set in use."""

    def record_success(self) -> None:
        """Record that the received data continues the local history."""

    def record_end(self, above: UpstreamEndpoint, error: Exception) -> bool:
        """Record why the session ended. Return True if the session was a failed trial of another upstream set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPosition:
    """Local position of a business: end and epoch of its queue a moment ago; 0 = there is nothing.

    `next` is the end of the queue now.
    """

    end: int = 0
    epoch: int = 0
    next: int = 0


def judge_fitness(entry: broker_pb2.BusinessStatus | None, business: str, here: LocalPosition) -> Fitness:
    """Return how fit a set is by its status of a business. A set without details counts as fit."""
    if entry is None:
        return Fitness(FitnessKind.APART, f"it does not have {business}")
    if entry.HasField("replication") and not entry.replication.leader:
        return Fitness(FitnessKind.APART, "no broker leads it there")
    if entry.HasField("mirror") and (found := _mirror_fitness(entry.mirror)) is not None:
        return found
    if entry.log_start > here.next > 0:
        return Fitness(
            FitnessKind.APART, f"its queue begins at offset {entry.log_start:,}, and this set needs {here.next:,} next"
        )
    if entry.next_offset < here.end:
        return Fitness(FitnessKind.LATE, f"it is {here.end - entry.next_offset:,} offsets behind this set")
    epoch = entry.mirror.epoch_at_end if entry.HasField("mirror") else entry.epoch
    if 0 < epoch < here.epoch:
        return Fitness(FitnessKind.APART, "it has a history that the home has left")
    if entry.mirror.lag_ms > LAG_MAX_S * 1000:
        return Fitness(FitnessKind.LATE, f"it lags behind by {format_duration(entry.mirror.lag_ms / 1000)}")
    return Fitness(FitnessKind.FIT)


def _mirror_fitness(mirror: broker_pb2.MirrorStatus) -> Fitness | None:
    """Return why a set that is itself a mirror is unfit; None = its mirror is well."""
    if mirror.state == MirrorState.CUT_OFF or mirror.cut_off:
        where = f" above set {mirror.cut_off}" if mirror.cut_off else ""
        return Fitness(FitnessKind.CUT_OFF, f"it is cut off itself{where}")
    if mirror.state in (MirrorState.WAITING, MirrorState.FILLING, MirrorState.REFUSED):
        reason = f": {mirror.reason}" if mirror.reason else ""
        return Fitness(FitnessKind.APART, f"it is {mirror.state}{reason}")
    return None


def explain_absence(away: AwayFromNearest, now: float) -> str:
    """Return why the mirror does not move back to the nearest set, by its newest health check."""
    match away.kind:
        case FitnessKind.FIT:
            ago_s = now - away.checked_at
            seen = f"it served again {ago_s:,.0f} s ago" if ago_s >= NEWS_S else "it serves again"
            return f"{seen}; {away.left_s or 0.0:,.0f} s more without a break are needed"
        case FitnessKind.UNKNOWN:
            return "it has not been checked yet"
        case FitnessKind.SILENT:
            return f"it does not answer: {away.why}"
    return away.why


def build_away_alarm(away: AwayFromNearest, businesses: str, now: float) -> str:
    """Return the alarm for businesses that do not use the nearest set, with what to do."""
    do = _DO.get(away.kind, "it moves back by itself")
    return (
        f"set {away.nearest} is the nearest above, and has not been used for {now - away.since:,.0f} s: {businesses} "
        f"comes from set {away.at}; {explain_absence(away, now)}; {do}"
    )
