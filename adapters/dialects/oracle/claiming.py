"""Which log rows and which truncations a cut claims, by the reader's snapshot."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import dataclass

from venus.adapters.dialects.oracle import inline
from venus.adapters.dialects.oracle.bounds import Bounds
from venus.adapters.dialects.oracle.connection import Row, Session
from venus.adapters.dialects.oracle.cut import Claim
from venus.adapters.dialects.oracle.reading import Access
from venus.adapters.dialects.oracle.statements import statement

#: So many log rows are fetched in one trip.
FETCH_ROWS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncations:
    """What the noted TRUNCATE statements mean for one cut."""

    #: Numbers of the notes that the cut removes: of the tables below, and of tables that nobody captures.
    numbers: list[int]
    tables: set[int]


def unfollowed(noted: Seq[Row], tables: Mapping[int, Access]) -> str:
    """Return the first noted DDL that changes a captured table, as EVENT of OWNER.NAME; empty if there is none."""
    ours = {(s.namespace, s.name) for s in (a.layout.schema for a in tables.values())}
    for _, event, owner, name, _ in noted:
        if event != "TRUNCATE" and (owner, name) in ours:
            return f"{event} of {owner}.{name}"
    return ""


def truncations(noted: Seq[Row], tables: Mapping[int, Access], readable: Mapping[int, Access]) -> Truncations:
    """Return the truncations that this cut carries; those of a table that is left out wait for it."""
    by_name = {(a.layout.schema.namespace, a.layout.schema.name): t for t, a in tables.items()}
    found = Truncations(numbers=[], tables=set())
    for number, event, owner, name, _ in noted:
        if event != "TRUNCATE":
            continue  # `refresh_schemas` sees to it
        table_id = by_name.get((owner, name))
        if table_id is not None and table_id not in readable:
            continue
        found.numbers.append(int(number))
        if table_id is not None:
            found.tables.add(table_id)
    return found


def claims(reader: Session, bounds: Bounds, readable: Mapping[int, Access], truncated: set[int]) -> list[Claim]:
    """Return what the cut reads of each table of which there is something, within the bounds."""
    numbers, incomplete = _logged(reader, bounds, {t: a for t, a in readable.items() if a.log})
    polled = inline.claimed(reader) if any(not a.log for a in readable.values()) else {}
    return [
        Claim(access=a, numbers=numbers[t], truncated=t in truncated, polled=polled.get(t), complete=t != incomplete)
        for t, a in readable.items()
        if numbers[t] or t in truncated or t in polled
    ]


def _logged(reader: Session, bounds: Bounds, logs: Mapping[int, Access]) -> tuple[dict[int, array[int]], int]:
    """Return the log rows of this cut, and the table of which there may be more (0 = none)."""
    numbers: dict[int, array[int]] = defaultdict(lambda: array("q"))
    ids, left = bounds.in_turn(logs), bounds.rows
    if not ids:
        return numbers, 0
    each = (statement("cut", "claim", table_id=str(t), log=logs[t].log) for t in ids)
    with closing(reader.stream("\nUNION ALL ".join(each), None, min(FETCH_ROWS, left))) as pieces:
        for piece in pieces:
            for table_id, number in piece:
                numbers[int(table_id)].append(int(number))
            left -= len(piece)
            if left <= 0:
                last = int(piece[-1][0])
                bounds.turn = last + 1  # the others come first, then what is left of this one
                return numbers, last
    return numbers, 0
