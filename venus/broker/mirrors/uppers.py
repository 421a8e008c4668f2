"""From which of several sets above a business is pulled: the nearest one that is fit. Pure: the time is an argument.

Whoever loses the set in use goes on at another one, and back to a nearer one once that was fit for a minute without a
break (Minos 3.4.1). A set that answers and is cut off itself is left for one that is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from venus.network.directory import BACK_AFTER_S, LOOKS_APART_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How patient the choice is, in seconds."""

    #: A nearer set must be fit for so long without a break before it is gone back to.
    back_after_s: float = BACK_AFTER_S
    #: Longer than this without a look, and nobody knows whether it was fit all the time.
    looks_apart_s: float = LOOKS_APART_S
    #: A set that answers must be unfit for so long before a fit one is used in its place: cut off, or in another way.
    stale_s: float = 10.0
    failing_s: float = 5.0
    #: And the other one must have been fit for so long.
    fit_first_s: float = 5.0
    #: Between two moves, so that sets which come and go do not pull anybody back and forth.
    moves_apart_s: float = 5.0
    #: So long a set to which somebody went of his own accord may not serve yet, before it is left again.
    trial_s: float = 3.0
    at_once_s: float = 0.0
    never_s: float = float("inf")


TIMES = Times()


class Kind(StrEnum):
    """What a set above is good for, as it was seen last."""

    UNKNOWN = "unknown"  # nobody has looked yet
    FIT = "fit"
    LATE = "late"  # it has less than is here, or is behind the set above it
    CUT_OFF = "cut off"  # it answers, and does not reach the home
    APART = "apart"  # what it has cannot be taken: another history, an older home, nothing of the business
    SILENT = "silent"  # nobody answers


#: After which time a set of a kind is left: while it is pulled from, and while pulling fails.
LEFT_AFTER: Mapping[Kind, tuple[str, str]] = {
    Kind.UNKNOWN: ("never_s", "never_s"),
    Kind.FIT: ("never_s", "stale_s"),
    Kind.LATE: ("never_s", "failing_s"),
    Kind.CUT_OFF: ("stale_s", "stale_s"),
    Kind.APART: ("never_s", "failing_s"),
    Kind.SILENT: ("never_s", "at_once_s"),
}
#: Who is gone to in place of a set that is silent, and in place of one that answers.
INSTEAD_OF_SILENT = (Kind.FIT, Kind.CUT_OFF)
INSTEAD_OF_OTHERS = (Kind.FIT,)


@dataclass(frozen=True, slots=True)
class Fitness:
    """What one look at a set has found; `why` it is not fit, for people."""

    kind: Kind = Kind.UNKNOWN
    why: str = ""


@dataclass(slots=True)
class Standing:
    """A set as it was seen: since when it is of its kind, since when it is fit without a break, and the newest look."""

    fitness: Fitness = field(default_factory=Fitness)
    since: float = 0.0
    fit_since: float | None = None
    looked_at: float = float("-inf")
    #: What a try has shown that no look shows, until when it counts.
    barred: str = ""
    barred_until: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """It is pulled from elsewhere than from the nearest set, which was of a kind when it was looked at last.

    `left_s`: more seconds until it goes back; None = open.
    """

    at: str
    nearest: str
    since: float
    kind: Kind
    why: str
    looked_at: float
    left_s: float | None = None


