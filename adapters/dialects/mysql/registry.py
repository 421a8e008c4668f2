"""The registry of captured tables and the checkpoint row at a MariaDB or MySQL source (VENUS 3.1, 3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import FillState, RegisteredTable, SourceState
from venus.adapters.dialects.halted_tables import halt_reason
from venus.adapters.dialects.mysql.connection import MysqlConnection
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable
from venus.adapters.dialects.mysql.names import MARKS, literal, log_table_name
from venus.adapters.dialects.mysql.sql import statement
from venus.adapters.dialects.restore_detection import SourceRestored
from venus.codec.schema import fingerprint, from_wire, to_wire
from venus.errors import Fenced, NotInstalled, SourceError
from venus.model import BatchNo, BatchRecord, Epoch, Sequence, TableSchema
from venus.wire import change_pb2

ACTIVE, PAUSED, RESYNC = "ACTIVE", "PAUSED", "RESYNC"


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlRegistryEntry:
    """A row of the registry."""

    table: RegisteredTable
    fingerprint: str
    #: The highest field number that a column of it ever had.
    number_max: int

    @property
    def schema(self) -> TableSchema:
        """The registered version."""
        return self.table.schema

    @property
    def table_id(self) -> int:
        """The number of the table."""
        return self.table.schema.table_id


def has_table(connection: MysqlConnection, name: str) -> bool:
    """Return whether a table of VENUS exists."""
    parts = {"database": literal(connection.address.database), "name": literal(name)}
    return str(connection.row(statement("registry", "exists", **parts))[0]) != "0"


def is_installed(connection: MysqlConnection) -> bool:
    """Return whether the registry exists."""
    return has_table(connection, "venus_captured_table") and has_table(connection, MARKS)


def require_installation(connection: MysqlConnection) -> None:
    """Raise NotInstalled if there is no registry."""
    if not is_installed(connection):
        raise NotInstalled(
            f"source {connection.place}: nothing is installed", hint="run `venus install-triggers` first"
        )


def read_tables(connection: MysqlConnection, *, released: bool = False) -> list[MysqlRegistryEntry]:
    """Return the captured tables, or the released ones."""
    found = []
    for r in connection.rows(statement("registry", "tables", released=str(int(released)))):
        schema = from_wire(change_pb2.TableSchema.FromString(r[1]))
        fill = FillState(
            table_id=int(r[0]), sweep_from=Sequence(int(r[9])), cursor=_to_bytes(r[5]), rows_done=int(r[6]),
            rows_estimate=int(r[7]), done=r[8] == "1",
        )  # fmt: skip
        known = RegisteredTable(schema=schema, state=r[3], reason=r[4], fill=fill)
        highest = max(c.number for c in schema.columns)
        found.append(MysqlRegistryEntry(table=known, fingerprint=r[2], number_max=max(int(r[10]), highest)))
    return found


def read_row_counts(connection: MysqlConnection) -> dict[int, int]:
    """Return the estimated row counts of the captured tables by number."""
    return {int(table_id): int(rows) for table_id, rows in connection.rows(statement("registry", "row_counts"))}


def _to_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def read_mark(connection: MysqlConnection) -> str:
    """Return a digest that changes with the registry."""
    return str(connection.row(statement("registry", "mark"))[0])


def register_sql(table: MysqlTable, table_id: int) -> str:
    """Return the statement that registers a table."""
    names = {"namespace": literal(table.database), "name": literal(table.name)}
    return statement("registry", "register", **names, **_version_parts(table.to_schema(table_id, 1)))


def new_version_sql(schema: TableSchema, number_max: int) -> str:
    """Return the statement that makes `schema` the registered version of its table."""
    return statement("registry", "new_version", **_version_parts(schema, number_max))


def _version_parts(schema: TableSchema, number_max: int = 0) -> dict[str, str]:
    return {
        "table_id": str(schema.table_id),
        "schema_wire": literal(to_wire(schema).SerializeToString(deterministic=True)),
        "fingerprint": literal(fingerprint(schema)),
        "number_max": str(max([number_max, *(c.number for c in schema.columns)])),
    }


def set_state_sql(table_id: int, state: str, reason: str) -> str:
    """Return the statement that stores a table's state."""
    parts = {"table_id": str(table_id), "state": literal(state), "reason": literal(reason or None)}
    return statement("registry", "set_state", **parts)


def set_state(connection: MysqlConnection, table_id: int, state: str, reason: str) -> None:
    """Store a table's state."""
    if connection.run(set_state_sql(table_id, state, reason)) != 1:
        raise SourceError(f"table {table_id} is not captured", hint="`venus status` lists the tables")


def halt(connection: MysqlConnection, epoch: Epoch, table_id: int, why: str) -> None:
    """Pause a table because one of its rows cannot be carried, unless it is paused already."""
    with connection.transaction():
        lock_epoch(connection, epoch)
        for known in read_tables(connection):
            if known.table_id == table_id and known.table.state != PAUSED:
                set_state(connection, table_id, PAUSED, halt_reason(known.table, why))


