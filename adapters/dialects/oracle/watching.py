"""What the numbers of the segments say at a comparison with the dictionary, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from venus.adapters.dialects.oracle import registry, segments
from venus.adapters.dialects.oracle.connection import Session
from venus.adapters.dialects.oracle.refresh import Comparison


@dataclass(frozen=True, slots=True)
class Watch:
    """One look at the segments of all captured tables."""

    session: Session
    found: segments.Segments
    #: Tables whose DDL was noted: the note says what follows, also of segments that are replaced by it.
    noted: Collection[tuple[str, str]]

    def judged(self, how: Comparison) -> Comparison:
        """Add the reason to read a table again, if its segments or its triggers give one."""
        schema = how.captured.schema
        place = (schema.namespace, schema.name)
        if how.reason or how.table is None:
            return how
        reason = "" if place in self.noted else self.found.reason(schema.table_id, place)
        return replace(how, reason=reason or self._altered(how, place))

    def _altered(self, how: Comparison, place: tuple[str, str]) -> str:
        """Say that triggers were altered, unless the whole table is about to be read anyway."""
        fill = how.captured.table.fill
        begins = not fill.done and not fill.cursor
        return "" if begins else self.found.altered(how.captured.schema.table_id, place)

    def store(self, compared: Iterable[Comparison]) -> None:
        """Remember what was looked at, in the transaction that stores what follows from it.

        Not of a table that is PAUSED: no reason was stored for it, so it must be found again later.
        """
        for how in compared:
            schema = how.captured.schema
            place = (schema.namespace, schema.name)
            if how.captured.table.state != registry.PAUSED and self.found.differs(schema.table_id, place):
                segments.store(self.session, schema.table_id, self.found.now.get(place, segments.NOTHING))
