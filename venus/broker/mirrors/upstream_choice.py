"""Choice of the upstream set: what a replicator needs of it, and how fit a set is by its own status. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from venus.broker.mirrors.session_requests import MirrorState
from venus.broker.mirrors.upstream_selection import AwayFromNearest, Fitness, FitnessKind
from venus.text.formatting import format_duration
from venus.wire import broker_pb2

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
        """Record why the session ended. Return True if it was only a probe of another upstream."""


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
        f"set {away.nearest} is the nearest above, and is not used for {now - away.since:,.0f} s: {businesses} comes "
        f"from set {away.at}; {explain_absence(away, now)}; {do}"
    )
