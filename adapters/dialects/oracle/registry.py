"""The registry at the source: the captured tables with their fills, and the checkpoint row (VENUS 3.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from venus.adapters.dialects.contract import (
    FillState,
    RegisteredTable,
    SchemaChanged,
    SourceRegistry,
    SourceState,
)
from venus.adapters.dialects.handover_rules import continued_values
from venus.adapters.dialects.oracle.dictionary import ownership
from venus.adapters.dialects.oracle.dictionary.reader import OracleDatabase
from venus.adapters.dialects.oracle.session.connection import OracleSession, Row
from venus.adapters.dialects.oracle.sql import literal, statement
from venus.adapters.dialects.registry_rules import (
    batch_records,
    batch_values,
    comparison_reason,
    comparison_values,
    fill_values,
    halt_reason,
    parse_schema,
    registered_table,
    source_state,
    unknown_table,
    version_values,
)
from venus.errors import Fenced, NotInstalled, SourceError
from venus.model import BatchNo, BatchRecord, Epoch, SourceIdentity, TableSchema

#: The bytes of a table's description in one line of a script, written as twice as many hexadecimal digits.
WIRE_PIECE_BYTES = 480
ACTIVE, PAUSED, RESYNC = "ACTIVE", "PAUSED", "RESYNC"
#: The greatest length of a reason.
REASON_CHARS = 500
#: The reason of a table while its triggers are being created; it identifies an interrupted installation.
INSTALLING = "its installation has not come to its end: run `venus install-triggers`"


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleRegistryEntry:
    """The registry's row about one captured table."""

    table: RegisteredTable
    number_max: int

    @property
    def is_unfinished(self) -> bool:
        """Whether its first installation is incomplete, so that nothing of it was ever captured."""
        return self.table.reason.startswith(INSTALLING)

    @property
    def schema(self) -> TableSchema:
        """The newest registered version of the table's schema."""
        return self.table.schema


def read_tables(session: OracleSession, *, released: bool = False) -> dict[int, OracleRegistryEntry]:
    """Return the captured tables by table number, or the released ones."""
    rows = session.fetch_rows(statement("registry", "tables", **{"is": "=" if released else "<>"}))
    return {int(row[0]): _registry_entry(row) for row in rows}


def _registry_entry(row: Row) -> OracleRegistryEntry:
    _, wire, state, reason, *fill, number_max = row
    table = registered_table(parse_schema(bytes(wire)), state, reason, fill)
    return OracleRegistryEntry(table=table, number_max=int(number_max))


def register_statement(schema: TableSchema, estimate: int) -> str:
    """Return the statement that registers a table before it has triggers."""
    values = continued_values(schema, PAUSED, INSTALLING)
    return _register_sql(values, estimate=estimate, fill_done=0)


def continue_statement(schema: TableSchema, state: str, reason: str) -> str:
    """Return the statement that registers a table whose capture another database has begun."""
    return _register_sql(continued_values(schema, state, reason), estimate=0, fill_done=1)


def _register_sql(values: dict[str, str | int | bytes | None], **numbers: int) -> str:
    written = write_wire(values.pop("schema_wire"))
    return statement("registry", "register", pieces=written, **{k: literal(v) for k, v in (values | numbers).items()})


def write_wire(wire: str | int | bytes | None) -> str:
    """Return PL/SQL lines that write the schema of a table as bytes, in pieces short enough for a script."""
    assert isinstance(wire, bytes)
    pieces = [wire[n : n + WIRE_PIECE_BYTES] for n in range(0, len(wire), WIRE_PIECE_BYTES)]
    return "\n".join(
        statement("registry", "register_piece", nbytes=str(len(p)), bytes=literal(p)) + ";" for p in pieces
    )


def installed_state_statement(table_id: int, state: str, reason: str | None) -> str:
    """Return the statement that stores state and reason of a table after its installation."""
    parts: dict[str, str | int | None] = {"table_id": table_id, "state": state, "reason": reason}
    return statement("registry", "installed", **{k: literal(v) for k, v in parts.items()})


def forget_segments_statement(table_id: int) -> str:
    """Return the statement that deletes the stored segments of a table, which may have changed while not captured."""
    return statement("registry", "forget_segments", table_id=str(table_id))


def recapture_statement(table_id: int) -> str:
    """Return the statement that registers a released table for a new installation and a complete fill."""
    parts: dict[str, str | int | None] = {"table_id": table_id, "reason": INSTALLING}
    return statement("registry", "take_up", **{k: literal(v) for k, v in parts.items()})


def read_states(session: OracleSession) -> dict[int, tuple[str, str]]:
    """Return state and fingerprint of each table."""
    return {int(row[0]): (row[1], row[2]) for row in session.fetch_rows(statement("registry", "states"))}


