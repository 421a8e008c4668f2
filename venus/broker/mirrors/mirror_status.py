"""Status of each mirror and alarms of the whole set, for status, page and metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.machine.mirror import Mirror, filters_from_wire, filters_to_wire
from venus.broker.machine.records import load_schemas
from venus.broker.mirrors.replicator import Replicator, Replicators
from venus.broker.mirrors.session_requests import MirrorState, ReplicatorStatus
from venus.broker.mirrors.topology_position import (
    SetPosition,
    UpstreamLag,
    find_absent_labels,
    find_missing_rows,
    find_unmatched_predicates,
    items_of_business,
    select_tables,
)
from venus.broker.mirrors.upstream_monitor import UpstreamStatus
from venus.broker.mirrors.upstream_selection import (
    NOT_YET,
    AwayFromNearest,
    FitnessKind,
    build_away_alarm,
    explain_absence,
)
from venus.config import ClusterSettings
from venus.masking.border import Border
from venus.model import TableSchema
from venus.network.row_filters import RowFilter, fit_filters
from venus.wire import broker_pb2

#: An upstream set that has not answered for this long counts as cut off.
CUT_OFF_S = 5.0
NOTHING = UpstreamStatus()


class MirrorStatuses:
    """Builds the status from the upstream monitors and the replicators."""

    def __init__(
        self,
        core: Core,
        settings: ClusterSettings,
        labels: Mapping[str, Iterable[str]],
        here: SetPosition,
        rows: MirrorRowFilters,
        pulls: Replicators,
        monotonic: Callable[[], float],
    ) -> None:
        self._core, self._settings, self._labels, self._place = core, settings, labels, here
        self._rows, self._pulls, self._monotonic = rows, pulls, monotonic
        self._began_us = core.clock_us()

    def add_to_status(
        self,
        status: broker_pb2.BrokerStatus,
        main: str,
        seen: Mapping[str, UpstreamStatus],
        refused: str,
        short: Sequence[str],
        promoted: Collection[str],
        business: str = "",
    ) -> None:
        """Add the status of each mirror. `main` is the upstream set of most businesses, `seen` the status of each set.

        With `business`, the status gets nothing about other businesses.
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
            entry.mirror.CopyFrom(self._mirror_status(entry, progress, own, pull))
            is_known = entry.mirror.state == MirrorState.REFUSED and (refused or own.barred)
            entry.alarms.extend([] if is_known else mirror_alarms(entry.mirror))
            entry.alarms.extend(self._rows.alarms(entry.business, self._place.set, _upstream_mirror(above)))
        listed = {entry.business for entry in status.businesses}
        pulls = [pull for pull in self._pulls.all if business in ("", pull.business)]
        status.alarms.extend(self._alarms(main, seen, mirrored, refused, short, pulls, business))
        if not refused and not found.barred:
            status.alarms.extend(_refusal_alarms(pulls, listed))

    # -- the set as a whole ----------------------------------------------------------------------------------------

    def _alarms(
        self,
        main: str,
        seen: Mapping[str, UpstreamStatus],
        mirrored: Mapping[str, Sequence[str]],
        refused: str,
        short: Sequence[str],
        pulls: Sequence[Replicator],
        business: str,
    ) -> list[str]:
        """Return the alarms of the whole set, each one sentence for all of its businesses."""
        found = seen.get(main, NOTHING)
        if refused:
            return [f"this set mirrors nothing: {refused}"]
        if found.barred:
            return [f"this set mirrors nothing new: {found.trouble}"]
        said = [
            text for name in dict.fromkeys([main, *mirrored]) for text in self._silence_alarms(seen, name, mirrored)
        ]
        said += self._away_alarms(pulls)
        if found.trouble and self._monotonic() - found.since > CUT_OFF_S:
            return said
        said += short
        if found.network is None:
            return said
        said += self._rows.find_absent(
            found.network.set, {n: table_names([e]) for n, e in found.businesses.items()}, business
        )
        if self._labels:
            tables = table_names(found.businesses.values())
            said += find_absent_labels(self._labels, self._settings.labels, found.businesses, tables, business)
        return said

    def _silence_alarms(
        self, seen: Mapping[str, UpstreamStatus], name: str, mirrored: Mapping[str, Sequence[str]]
    ) -> Iterator[str]:
        """Yield an alarm if a set in use does not answer."""
        found, now = seen.get(name, NOTHING), self._monotonic()
        if found.trouble and now - found.since > CUT_OFF_S:
            where = f"set {found.network.set}" if found.network is not None else "the set above"
            own = mirrored.get(name, ())
            served = f", the local data of {', '.join(own)} is served" if own else ""
            yield f"{where} does not answer for {now - found.since:,.0f} s{served}: {found.trouble}"

    def _away_alarms(self, pulls: Iterable[Replicator]) -> Iterator[str]:
        """Yield alarms for businesses that are not pulled from the nearest set, one alarm for each cause."""
        alike: defaultdict[tuple[str, str, FitnessKind], list[tuple[str, AwayFromNearest]]] = defaultdict(list)
        for pull in pulls:
            if (away := pull.absence()) is not None:
                alike[away.at, away.nearest, away.kind].append((pull.business, away))
        for found in alike.values():
            first = min((away for _, away in found), key=lambda away: away.since)
            yield build_away_alarm(first, ", ".join(name for name, _ in found), self._monotonic())

    # -- one business ----------------------------------------------------------------------------------------------

    def _progress(self, name: str, pull: Replicator | None, seen: UpstreamStatus) -> ReplicatorStatus | None:
        """Return the progress of a mirror: of its replicator, else CUT_OFF until the upstream answers, else None."""
        if pull is not None:
            return pull.status
        asks = select_tables(self._labels, self._settings.labels, name) is not None and seen.network is None
        if not asks or not self._core.catalogue.find(name).committed.is_mirror:
            return None
        return ReplicatorStatus(state=MirrorState.CUT_OFF, reason=seen.trouble or NOT_YET, since_us=self._began_us)

    def _mirror_status(
        self,
        entry: broker_pb2.BusinessStatus,
        progress: ReplicatorStatus,
        seen: UpstreamStatus,
        pull: Replicator | None,
    ) -> broker_pb2.MirrorStatus:
        """Return the status of one mirror: its state, lag, traffic, filters and upstream set."""
        now = self._monotonic()
        lag = pull.lag if pull is not None else UpstreamLag()
        state, reason, since_us = progress.state, progress.reason, progress.since_us
        if state is MirrorState.FOLLOWING and seen.trouble and now - seen.since > CUT_OFF_S:
            state, reason = MirrorState.CUT_OFF, seen.trouble
            since_us = self._core.clock_us() - int((now - seen.since) * 1e6)
        if state is MirrorState.CUT_OFF and not seen.trouble and seen.network is not None:
            state = MirrorState.WAITING  # the upstream answers, but not for this business
        business = self._core.catalogue.find(entry.business)
        if state is MirrorState.FOLLOWING and not business.is_filled:
            state = MirrorState.FILLING
        mirror = business.committed.mirror
        above = _upstream_mirror(seen.businesses.get(entry.business))
        found = broker_pb2.MirrorStatus(
            state=state,
            reason=reason,
            since_us=since_us,
            address=progress.address,
            set=_upstream_name(mirror, seen),
            # A mirror has nothing that the upstream lacks; the upstream's status may be a second old.
            upstream_offset=max(lag.upstream_offset, entry.next_offset if state is MirrorState.FOLLOWING else 0),
            lag=lag.offsets(entry.next_offset),
            lag_ms=lag.milliseconds(entry.next_offset, now),
            hop_ms=progress.hop_ms,
            hop_mean_s=progress.hop_mean_s,
            hop_variance=progress.hop_variance,
            bytes=progress.nbytes,
            rows=progress.rows,
            rows_expected=mirror.rows if mirror is not None else 0,
            only=self._mirrored_tables(pull, mirror),
            fills=progress.fills,
            where=self._rows.effective_filters(entry.business, above),
            cut_off=self._find_cut_off(state, pull, above),
            epoch_at_end=business.epoch_at_end,
        )
        if pull is not None and (away := pull.absence()) is not None:
            found.nearest, found.not_back = away.nearest, explain_absence(away, now)
            found.away_since_us = self._core.clock_us() - int((now - away.since) * 1e6)
        return found

    def _find_cut_off(self, state: MirrorState, pull: Replicator | None, above: broker_pb2.MirrorStatus | None) -> str:
        """Return the set on the path to the home that does not reach its upstream; empty = none is known."""
        if state is MirrorState.ELSEWHERE:  # another broker pulls, from whichever set it has chosen
            return (
                self._place.set
                if pull is not None and pull.best_fitness() in (FitnessKind.SILENT, FitnessKind.CUT_OFF)
                else ""
            )
        if state is MirrorState.CUT_OFF:
            return self._place.set
        if above is None:
            return ""
        return above.cut_off or (above.set if above.state == MirrorState.CUT_OFF else "")

    def _mirrored_tables(self, pull: Replicator | None, mirror: Mirror | None) -> tuple[str, ...]:
        """Return the tables to which the mirror is limited; () = all tables."""
        if pull is not None and pull.thread is not None:
            return pull.thread.only
        return mirror.only if mirror is not None else ()


