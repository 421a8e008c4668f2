"""A task of the scale-out apply: increments between two offsets, written to staging tables of the target (VENUS 3.4).

A task reads its piece of the queue, keeps the last change of each key, and writes rows and keys to its own staging
tables. Staged changes take effect only in the one transaction that merges them, so a task may be repeated, or die, at
any time. Staging tables that were never merged are dropped.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from venus.adapters.targets.postgresql.naming import OWN_SCHEMA, PlacedTable
from venus.adapters.targets.postgresql.rowsql import RowSql, group_number
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.adapters.under.cut_assembler import CutPiece, SectionRole, SectionWalk, decode_piece
from venus.adapters.under.row_changes import RowChanges, join_changes, net_changes, project_changes, to_row_changes
from venus.codec.batch import TableChanges
from venus.codec.copy_text import keys_to_copy, to_copy
from venus.codec.masked_rows import Maskers
from venus.codec.row_bytes import Layout
from venus.errors import ProtocolError
from venus.masking.functions import MaskingKey
from venus.masking.projection import source_of
from venus.model import TableSchema
from venus.network.row_filters import RowsIdentity
from venus.predicates.ranges import Predicate, compile_predicate
from venus.predicates.syntax import PredicateRefused
from venus.rpc.subscriber import Subscriber

if TYPE_CHECKING:
    from pydantic import SecretStr

CREDIT_BYTES = 8 << 20
WAIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTask:
    """Task that stages one range of a micro-batch's offsets; can be pickled and sent to another machine."""

    url: str | SecretStr = field(repr=False)
    broker: str
    business: str
    group: str
    start: int
    end: int
    #: The tables at the target.
    tables: dict[int, PlacedTable]
    heartbeats: dict[tuple[int, int], TableSchema]
    known: frozenset[tuple[int, int]]
    #: The predicates of the tables of which the target gets only some rows.
    predicates: dict[int, str] = field(default_factory=dict)
    #: Rows identity of the broker's set at the offset `rows_at`; None = unknown.
    rows: RowsIdentity | None = None
    rows_at: int = 0
    #: The target's key for hmac columns.
    masking_key: MaskingKey | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """The staging tables of one table: current rows, and keys of deleted rows; an empty name = no table."""

    table_id: int
    live: str
    gone: str
    changes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReceipt:
    """Result of a task. `unusual`: what the merging transaction cannot apply; if set, nothing is staged."""

    start: int
    end: int
    staged: tuple[StagedTable, ...] = ()
    unusual: str = ""
    other: int = 0
    heartbeat_us: int | None = None
    epoch: int = 0
    sequence: int = 0
    captured_us: int = 0
    committed_us: int = 0


def stage_prefix(group: str) -> str:
    """Return the prefix of the names of all staging tables of a target."""
    return f"stage_{group_number(group):08x}_"


def stage_range(task: StageTask) -> StageReceipt:
    """Read a task's range of the queue, and write its changes to staging tables. May be repeated after a failure."""
    gathered = _TaskChanges(task)
    with Subscriber(
        task.broker, task.business, f"{task.group}/stage {uuid.uuid4().hex}", credit_bytes=CREDIT_BYTES, transient=True
    ) as subscriber:
        subscriber.open(task.start, 0, rows=task.rows, rows_at=task.rows_at)
        while not gathered.is_done:
            for increment in subscriber.increments(WAIT_S):
                if increment.base_offset < task.end:
                    gathered.add(decode_piece(increment))
            if gathered.unusual:
                return StageReceipt(start=task.start, end=task.end, unusual=gathered.unusual)
    name = task.group.removeprefix(f"{task.business}/")
    session = TargetSession(task.url, application=f"venus stage {task.group}", target=name)
    try:
        return gathered.write_stages(session)
    finally:
        session.rollback()
        session.close()