class Uppers:
    """The choice for one business. `names` of the sets, the nearest first; times of a clock that nobody sets."""

    def __init__(self, names: Sequence[str], now: float, times: Times = TIMES) -> None:
        assert names, "somebody must be pulled from"
        self._times = times
        self._standings = {name: Standing(since=now) for name in names}
        self.in_use = names[0]
        self._failing_since: float | None = None
        self._moved_at = float("-inf")
        self._away_since = now
        #: Where to go back to if the set in use proves unfit: it was gone to though another one served.
        self._back_to = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The sets, the nearest first."""
        return tuple(self._standings)

    @property
    def is_trial(self) -> bool:
        """Whether the one in use has yet to show that it has the history that is here."""
        return bool(self._back_to)

    @property
    def is_well(self) -> bool:
        """Whether the one in use is fit."""
        return self._standings[self.in_use].fitness.kind is Kind.FIT

    @property
    def best(self) -> Kind:
        """What the best of them is good for."""
        kinds = {standing.fitness.kind for standing in self._standings.values()}
        return next(
            kind for kind in (Kind.FIT, Kind.LATE, Kind.UNKNOWN, Kind.CUT_OFF, Kind.APART, Kind.SILENT) if kind in kinds
        )

    def known(self, names: Sequence[str], renamed: Mapping[str, str], now: float) -> None:
        """Take in which sets there are, once their names are known."""
        if tuple(names) == self.names and not renamed:
            return
        old: dict[str, Standing] = {}
        for name, standing in sorted(self._standings.items(), key=lambda known: known[1].looked_at):
            old[renamed.get(name, name)] = standing
        self._standings = {name: old.get(name) or Standing(since=now) for name in names}
        self.in_use = renamed.get(self.in_use, self.in_use)
        self._back_to = renamed.get(self._back_to, self._back_to)
        if self.in_use not in self._standings:
            self._use(names[0], now)
        if self._back_to not in self._standings:
            self._back_to = ""

    # -- what is seen ----------------------------------------------------------------------------------------------

    def looked(self, name: str, found: Fitness, now: float) -> None:
        """Take note of a look at a set."""
        standing = self._standings[name]
        if found.kind is Kind.FIT and now < standing.barred_until:
            found = Fitness(Kind.APART, standing.barred)
        if found.kind is not standing.fitness.kind:
            standing.since = now
        if found.kind is not Kind.FIT:
            standing.fit_since = None
        elif standing.fit_since is None or now - standing.looked_at > self._times.looks_apart_s:
            standing.fit_since = now
        standing.fitness, standing.looked_at = found, now

    def pulls(self) -> None:
        """Note that what comes from the set in use is what follows here."""
        self._failing_since, self._back_to = None, ""

    def failed(self, now: float, why: str, *, for_good: bool) -> bool:
        """Note that pulling from the set in use has ended. Return whether it was tried, and is left again.

        `for_good`: what it has cannot be taken, now or later.
        """
        self._failing_since = now if self._failing_since is None else self._failing_since
        if not self._back_to or not (for_good or now - self._moved_at >= self._times.trial_s):
            return False
        back_to = self._back_to
        self._bar(now, why)
        away_since = self._away_since
        self._use(back_to, now)
        self._away_since = away_since  # it was away all the time
        return True

    def has_other_rows(self, now: float, why: str) -> None:
        """Note that nothing can be taken from the set in use, which was no try: another one may have these rows."""
        self._failing_since = now if self._failing_since is None else self._failing_since
        self._bar(now, why)

    def _bar(self, now: float, why: str) -> None:
        """Take the set in use for unfit, whatever it says of itself, until it may have become another."""
        found = self._standings[self.in_use]
        found.barred, found.barred_until, found.fit_since = why, now + self._times.back_after_s, None
        if found.fitness.kind is not Kind.APART:
            found.since = now
        found.fitness = Fitness(Kind.APART, why)

    # -- what follows from it --------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Choose whom to pull from first."""
        wanted = next(
            (name for kind in INSTEAD_OF_SILENT for name in self.names if self._is(name, kind)), self.names[0]
        )
        self._use(wanted, now)
        self._moved_at = float("-inf")

    def step(self, now: float, *, busy: bool = False) -> bool:
        """Move if it is time; return whether. `busy`: full data comes, which would begin again elsewhere."""
        wanted = self._instead(now, busy) or ("" if busy or self._failing_since is not None else self._nearer(now))
        if not wanted or now - self._moved_at < self._times.moves_apart_s:
            return False
        used = self._standings[self.in_use]
        serves = used.fitness.kind is not Kind.SILENT and now >= used.barred_until
        back_to = self.in_use if serves and not busy else ""
        self._use(wanted, now)
        self._back_to = back_to
        return True

    def _use(self, name: str, now: float) -> None:
        nearest = self.names[0]
        if self.in_use == nearest:
            self._away_since = now
        self.in_use, self._moved_at = name, now
        self._failing_since, self._back_to = None, ""

    def _instead(self, now: float, busy: bool) -> str:
        """Return whom to pull from in place of the set in use, or "" while it is good enough."""
        used = self._standings[self.in_use]
        pulled, failing = LEFT_AFTER[used.fitness.kind]
        if self._failing_since is None:
            begun, patience_s = used.since, self._times.never_s if busy else getattr(self._times, pulled)
        else:
            begun, patience_s = max(used.since, self._failing_since), getattr(self._times, failing)
        if now - begun < (max(patience_s, self._times.stale_s) if busy else patience_s):
            return ""
        if used.fitness.kind is Kind.SILENT:
            others = [name for kind in INSTEAD_OF_SILENT for name in self.names if self._is(name, kind)]
        else:
            others = [
                n for kind in INSTEAD_OF_OTHERS for n in self.names if self._is(n, kind) and self._for_some_time(n)
            ]
        return next((name for name in others if name != self.in_use and self._is_fresh(name, now)), "")

    def _nearer(self, now: float) -> str:
        """Return the nearest set that has been fit for long enough to go back to it, or ""."""
        nearer = self.names[: self.names.index(self.in_use)]
        return next((name for name in nearer if self._left_s(name) == 0.0 and self._is_fresh(name, now)), "")

    def _is(self, name: str, kind: Kind) -> bool:
        return self._standings[name].fitness.kind is kind

    def _is_fresh(self, name: str, now: float) -> bool:
        return now - self._standings[name].looked_at <= self._times.looks_apart_s

    def _for_some_time(self, name: str) -> bool:
        standing = self._standings[name]
        return standing.fit_since is not None and standing.looked_at - standing.fit_since >= self._times.fit_first_s

    def _left_s(self, name: str) -> float | None:
        """Return how long a set must still be seen to be fit, None if it is not."""
        standing = self._standings[name]
        if standing.fit_since is None:
            return None
        return max(0.0, self._times.back_after_s - (standing.looked_at - standing.fit_since))

    def away(self) -> Away | None:
        """Say where it pulls from and why not from the nearest set; None = it does."""
        nearest = self.names[0]
        if self.in_use == nearest:
            return None
        found = self._standings[nearest]
        return Away(
            at=self.in_use, nearest=nearest, since=self._away_since, kind=found.fitness.kind, why=found.fitness.why,
            looked_at=found.looked_at, left_s=self._left_s(nearest),
        )  # fmt: skip
