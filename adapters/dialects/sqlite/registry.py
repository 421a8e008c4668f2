"""The registry of captured tables and the checkpoint row at a SQLite source (VENUS 3.3).

The registry also decides which objects in the file are VENUS's own: log tables and triggers carry the number of a
registered table. A name alone does not prove that VENUS created an object.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from venus.adapters.dialects.contract import FillState, RegisteredTable, SourceRegistry, SourceState
from venus.adapters.dialects.registry_rules import (
    RestoreGuard,
    SourceRestored,
    batch_records,
    batch_values,
    comparison_values,
    fill_values,
    halt_reason,
    parse_schema,
    registered_table,
    source_state,
    unknown_table,
    version_values,
)
from venus.adapters.dialects.sqlite.connection import literal, quote, read_transaction, write_transaction
from venus.adapters.dialects.sqlite.sql import statement
from venus.errors import Fenced, NotInstalled
from venus.model import BatchNo, BatchRecord, Epoch, TableSchema

_FIXED = re.compile(r"venus_(checkpoint|batch|captured_table|heartbeat|alembic_version)")
#: Tables of a file that follows another database (targets/sqlite): its progress, and the record of the switches.
_FOLLOWER_TABLE = re.compile(
    r"venus_(side|cutover|applied|target_table|target_schema|quarantine|sweep|held|load_job|load_manifest"
    r"|(touched|side)_\d+_[0-9a-f]{8})"
)
#: Trigger that rejects writes while another database is the application's.
_REJECT_TRIGGER = re.compile(r"venus_reject_[iud]_\d{5,}")
_NUMBERED = re.compile(r"venus_(?:l|f|i|k|u|d|iv\d+|uv\d+|reject_[iud])_(\d{5,})")
_COLUMNS = {"table_id", "schema_wire", "fingerprint", "state"}


@dataclass(frozen=True, slots=True)
class SqliteOwnedObjects:
    """VENUS's own objects, by the numbers of the registered tables. Installations are atomic: no object is missing."""

    numbers: Collection[int]

    def has_object(self, name: str) -> bool:
        """Return whether VENUS created the table or trigger of this name."""
        return bool(_FIXED.fullmatch(name)) or is_follower_table(name) or self.has_numbered_object(name)

    def has_numbered_object(self, name: str) -> bool:
        """Return whether this is the name of a log table or of a trigger of a registered table."""
        found = _NUMBERED.fullmatch(name)
        return found is not None and int(found[1]) in self.numbers


def is_follower_table(name: str) -> bool:
    """Return whether this is the name of one of VENUS's tables in a file that follows another database."""
    return bool(_FOLLOWER_TABLE.fullmatch(name))


def is_reject_trigger(name: str) -> bool:
    """Return whether this is the name of a trigger that rejects writes of the application."""
    return bool(_REJECT_TRIGGER.fullmatch(name))


def table_number(name: str) -> int | None:
    """Return the table number in a name of the form that VENUS uses; None if it has another form."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else None


def read_owned_objects(connection: sqlite3.Connection) -> SqliteOwnedObjects:
    """Read which objects are VENUS's own; none if there is no registry."""
    columns = {row[1] for row in connection.execute("PRAGMA main.table_info('venus_captured_table')")}
    if not columns >= _COLUMNS:
        return SqliteOwnedObjects(frozenset())
    return SqliteOwnedObjects({row[0] for row in connection.execute("SELECT table_id FROM main.venus_captured_table")})


ACTIVE, PAUSED, RESYNC = "ACTIVE", "PAUSED", "RESYNC"
#: Rows are counted in files up to this size only, because counting reads a whole index.
COUNT_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteRegistryEntry:
    """A registered table, as the row of the registry describes it."""

    table: RegisteredTable
    log_through: int
    number_max: int

    @property
    def schema(self) -> TableSchema:
        """The newest registered version."""
        return self.table.schema


def is_installed(connection: sqlite3.Connection) -> bool:
    """Return whether VENUS's own tables exist."""
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'venus_captured_table'").fetchone())


def require_installation(connection: sqlite3.Connection, what: object) -> None:
    """Raise NotInstalled if VENUS is not installed in the file."""
    if not is_installed(connection):
        raise NotInstalled(f"{what}: VENUS is not installed here", hint="run `venus install-triggers`")