def restart_with_sweep(session: OracleSession, table_id: int, version: int) -> None:
    """Make the fill that now begins end in a sweep, and raise the table's version to at least this one."""
    session.run(statement("registry", "sweep"), {"table_id": table_id})
    captured = read_tables(session)[table_id]
    if captured.schema.version < version:
        schema = replace(captured.schema, version=version)
        session.run(statement("registry", "new_version"), version_values(schema, captured.number_max))


def set_state(session: OracleSession, table_id: int, state: str, reason: str) -> int:
    """Store the state and the reason of a table. Return 0 if the table does not exist."""
    binds = {"table_id": table_id, "state": state, "reason": reason[:REASON_CHARS] or None}
    return session.run(statement("registry", "set_state"), binds)


def begin_comparison(session: OracleSession, table_id: int, reason: str) -> bool:
    """Turn the fill that begins into a comparison; return False if it has read rows already."""
    return session.run(statement("registry", "begin_comparison"), {"table_id": table_id, "reason": reason}) == 1


def mark_missed_changes(session: OracleSession, table_id: int, reason: str) -> None:
    """Mark a table RESYNC, unless a fill with a sweep is reading it again; force another comparison."""
    again = {"table_id": table_id, "reason": comparison_reason("rows have vanished meanwhile")}
    if not session.run(statement("registry", "compare_again"), again):
        session.run(statement("registry", "missed"), {"table_id": table_id, "reason": reason[:REASON_CHARS]})


def read_clock(session: OracleSession) -> int:
    """Return the database's clock, in Unix microseconds."""
    text = str(session.fetch_row(statement("registry", "clock"))[0]).strip()
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)


def lock_checkpoint(session: OracleSession) -> SourceState:
    """Read the checkpoint row and lock it until the transaction ends."""
    return source_state(session.fetch_row(statement("registry", "lock")))


def lock_epoch(session: OracleSession, epoch: Epoch) -> None:
    """Lock the checkpoint row until the transaction ends. Raises Fenced if another instance has raised the epoch."""
    held = lock_checkpoint(session)
    if held.is_sealed:
        raise _sealed_error(session)
    if held.epoch != epoch:
        raise Fenced(f"the source is at epoch {held.epoch}, this adapter at {epoch}")


def _sealed_error(session: OracleSession) -> Fenced:
    return Fenced(f"source {session.place}: capture has ended here, another database continues it")


def add_batches(session: OracleSession, batches: Iterable[BatchRecord]) -> None:
    """Insert the batch rows, by which half messages are decided."""
    session.run_many(statement("registry", "add_batch"), batch_values(batches))


def advance_fill(session: OracleSession, before: FillState, after: FillState) -> None:
    """Store the progress of a fill, unless an operator has restarted it in the meantime."""
    binds = fill_values(before, after)
    del binds["was_cursor"]
    session.run(statement("registry", "advance_fill"), binds)


IDENTITY = "VENUS_IDENTITY"
#: A switch-over of Data Guard changes DB_UNIQUE_NAME, so that name decides only if DBID may not be read.
DECISIVE_FACTS = (("DBID", "CON_NAME"), ("DBID",), ("DB_UNIQUE_NAME", "CON_NAME"), ("DB_UNIQUE_NAME",))


def read_identity_facts(session: OracleSession, *, containers: bool) -> dict[str, str]:
    """Return the facts that distinguish a database from its copies, as far as this user may read them."""
    blocks = {"DB_UNIQUE_NAME": "unique_name", "DBID": "dbid"}
    blocks |= {"CON_NAME": "container"} if containers else {}
    found = {}
    for fact, block in blocks.items():
        try:
            found[fact] = str(session.fetch_row(statement("dictionary", block))[0] or "")
        except (SourceError, SchemaChanged):
            session.rollback()  # this user may not read V$DATABASE
    return found