def recapture_sql(table_id: int) -> str:
    """Return the statement that captures a released table again and restarts its fill."""
    return statement("registry", "take_up", table_id=str(table_id))


def forget_marks_sql(numbers: Iterable[int]) -> str:
    """Return the statement that deletes the stored numbers and definitions of a table."""
    return statement("registry", "forget_marks", numbers=", ".join(map(str, numbers)))


def restart_fill(connection: MysqlConnection, table_id: int) -> None:
    """Restart the fill of a table."""
    if connection.run(statement("registry", "restart_fill", table_id=str(table_id))) != 1:
        raise SourceError(f"table {table_id} is not captured", hint="`venus status` lists the tables")


def restart_with_sweep(connection: MysqlConnection, table_id: int, version: int) -> None:
    """Make the fill end in a sweep, and raise the version of the table to this one unless it is higher already."""
    connection.run(statement("registry", "sweep", table_id=str(table_id)))
    for known in read_tables(connection):
        if known.table_id == table_id and known.schema.version < version:
            connection.run(new_version_sql(replace(known.schema, version=version), known.number_max))


def _source_state(row: Seq[str]) -> SourceState:
    return SourceState(
        epoch=Epoch(int(row[0])), next_sequence=Sequence(int(row[1])), last_batch=BatchNo(int(row[2]))
    )  # fmt: skip


def read_state(connection: MysqlConnection) -> SourceState:
    """Read the checkpoint row."""
    return _source_state(connection.row(statement("registry", "state")))


def lock_checkpoint(connection: MysqlConnection) -> SourceState:
    """Read the checkpoint row and lock it until the transaction ends."""
    return _source_state(connection.row(statement("registry", "settle")))


def lock_epoch(connection: MysqlConnection, epoch: Epoch) -> SourceState:
    """Lock the checkpoint row until the transaction ends.

    Raises Fenced if another instance raised the epoch, SourceRestored if it is lower.
    """
    held = lock_checkpoint(connection)
    if held.epoch < epoch:
        raise SourceRestored(f"source {connection.place}: its epoch is {held.epoch}, but was {epoch}: it was restored")
    if held.epoch != epoch:
        raise Fenced(f"source {connection.place}: epoch {held.epoch} is in force, this adapter has {epoch}")
    return held


def raise_epoch(connection: MysqlConnection, epoch: Epoch) -> SourceState:
    """Fence older instances. Waits for one that is committing."""
    with connection.transaction():
        held = lock_checkpoint(connection)
        if held.epoch > epoch:
            raise Fenced(f"source {connection.place}: epoch {held.epoch} is in force, {epoch} is older")
        connection.run(statement("registry", "raise_epoch", epoch=str(int(epoch))))
    return SourceState(epoch=epoch, next_sequence=held.next_sequence, last_batch=held.last_batch)


def read_batches(connection: MysqlConnection, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
    """Return those of the batches that are in the batch table. Waits for an instance that is committing."""
    if not numbers:
        return {}
    with connection.transaction():
        lock_checkpoint(connection)
        rows = connection.rows(statement("registry", "batches", numbers=", ".join(str(int(n)) for n in numbers)))
    records = (
        BatchRecord(
            batch_no=BatchNo(int(r[0])), epoch=Epoch(int(r[1])), first_sequence=Sequence(int(r[2])),
            last_sequence=Sequence(int(r[3])), digest=int(r[4], 16),
        )
        for r in rows
    )  # fmt: skip
    return {record.batch_no: record for record in records}


def batch_rows(records: Iterable[BatchRecord]) -> str:
    """Return the VALUES of batch rows. They contain only numbers and hexadecimal digits."""
    return ", ".join(
        f"({b.batch_no}, {b.epoch}, {b.first_sequence}, {b.last_sequence}, '{b.digest:016x}')" for b in records
    )


def store_fill_sql(before: FillState, after: FillState) -> str:
    """Return the statement that stores the progress of a fill."""
    return statement(
        "registry", "store_fill", table_id=str(after.table_id), cursor=literal(after.cursor or None),
        rows_done=str(after.rows_done), done=str(int(after.done)), sweep_from=str(int(after.sweep_from)),
        was_cursor=literal(before.cursor), was_rows=str(before.rows_done), was_sweep=str(int(before.sweep_from)),
    )  # fmt: skip


def read_backlog(connection: MysqlConnection, table_ids: Seq[int]) -> dict[int, int]:
    """Return the number of waiting log rows by table."""
    if not table_ids:
        return {}
    waiting = (statement("registry", "waiting", table_id=str(t), log=log_table_name(t)) for t in table_ids)
    return {int(t): int(n) for t, n in connection.rows(" UNION ALL ".join(waiting))}