def _refusal_alarms(pulls: Iterable[Replicator], listed: Collection[str]) -> list[str]:
    """Return alarms for businesses whose mirroring is refused and of which no data is here yet."""
    progress = {pull.business: pull.status for pull in pulls if pull.business not in listed}
    return [
        f"this set mirrors nothing of {name}: {found.reason}"
        for name, found in progress.items()
        if found.state is MirrorState.REFUSED
    ]


def _upstream_mirror(entry: broker_pb2.BusinessStatus | None) -> broker_pb2.MirrorStatus | None:
    """Return the upstream set's own mirror status of a business; None = it is no mirror there, or unknown."""
    return entry.mirror if entry is not None and entry.HasField("mirror") else None


def _upstream_name(mirror: Mirror | None, seen: UpstreamStatus) -> str:
    """Return the name of the upstream set; before its first answer, of the set that sent the full data."""
    if seen.network is not None:
        return seen.network.set
    return mirror.set if mirror is not None else ""


def table_names(businesses: Iterable[broker_pb2.BusinessStatus]) -> set[str]:
    """Return the table names in lower case, with and without their namespace."""
    found = set[str]()
    for entry in businesses:
        for table in entry.tables:
            found |= {table.name.lower(), f"{table.namespace}.{table.name}".lower()}
    return found


