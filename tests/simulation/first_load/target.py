"""The broker's queue and full data, and a target whose open transaction a kill rolls back."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from tests.simulation.first_load.source import Row, decode_row, width_of
from venus.adapters.under.cut_assembler import (
    HELD,
    NEW_VERSION,
    ROWS,
    CutAssembler,
    CutPiece,
    DeliveredCut,
    SectionWalk,
    list_pieces,
)
from venus.adapters.under.row_changes import ChangedKeys, RowChanges, join_changes, net_changes, to_row_changes
from venus.codec.batch import Batch, TableChanges
from venus.model import ChangeKind, TableSchema

# Rules of the target that a history can disable.
ROWS_AND_POSITION = "rows and applied offset are one transaction"
ROWS_AND_MANIFEST = "rows and manifest are one transaction"
FROM_THE_CUT = "the tables follow from the cut of their snapshot on"
OVERLAP_IN_PLAN = "the plan says whether more of the first read follows its snapshot"
KEY_DECIDES = "a row that counts as new and is not replaces the older one"
ASK_FOR_RESYNC = "a sweep that began before the snapshot leads to a resync"
CONTINUE = "a load whose tables follow already continues"
NOT_LOADED = "a target whose first load has not ended does not follow"


class ProcessKilled(Exception):
    """The process was killed."""


class Violation(Exception):
    """A broken invariant."""


@dataclass
class Snapshot:
    """The full data as of one offset."""

    offset: int
    schemas: dict[tuple[int, int], TableSchema]
    rows: dict[int, dict[bytes, tuple[int, bytes]]]  # version, row


class Broker:
    """A queue of committed cuts, and the full data, which lags behind it."""

    def __init__(self) -> None:
        self.pieces: list[CutPiece] = []
        self.last_batch = 0
        self.materialised = 0  # pieces
        self._rows: dict[int, dict[bytes, tuple[int, int, bytes]]] = {1: {}, 2: {}}
        self._schemas: dict[tuple[int, int], TableSchema] = {}

    @property
    def next_offset(self) -> int:
        return self.pieces[-1].end if self.pieces else 0

    def commit(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.pieces.append(
                CutPiece(start=self.next_offset, epoch=1, committed_at_us=0, digest=0, decided=True, batch=batch)
            )
            self.last_batch = batch.batch_no

    def materialise(self, whole_cuts: int) -> None:
        """Fold the next cuts of the queue into the full data."""
        while whole_cuts and self.materialised < len(self.pieces):
            piece = self.pieces[self.materialised]
            self.materialised += 1
            for s in piece.batch.schemas:
                self._schemas[s.table_id, s.version] = s
            sequence = int(piece.batch.first_sequence)
            for section in piece.batch.sections:
                fold(self._rows[section.table_id], section, sequence)
                sequence += section.count
            whole_cuts -= piece.batch.cut_end

    def snapshot(self) -> Snapshot:
        offset = self.pieces[self.materialised - 1].end if self.materialised else 0
        rows = {t: {k: (version, row) for k, (_, version, row) in found.items()} for t, found in self._rows.items()}
        return Snapshot(offset, dict(self._schemas), rows)


def fold(rows: dict[bytes, tuple[int, int, bytes]], section: TableChanges, sequence: int) -> None:
    """Apply a section to the rows of its table, each with its Sequence and version."""
    if section.kind is ChangeKind.TRUNCATE:
        rows.clear()
    elif section.kind is ChangeKind.SWEEP_END:
        for key in [k for k, (at, _, _) in rows.items() if at < section.sweep_before]:
            del rows[key]
    elif section.kind is ChangeKind.CHANGES:
        found = zip(section.record_ids.split(), section.rows.split(), section.is_deleted.tolist(), strict=True)
        for i, (key, row, is_deleted) in enumerate(found):
            rows.pop(key, None)
            if not is_deleted:
                rows[key] = (sequence + i, section.schema_version, row)


@dataclass
class DurableState:
    """The state of the target's database, which survives every kill."""

    job: str = ""
    snapshot: Snapshot | None = None
    manifest: set[int] = field(default_factory=set)
    position: int | None = None
    counted_from: int = 0
    applied: int = 0  # number of changes, and number of offsets without a change
    rows: dict[int, dict[bytes, Row]] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    schemas: dict[tuple[int, int], TableSchema] = field(default_factory=dict)
    #: table -> (offset at which its sweep began, keys touched since); a table without a sweep has no entry.
    sweeps: dict[int, set[bytes]] = field(default_factory=dict)
    resyncs: set[int] = field(default_factory=set)


