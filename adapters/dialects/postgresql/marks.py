"""The dirty marks: which log tables have something, asked in one statement however many tables there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from venus.adapters.dialects.postgresql import cutsql
from venus.adapters.dialects.postgresql.connection import Connection
from venus.adapters.dialects.postgresql.fewrows import Reads
from venus.adapters.dialects.postgresql.registry import Captured

#: A paused table keeps at most about so many dirty marks.
MARKS_MAX = 1000
#: The dirty mark of the registry itself.
REGISTRY = 0
#: The row beside the marks, which has the clock and the epoch.
HEAD = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a poll has read."""

    captured_at_us: int
    epoch: int
    counts: Mapping[int, int]

    @classmethod
    def read(cls, connection: Connection, before: str = "") -> Marks:
        """Read them, behind the statements of `before` in the same round trip."""
        rows = {r[0]: r[1:] for r in connection.rows(f"{before}EXECUTE venus_dirty")}
        captured_at_us, epoch = rows.pop(HEAD)
        return cls(captured_at_us=captured_at_us, epoch=epoch, counts={t: count for t, (count, _) in rows.items()})

    def stand_for_work(self, tables: Tables) -> bool:
        """Whether anything is to be done about them; those of a table that has to wait stay until they are many."""
        return any(t not in tables.waiting or count > MARKS_MAX for t, count in self.counts.items())

    def forget(self, tables: Tables) -> list[str]:
        """Return the statements that take away what is done with, and thin out what has to wait."""
        waiting = tables.waiting & self.counts.keys()
        return cutsql.forget_marks(
            sorted(self.counts.keys() - waiting), sorted(t for t in waiting if self.counts[t] > MARKS_MAX)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The captured tables, sorted once for many polls."""

    ready: Mapping[int, Captured]
    #: Those whose changes have to stay where they are.
    waiting: frozenset[int]
    #: What small cuts of these tables are opened with, prepared in the session.
    openings: dict[tuple[int, ...], str] = field(default_factory=dict)
    #: What few rows are read with.
    reads: Reads = field(default_factory=Reads)

    @classmethod
    def of(cls, captured: Iterable[Captured], *, together: bool = False) -> Tables:
        """Sort them; `together` = the session has the function that reads several."""
        known = {c.schema.table_id: c for c in captured}
        ready = {table_id: c for table_id, c in known.items() if _is_ready(c)}
        return cls(ready=ready, waiting=frozenset(known.keys() - ready.keys()), reads=Reads(together=together))


def _is_ready(captured: Captured) -> bool:
    return captured.table is not None and captured.usable and captured.registered.state != "PAUSED"
