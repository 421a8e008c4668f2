"""The registry of captured tables and the checkpoint row at a MariaDB or MySQL source (VENUS 3.1, 3.3).

`MysqlCapturedTable` is a registered table combined with its entry in the dictionary; capture works on these objects.
Each object keeps the text of SHOW CREATE TABLE: in every cut, one cheap statement shows whether the table still has
the definition for which its statements were built.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from venus.adapters.dialects.contract import FillState, RegisteredTable, SourceRegistry, SourceState
from venus.adapters.dialects.mysql.connection import MysqlConnection
from venus.adapters.dialects.mysql.dictionary.tables import (
    MysqlDictionary,
    MysqlTable,
    has_checks,
    read_definition,
    read_dictionary,
)
from venus.adapters.dialects.mysql.rows import MysqlAccess, build_access
from venus.adapters.dialects.mysql.sql import IDENTITY, MARKS, literal, log_table_name, quote, statement
from venus.adapters.dialects.registry_rules import (
    RestoreGuard,
    SourceRestored,
    batch_records,
    batch_values,
    fill_values,
    halt_reason,
    parse_schema,
    registered_table,
    source_state,
    unknown_table,
    version_values,
)
from venus.codec.schema import fingerprint
from venus.errors import DatabaseUnavailable, Fenced, NotInstalled, SourceError
from venus.model import BatchNo, BatchRecord, Epoch, SourceIdentity, TableSchema

ACTIVE, PAUSED, RESYNC = "ACTIVE", "PAUSED", "RESYNC"


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlRegistryEntry:
    """The registry's row about one captured table."""

    table: RegisteredTable
    fingerprint: str
    #: The highest field number that a column of it ever had.
    number_max: int

    @property
    def schema(self) -> TableSchema:
        """The registered version of the table's schema."""
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
    for row in connection.rows(statement("registry", "tables", released=str(int(released)))):
        _, wire, mark, state, reason, *fill, number_max = row
        table = registered_table(parse_schema(wire), state, reason, fill)
        highest = max(int(number_max), *(c.number for c in table.schema.columns))
        found.append(MysqlRegistryEntry(table=table, fingerprint=mark, number_max=highest))
    return found


def read_mark(connection: MysqlConnection) -> str:
    """Return a digest of the registry, which changes with everything in it that affects capture."""
    return str(connection.row(statement("registry", "mark"))[0])


def register_sql(table: MysqlTable, table_id: int) -> str:
    """Return the statement that registers a table."""
    names = {"namespace": literal(table.database), "name": literal(table.name)}
    return statement("registry", "register", **names, **_version_parts(table.to_schema(table_id, 1)))


def new_version_sql(schema: TableSchema, number_max: int) -> str:
    """Return the statement that makes `schema` the registered version of its table."""
    return statement("registry", "new_version", **_version_parts(schema, number_max))


def _version_parts(schema: TableSchema, number_max: int = 0) -> dict[str, str]:
    """Return the values of the registry's row for a version, as SQL."""
    return {name: literal(value) for name, value in version_values(schema, number_max).items()}


def set_state_sql(table_id: int, state: str, reason: str) -> str:
    """Return the statement that stores a table's state."""
    parts = {"table_id": str(table_id), "state": literal(state), "reason": literal(reason or None)}
    return statement("registry", "set_state", **parts)


def set_state(connection: MysqlConnection, table_id: int, state: str, reason: str) -> None:
    """Store a table's state."""
    if connection.run(set_state_sql(table_id, state, reason)) != 1:
        raise unknown_table(table_id)


def mark_missed_changes(connection: MysqlConnection, table_id: int, reason: str) -> None:
    """Mark a table RESYNC, unless it has just been released: then its triggers are missing on purpose."""
    connection.run(statement("registry", "missed", table_id=str(table_id), reason=literal(reason)))


def recapture_sql(table_id: int) -> str:
    """Return the statement that captures a released table again and restarts its fill."""
    return statement("registry", "take_up", table_id=str(table_id))