class _TaskChanges:
    """The changes of a task in memory; the limit of a micro-batch bounds their size."""

    def __init__(self, task: StageTask) -> None:
        self._task = task
        self._parts: dict[int, list[RowChanges]] = {}
        self._maskers = Maskers(task.masking_key)
        self._at = task.start
        self._last: CutPiece | None = None
        beats = task.heartbeats
        self._walk = SectionWalk(lambda t, v: beats.get((t, v)), self._find_version, start=task.start, end=task.end)
        self.unusual = ""

    @property
    def is_done(self) -> bool:
        """Whether all increments up to the end were added."""
        return self._at >= self._task.end

    def add(self, piece: CutPiece) -> None:
        """Add the part of an increment that lies within the task's offsets."""
        task = self._task
        if piece.start > self._at:
            raise ProtocolError(f"increment {piece.start} does not follow offset {self._at}")
        fresh = [s for s in piece.batch.schemas if (s.table_id, s.version) not in task.known]
        if fresh:
            self.unusual = f"{fresh[0].qualified_name} version {fresh[0].version} is new"
        for role, section, offset in self._walk.walk(piece):
            if not self.unusual:
                self._add_section(role, section, offset)
        self._at, self._last = max(self._at, piece.end), piece

    def _find_version(self, table_id: int) -> int | None:
        """Return the version of a table that this task can stage; None if the target does not have the table."""
        placed = self._task.tables.get(table_id)
        return placed.schema.version if placed is not None else None

    def _add_section(self, role: SectionRole, section: TableChanges, offset: int) -> None:
        """Add the changes of a section, or record in `unusual` why a task cannot stage them."""
        task = self._task
        if role is not SectionRole.ROWS:
            self.unusual = f"offset {offset}: {section.kind.name} of table {section.table_id}"
            return
        placed = task.tables[section.table_id]
        try:
            predicate = self._predicate(placed)
        except PredicateRefused as refused:
            self.unusual = f"offset {offset}: the predicate of table {section.table_id}: {refused}"
            return
        rows = project_changes(to_row_changes(section, offset), predicate, placed.schema, self._maskers)
        within = (rows.offsets >= task.start) & (rows.offsets < task.end)
        self._parts.setdefault(section.table_id, []).append(rows.where(np.asarray(within, dtype=np.bool_)))

    def _predicate(self, placed: PlacedTable) -> Predicate | None:
        """Return the row filter of a table; None = every row."""
        text = self._task.predicates.get(placed.schema.table_id, "")
        return compile_predicate(text, source_of(placed.schema)) if text else None

    def write_stages(self, session: TargetSession) -> StageReceipt:
        """Write all changes to staging tables in one transaction."""
        task, last = self._task, self._last
        assert last is not None
        session.run("BEGIN")
        staged = tuple(
            self._write_table(session, table_id, join_changes(parts)) for table_id, parts in self._parts.items()
        )
        session.run("COMMIT")
        return StageReceipt(
            start=task.start,
            end=task.end,
            staged=staged,
            other=self._walk.other,
            heartbeat_us=self._walk.heartbeat_us,
            epoch=last.epoch,
            sequence=last.batch.first_sequence + last.batch.count - 1,
            captured_us=last.batch.captured_at_us,
            committed_us=last.committed_at_us,
        )

    def _write_table(self, session: TargetSession, table_id: int, rows: RowChanges) -> StagedTable:
        """Write the net changes of one table to new staging tables, and return the names of these."""
        placed = self._task.tables[table_id]
        sql, layout = RowSql(placed, self._task.group), Layout.of(placed.schema)
        stem = f"{OWN_SCHEMA}.{stage_prefix(self._task.group)}{uuid.uuid4().hex[:16]}_{table_id}"
        kept = net_changes(rows)
        live, gone = kept.where(~kept.is_deleted), kept.where(kept.is_deleted)
        live_name, gone_name = (f"{stem}_l" if len(live) else ""), (f"{stem}_g" if len(gone) else "")
        if live_name:
            _create_stage(session, live_name, sql.columns, sql.table, to_copy(live.record_ids, live.rows, layout))
        if gone_name:
            _create_stage(session, gone_name, sql.key, sql.table, keys_to_copy(gone.record_ids, layout))
        return StagedTable(table_id=table_id, live=live_name, gone=gone_name, changes=len(rows))


def _create_stage(session: TargetSession, stage: str, columns: str, table: str, lines: bytes) -> None:
    """Create a staging table with these columns of `table`, and COPY lines into it."""
    session.run(statement("staged", "create_stage", stage=stage, columns=columns, table=table))
    session.copy_in(statement("apply", "copy_in", table=stage, columns=columns), lines)
