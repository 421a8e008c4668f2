"""Status of each mirror and alarms of the whole set, for status, page and metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from venus.broker.core import Core
from venus.broker.machine.mirror import Mirror
from venus.broker.mirrors import place
from venus.broker.mirrors.looks import Seen
from venus.broker.mirrors.place import Lag, Place
from venus.broker.mirrors.progress import State, Told
from venus.broker.mirrors.pulls import Pull, Pulls
from venus.broker.mirrors.rows import Rows
from venus.broker.mirrors.uppers import Away, Kind
from venus.broker.mirrors.whom import NOT_YET, alarm, why_not_back
from venus.config import Cluster
from venus.wire import broker_pb2

#: An upstream set that has not answered for this long counts as cut off.
CUT_OFF_S = 5.0
NOTHING = Seen()


class MirrorStatuses:
    """Builds the status from the upstream monitors and the replicators."""

    def __init__(
        self, core: Core, settings: Cluster, labels: Mapping[str, Iterable[str]], here: Place, rows: Rows, pulls: Pulls,
        monotonic: Callable[[], float],
    ) -> None:  # fmt: skip
        self._core, self._settings, self._labels, self._place = core, settings, labels, here
        self._rows, self._pulls, self._monotonic = rows, pulls, monotonic
        self._began_us = core.clock_us()

    def lay_over(
        self, status: broker_pb2.BrokerStatus, main: str, seen: Mapping[str, Seen], refused: str,
        short: Sequence[str], promoted: Collection[str], business: str = "",
    ) -> None:  # fmt: skip
        """Add the status of each mirror. `main` is the upstream set of most businesses, `seen` the status of each set.

        A status of one `business` gets nothing about the others.
        """
        found = seen.get(main, NOTHING)
        mirrored: defaultdict[str, list[str]] = defaultdict(list)
        for entry in status.businesses:
            pull = self._pulls.get(entry.business)
            own = seen.get(pull.in_use, NOTHING) if pull is not None else found
            progress = self._progress(entry.business, pull, own)
            if progress is None or entry.business in promoted:
                continue
            mirrored[pull.in_use if pull is not None else main].append(entry.business)
            above = own.businesses.get(entry.business)
            entry.mirror.CopyFrom(self._mirror(entry, progress, own, pull))
            is_known = entry.mirror.state == State.REFUSED and (refused or own.barred)
            entry.alarms.extend([] if is_known else alarms_of(entry.mirror))
            entry.alarms.extend(self._rows.alarms(entry.business, self._place.set, _mirror_of(above)))
        listed = {entry.business for entry in status.businesses}
        pulls = [pull for pull in self._pulls.all if business in ("", pull.business)]
        status.alarms.extend(self._alarms(main, seen, mirrored, refused, short, pulls, business))
        if not refused and not found.barred:
            status.alarms.extend(_unlisted(pulls, listed))

    # -- the set as a whole ----------------------------------------------------------------------------------------

    def _alarms(
        self, main: str, seen: Mapping[str, Seen], mirrored: Mapping[str, Sequence[str]], refused: str,
        short: Sequence[str], pulls: Sequence[Pull], business: str,
    ) -> list[str]:  # fmt: skip
        """Return the alarms of the whole set, each one sentence for all of its businesses."""
        found = seen.get(main, NOTHING)
        if refused:
            return [f"this set mirrors nothing: {refused}"]
        if found.barred:
            return [f"this set mirrors nothing new: {found.trouble}"]
        said = [text for name in dict.fromkeys([main, *mirrored]) for text in self._silent(seen, name, mirrored)]
        said += self._away(pulls)
        if found.trouble and self._monotonic() - found.since > CUT_OFF_S:
            return said
        said += short
        if found.network is None:
            return said
        said += self._rows.absent(found.network.set, {n: tables_of([e]) for n, e in found.businesses.items()}, business)
        if self._labels:
            tables = tables_of(found.businesses.values())
            said += place.absent(self._labels, self._settings.labels, found.businesses, tables, business)
        return said

    def _silent(self, seen: Mapping[str, Seen], name: str, mirrored: Mapping[str, Sequence[str]]) -> Iterator[str]:
        """Yield an alarm if a set in use does not answer."""
        found, now = seen.get(name, NOTHING), self._monotonic()
        if found.trouble and now - found.since > CUT_OFF_S:
            where = f"set {found.network.set}" if found.network is not None else "the set above"
            own = mirrored.get(name, ())
            served = f", what is here of {', '.join(own)} is served" if own else ""
            yield f"{where} does not answer for {now - found.since:,.0f} s{served}: {found.trouble}"

    def _away(self, pulls: Iterable[Pull]) -> Iterator[str]:
        """Yield alarms for businesses not pulled from the nearest set, one for all with the same cause."""
        alike: defaultdict[tuple[str, str, Kind], list[tuple[str, Away]]] = defaultdict(list)
        for pull in pulls:
            if (away := pull.away()) is not None:
                alike[away.at, away.nearest, away.kind].append((pull.business, away))
        for found in alike.values():
            first = min((away for _, away in found), key=lambda away: away.since)
            yield alarm(first, ", ".join(name for name, _ in found), self._monotonic())

    # -- one business ----------------------------------------------------------------------------------------------

    def _progress(self, name: str, pull: Pull | None, seen: Seen) -> Told | None:
        """Return the progress of a mirror. A mirror has one before the upstream set has answered for the first time."""
        if pull is not None:
            return pull.told
        asks = place.wanted(self._labels, self._settings.labels, name) is not None and seen.network is None
        if not asks or not self._core.catalogue.known(name).committed.is_mirror:
            return None
        return Told(state=State.CUT_OFF, reason=seen.trouble or NOT_YET, since_us=self._began_us)

    def _mirror(
        self, entry: broker_pb2.BusinessStatus, progress: Told, seen: Seen, pull: Pull | None
    ) -> broker_pb2.MirrorStatus:
        now = self._monotonic()
        lag = pull.lag if pull is not None else Lag()
        state, reason, since_us = progress.state, progress.reason, progress.since_us
        if state is State.FOLLOWING and seen.trouble and now - seen.since > CUT_OFF_S:
            state, reason = State.CUT_OFF, seen.trouble
            since_us = self._core.clock_us() - int((now - seen.since) * 1e6)
        if state is State.CUT_OFF and not seen.trouble and seen.network is not None:
            state = State.WAITING  # the upstream answers, but not for this business
        business = self._core.catalogue.known(entry.business)
        if state is State.FOLLOWING and not business.is_filled:
            state = State.FILLING
        mirror = business.committed.mirror
        above = _mirror_of(seen.businesses.get(entry.business))
        found = broker_pb2.MirrorStatus(
            state=state, reason=reason, since_us=since_us, address=progress.address, set=_set(mirror, seen),
            # A mirror has nothing that the upstream lacks; the upstream's status may be a second old.
            upstream_offset=max(lag.upstream_offset, entry.next_offset if state is State.FOLLOWING else 0),
            lag=lag.offsets(entry.next_offset), lag_ms=lag.ms(entry.next_offset, now), hop_ms=progress.hop_ms,
            bytes=progress.nbytes, rows=progress.rows, rows_expected=mirror.rows if mirror is not None else 0,
            only=self._only(pull, mirror), fills=progress.fills, where=self._rows.here(entry.business, above),
            cut_off=self._cut_off(state, pull, above), epoch_at_end=business.epoch_at_end,
        )  # fmt: skip
        if pull is not None and (away := pull.away()) is not None:
            found.nearest, found.not_back = away.nearest, why_not_back(away, now)
            found.away_since_us = self._core.clock_us() - int((now - away.since) * 1e6)
        return found

    def _cut_off(self, state: State, pull: Pull | None, above: broker_pb2.MirrorStatus | None) -> str:
        """Return the set on the path to the home that does not reach its upstream; empty = none is known."""
        if state is State.ELSEWHERE:  # another broker pulls, from whichever set it has chosen
            return self._place.set if pull is not None and pull.best() in (Kind.SILENT, Kind.CUT_OFF) else ""
        if state is State.CUT_OFF:
            return self._place.set
        if above is None:
            return ""
        return above.cut_off or (above.set if above.state == State.CUT_OFF else "")

    def _only(self, pull: Pull | None, mirror: Mirror | None) -> tuple[str, ...]:
        if pull is not None and pull.puller is not None:
            return pull.puller.only
        return mirror.only if mirror is not None else ()


def _unlisted(pulls: Iterable[Pull], listed: Collection[str]) -> list[str]:
    """Return alarms for businesses that are refused before this broker has any of their data."""
    progress = {pull.business: pull.told for pull in pulls if pull.business not in listed}
    return [
        f"this set mirrors nothing of {name}: {found.reason}"
        for name, found in progress.items()
        if found.state is State.REFUSED
    ]


def _mirror_of(entry: broker_pb2.BusinessStatus | None) -> broker_pb2.MirrorStatus | None:
    """Return how the upstream set mirrors a business itself, as far as known; None = it has all of it."""
    return entry.mirror if entry is not None and entry.HasField("mirror") else None


def _set(mirror: Mirror | None, seen: Seen) -> str:
    """Return the upstream set in use; before its first answer, the one that the full data came from."""
    if seen.network is not None:
        return seen.network.set
    return mirror.set if mirror is not None else ""


def tables_of(businesses: Iterable[broker_pb2.BusinessStatus]) -> set[str]:
    """Return the table names in lower case, with and without their namespace."""
    found = set[str]()
    for entry in businesses:
        for table in entry.tables:
            found |= {table.name.lower(), f"{table.namespace}.{table.name}".lower()}
    return found


def alarms_of(mirror: broker_pb2.MirrorStatus) -> list[str]:
    """Return the alarms of a mirror. An upstream that does not answer is an alarm of the whole set, raised once."""
    match mirror.state:
        case State.WAITING if mirror.reason:
            return [f"the mirror waits for set {mirror.set or 'above'}: {mirror.reason}"]
        case State.REFUSED:
            return [f"the mirror is refused by set {mirror.set or 'above'}: {mirror.reason}"]
        case State.FILLING if mirror.reason:
            return [f"the mirror takes the full data again: {mirror.reason}"]
    return []