def forget_marks_sql(numbers: Iterable[int]) -> str:
    """Return the statement that deletes stored numbers and definitions of tables, by the number of each mark."""
    return statement("registry", "forget_marks", numbers=", ".join(map(str, numbers)))


def restart_fill(connection: MysqlConnection, table_id: int) -> None:
    """Restart the fill of a table."""
    if connection.run(statement("registry", "restart_fill", table_id=str(table_id))) != 1:
        raise unknown_table(table_id)


def restart_with_sweep(connection: MysqlConnection, table_id: int, version: int) -> None:
    """Make the fill end in a sweep, and raise the version of the table to this one unless it is higher already."""
    connection.run(statement("registry", "sweep", table_id=str(table_id)))
    for known in read_tables(connection):
        if known.table_id == table_id and known.schema.version < version:
            connection.run(new_version_sql(replace(known.schema, version=version), known.number_max))


def read_state(connection: MysqlConnection) -> SourceState:
    """Read the checkpoint row."""
    return source_state(connection.row(statement("registry", "state")))


def lock_checkpoint(connection: MysqlConnection) -> SourceState:
    """Read the checkpoint row and lock it until the transaction ends."""
    return source_state(connection.row(statement("registry", "settle")))


def lock_epoch(connection: MysqlConnection, epoch: Epoch) -> SourceState:
    """Lock the checkpoint row until the transaction ends.

    Raises Fenced if another instance raised the epoch, SourceRestored if it is lower.
    """
    held = lock_checkpoint(connection)
    if held.is_sealed:
        raise _sealed_error(connection)
    if held.epoch < epoch:
        raise SourceRestored(f"source {connection.place}: its epoch is {held.epoch}, but was {epoch}: it was restored")
    if held.epoch != epoch:
        raise Fenced(f"source {connection.place}: epoch {held.epoch} is in force, this adapter has {epoch}")
    return held


def _sealed_error(connection: MysqlConnection) -> Fenced:
    return Fenced(f"source {connection.place}: capture has ended here, another database continues it")


def batch_rows(records: Iterable[BatchRecord]) -> str:
    """Return the VALUES of batch rows. The values contain only numbers and hexadecimal digits."""
    return ", ".join(map(str, batch_values(records)))


def store_fill_sql(before: FillState, after: FillState) -> str:
    """Return the statement that stores the progress of a fill."""
    values = {name: literal(value) for name, value in fill_values(before, after).items()}
    return statement("registry", "store_fill", **values)


def count_waiting(connection: MysqlConnection, table_ids: Seq[int], most: int = 0) -> dict[int, int]:
    """Return how many log rows of each of these tables wait for capture; stop counting at `most` (0 = never)."""
    if not table_ids:
        return {}
    bound = f" LIMIT {most}" if most else ""
    waiting = (statement("registry", "waiting", table_id=str(t), log=log_table_name(t), bound=bound) for t in table_ids)
    return {int(t): int(n) for t, n in connection.rows(" UNION ALL ".join(waiting))}


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlCapturedTable:
    """A captured table. `table` is None if it is gone, `access` if the registered version cannot be read."""

    known: MysqlRegistryEntry
    table: MysqlTable | None
    #: The registered version if it is valid, else the present one.
    schema: TableSchema
    definition: str
    access: MysqlAccess | None

    @property
    def table_id(self) -> int:
        """The number of the table."""
        return self.known.table_id

    @property
    def state(self) -> str:
        """ACTIVE, PAUSED or RESYNC, as read from the registry."""
        return self.known.table.state


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlCaptureState:
    """Registry and dictionary in memory; valid as long as the registry's mark and the definitions are unchanged."""

    captured: tuple[MysqlCapturedTable, ...]
    mark: str
    dictionary: MysqlDictionary


