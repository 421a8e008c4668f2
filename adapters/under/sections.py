"""What each section of an increment means to a target, decided in one place for all targets. Pure (VENUS 3.4).

A section without changes of a table (left out by a tier, or a heartbeat) only counts. Every other one goes to the
target's handler with its role. A section of another table version than the target's is announced first, as NEW_VERSION;
after that its role is MARKER or ROWS as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto

from venus.adapters.under.cut_assembler import CutPiece
from venus.codec.changes import TableChanges
from venus.codec.columns import to_columns
from venus.codec.layout import Layout
from venus.model import ChangeKind, TableSchema


class SectionRole(Enum):
    """What a target does with a section."""

    HELD = auto()  # the table does not follow, or is unknown
    NEW_VERSION = auto()
    MARKER = auto()  # it concerns the whole table
    ROWS = auto()


HELD, NEW_VERSION, MARKER, ROWS = SectionRole


class SectionWalk:
    """Walk over the sections of increments in offset order, for one target.

    `find_schema` returns a table version, at least each one of a heartbeat; `find_version` returns the version that a
    table has if it follows. `only` leaves out all other tables, and `start` and `end` all offsets outside of them.
    """

    #: How many of the offsets belong to no table.
    other = 0
    #: The last heartbeat, Unix microseconds.
    heartbeat_us: int | None = None

    def __init__(
        self,
        find_schema: Callable[[int, int], TableSchema | None],
        find_version: Callable[[int], int | None],
        only: int | None = None,
        start: int = 0,
        end: int = 1 << 63,
    ) -> None:
        self._find_schema, self._find_version = find_schema, find_version
        self._only, self._start, self._end = only, start, end

    def walk(self, piece: CutPiece) -> Iterator[tuple[SectionRole, TableChanges, int]]:
        """Yield what the target has to do with each section, and the section's first offset."""
        offset, only, start, end = piece.start, self._only, self._start, self._end
        for section in piece.batch.sections:
            at, offset = offset, offset + section.count
            table_id = section.table_id
            if (only is not None and table_id != only) or at >= end or offset <= start:
                continue
            if section.left_out:
                self._count_other(at, offset)
                continue
            schema = self._find_schema(table_id, section.schema_version)
            if schema is not None and schema.is_heartbeat:
                self._count_other(at, offset)
                self.heartbeat_us = read_heartbeat(section, schema) or self.heartbeat_us
                continue
            version = self._find_version(table_id)
            if version is None:
                yield HELD, section, at
                continue
            if version != section.schema_version:
                yield NEW_VERSION, section, at
            yield ROWS if section.kind is ChangeKind.CHANGES else MARKER, section, at
        if offset != piece.end:  # an increment without changes takes offsets as well
            self._count_other(offset, piece.end)

    def _count_other(self, start: int, end: int) -> None:
        self.other += max(min(end, self._end) - max(start, self._start), 0)


def read_heartbeat(section: TableChanges, schema: TableSchema) -> int | None:
    """Return the last heartbeat of a section, the source's clock in Unix microseconds; None if it has none.

    Its age on arrival is the lag from end to end.
    """
    if section.kind is not ChangeKind.CHANGES or section.is_deleted.all():
        return None
    layout = Layout.of(schema)
    names = [c.name.lower() for c in layout.columns]
    value = to_columns(section.record_ids, section.rows, layout)[names.index("beat_at")][-1]
    return int(value) if isinstance(value, str) and value.isdecimal() else None