class OracleRegistry(SourceRegistry):
    """The registry of one source."""

    def __init__(self, database: OracleDatabase) -> None:
        self._database = database

    def read_entries(self, *, released: bool = False) -> dict[int, OracleRegistryEntry]:
        """Return the captured tables by number, or the released ones; none before an installation."""
        found = read_tables(self._database.writer, released=released) if self._database.is_installed() else {}
        self._database.writer.rollback()
        return found

    def read_registered_tables(self) -> list[RegisteredTable]:
        return [c.table for c in self.read_entries().values()]

    def read_released_tables(self) -> list[RegisteredTable]:
        return [c.table for c in self.read_entries(released=True).values()]

    def read_row_counts(self) -> dict[int, int]:
        found = read_row_counts(self._database.writer, [t.schema for t in self.read_registered_tables()])
        self._database.writer.rollback()
        return found

    def read_registry_fingerprint(self) -> str:
        found = repr(self._database.writer.fetch_rows(statement("registry", "sign")))
        self._database.writer.rollback()
        return found

    def set_table_state(self, table_id: int, state: str, reason: str) -> None:
        with self._database.writer.transaction():
            if not set_state(self._database.writer, table_id, state, reason):
                raise unknown_table(table_id)

    def begin_comparison(self, table_id: int, reason: str) -> bool:
        with self._database.writer.transaction():
            return begin_comparison(self._database.writer, table_id, reason)

    def advance_comparison(self, table_id: int, before: str, after: str, rows_done: int, *, done: bool) -> bool:
        binds = comparison_values(table_id, before, after, rows_done, done=done)
        with self._database.writer.transaction():
            return self._database.writer.run(statement("registry", "advance_comparison"), binds) == 1

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        with self._database.writer.transaction():
            lock_epoch(self._database.writer, epoch)
            captured = read_tables(self._database.writer).get(table_id)
            if captured is None:
                raise unknown_table(table_id)
            if captured.table.state != PAUSED:
                set_state(self._database.writer, table_id, PAUSED, halt_reason(captured.table, why))

    def read_state(self) -> SourceState:
        if not self._database.is_installed():
            raise NotInstalled(
                f"source {self._database.place}: VENUS is not installed here", hint="run `venus install-triggers`"
            )
        found = source_state(self._database.writer.fetch_row(statement("registry", "state")))
        self._database.writer.rollback()
        return found

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        """Fence older instances; the row's lock waits for their local transaction."""
        with self._database.writer.transaction():
            held = lock_checkpoint(self._database.writer)
            if held.is_sealed:
                raise _sealed_error(self._database.writer)
            if held.epoch > epoch:
                raise Fenced(f"the source is at epoch {held.epoch}, this adapter at {epoch}")
            self._database.writer.run(statement("registry", "raise_epoch"), {"epoch": epoch})
        return replace(held, epoch=epoch)

    def read_identity(self) -> SourceIdentity | None:
        writer = self._database.writer
        if not ownership.read_owned_objects(writer).has(IDENTITY):
            writer.rollback()
            return None
        stored = writer.fetch_rows(statement("registry", "identity"))
        present = read_identity_facts(writer, containers=self._database.version.containers)
        writer.rollback()
        recorded = json.loads(stored[0][0]) if stored else {}
        return SourceIdentity(recorded=recorded, present=present, decisive=DECISIVE_FACTS)

    def store_identity(self, facts: Mapping[str, str]) -> None:
        with self._database.writer.transaction():
            lock_checkpoint(self._database.writer)
            self._database.writer.run(statement("registry", "forget_identity"))
            binds = {"facts": json.dumps(dict(facts), sort_keys=True)}
            self._database.writer.run(statement("registry", "store_identity"), binds)

    def read_batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        """Read batches under the lock of the checkpoint row, which excludes an unfinished local transaction."""
        with self._database.writer.transaction():
            lock_checkpoint(self._database.writer)
            text = statement("registry", "batch")
            rows = [r for n in numbers for r in self._database.writer.fetch_rows(text, {"batch_no": n})]
        return batch_records(rows)


def read_row_counts(session: OracleSession, tables: Seq[TableSchema]) -> dict[int, int]:
    """Return, by table_id, the approximate row count of each table that has statistics."""
    counts = {owner: _read_schema_row_counts(session, owner) for owner in {t.namespace for t in tables}}
    return {t.table_id: counts[t.namespace][t.name] for t in tables if t.name in counts[t.namespace]}


def _read_schema_row_counts(session: OracleSession, owner: str) -> dict[str, int]:
    statistics, changes = read_statistics(session, owner)
    found = {name: (rows, changes.get(name, (0, 0, 0))) for name, (rows, *_) in statistics.items()}
    return {
        name: max(0, int(rows) + plus - minus) for name, (rows, (plus, _, minus)) in found.items() if rows is not None
    }


def read_statistics(session: OracleSession, owner: str) -> tuple[Mapping[str, Row], Mapping[str, tuple[int, int, int]]]:
    """Return the statistics of a schema's tables, and the changes since they were gathered."""
    binds = {"owner": owner}
    statistics = {str(r[0]): r[1:] for r in session.fetch_rows(statement("survey", "sizes"), binds)}
    changes = {
        str(name): (int(inserts or 0), int(updates or 0), int(deletes or 0))
        for name, inserts, updates, deletes in session.fetch_rows(statement("survey", "modifications"), binds)
    }
    return statistics, changes
