"""Tables that inherit from others: behind the cut-over a query must see the rows that it sees at the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from venus.adapters.targets.cutting import Block
from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement


def unlike(session: Session, placed: Sequence[Placed]) -> Iterator[Block]:
    """Yield a line for each heir of the source that is none here; people make them so, VENUS does not."""
    captured = {one.schema.qualified: one for one in placed}
    for one in placed:
        for heir in one.schema.heirs:
            other = captured.get(heir.replace('"', ""))
            if other is None:
                what = f"{one.schema.qualified} has the heir {heir} at the source, which is not captured"
                yield Block(what=what, remedy="capture it, or exclude both")
                continue
            found = session.row(statement("heirs", "inherits"), {"heir": other.sql, "table": one.sql})
            if not (found and found[0]):
                what = f"{other.qualified} does not inherit from {one.qualified}, as it does at the source"
                yield Block(what=what, remedy=f"ALTER TABLE {other.sql} INHERIT {one.sql}")
