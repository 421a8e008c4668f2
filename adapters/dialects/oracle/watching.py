"""What the numbers of the segments say at a comparison with the dictionary, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from venus.adapters.dialects.oracle import seen, segments
from venus.adapters.dialects.oracle.connection import Session
from venus.adapters.dialects.oracle.ddlnotes import Notes
from venus.adapters.dialects.oracle.refresh import Comparison


@dataclass(frozen=True, slots=True)
class Watch:
    """One look at the segments of all captured tables."""

    session: Session
    found: segments.Segments
    #: What was noted says what follows, also of segments that are replaced by it.
    notes: Notes

    def judged(self, how: Comparison) -> Comparison:
        """Add the reason to read a table again, if its segments, its triggers or its definition give one."""
        table_id, place = how.captured.schema.table_id, how.place
        if how.reason or how.table is None:
            return how
        reason = "" if self.notes.explain_segments(place) else self.found.reason(table_id, place)
        if not reason and not how.begins:  # otherwise the whole table is about to be read anyway
            reason = self.found.altered(table_id, place)
        return replace(how, reason=reason, again=not how.is_paused and self._altered(how))

    def _altered(self, how: Comparison) -> bool:
        """Say whether ALTER TABLE may have given rows other values."""
        before, now = self._before(how), self._now(how)
        explained = self.notes.explain_definition(how.place) or segments.extended(before, now)
        look = segments.DEFINITION
        return seen.altered(before.get(look, ""), now.get(look, ""), explained=explained)

    def _before(self, how: Comparison) -> segments.Marks:
        return self.found.stored.get(how.captured.schema.table_id, segments.NOTHING)

    def _now(self, how: Comparison) -> segments.Marks:
        """Return what there is to remember of a table; of one that cannot be read its definition stays as it was."""
        now = dict(self.found.now.get(how.place, segments.NOTHING))
        specified = now.pop(segments.DEFINITION, "")
        before = self._before(how).get(segments.DEFINITION, "")
        look = seen.look(how.table, specified) if how.table is not None else before
        return now | ({segments.DEFINITION: look} if look else {})

    def store(self, compared: Iterable[Comparison]) -> None:
        """Remember what was looked at, in the transaction that stores what follows from it.

        Not of a table that is PAUSED, or may not be read: no reason was stored for it, so it must be found again later.
        """
        for how in compared:
            now = self._now(how)
            if not how.is_paused and not how.lack and now != self._before(how):
                segments.store(self.session, how.captured.schema.table_id, now)