class DefinitionCache:
    """Cache of the definitions of tables (SHOW CREATE TABLE), each with the dictionary entry that belongs to it.

    The server shows one definition at a time, so each comparison of a thousand tables would take a thousand round
    trips.
    """

    def __init__(self) -> None:
        self._read: dict[str, tuple[MysqlTable, str]] = {}

    def clear(self) -> None:
        """Forget all definitions, so that each is read again."""
        self._read.clear()

    def find_stale(self, names: Iterable[str], found: MysqlDictionary) -> list[str]:
        """Return the tables whose cached definition is missing or may be outdated."""
        return [name for name in names if name in found.tables and not self._is_valid(found.tables[name])]

    def _is_valid(self, table: MysqlTable) -> bool:
        known = self._read.get(table.name)
        return (
            known is not None
            and not known[0].is_recent
            and replace(known[0], rows_estimate=table.rows_estimate) == table
        )

    def store(self, names: Iterable[str], texts: Mapping[str, str], found: MysqlDictionary) -> None:
        """Cache the definitions `texts`, read with the dictionary `found`; forget those of other tables in `names`."""
        for name in names:
            self._read.pop(name, None)
        self._read |= {name: (found.tables[name], text) for name, text in texts.items() if name in found.tables}

    def definition(self, name: str) -> str:
        """Return the definition of a table, empty if it is gone."""
        return self._read[name][1] if name in self._read else ""


def load_capture_state(connection: MysqlConnection, cache: DefinitionCache | None = None) -> MysqlCaptureState:
    """Read the registry and the dictionary; repeat if a table was altered during the read."""
    cache = DefinitionCache() if cache is None else cache
    while True:
        mark = read_mark(connection)
        known = read_tables(connection)
        names = [k.schema.name for k in known]
        found = read_dictionary(connection, zero_dates_null=connection.options.zero_dates_null)
        if not (stale := cache.find_stale(names, found)):
            break
        texts = read_definitions(connection, stale)
        found = read_dictionary(connection, zero_dates_null=connection.options.zero_dates_null)
        if texts == read_definitions(connection, stale):
            cache.store(stale, texts, found)
            if {*cache.find_stale(names, found)} <= {*stale}:  # only tables altered so recently that they stay stale
                break
    captured = tuple(
        _build_captured_table(
            connection, k, found.tables.get(k.schema.name), _cached_definition(cache, k.schema.name, found)
        )
        for k in known
    )
    return MysqlCaptureState(captured=captured, mark=mark, dictionary=found)


def _cached_definition(cache: DefinitionCache, name: str, found: MysqlDictionary) -> str:
    return cache.definition(name) if name in found.tables else ""


def read_definitions(connection: MysqlConnection, tables: Iterable[str]) -> dict[str, str]:
    """Return the definitions of tables by name, without those that are gone."""
    found = {}
    for name in tables:
        place = f"{quote(connection.address.database)}.{quote(name)}"
        try:
            found[name] = read_definition(connection, place)
        except DatabaseUnavailable:
            raise
        except SourceError:  # dropped, or replaced by another kind of object
            continue
    return found


def _build_captured_table(
    connection: MysqlConnection, known: MysqlRegistryEntry, table: MysqlTable | None, definition: str
) -> MysqlCapturedTable:
    """Combine a registry entry with its table; no `access` if capture cannot read the registered version."""
    if table is None or not table.key or table.unsupported:
        return MysqlCapturedTable(known=known, table=table, schema=known.schema, definition=definition, access=None)
    schema = table.to_schema(known.table_id, known.schema.version, known.schema, known.number_max)
    if not table.shows_checks and has_checks(definition):
        schema = _add_hidden_checks(schema, known.schema)
    usable = fingerprint(schema) == fingerprint(known.schema)
    access = build_access(table, known.schema, zero_dates_null=connection.options.zero_dates_null) if usable else None
    return MysqlCapturedTable(known=known, table=table, schema=schema, definition=definition, access=access)


def _add_hidden_checks(schema: TableSchema, known: TableSchema) -> TableSchema:
    """Add the registered checks to a schema: the table has checks, but this user may not see them."""
    made = {check.name for check in schema.checks}  # checks that follow from types
    listed = [left for left in known.left_out if left.what == "check constraint"]
    return replace(
        schema,
        checks=(*(check for check in known.checks if check.name not in made), *schema.checks),
        left_out=(*listed, *schema.left_out),
    )