def read_tables(connection: sqlite3.Connection, *, released: bool = False) -> dict[int, SqliteRegistryEntry]:
    """Return the captured tables by table id, or the released ones."""
    return {row[0]: _registry_entry(row) for row in connection.execute(statement("registry", "tables"), (released,))}


def _registry_entry(row: tuple[Any, ...]) -> SqliteRegistryEntry:
    _, wire, state, reason, *fill, log_through, number_max = row
    table = registered_table(parse_schema(wire), state, reason, fill)
    highest = max(number_max, *(c.number for c in table.schema.columns))
    return SqliteRegistryEntry(table=table, log_through=log_through, number_max=highest)


def read_states(connection: sqlite3.Connection) -> dict[int, tuple[str, int]]:
    """Return the state and the watermark of each table."""
    return {row[0]: (row[1], row[2]) for row in connection.execute(statement("registry", "states"))}


def register_sql(schema: TableSchema, *, estimate: int, number_max: int) -> str:
    """Return the statement that registers a table."""
    return statement(
        "registry",
        "add_table",
        namespace=literal(schema.namespace),
        name=literal(schema.name),
        estimate=literal(estimate),
        **_version_parts(schema, number_max),
    )


def new_version_sql(schema: TableSchema, number_max: int) -> str:
    """Return the statement that stores a table's next version."""
    return statement("registry", "new_version", **_version_parts(schema, number_max))


def _version_parts(schema: TableSchema, number_max: int) -> dict[str, str]:
    """Return the columns of the registry's row for a version, with their values as SQL."""
    return {name: literal(value) for name, value in version_values(schema, number_max).items()}


def set_state_sql(table_id: int, state: str, reason: str) -> str:
    """Return the statement that changes a table's state."""
    parts = {"table_id": literal(table_id), "state": literal(state), "reason": literal(reason or None)}
    return statement("registry", "set_state", **parts)


def recapture_sql(table_id: int, *, estimate: int) -> str:
    """Return the statement that captures a released table again and restarts its fill."""
    return statement("registry", "take_up", table_id=literal(table_id), estimate=literal(estimate))


def reset_watermark_sql(table_id: int) -> str:
    """Return the statement that resets the watermark for a new log."""
    return statement("registry", "log_is_new", table_id=literal(table_id))


def restart_fill(connection: sqlite3.Connection, table_id: int) -> None:
    """Restart the fill of a table."""
    connection.execute(statement("registry", "restart_fill"), (table_id,))


def restart_with_sweep(connection: sqlite3.Connection, captured: SqliteRegistryEntry, version: int) -> None:
    """Make the fill end in a sweep, and raise the version of the table to this one unless it is higher already."""
    connection.execute(statement("registry", "sweep"), (captured.schema.table_id,))
    if captured.schema.version < version:
        connection.execute(new_version_sql(replace(captured.schema, version=version), captured.number_max))


def advance_fill(connection: sqlite3.Connection, before: FillState, after: FillState) -> None:
    """Store the progress of a fill, unless it was restarted since."""
    connection.execute(statement("registry", "advance_fill"), fill_values(before, after))


def read_state(connection: sqlite3.Connection) -> SourceState:
    """Return the checkpoint row."""
    return source_state(connection.execute(statement("registry", "checkpoint")).fetchone())


def check_epoch(connection: sqlite3.Connection, epoch: Epoch) -> None:
    """Raise Fenced if another instance raised the epoch, SourceRestored if it is lower.

    The caller holds the write lock.
    """
    held = read_state(connection)
    if held.is_sealed:
        raise _sealed_error()
    if held.epoch < epoch:
        raise SourceRestored(f"the source is at epoch {held.epoch}, but was at {epoch}: it was restored")
    if held.epoch != epoch:
        raise Fenced(f"the source is at epoch {held.epoch}, this adapter at {epoch}")


def _sealed_error() -> Fenced:
    return Fenced("capture has ended here, another database continues it")


def add_batches(connection: sqlite3.Connection, batches: Iterable[BatchRecord]) -> None:
    """Insert the batch rows by which half messages are decided."""
    connection.executemany(statement("registry", "add_batch"), batch_values(batches))