def mirror_alarms(mirror: broker_pb2.MirrorStatus) -> list[str]:
    """Return the alarms of a mirror. A silent upstream raises one alarm for the local set instead."""
    match mirror.state:
        case MirrorState.WAITING if mirror.reason:
            return [f"the mirror waits for set {mirror.set or 'above'}: {mirror.reason}"]
        case MirrorState.REFUSED:
            return [f"the mirror is refused by set {mirror.set or 'above'}: {mirror.reason}"]
        case MirrorState.FILLING if mirror.reason:
            return [f"the mirror takes the full data again: {mirror.reason}"]
    return []


class MirrorRowFilters:
    """Row filters by business. Thread-safe: only a cache of the store changes."""

    def __init__(self, core: Core, configured: Mapping[str, tuple[RowFilter, ...]]) -> None:
        self._core = core
        self.configured = configured
        self._schemas: dict[str, list[TableSchema]] = {}
        self._border_alarms: dict[str, tuple[list[TableSchema], list[str]]] = {}  # with the versions they are of

    def configured_filters(self, business: str) -> tuple[RowFilter, ...]:
        """Return the configured filters of a business."""
        return self.configured.get(business, ())

    def effective_filters(self, business: str, above: broker_pb2.MirrorStatus | None) -> list[broker_pb2.RowFilter]:
        """Return the filters that selected the local rows: those of this set and of the upstream sets."""
        own = self._in_force(self._core.catalogue.find(business))
        inherited = above.where if above is not None else ()
        others = [one for one in inherited if not any(_may_match(one.table, known.table) for known in own)]
        return [*filters_to_wire(own), *others]

    def alarms(self, business: str, here: str, above: broker_pb2.MirrorStatus | None) -> list[str]:
        """Return alarms for tables no longer mirrored, and for tables with rows that the upstream does not receive."""
        found = self._core.catalogue.find(business)
        own = self._in_force(found)
        if not own and (above is None or not above.where):
            return []
        schemas = self._versions(found)
        said = [
            f"table {one.name} is no longer mirrored: {one.refused}; correct [cluster.where.{business}] and start "
            "this broker again"
            for one in fit_filters(own, schemas).values()
            if one.refused
        ]
        if above is not None and above.where:
            newest = {schema.table_id: schema for schema in sorted(schemas, key=lambda s: s.version)}
            wide = filters_from_wire(above.where)
            said += find_missing_rows(own, wide, newest.values(), here, self._set_above(found))
        return said

    def border_alarms(self, business: str) -> list[str]:
        """Return alarms for tables that the sets below do not get, because rules for columns do not fit them."""
        border = self._core.borders.get(business)
        if border is None:
            return []
        schemas = self._versions(self._core.catalogue.find(business))
        known = self._border_alarms.get(business)
        if known is None or known[0] is not schemas:
            known = self._border_alarms[business] = schemas, self._border_misfits(border, schemas)
        return known[1]

    @staticmethod
    def _border_misfits(border: Border, schemas: Sequence[TableSchema]) -> list[str]:
        """Return alarms for tables and rules that do not fit each other at the border."""
        way_out = f"correct [{border.rules.place}] and start this broker again"
        return [
            *(
                f"table {one.name} is not sent to the sets below: {one.misfit}; {way_out}"
                for one in border.fit(schemas).values()
                if one.misfit
            ),
            *(f"{text}; {way_out}" for text in border.find_absent(schemas)),
        ]

    def find_absent(self, above: str, tables: Mapping[str, Collection[str]], business: str = "") -> list[str]:
        """Return alarms for predicates on businesses or tables that the upstream lacks, of one business or of all."""
        return find_unmatched_predicates(items_of_business(self.configured, business), tables, above)

    def _set_above(self, business: Business) -> str:
        """Return the set that a business is mirrored from, "" if there is none."""
        mirror = business.committed.mirror
        return mirror.set if mirror is not None else ""

    def _in_force(self, business: Business) -> tuple[RowFilter, ...]:
        """Return the filters of this set by which the present full data was selected."""
        mirror = business.committed.mirror
        return mirror.where if mirror is not None else ()

    def _versions(self, business: Business) -> list[TableSchema]:
        """Return all described versions of the tables of a business, from the cache if it is current."""
        known = self._schemas.get(business.name, [])
        if {(s.table_id, s.version) for s in known} != business.schemas:
            known = [schema for _, schema in load_schemas(self._core.store, business.number)]
            self._schemas[business.name] = known
        return known


def _may_match(name: str, other: str) -> bool:
    """Whether two names may denote one table, ignoring case and a missing namespace."""
    (schema, _, table), (other_schema, _, other_table) = name.lower().rpartition("."), other.lower().rpartition(".")
    return table == other_table and (schema == other_schema or not schema or not other_schema)
