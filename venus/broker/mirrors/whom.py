"""Whom to pull from, and how fit a set above is for it, as it says itself. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from venus.broker.mirrors.progress import State
from venus.broker.mirrors.uppers import Away, Fitness, Kind
from venus.figures import seconds_shown
from venus.wire import broker_pb2

#: A set that has not had everything for longer is not gone to.
LAG_MAX_S = 5.0
#: What a set was at a look counts as what it is for so long.
NEWS_S = 1.5
NOT_YET = "the set above has not answered yet"
#: What to do about the nearest set, by what it is good for.
_DO = {
    Kind.SILENT: "start its brokers, or repair the line",
    Kind.CUT_OFF: "repair the line above it",
    Kind.LATE: "nothing has to be done if it catches up",
    Kind.APART: "see its `venus status`, and [cluster] upstream here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """The set that is pulled from, and who pulls."""

    reach: str
    set: str
    network: str
    group: str
    own: tuple[str, ...] = ()  # the ids of the network that this store belongs to
    set_id: str = ""  # of this set
    #: Whether there are other sets: then a line that says nothing is given up sooner.
    is_one_of: bool = False


class Whom(Protocol):
    """What a puller asks, and tells, about the set that it pulls from."""

    def above(self) -> Above:
        """Return whom to pull from. Raises Refused, Unavailable."""

    def still(self, above: Above) -> bool:
        """Whether that is still the one to pull from."""

    def pulls(self) -> None:
        """Note that what comes follows what is here."""

    def ended(self, above: Above, error: Exception) -> bool:
        """Note why a session has ended; return whether it was a try that nothing else follows from."""


class Only:
    """The one set there is."""

    def __init__(self, found: Callable[[], Above]) -> None:
        self.above = found

    def still(self, above: Above) -> bool:
        """Return True."""
        return True

    def pulls(self) -> None:
        """Do nothing."""

    def ended(self, above: Above, error: Exception) -> bool:
        """Return False."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What is here of a business: where the queue ended a moment ago, and in which epoch. 0 = there is nothing.

    `next`: where it ends now, and is gone on with.
    """

    end: int = 0
    epoch: int = 0
    next: int = 0


def fitness(entry: broker_pb2.BusinessStatus | None, business: str, here: Here) -> Fitness:
    """Judge a set that answers by what it says of a business. One that says nothing of itself counts as fit."""
    if entry is None:
        return Fitness(Kind.APART, f"it does not have {business}")
    if entry.HasField("replication") and not entry.replication.leader:
        return Fitness(Kind.APART, "nobody leads it there")
    if entry.HasField("mirror") and (found := _as_mirror(entry.mirror)) is not None:
        return found
    if entry.log_start > here.next > 0:
        return Fitness(
            Kind.APART, f"its queue begins at offset {entry.log_start:,}, and {here.next:,} is the next here"
        )
    if entry.next_offset < here.end:
        return Fitness(Kind.LATE, f"it is {here.end - entry.next_offset:,} offsets behind this set")
    epoch = entry.mirror.epoch_at_end if entry.HasField("mirror") else entry.epoch
    if 0 < epoch < here.epoch:
        return Fitness(Kind.APART, "it has a history that the home has left")
    if entry.mirror.lag_ms > LAG_MAX_S * 1000:
        return Fitness(Kind.LATE, f"it has not had everything for {seconds_shown(entry.mirror.lag_ms / 1000)}")
    return Fitness(Kind.FIT)


def _as_mirror(mirror: broker_pb2.MirrorStatus) -> Fitness | None:
    """Judge what only a set that is no home can lack."""
    if mirror.state == State.CUT_OFF or mirror.cut_off:
        where = f" above set {mirror.cut_off}" if mirror.cut_off else ""
        return Fitness(Kind.CUT_OFF, f"it is cut off itself{where}")
    if mirror.state in (State.WAITING, State.FILLING, State.REFUSED):
        reason = f": {mirror.reason}" if mirror.reason else ""
        return Fitness(Kind.APART, f"it is {mirror.state}{reason}")
    return None


def why_not_back(away: Away, now: float) -> str:
    """Say why the nearest set is not gone back to; it may have ended since it was looked at."""
    match away.kind:
        case Kind.FIT:
            ago_s = now - away.looked_at
            seen = f"it served again {ago_s:,.0f} s ago" if ago_s >= NEWS_S else "it serves again"
            return f"{seen}; {away.left_s or 0.0:,.0f} s more without a break are waited for"
        case Kind.UNKNOWN:
            return "it has not been looked at yet"
        case Kind.SILENT:
            return f"it does not answer: {away.why}"
    return away.why


def alarm(away: Away, businesses: str, now: float) -> str:
    """Say that a set is away from the nearest one above, and what to do."""
    do = _DO.get(away.kind, "it goes back by itself")
    return (
        f"set {away.nearest} is the nearest above, and is not used for {now - away.since:,.0f} s: {businesses} comes "
        f"from set {away.at}; {why_not_back(away, now)}; {do}"
    )