class SqliteRegistry(SourceRegistry):
    """The registry of one file."""

    def __init__(self, file: Path, writer: sqlite3.Connection) -> None:
        self._file = file
        self._writer = writer
        self.restores = RestoreGuard()

    def read_registered_tables(self) -> list[RegisteredTable]:
        with read_transaction(self._writer, self._file):
            if not is_installed(self._writer):
                return []
            return [c.table for c in read_tables(self._writer).values()]

    def read_released_tables(self) -> list[RegisteredTable]:
        with read_transaction(self._writer, self._file):
            if not is_installed(self._writer):
                return []
            return [c.table for c in read_tables(self._writer, released=True).values()]

    def read_row_counts(self) -> dict[int, int]:
        """Count the rows of a small file. For a larger file, return the figures of the last ANALYZE, if any."""
        with read_transaction(self._writer, self._file):
            if not is_installed(self._writer):
                return {}
            return self._count_rows(exactly=self._file.stat().st_size <= COUNT_BYTES_MAX)

    def _count_rows(self, *, exactly: bool) -> dict[int, int]:
        """Return the row counts of the captured tables: exact, or those of the last ANALYZE."""
        existing = {name for (name,) in self._writer.execute(statement("registry", "tables_there"))}
        names = {i: c.schema.name for i, c in read_tables(self._writer).items() if c.schema.name in existing}
        if exactly:
            sql = {i: statement("survey", "count", table=quote(name)) for i, name in names.items()}
            return {i: int(self._writer.execute(text).fetchone()[0]) for i, text in sql.items()}
        if not self._writer.execute(statement("registry", "analyzed")).fetchone()[0]:
            return {}
        found = {str(name): int(rows) for name, rows in self._writer.execute(statement("registry", "row_counts"))}
        return {i: found[name] for i, name in names.items() if name in found}

    def read_registry_fingerprint(self) -> str:
        with read_transaction(self._writer, self._file):
            return repr(self._writer.execute(statement("registry", "sign")).fetchall())

    def set_table_state(self, table_id: int, state: str, reason: str) -> None:
        with write_transaction(self._writer, self._file):
            if not self._writer.execute(set_state_sql(table_id, state, reason)).rowcount:
                raise unknown_table(table_id)

    def begin_comparison(self, table_id: int, reason: str) -> bool:
        return self._change_table_row("begin_comparison", {"table_id": table_id, "reason": reason})

    def advance_comparison(self, table_id: int, before: str, after: str, rows_done: int, *, done: bool) -> bool:
        return self._change_table_row(
            "advance_comparison", comparison_values(table_id, before, after, rows_done, done=done)
        )

    def _change_table_row(self, block: str, values: Mapping[str, Any]) -> bool:
        """Run a statement that changes a table's row in the registry; return whether it did."""
        with write_transaction(self._writer, self._file):
            return self._writer.execute(statement("registry", block), values).rowcount == 1

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        with write_transaction(self._writer, self._file):
            check_epoch(self._writer, epoch)
            captured = read_tables(self._writer).get(table_id)
            if captured is None:
                raise unknown_table(table_id)
            if captured.table.state != PAUSED:
                reason = halt_reason(captured.table, why)
                self._writer.execute(set_state_sql(table_id, PAUSED, reason))

    def read_state(self) -> SourceState:
        with read_transaction(self._writer, self._file):
            require_installation(self._writer, self._file)
            return read_state(self._writer)

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        """Fence older instances. Taking the write lock waits for their local transaction."""
        with write_transaction(self._writer, self._file):
            require_installation(self._writer, self._file)
            held = read_state(self._writer)
            if held.is_sealed:
                raise _sealed_error()
            if held.epoch > epoch:
                raise Fenced(f"the source is at epoch {held.epoch}, this adapter at {epoch}")
            self._writer.execute(statement("registry", "raise_epoch"), (epoch,))
            self.restores.record_batch(held.last_batch)
            return replace(held, epoch=epoch)

    def read_batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        """Look up batches under the write lock, which excludes local transactions in progress."""
        with write_transaction(self._writer, self._file):
            rows = [r for n in numbers for r in self._writer.execute(statement("registry", "batch"), (n,))]
        return batch_records(rows)
