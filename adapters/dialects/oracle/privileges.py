"""Captured tables of other schemas that VENUS's user may not read any more. They halt alone, until he may again.

To a user without any privilege on it Oracle says of a table what it says of one that is not there (ORA-00942), and its
views leave it out. VENUS's own triggers tell the two apart: they go with their table, and their owner sees them,
whatever he may do with it. Where they are gone as well only a DBA can tell, so both possibilities are named, and
nothing is taken for dropped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq

from venus.adapters.dialects.contract import SchemaChanged
from venus.adapters.dialects.oracle import ownership
from venus.adapters.dialects.oracle.connection import NotPermitted, Session
from venus.adapters.dialects.oracle.names import quoted
from venus.adapters.dialects.oracle.refresh import Present
from venus.adapters.dialects.oracle.registry import Captured
from venus.adapters.dialects.oracle.statements import statement
from venus.errors import SourceError

_PLAIN = re.compile(r"[A-Z][A-Z0-9_$#]*")

Place = tuple[str, str]


def lacking(
    session: Session, user: str, captured: Iterable[Captured], listed: Collection[Place],
    present: Mapping[str, Present],
) -> dict[int, str]:  # fmt: skip
    """Return the tables that may not be read, with what has to happen; `listed` = those that the dictionary shows."""
    places = {c.schema.table_id: (c.schema.namespace, c.schema.name) for c in captured}
    shown = {table_id: place for table_id, place in places.items() if place in listed}
    found = {table_id: _grant(shown[table_id], user) for table_id in _unreadable(session, shown)}
    for table_id, place in places.items():
        if table_id not in shown and place[0] != user and (way_out := _hidden(session, user, table_id, place, present)):
            found[table_id] = way_out
    return found


def _unreadable(session: Session, places: Mapping[int, Place]) -> set[int]:
    """Ask for all in one round trip: that is how it nearly always is."""
    each = {t: statement("dictionary", "may_read", table=f"{quoted(o)}.{quoted(n)}") for t, (o, n) in places.items()}
    if not each or _is_done(session, "\nUNION ALL ".join(each.values())):
        return set()
    return {table_id for table_id, text in each.items() if not _is_done(session, text)}


def _is_done(session: Session, text: str) -> bool:
    try:
        session.rows(text)
    except (NotPermitted, SchemaChanged):
        return False
    return True


def _hidden(session: Session, user: str, table_id: int, place: Place, present: Mapping[str, Present]) -> str:
    """Return what has to happen to a table that the dictionary does not show; empty if it is gone for certain."""
    own = [present[name].on for kind, name in ownership.of_table(table_id) if kind == "TRIGGER" and name in present]
    if own:
        # it has another name now, or is in the recycle bin
        return _grant(place, user) if ".".join(place) in own else ""
    there = _is_there(session, place)
    if there is None:
        removal = f"`venus uninstall-triggers {'.'.join(place)}`"
        return f"{_grant(place, user)}, or if it was dropped or renamed, which looks alike: {removal}"
    return _grant(place, user) if there else ""


def _is_there(session: Session, place: Place) -> bool | None:
    """Ask the DBA's views; None if this user may not see them."""
    binds = {"owner": place[0], "name": place[1]}
    try:
        rows: Seq[Seq[object]] = session.rows(statement("dictionary", "exists"), binds)
    except (SourceError, SchemaChanged):
        return None
    return bool(rows)


def _grant(place: Place, user: str) -> str:
    return f"`GRANT SELECT ON {_shown(place[0])}.{_shown(place[1])} TO {_shown(user)}`"


def _shown(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted(name)
