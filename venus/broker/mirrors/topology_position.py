"""Position of a set in the topology, what it mirrors there, and its lag behind the upstream set. Pure.

Times are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from venus.model import TableSchema
from venus.network.row_filters import RowFilter
from venus.network.topology import BrokerSet, Tier, hop_problems, is_labelled, label_problems
from venus.predicates.ranges import compile_predicate, contains
from venus.predicates.syntax import PredicateRefused
from venus.wire import broker_pb2

#: Maximum number of upstream positions to remember.
LOOKS_MAX = 4096
V = TypeVar("V")
BUSINESS = "business:"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPosition:
    """Configured position of this set. `core` sets are at level 0."""

    set: str
    tier: str
    level: int
    #: The labels that are mirrored; empty = everything.
    labels: frozenset[str] = frozenset()

    @property
    def node(self) -> BrokerSet:
        """The position as a set of the topology."""
        return BrokerSet(name=self.set, tier=Tier(self.tier), level=self.level, labels=self.labels)


def explain_refusal(here: SetPosition, above: broker_pb2.NetworkStatus, known: Collection[str]) -> str:
    """Return why set `here` cannot mirror set `above`, or an empty string. `known` are the network ids so far."""
    if here.set in above.path or here.set == above.set:
        way = " -> ".join([*(above.path or [above.set]), here.set])
        return f"the sets are in a loop: {way}; correct [cluster] upstream, or give each set a name of its own"
    if above.refused:
        return f"set {above.set} above is refused itself: {above.refused}"
    wanted = max(here.level - 1, 0)
    if above.level != wanted:
        return (
            f"set {above.set} is at level {above.level}, and {here.tier} set {here.set} at level {here.level} needs "
            f"one of level {wanted} above it; correct [cluster] level or upstream"
        )
    if known and above.networks and not set(known) & set(above.networks):
        return (
            f"set {above.set} belongs to another network (id {above.networks[0]}), this broker's data to {min(known)}; "
            "correct [cluster] upstream, or give this broker an empty broker.data_dir"
        )
    upper = _to_broker_set(above)
    wrong = next(hop_problems(here.node, upper), "") if upper is not None else ""
    return f"{wrong}; correct [cluster] tier or upstream" if wrong else ""


def format_filters(where: Mapping[str, Iterable[RowFilter]]) -> list[str]:
    """Return the predicates of every business as text for status."""
    return [
        f"{business}: {one.table} where {one.predicate}" for business, found in sorted(where.items()) for one in found
    ]


def items_of_business(where: Mapping[str, V], business: str) -> dict[str, V]:
    """Return the items of one business; "" = all of them."""
    return {name: found for name, found in where.items() if business in ("", name)}


def needed_tables(
    labels: Mapping[str, Iterable[str]], mirrored: Iterable[str], where: Mapping[str, Iterable[str]]
) -> tuple[str, ...]:
    """Return the tables whose upstream status this set needs: those of its labels and those with a predicate."""
    under = {name for label in mirrored for name in labels.get(label, ()) if not name.startswith(BUSINESS)}
    return tuple(sorted(under.union(*where.values())))


def find_unmatched_predicates(
    where: Mapping[str, Iterable[RowFilter]], tables: Mapping[str, Collection[str]], above: str
) -> list[str]:
    """Return problems of predicates whose business or table the upstream set does not have.

    `tables` has the upstream's table names by business, in lower case, with and without their namespace.
    """
    found = []
    for business, filters in sorted(where.items()):
        if business not in tables:
            found.append(f"[cluster.where.{business}] is about a business that set {above} does not have")
            continue
        found += [
            f"[cluster.where.{business}] is about the table {one.table}, which set {above} does not have"
            for one in filters
            if one.table.lower() not in tables[business]
        ]
    return found


def find_missing_rows(
    own: Sequence[RowFilter], above: Sequence[RowFilter], schemas: Iterable[TableSchema], here: str, upper: str
) -> list[str]:
    """Return the tables whose wanted rows the upstream set does not receive in full."""
    found = []
    for schema in schemas:
        wide, narrow = _find_filter(above, schema), _find_filter(own, schema)
        if wide is None or (narrow is not None and _contains(wide, narrow, schema)):
            continue
        rows = (
            f"the rows of {schema.qualified_name} where {narrow.predicate}"
            if narrow
            else f"every row of {schema.qualified_name}"
        )
        found.append(
            f"set {here} wants {rows}, and set {upper} above gets those where {wide.predicate}: only these come"
        )
    return found


def _find_filter(filters: Iterable[RowFilter], schema: TableSchema) -> RowFilter | None:
    """Return the filter for a table, None if there is none."""
    if schema.is_heartbeat:
        return None
    return next((one for one in filters if is_labelled((one.table,), schema.namespace, schema.name)), None)


def _contains(wide: RowFilter, narrow: RowFilter, schema: TableSchema) -> bool:
    """Return whether `wide` selects every row of a table that `narrow` selects."""
    try:
        return contains(compile_predicate(wide.predicate, schema), compile_predicate(narrow.predicate, schema))
    except PredicateRefused:
        return True  # another alarm names the table that the filter does not fit


def explain_late_cut(changed: str, cut: tuple[int, int], here: tuple[int, int], groups: Collection[str]) -> str:
    """Return why a cut of the full data is not applied yet, or an empty string.

    `changed` names what the configuration has changed. `cut` and `here` are the epoch and offset of the cut and of the
    local queue's end. Consumers below the cut, or in an older epoch, must start over. A consumer at or above the cut
    would continue with rows that another predicate selected.
    """
    end = here[1]
    if not changed or not groups or cut[1] > end or cut[0] > here[0]:
        return ""
    return (
        f"{changed}; the full data is taken once the queue above goes past offset {end}, so that {min(groups)} has "
        "to start over"
    )


def find_missing_labels(here: SetPosition, above: broker_pb2.NetworkStatus) -> list[str]:
    """Return the labels of this set that the upstream set does not receive."""
    upper = _to_broker_set(above)
    return list(label_problems(here.node, [upper])) if upper is not None else []


def _to_broker_set(network: broker_pb2.NetworkStatus) -> BrokerSet | None:
    """Return the upstream as a set of the topology, None if its tier is unknown."""
    if network.tier not in list(Tier):
        return None
    return BrokerSet(name=network.set, tier=Tier(network.tier), level=network.level, labels=frozenset(network.labels))


def path_of(here: SetPosition, above: broker_pb2.NetworkStatus | None) -> list[str]:
    """Return the known sets on the path from the home to this one."""
    if above is None:
        return [here.set]
    return [*(above.path or [above.set]), here.set]


def select_tables(labels: Mapping[str, Iterable[str]], chosen: Iterable[str], business: str) -> tuple[str, ...] | None:
    """Return the tables of a business to mirror: () = all of them, None = the labels select nothing of it.

    A label that names tables may select tables of any business.
    """
    wanted_labels = tuple(chosen)
    names = [name for label in wanted_labels for name in labels[label]]
    if not wanted_labels or f"{BUSINESS}{business}" in names:
        return ()
    return tuple(sorted({name for name in names if not name.startswith(BUSINESS)})) or None


def find_absent_labels(
    labels: Mapping[str, Iterable[str]],
    chosen: Iterable[str],
    businesses: Collection[str],
    tables: Collection[str],
    business: str = "",
) -> list[str]:
    """Return problems of labels that name businesses or tables that the upstream set lacks.

    `tables` has names with and without their namespace. With `business`, no other business is checked; "" = all are.
    """
    found = []
    for label in chosen:
        for name in labels[label]:
            if business and name.startswith(BUSINESS) and name != f"{BUSINESS}{business}":
                continue
            is_there = (
                name.removeprefix(BUSINESS) in businesses if name.startswith(BUSINESS) else name.lower() in tables
            )
            if not is_there:
                found.append(f"label {label} names {name}, which the set above does not have")
    return found


class UpstreamLag:
    """Lag behind the upstream set, from its queue ends over time."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=LOOKS_MAX)
        self.upstream_offset = 0

    def record_end(self, offset: int, now: float) -> None:
        """Record the end of the upstream queue. A lower end than before means another set or another history."""
        self.upstream_offset = offset
        while self._looks and self._looks[-1][1] > offset:
            self._looks.pop()
        if not self._looks or self._looks[-1][1] != offset:
            self._looks.append((now, offset))

    def milliseconds(self, own: int, now: float) -> int:
        """Return for how long the upstream has had an offset that is missing here; 0 = nothing is missing."""
        while self._looks and self._looks[0][1] <= own:
            self._looks.popleft()
        return int((now - self._looks[0][0]) * 1000) if self._looks else 0

    def offsets(self, own: int) -> int:
        """Return how many upstream offsets are missing here."""
        return max(0, self.upstream_offset - own)
