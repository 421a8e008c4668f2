"""A source database in memory, so that tests of the upper adapter run step by step, without a clock or a thread.

`ScriptedDatabase` has the state that survives a crash; each `ScriptedSource` is one connection to it. Every call passes
a `Script`, which counts the steps of a run and can make any of them fail. Rows are opaque bytes here: no part between
capture and the broker's disk reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tests.support.databases.scripted_database import HEARTBEAT, ScriptedDatabase, schema_of
from venus.adapters.dialects.contract import (
    Cut,
    FillState,
    InstallStep,
    MissingGrant,
    Numbering,
    OtherObject,
    RegisteredTable,
    SchemaChanged,
    SnapshotLost,
    SourceCapabilities,
    SourceState,
    TableHalted,
    UncapturedTable,
)
from venus.codec.batch import TableChanges, marker
from venus.codec.packed import PackedBytes
from venus.errors import DatabaseUnavailable, Fenced, VenusError
from venus.model import (
    BatchNo,
    BatchRecord,
    ChangeKind,
    Epoch,
    Finding,
    SourceIdentity,
    TableSchema,
)
from venus.model import Sequence as Position


class Script:
    """Counts the steps of a run, and fails at the chosen ones."""

    def __init__(self, failures: dict[int, VenusError] | None = None) -> None:
        self.trace: list[str] = []
        self.failures = failures or {}

    def step(self, name: str) -> None:
        """Count a step, or raise the error that is scripted for it."""
        at = len(self.trace)
        self.trace.append(name)
        if at in self.failures:
            raise self.failures[at]

    def loses(self, name: str) -> bool:
        """Return whether a message queued at this step is silently lost."""
        at = len(self.trace)
        self.trace.append(name)
        return at in self.failures


class ScriptedCut:
    """A snapshot of the state at its opening."""

    def __init__(self, source: ScriptedSource) -> None:
        self._source = source
        self._database = source.database
        tables = source.database.tables
        self._log = {n: r for n, r in source.database.log.items() if tables[r.table_id].state != "PAUSED"}
        self._unfit = set(source.database.unfit)
        self._rows = source.database.contents()
        self._schemas = {table_id: t.schema for table_id, t in source.database.tables.items()}
        self._reading = False
        self.captured_at_us = 1_000_000

    def read_sections(self, *, rows_max: int, bytes_max: int) -> Iterator[TableChanges]:
        """Yield the sections of changes."""
        self._reading = True
        try:
            yield from self._sections(rows_max)
        finally:
            self._reading = False

    def _sections(self, rows_max: int) -> Iterator[TableChanges]:
        self._source.pass_step("sections")
        broken = self._database.broken_table
        for table_id, schema in self._schemas.items():
            entries = [r for r in self._log.values() if r.table_id == table_id]
            if entries and table_id == broken:
                raise SchemaChanged(f"{schema.qualified_name} has changed")
            if any(r.key is None for r in entries):
                yield marker(table_id, schema.version, ChangeKind.TRUNCATE)
            for bulk in (r.bulk for r in entries if r.bulk):
                yield from _bulk(schema, bulk, rows_max)
            keys = list(dict.fromkeys(r.key for r in entries if r.key))
            for start in range(0, len(keys), rows_max):
                self._require_fit(schema, keys[start : start + rows_max])
                yield self._changes(schema, keys[start : start + rows_max])
                self._source.pass_step("sections.more")

    def read_fill_chunk(
        self, fill: FillState, *, rows_max: int, bytes_max: int
    ) -> tuple[list[TableChanges], FillState]:
        """Read the next rows after the cursor."""
        self._source.pass_step("fill_chunk")
        rows = self._rows[fill.table_id]
        after = fill.cursor.removeprefix(b">")
        keys = sorted(k for k in rows if k > after or not fill.cursor)
        chunk = keys[: min(rows_max, self._database.chunk_rows)]
        self._require_fit(self._schemas[fill.table_id], chunk)
        sections = [self._changes(self._schemas[fill.table_id], chunk)] if chunk else []
        if keys and not chunk:
            return [], fill  # the table has halted
        return sections, replace(
            fill,
            cursor=b">" + chunk[-1] if chunk else b">",
            rows_done=fill.rows_done + len(chunk),
            rows_estimate=len(rows),
            done=len(chunk) == len(keys),
        )

    def _require_fit(self, schema: TableSchema, keys: Sequence[bytes]) -> None:
        for key in keys:
            if key in self._unfit:
                self._database.extents[schema.table_id] = sum(r.table_id == schema.table_id for r in self._log.values())
                raise TableHalted(schema, f"row k={key.decode()}: too large")

    def _changes(self, schema: TableSchema, keys: Sequence[bytes]) -> TableChanges:
        rows = self._rows[schema.table_id]
        return TableChanges(
            table_id=schema.table_id,
            schema_version=schema.version,
            record_ids=PackedBytes.of(keys),
            rows=PackedBytes.of(rows.get(k, b"") for k in keys),
            is_deleted=np.array([k not in rows for k in keys], dtype=np.bool_),
        )

    def commit(
        self,
        epoch: Epoch,
        batches: Sequence[BatchRecord],
        fills: Sequence[FillState],
        forget_batches_below: BatchNo,
    ) -> None:
        """Execute the local transaction, completely or not at all."""
        self._source.pass_step("commit.before")
        database = self._database
        if database.state.epoch != epoch:
            raise Fenced(f"epoch {database.state.epoch} is at the source")
        assert batches
        if database.strict:
            assert batches[0].batch_no == database.state.last_batch + 1, "batch numbers are dense"
            assert batches[0].first_sequence == database.state.next_sequence, "Sequences are dense"
        database.batches.update((b.batch_no, b) for b in batches)
        for forgotten in [n for n in database.batches if n < forget_batches_below]:
            del database.batches[forgotten]
        last = batches[-1]
        database.state = SourceState(
            epoch=epoch, next_sequence=Position(last.last_sequence + 1), last_batch=last.batch_no
        )
        for number in self._log:
            database.log.pop(number, None)
        for fill in fills:
            database.tables[fill.table_id].fill = fill
        self._source.cut = None
        self._source.pass_step("commit.after")

    def rollback(self) -> None:
        """Close the snapshot; not allowed while its sections are being read."""
        assert not self._reading, "the connection is busy"
        self._source.pass_step("rollback")
        self._source.cut = None


class ScriptedSource:
    """One connection. After a failed step it is broken, as a real driver's would be."""

    name = "scripted"
    capabilities = SourceCapabilities(transactional_ddl=True)

    def __init__(self, database: ScriptedDatabase, script: Script, *, idle: Callable[[], None] = lambda: None) -> None:
        self.database = database
        self.script = script
        self.broken = False
        self.cut: Cut | None = None
        self._idle = idle
        #: The last argument of `wait`: the time for which no other work is due.
        self.rests: list[float] = []

    @property
    def dictionary(self) -> ScriptedSource:
        """Return this object, which implements all four parts."""
        return self

    installer = registry = capture = dictionary

    def pass_step(self, name: str) -> None:
        """Fail if the script says so; from then on every call fails."""
        if self.broken:
            raise DatabaseUnavailable("the connection is broken")
        try:
            self.script.step(f"source.{name}")
        except SnapshotLost:
            raise
        except DatabaseUnavailable:
            self.broken = True
            raise

    def close(self) -> None:
        self.broken = True

    def read_tables(self, include: Sequence[str], exclude: Sequence[str]) -> list[TableSchema]:
        return [t.schema for t in self.database.tables.values()]

    def read_table_names(self) -> list[str]:
        return [t.schema.qualified_name for t in self.database.tables.values()]

    def find_unmatched_patterns(self, patterns: Sequence[str]) -> list[str]:
        return []

    def read_numberings(self) -> list[Numbering]:
        return []

    def read_other_objects(self) -> list[OtherObject]:
        return []

    def check(self, include: Sequence[str], exclude: Sequence[str]) -> list[Finding]:
        return []

    def plan_install(self, include: Sequence[str], exclude: Sequence[str]) -> list[InstallStep]:
        return []

    def install(self, include: Sequence[str], exclude: Sequence[str]) -> list[InstallStep]:
        return []

    def plan_uninstall(self) -> list[InstallStep]:
        return []

    def uninstall(self) -> list[InstallStep]:
        return []

    def plan_release(self, table_ids: Sequence[int]) -> list[InstallStep]:
        return []

    def release(self, table_ids: Sequence[int]) -> list[InstallStep]:
        return []

    def drop_logs(self, reasons: Mapping[int, str]) -> list[InstallStep]:
        return []

    def read_released_tables(self) -> list[RegisteredTable]:
        return []

    def as_script(self, steps: Sequence[InstallStep], *, removal: bool) -> str:
        return ""

    def read_registered_tables(self) -> list[RegisteredTable]:
        self.pass_step("registered")
        return [
            RegisteredTable(schema=t.schema, state=t.state, reason="", fill=t.fill)
            for t in self.database.tables.values()
        ]

    def read_registry_fingerprint(self) -> str:
        self.pass_step("registry_sign")
        return repr([(t.schema, t.state, t.fill) for t in self.database.tables.values()])

    def set_table_state(self, table_id: int, state: str, reason: str) -> None:
        self.database.tables[table_id].state = state

    def begin_comparison(self, table_id: int, reason: str) -> bool:
        return False

    def advance_comparison(self, table_id: int, before: str, after: str, rows_done: int, *, done: bool) -> bool:
        return False

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        self.pass_step("halt.before")
        if self.database.state.epoch != epoch:
            raise Fenced(f"epoch {self.database.state.epoch} is at the source")
        self.database.tables[table_id].state = "PAUSED"
        self.database.halted.add(table_id)
        self.pass_step("halt.after")

    def restart_fill(self, table_id: int) -> None:
        table = self.database.tables[table_id]
        swept = table.fill.done or table.fill.sweep_from
        table.fill = FillState(
            table_id=table_id,
            sweep_from=Position(1 if swept else 0),
            cursor=b"",
            rows_done=0,
            rows_estimate=len(table.rows),
            done=False,
        )

    def restart_with_sweep(self, table_id: int, version: int) -> None:
        self.pass_step("start_over")
        table = self.database.tables[table_id]
        self.restart_fill(table_id)
        table.fill = replace(table.fill, sweep_from=Position(max(table.fill.sweep_from, 1)))
        if table.schema.version < version:
            table.schema = schema_of(table_id, table.schema.name, version=version)

    def read_state(self) -> SourceState:
        self.pass_step("state")
        return self.database.state

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        self.pass_step("raise_epoch.before")
        if self.database.state.epoch >= epoch:
            raise Fenced(f"the source has epoch {self.database.state.epoch}")
        self.database.state = replace(self.database.state, epoch=epoch)
        self.pass_step("raise_epoch.after")
        return self.database.state

    def read_batches(self, numbers: Sequence[BatchNo]) -> dict[BatchNo, BatchRecord]:
        self.pass_step("batches")
        return {n: self.database.batches[n] for n in numbers if n in self.database.batches}

    def write_heartbeat(self) -> None:
        self.pass_step("beat")
        self.database.beats += 1
        self.database.put(HEARTBEAT, "beat", str(self.database.beats))

    def limit_logs(self) -> None:
        self.database.limited += 1

    def limit_lock_waits(self) -> None:
        """Do nothing: nothing is ever locked."""

    def read_backlog(self) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(self.database.tables, (0, 0))

    def read_row_counts(self) -> dict[int, int]:
        return {}

    def find_large_rows(self, include: Sequence[str], exclude: Sequence[str]) -> list[Finding]:
        return []

    def read_identity(self) -> SourceIdentity | None:
        return None

    def store_identity(self, facts: Mapping[str, str]) -> None:
        return

    def find_missing_grants(self) -> list[MissingGrant]:
        self.pass_step("own_lacking")
        return list(self.database.own_lacking)

    def find_blocking_locks(self) -> dict[str, str]:
        return dict(self.database.locked)

    def find_uncaptured_tables(self, include: Sequence[str], exclude: Sequence[str]) -> list[UncapturedTable]:
        return list(self.database.uncaptured)

    def describe_blockers(self) -> str:
        return ""

    def refresh_schemas(self) -> list[TableSchema]:
        self.pass_step("refresh_schemas")
        found, self.database.altered = self.database.altered, []
        for schema in found:
            self.database.tables[schema.table_id].schema = schema
        self.database.broken_table = 0
        for table_id in sorted(self.database.halted):
            if self.database.waiting(table_id) != self.database.extents[table_id]:
                self.database.halted.remove(table_id)
                self.database.tables[table_id].state = "ACTIVE"
        return found

    def wait(self, pause_s: float, rest_s: float = 0.0) -> bool:
        self.rests.append(rest_s)
        return False

    def open_cut(self, fills: Sequence[FillState]) -> Cut | None:
        self.pass_step("open_cut")
        assert self.cut is None, "one cut at a time"
        active = [t for t, table in self.database.tables.items() if table.state != "PAUSED"]
        if not any(map(self.database.waiting, active)) and not fills:
            self._idle()
            return None
        self.cut = ScriptedCut(self)
        return self.cut


def _bulk(schema: TableSchema, count: int, rows_max: int) -> Iterator[TableChanges]:
    for start in range(0, count, rows_max):
        rows = min(rows_max, count - start)
        keys = np.arange(start, start + rows, dtype=">u8").tobytes()
        yield TableChanges(
            table_id=schema.table_id,
            schema_version=schema.version,
            record_ids=PackedBytes(keys, np.full(rows, 8, dtype=np.uint32)),
            rows=PackedBytes(bytes(92 * rows), np.full(rows, 92, dtype=np.uint32)),
            is_deleted=np.zeros(rows, dtype=np.bool_),
            inserts_only=True,
        )
