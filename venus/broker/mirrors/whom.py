"""Choice of the upstream set: what a replicator needs of it, and how fit a set is by its own status. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from venus.broker.mirrors.progress import State
from venus.broker.mirrors.uppers import Away, Fitness, Kind
from venus.figures import seconds_shown
from venus.wire import broker_pb2

#: Upstreams that have lagged longer than this are not eligible.
LAG_MAX_S = 5.0
#: How long a health check result stays valid.
NEWS_S = 1.5
NOT_YET = "the set above has not answered yet"
#: What the operator can do about the nearest set, by its fitness.
_DO = {
    Kind.SILENT: "start its brokers, or repair the line",
    Kind.CUT_OFF: "repair the line above it",
    Kind.LATE: "no action is needed if it catches up",
    Kind.APART: "see its `venus status`, and [cluster] upstream here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Above:
    """Connection parameters of an upstream set, and the identity of the mirror."""

    reach: str
    set: str
    network: str
    group: str
    own: tuple[str, ...] = ()  # the ids of the network that this store belongs to
    set_id: str = ""  # of this set
    #: Whether there are other upstream sets: then a silent connection is closed sooner.
    is_one_of: bool = False


class Whom(Protocol):
    """Chooses the upstream set for a replicator, and receives its results."""

    def above(self) -> Above:
        """Return the upstream set to pull from. Raises Refused, Unavailable."""

    def still(self, above: Above) -> bool:
        """Whether this is still the upstream set in use."""

    def pulls(self) -> None:
        """Record that the received data continues the local history."""

    def ended(self, above: Above, error: Exception) -> bool:
        """Record why the session ended. Return True if it was only a probe of another upstream."""


class Only:
    """Choice with a single upstream set."""

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
    """Local position of a business: end and epoch of its queue a moment ago; 0 = there is nothing.

    `next` is the end of the queue now.
    """

    end: int = 0
    epoch: int = 0
    next: int = 0


def fitness(entry: broker_pb2.BusinessStatus | None, business: str, here: Here) -> Fitness:
    """Return how fit a set is by its status of a business. A set without details counts as fit."""
    if entry is None:
        return Fitness(Kind.APART, f"it does not have {business}")
    if entry.HasField("replication") and not entry.replication.leader:
        return Fitness(Kind.APART, "no broker leads it there")
    if entry.HasField("mirror") and (found := _as_mirror(entry.mirror)) is not None:
        return found
    if entry.log_start > here.next > 0:
        return Fitness(
            Kind.APART, f"its queue begins at offset {entry.log_start:,}, and this set needs {here.next:,} next"
        )
    if entry.next_offset < here.end:
        return Fitness(Kind.LATE, f"it is {here.end - entry.next_offset:,} offsets behind this set")
    epoch = entry.mirror.epoch_at_end if entry.HasField("mirror") else entry.epoch
    if 0 < epoch < here.epoch:
        return Fitness(Kind.APART, "it has a history that the home has left")
    if entry.mirror.lag_ms > LAG_MAX_S * 1000:
        return Fitness(Kind.LATE, f"it lags behind by {seconds_shown(entry.mirror.lag_ms / 1000)}")
    return Fitness(Kind.FIT)


def _as_mirror(mirror: broker_pb2.MirrorStatus) -> Fitness | None:
    """Return why a set that is itself a mirror is unfit; None = its mirror is well."""
    if mirror.state == State.CUT_OFF or mirror.cut_off:
        where = f" above set {mirror.cut_off}" if mirror.cut_off else ""
        return Fitness(Kind.CUT_OFF, f"it is cut off itself{where}")
    if mirror.state in (State.WAITING, State.FILLING, State.REFUSED):
        reason = f": {mirror.reason}" if mirror.reason else ""
        return Fitness(Kind.APART, f"it is {mirror.state}{reason}")
    return None


def why_not_back(away: Away, now: float) -> str:
    """Return why the mirror does not move back to the nearest set, by its newest health check."""
    match away.kind:
        case Kind.FIT:
            ago_s = now - away.looked_at
            seen = f"it served again {ago_s:,.0f} s ago" if ago_s >= NEWS_S else "it serves again"
            return f"{seen}; {away.left_s or 0.0:,.0f} s more without a break are needed"
        case Kind.UNKNOWN:
            return "it has not been checked yet"
        case Kind.SILENT:
            return f"it does not answer: {away.why}"
    return away.why


def alarm(away: Away, businesses: str, now: float) -> str:
    """Return the alarm for businesses that do not use the nearest set, with what to do."""
    do = _DO.get(away.kind, "it moves back by itself")
    return (
        f"set {away.nearest} is the nearest above, and is not used for {now - away.since:,.0f} s: {businesses} comes "
        f"from set {away.at}; {why_not_back(away, now)}; {do}"
    )
