"""Selection of the entries of a status: requested tables, half messages and consumers that need an operator. Pure.

A status never has more entries than fit into a message, but also has the total numbers. Entries are selected before
they are described, so entries that are not selected cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice

from venus.broker.machine.business import Business, TableFigures
from venus.broker.machine.consumers import ConsumerState
from venus.broker.machine.half_messages import HalfMessage
from venus.network.topology import PULLS_AS
from venus.wire import broker_pb2

#: Default number of listed tables; the status has their total number too.
SHOWN_MAX = 1_000
#: Limits of one answer for all businesses together. A client requests the rest with `tables_after`.
ANSWER_TABLES_MAX = 50_000
ANSWER_BYTES_MAX = 4 << 20
#: Bytes of a table's figures in addition to its name.
_FIGURES_BYTES = 48
#: Limit for one business.
NAMED_MAX = 1_000
#: Limit for all businesses together. Each business gets at least `EACH_MIN`.
ANSWER_MAX = 10_000
EACH_MIN = 10


@dataclass(slots=True, kw_only=True)
class TableSelection:
    """Requested tables, and how many of them one answer may still list."""

    most: int = SHOWN_MAX
    #: Only tables with a higher number.
    after: int = -1
    #: Only tables with these names, with or without their namespace, in lower case; empty means any name.
    names: frozenset[str] = frozenset()
    #: Tables that reports name, by business. They are listed first.
    reported: Mapping[str, Set[int]] = field(default_factory=dict)
    _nbytes: int = ANSWER_BYTES_MAX

    def describe(self, business: Business) -> list[broker_pb2.TableStatus]:
        """Describe tables of a business, in the order of their numbers."""
        if self.most <= 0:
            return []
        known = dict(business.tables)  # the commit thread may change it
        chosen = []
        for table_id in self._candidates(known, self.reported.get(business.name, frozenset())):
            self._nbytes -= len(f"{known[table_id].namespace}{known[table_id].name}".encode()) + _FIGURES_BYTES
            if self.most <= 0 or self._nbytes < 0:
                break
            self.most -= 1
            chosen.append(table_id)
        return [_describe(table_id, known[table_id]) for table_id in sorted(chosen)]

    def _candidates(self, known: Mapping[int, TableFigures], reported: Set[int]) -> Iterator[int]:
        """Yield the requested tables in the order in which to list them."""
        if self.names:
            yield from (t for t in sorted(known) if t > self.after and self._is_named(known[t]))
            return
        if self.after < 0:
            yield from sorted(reported & known.keys())
        yield from (t for t in sorted(known) if t > self.after and not (self.after < 0 and t in reported))

    def _is_named(self, figures: TableFigures) -> bool:
        """Return whether the client named this table, with or without its namespace."""
        name = figures.name.lower()
        return name in self.names or f"{figures.namespace.lower()}.{name}" in self.names


def requested_tables(request: broker_pb2.StatusRequest) -> TableSelection:
    """Return the requested tables. An older client sends no limit and gets as many as fit into a message."""
    most = request.tables_max if request.HasField("tables_max") else ANSWER_TABLES_MAX
    return TableSelection(
        most=min(most, ANSWER_TABLES_MAX),
        after=request.tables_after if request.HasField("tables_after") else -1,
        names=_lower(request.tables),
    )


def _lower(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _describe(table_id: int, figures: TableFigures) -> broker_pb2.TableStatus:
    return broker_pb2.TableStatus(
        table_id=table_id,
        namespace=figures.namespace,
        name=figures.name,
        committed_changes=figures.changes,
        last_sequence=figures.last_sequence,
        rows_estimate=figures.rows,
    )


@dataclass(slots=True, kw_only=True)
class EntrySelection:
    """Selection of half messages and consumers, with how many one answer may still list."""

    halves_left: int = ANSWER_MAX
    consumers_left: int = ANSWER_MAX

    def select_halves(self, undecided: Sequence[HalfMessage]) -> list[HalfMessage]:
        """Return the oldest half messages."""
        chosen = list(islice(undecided, _room(self.halves_left)))
        self.halves_left -= len(chosen)
        return chosen

    def select_consumers(self, groups: Sequence[ConsumerState]) -> list[ConsumerState]:
        """Return the consumers that fit: broker sets first, then absent groups, then those that keep the most."""
        room = _room(self.consumers_left)
        if len(groups) > room:
            first = sorted(
                groups, key=lambda found: (not found.group.startswith(PULLS_AS), found.is_connected, found.kept)
            )
            chosen = {group.group for group in first[:room]}
            groups = [group for group in groups if group.group in chosen]
        self.consumers_left -= len(groups)
        return list(groups)


def _room(left: int) -> int:
    """Return how many entries one business may list, given how many are left in the answer."""
    return max(EACH_MIN, min(NAMED_MAX, left))