class Target:
    """The target's process: `durable` is its database; a kill loses everything else."""

    def __init__(self, broker: Broker, random_: random.Random, without: str = "") -> None:
        self._broker, self._random, self._without = broker, random_, without
        self.durable = DurableState()
        self._changed_keys = ChangedKeys(random_.choice((3, 1000)))
        self.kills = 0.0

    def restart(self) -> None:
        """Begin the next process, without anything in memory."""
        self._changed_keys = ChangedKeys(self._random.choice((3, 1000)))

    def _die_at_random(self) -> None:
        """Kill the process with the probability of this history."""
        if self._random.random() < self.kills:
            raise ProcessKilled

    @contextmanager
    def _transaction(self) -> Iterator[DurableState]:
        """Run a transaction; a kill before its end rolls it back, a kill after it does not."""
        made = copy.deepcopy(self.durable)
        yield made
        self._die_at_random()
        self.durable = made
        self._die_at_random()

    # -- the broker's rows -------------------------------------------------------------------------------------------

    def load_step(self, *, overlaps: bool) -> None:
        """Run the next step of a load: plan it, load a split, or let the tables follow."""
        found = self.durable
        if found.job == "":
            self._plan(overlaps=overlaps)
            return
        assert found.snapshot is not None
        left = [n for n in range(len(found.snapshot.rows) * 2) if n not in found.manifest]
        if left:
            self._load_split(found.snapshot, left[0])
            return
        overlaps = overlaps if self._without == OVERLAP_IN_PLAN else found.job == "overlapping"
        with self._transaction() as made:
            snapshot = found.snapshot
            at = self._broker.next_offset if self._without == FROM_THE_CUT else snapshot.offset
            made.position = made.counted_from = at
            made.job = "following" if overlaps else "done"
            if not overlaps:
                made.states = dict.fromkeys(made.states, "ACTIVE")

    def _plan(self, *, overlaps: bool) -> None:
        """Plan the load of a snapshot; with `overlaps` the first read of the source may still run."""
        if not overlaps:
            self._broker.materialise(1 << 30)  # a broker delays a snapshot until it has this
        snapshot = self._broker.snapshot()
        newest = {s.table_id: s for s in snapshot.schemas.values()}
        former = any(
            snapshot.schemas[t, version].identity != newest[t].identity
            for t, rows in snapshot.rows.items()
            for version, _ in rows.values()
        )
        if not newest or former:
            return  # no rows yet, or only rows with a former key, which the sweep in progress removes
        with self._transaction() as made:
            made.job = "overlapping" if overlaps or self._without == OVERLAP_IN_PLAN else "loading"
            made.snapshot, made.manifest = snapshot, set()
            made.schemas, made.rows = dict(snapshot.schemas), {t: {} for t in newest}
            made.versions = {t: s.version for t, s in newest.items()}
            made.states = dict.fromkeys(newest, "LOADING")

    def _load_split(self, snapshot: Snapshot, number: int) -> None:
        """Load half of a table from the snapshot, in one transaction."""
        table_id, half = number // 2 + 1, number % 2
        keys = sorted(snapshot.rows[table_id])
        keys = keys[: len(keys) // 2] if half == 0 else keys[len(keys) // 2 :]

        def copy_rows(made: DurableState) -> None:
            width = table_width(made, table_id)
            for key in keys:
                if key in made.rows[table_id]:
                    raise Violation("nothing is loaded twice")
                made.rows[table_id][key] = decode_row(snapshot.rows[table_id][key][1], width)

        if self._without == ROWS_AND_MANIFEST:
            with self._transaction() as made:
                copy_rows(made)
        with self._transaction() as made:
            if self._without != ROWS_AND_MANIFEST:
                copy_rows(made)
            made.manifest.add(number)

    # -- the queue ---------------------------------------------------------------------------------------------------

    def follow_step(self, *, first_load: bool) -> None:
        """Apply a group of cuts in one transaction."""
        position = self.durable.position
        assert position is not None
        assembler = CutAssembler(position)
        for piece in self._broker.pieces:
            if piece.end > position:
                assembler.add(piece)
        cuts = assembler.take_group(self._random.randint(1, 30))
        if not cuts:
            return
        if len(cuts) > 1 and self._halting(cuts):
            cuts = cuts[:1]
        halted = self._halting(cuts)
        if self._without == ROWS_AND_POSITION:
            with self._transaction() as made:
                made.position = cuts[-1].end
        with self._transaction() as made:
            for table_id in halted:
                made.states[table_id] = "HALTED"
            ApplyTransaction(
                made, self._changed_keys if first_load else None, self._without, first_load=first_load
            ).run(cuts)

    def _halting(self, cuts: list[DeliveredCut]) -> set[int]:
        """Return the tables whose key changes in these cuts; the target cannot follow such a change and halts them."""
        found = self.durable
        known = {t: found.schemas[t, version] for t, version in found.versions.items()}
        return {
            s.table_id
            for piece in list_pieces(cuts)
            for s in piece.batch.schemas
            if s.table_id in known and s.identity != known[s.table_id].identity
        }

    def finish(self) -> None:
        """End the first load."""
        with self._transaction() as made:
            made.job = "done"
            made.states = {t: "ACTIVE" if state == "LOADING" else state for t, state in made.states.items()}

    def resync(self) -> None:
        """Resync the tables that need it, once everything is applied and materialised."""
        snapshot = self._broker.snapshot()
        with self._transaction() as made:
            for table_id in [*made.resyncs, *(t for t, state in made.states.items() if state == "HALTED")]:
                made.schemas |= snapshot.schemas
                made.versions[table_id] = max(v for t, v in snapshot.schemas if t == table_id)
                width = table_width(made, table_id)
                made.rows[table_id] = {k: decode_row(row, width) for k, (_, row) in snapshot.rows[table_id].items()}
                made.states[table_id] = "ACTIVE"
            made.resyncs = set()


def table_width(found: DurableState, table_id: int) -> int:
    """Return the number of columns in a table at the target."""
    return width_of(found.schemas[table_id, found.versions[table_id]])


class ApplyTransaction:
    """One transaction that applies cuts."""

    def __init__(self, made: DurableState, changed: ChangedKeys | None, without: str, *, first_load: bool) -> None:
        self._made, self._changed, self._without = made, changed, without
        self._follows = ("LOADING", "ACTIVE") if first_load else ("ACTIVE",)
        self._pending: dict[int, list[RowChanges]] = {}
        self._walk = SectionWalk(lambda t, v: made.schemas[t, v], self._find_version)

    def _find_version(self, table_id: int) -> int | None:
        """Return the version of a table that follows; None if it does not follow."""
        return self._made.versions[table_id] if self._made.states.get(table_id) in self._follows else None

    def run(self, cuts: list[DeliveredCut]) -> None:
        """Apply the changes of these cuts to the tables that follow."""
        made = self._made
        for piece in list_pieces(cuts):
            for schema in piece.batch.schemas:
                made.schemas[schema.table_id, schema.version] = schema
                known = made.versions.get(schema.table_id, 0)
                if self._find_version(schema.table_id) is not None and schema.version > known:
                    self._evolve(schema)
            for role, section, offset in self._walk.walk(piece):
                if role is NEW_VERSION:
                    self._evolve(made.schemas[section.table_id, section.schema_version])
                elif role is ROWS:
                    self._add(section, offset)
                elif role is not HELD:
                    self._apply_marker(section)
        for table_id in list(self._pending):
            self._flush(table_id)
        made.applied += cuts[-1].end - cuts[0].start
        made.position = cuts[-1].end

    def _evolve(self, schema: TableSchema) -> None:
        """Give a table its next version, whose rows have the columns of that version."""
        made, table_id = self._made, schema.table_id
        self._flush(table_id)
        made.versions[table_id] = schema.version
        width = table_width(made, table_id)
        made.rows[table_id] = {k: decode_row(b"|".join(row), width) for k, row in made.rows[table_id].items()}

    def _add(self, section: TableChanges, offset: int) -> None:
        """Collect the rows of a section until the next flush."""
        rows = to_row_changes(section, offset)
        if self._changed is not None:
            rows = self._changed.mark_new(rows, section.table_id, first_read=section.first_read)
        if section.table_id in self._made.sweeps:
            self._made.sweeps[section.table_id].update(section.record_ids.split())
        self._pending.setdefault(section.table_id, []).append(rows)

    def _flush(self, table_id: int) -> None:
        """Write rows as the merger does: insert rows marked as new, unless a key exists; then upsert the others."""
        if not (parts := self._pending.pop(table_id, [])):
            return
        rows = join_changes(parts)
        rows = rows if rows.has_only_new else net_changes(rows)
        is_new = np.zeros(len(rows), dtype=np.bool_) if rows.is_new is None else rows.is_new
        table, width = self._made.rows[table_id], table_width(self._made, table_id)
        if is_new.any() and table_id not in self._made.sweeps:
            new = rows.where(is_new)
            keys = new.record_ids.split()
            if len(set(keys)) == len(keys) and not table.keys() & set(keys):
                table.update((k, decode_row(v, width)) for k, v in zip(keys, new.rows.split(), strict=True))
                rows = rows.where(~is_new)
            elif self._without == KEY_DECIDES:
                rows = rows.where(~is_new)
        rows = net_changes(rows)
        found = zip(rows.record_ids.split(), rows.rows.split(), rows.is_deleted.tolist(), strict=True)
        for key, row, is_deleted in found:
            table.pop(key, None)
            if not is_deleted:
                table[key] = decode_row(row, width)

    def _apply_marker(self, section: TableChanges) -> None:
        """Apply a TRUNCATE, or the begin or end of a sweep."""
        made, table_id = self._made, section.table_id
        if section.kind is ChangeKind.TRUNCATE:
            self._pending.pop(table_id, None)
            made.rows[table_id] = {}
            return
        self._flush(table_id)
        if section.kind is ChangeKind.SWEEP_BEGIN:
            made.sweeps[table_id] = set()
        elif table_id in made.sweeps:
            touched = made.sweeps.pop(table_id)
            made.rows[table_id] = {k: row for k, row in made.rows[table_id].items() if k in touched}
        elif self._without != ASK_FOR_RESYNC:
            made.resyncs.add(table_id)
