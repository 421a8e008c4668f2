"""VENUS's objects in a MariaDB or MySQL database, read at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql import sql as names
from venus.adapters.dialects.mysql.connection import MysqlConnection, Row
from venus.adapters.dialects.mysql.dictionary.tables import MysqlTable
from venus.adapters.dialects.mysql.installation import triggers
from venus.adapters.dialects.mysql.installation.triggers import CascadePath
from venus.adapters.dialects.mysql.registry import MysqlRegistryEntry
from venus.adapters.dialects.mysql.sql import literal, statement
from venus.adapters.dialects.registry_rules import is_being_released


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlInstalledObjects:
    """The objects of VENUS that exist in a database, and the tables of the registry."""

    logs: dict[str, str]  # by name, the description of the key
    triggers: dict[str, tuple[str, str, str, str]]  # by name, in the form of Trigger.definition
    other_tables: frozenset[str]
    registered: dict[str, MysqlRegistryEntry]  # the captured tables, by name
    released: dict[str, MysqlRegistryEntry]  # the tables that are released or being released, by name
    numbers_in_use: frozenset[int] = frozenset()  # numbers in names of the application that look like VENUS's
    rejecting: Mapping[str, str] = field(default_factory=dict)  # the triggers that reject writes, with their tables
    follower_tables: frozenset[str] = frozenset()  # in a database that may follow another one

    def next_free_id(self, table_id: int) -> int:
        """Return the lowest number, not below `table_id`, that no object of the application has in its name."""
        while table_id in self.numbers_in_use:
            table_id += 1
        return table_id

    @classmethod
    def read(cls, connection: MysqlConnection) -> MysqlInstalledObjects:
        """Read VENUS's objects from the dictionary, and the tables from the registry."""
        database = connection.address.database
        rows = connection.rows(statement("dictionary", "objects", database=literal(database)))
        tables = {r[1]: r[2] for r in rows if r[0] == "table"}
        known = registry.read_tables(connection) if "venus_captured_table" in tables else []
        out = [k for k in known if is_being_released(k.table)]
        out += registry.read_tables(connection, released=True) if known else []
        return cls(
            logs={n: c for n, c in tables.items() if names.is_log(n, c)},
            triggers={
                r[1]: (r[2], r[3], r[4], r[5]) for r in rows if r[0] == "trigger" and names.is_own_trigger(r[1], r[2])
            },
            other_tables=frozenset(n for n, c in tables.items() if names.OWN_TABLE.fullmatch(n)),
            numbers_in_use=frozenset(_find_numbers_in_use(rows)),
            rejecting={r[1]: r[3] for r in rows if r[0] == "trigger" and names.REJECT_TRIGGER.fullmatch(r[1])},
            follower_tables=frozenset(n for n in tables if names.FOLLOWER_TABLE.fullmatch(n))
            if names.SIDE in tables
            else frozenset(),
            registered={k.schema.name: k for k in known if not is_being_released(k.table)},
            released={k.schema.name: k for k in out},
        )

    @property
    def numbers(self) -> dict[int, str]:
        """The names of all tables that the registry has, by number."""
        return {k.table_id: k.schema.qualified_name for k in (*self.registered.values(), *self.released.values())}

    def find_missing(self, table: MysqlTable, table_id: int, paths: Seq[CascadePath]) -> list[str]:
        """Return the names of a table's triggers and log that are missing or altered."""
        required = triggers.build_triggers(table, table_id, paths)
        lacking = [t.name for t in required if not t.is_equal_to(self.triggers.get(t.name))]
        log = names.log_table_name(table_id)
        return lacking + ([] if self.has_log(table, log) else [log])

    def has_log(self, table: MysqlTable, log: str) -> bool:
        """Return whether the log exists and fits the key of its table; narrow logs of older versions fit too."""
        return self.logs.get(log) in (triggers.key_description(table), triggers.narrow_key_description(table))


def _find_numbers_in_use(rows: Seq[Row]) -> Iterator[int]:
    """Yield the numbers in names of the application's objects that look like VENUS's logs and triggers."""
    for kind, name, text, *_ in rows:
        found = (names.LOG_TABLE if kind == "table" else names.TRIGGER).fullmatch(name)
        is_ours = names.is_log(name, text) if kind == "table" else names.is_own_trigger(name, text)
        if found and not is_ours:
            yield int(found[1])