class MysqlRegistry(SourceRegistry):
    """The registry of one source, and the state that capture has loaded from it."""

    def __init__(self, writer: MysqlConnection) -> None:
        self._writer = writer
        #: What was loaded last; None after a change by this process.
        self.loaded: MysqlCaptureState | None = None
        self.definitions = DefinitionCache()
        self.restores = RestoreGuard()

    def load(self, *, again: bool = False) -> MysqlCaptureState:
        """Read the registry and the dictionary, and build the statements of the tables."""
        if self.loaded is None or again:
            require_installation(self._writer)
            self.loaded = load_capture_state(self._writer, self.definitions)
        return self.loaded

    def invalidate(self) -> None:
        """Discard what was loaded, so that the next use reads the registry and the dictionary again."""
        self.loaded = None

    def read_registered_tables(self) -> list[RegisteredTable]:
        require_installation(self._writer)
        return [k.table for k in read_tables(self._writer)]

    def read_released_tables(self) -> list[RegisteredTable]:
        require_installation(self._writer)
        return [k.table for k in read_tables(self._writer, released=True)]

    def read_row_counts(self) -> dict[int, int]:
        return {int(table_id): int(rows) for table_id, rows in self._writer.rows(statement("registry", "row_counts"))}

    def read_registry_fingerprint(self) -> str:
        return str(self._writer.row(statement("registry", "sign"))[0])

    def set_table_state(self, table_id: int, state: str, reason: str) -> None:
        set_state(self._writer, table_id, state, reason)
        self.loaded = None

    def begin_comparison(self, table_id: int, reason: str) -> bool:
        parts = {"table_id": str(table_id), "reason": literal(reason)}
        return self._writer.run(statement("registry", "begin_comparison", **parts)) == 1

    def advance_comparison(self, table_id: int, before: str, after: str, rows_done: int, *, done: bool) -> bool:
        parts = {"table_id": str(table_id), "rows_done": str(rows_done), "done": str(int(done))}
        parts |= {"known_reason": literal(before), "new_reason": literal(after or None)}
        return self._writer.run(statement("registry", "advance_comparison", **parts)) == 1

    def halt(self, epoch: Epoch, table_id: int, why: str) -> None:
        with self._writer.transaction():
            lock_epoch(self._writer, epoch)
            for known in read_tables(self._writer):
                if known.table_id == table_id and known.table.state != PAUSED:
                    set_state(self._writer, table_id, PAUSED, halt_reason(known.table, why))
        self.loaded = None

    def read_state(self) -> SourceState:
        require_installation(self._writer)
        return read_state(self._writer)

    def raise_epoch(self, epoch: Epoch) -> SourceState:
        with self._writer.transaction():
            held = lock_checkpoint(self._writer)
            if held.is_sealed:
                raise _sealed_error(self._writer)
            if held.epoch > epoch:
                raise Fenced(f"source {self._writer.place}: epoch {held.epoch} is in force, {epoch} is older")
            self._writer.run(statement("registry", "raise_epoch", epoch=str(int(epoch))))
        self.restores.record_batch(held.last_batch)
        return replace(held, epoch=epoch)

    def read_identity(self) -> SourceIdentity | None:
        if not has_table(self._writer, IDENTITY):
            return None
        present = {"database": self._writer.address.database.lower()}
        present |= {str(name): str(value) for name, value in self._writer.rows(statement("registry", "server"))}
        stored = self._writer.rows(statement("registry", "identity"))
        recorded = json.loads(stored[0][0]) if stored else {}
        return SourceIdentity(
            recorded=recorded, present=present, decisive=(("database",),), doubtful=("server_uuid", "server_id")
        )

    def store_identity(self, facts: Mapping[str, str]) -> None:
        text = literal(json.dumps(dict(facts), sort_keys=True))
        self._writer.run(statement("registry", "store_identity", facts=text))

    def read_batches(self, numbers: Seq[BatchNo]) -> dict[BatchNo, BatchRecord]:
        if not numbers:
            return {}
        listed = ", ".join(str(int(n)) for n in numbers)
        with self._writer.transaction():
            lock_checkpoint(self._writer)
            rows = self._writer.rows(statement("registry", "batches", numbers=listed))
        return batch_records(rows)
