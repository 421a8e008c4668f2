"""The first fill of existing rows, and the re-reading of whole tables, one chunk per cut, or several small tables.

A chunk is read in the same snapshot as the cut's changes and follows them in the stream, so it needs no watermark and
DML continues. A table that was filled before is *swept*: between SWEEP_BEGIN and SWEEP_END every row that still exists
gets a Sequence above that of SWEEP_BEGIN; rows that keep a lower Sequence no longer exist at the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import Cut, FillState, RegisteredTable
from venus.adapters.upper.batching import Batcher
from venus.codec.batch import TableChanges, marker
from venus.model import ChangeKind, Sequence, TableSchema
from venus.rpc.conditions import TableFillFigures

#: Only tables in this state are filled; the others wait for an operator.
ACTIVE = "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class FillProgress:
    """Progress of the fill of one table."""

    table: str
    rows_done: int
    rows_estimate: int
    done: bool


class Fills:
    """Queue of the tables that are not read completely; it chooses the chunks of the next cut."""

    def __init__(self) -> None:
        self._states: dict[int, FillState] = {}
        self._names: dict[int, str] = {}
        self._turn: list[int] = []
        self._progress: tuple[FillProgress, ...] | None = None
        #: Tables whose fill is a comparison, which runs outside of cuts.
        self.compared: tuple[RegisteredTable, ...] = ()

    def read(self, tables: Seq[RegisteredTable]) -> None:
        """Load the state of every fill, as the last local transaction stored it in the registry."""
        self._states = {t.schema.table_id: t.fill for t in tables}
        self._progress = None
        self._names = {t.schema.table_id: t.schema.qualified_name for t in tables}
        self.compared = tuple(t for t in tables if t.is_compared)
        unread = (t for t in tables if not t.fill.done and t.state == ACTIVE and not t.is_compared)
        open_ids = {t.schema.table_id: None for t in unread}
        kept = dict.fromkeys(table_id for table_id in self._turn if table_id in open_ids)
        self._turn = list(kept | open_ids)

    def next_states(self, count: int) -> list[FillState]:
        """Return the next tables to fill, at most `count`."""
        return [self._states[table_id] for table_id in self._turn[:count]]

    def advance(self, state: FillState) -> None:
        """Record a chunk whose local transaction is durable; the next table follows.

        A table without progress has halted; the registry has the reason.
        """
        before = self._states[state.table_id]
        self._states[state.table_id] = state
        self._progress = None
        self._turn.remove(state.table_id)
        if not state.done and state != before:
            self._turn.append(state.table_id)

    @property
    def running(self) -> tuple[TableFillFigures, ...]:
        """The tables that are being read, for the broker's page and status."""
        return tuple(
            TableFillFigures(
                table_id=i,
                name=self._names[i],
                rows=self._states[i].rows_done,
                rows_expected=self._states[i].rows_estimate,
            )
            for i in sorted([*self._turn, *(table.schema.table_id for table in self.compared)])
        )

    @property
    def is_finished(self) -> bool:
        """Whether every table that may be read has been read."""
        return not self._turn

    @property
    def is_complete(self) -> bool:
        """Whether every table has been read, also those that may not be read now."""
        return all(state.done for state in self._states.values())

    @property
    def progress(self) -> tuple[FillProgress, ...]:
        """Progress of every registered table; the same object while nothing has changed."""
        if self._progress is None:
            self._progress = tuple(
                FillProgress(
                    table=self._names[s.table_id], rows_done=s.rows_done, rows_estimate=s.rows_estimate, done=s.done
                )
                for s in self._states.values()
            )
        return self._progress


class FillChunk:
    """Chunk of a fill within a cut: its sections between the sweep's markers, and the state after it."""

    def __init__(self, cut: Cut, before: FillState, schema: TableSchema) -> None:
        self._cut = cut
        self._schema = schema
        self.before = before
        self.after = before

    def read_sections(self, batcher: Batcher, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        """Yield the sections of the chunk. `after` is valid only when this iterator is exhausted."""
        state = self.before
        if state.sweep_from and not state.cursor:
            # the begin marker names its own Sequence: whatever was sent before it lies below
            state = replace(state, sweep_from=Sequence(batcher.next_sequence))
            yield self._marker(ChangeKind.SWEEP_BEGIN, state.sweep_from)
        sections, self.after = self._cut.read_fill_chunk(state, rows_max=rows_max, bytes_max=bytes_max)
        yield from (replace(section, first_read=not state.sweep_from) for section in sections)
        if self.after.done and self.after.sweep_from:
            yield self._marker(ChangeKind.SWEEP_END, self.after.sweep_from)

    def _marker(self, kind: ChangeKind, sweep_before: int) -> TableChanges:
        """Return a section with a marker of the sweep."""
        return marker(self._schema.table_id, self._schema.version, kind, sweep_before)
