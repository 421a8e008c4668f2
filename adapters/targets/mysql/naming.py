"""Places and names of source tables at a MariaDB or MySQL target. Pure (VENUS 3.4).

All tables are in the database of the URL, or in that of `[targets.X] schema`. `[targets.X] names` decides how names
are folded, as at a PostgreSQL target. A name above 64 characters is shortened, always in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from venus.adapters.targets.mysql.types import KEY_BYTES_MAX, declared_columns, key_bytes
from venus.adapters.targets.relational.names import fold_name, shorten_chars
from venus.errors import Refused
from venus.model import TableSchema

NAME_CHARS_MAX = 64
OWN = "venus_"


def quote(name: str) -> str:
    """Quote an identifier."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, kw_only=True)
class MysqlPlacedTable:
    """A source table and its names at the target."""

    schema: TableSchema
    namespace: str
    name: str
    #: The target's rule for names.
    names: str = "auto"

    def fold(self, name: str) -> str:
        """Return the name at the target of a name of the source, without quotes."""
        return shorten_chars(fold_name(name, self.schema.source_dialect, self.names), NAME_CHARS_MAX)

    @property
    def sql(self) -> str:
        """The quoted table for a statement."""
        return f"{quote(self.namespace)}.{quote(self.name)}"

    @property
    def qualified(self) -> str:
        """The table for messages: its name at the source, because the target has no schemas."""
        return self.schema.qualified

    def column(self, name: str) -> str:
        """Return a column's name at the target, quoted."""
        return quote(self.fold(name))

    def columns(self, names: Iterable[str]) -> str:
        """Return a list of quoted columns for a statement."""
        return ", ".join(self.column(name) for name in names)

    @property
    def key(self) -> str:
        """The key's columns in key order."""
        return self.columns(self.schema.key)

    @property
    def wire_columns(self) -> str:
        """Every column in wire order."""
        return self.columns(c.name for c in self.schema.wire_columns)

    @cached_property
    def types(self) -> dict[str, str]:
        """The declared type of every column, by its name at the source."""
        return declared_columns(self.schema)


def place_table(schema: TableSchema, database: str, names: str) -> MysqlPlacedTable:
    """Return the place of a table in a database."""
    name = shorten_chars(fold_name(schema.name, schema.source_dialect, names), NAME_CHARS_MAX)
    return MysqlPlacedTable(schema=schema, namespace=database, name=name, names=names)


def place_all(schemas: Iterable[TableSchema], database: str, names: str, target: str) -> list[MysqlPlacedTable]:
    """Place all tables except the heartbeat. Raises Refused with a line for each impossible name or key."""
    placed = [place_table(schema, database, names) for schema in schemas if not schema.is_heartbeat]
    problems = [problem for one in placed for problem in (*_name_problems(one), *_key_problems(one))]
    seen: dict[str, MysqlPlacedTable] = {}
    for one in placed:
        # with lower_case_table_names the server folds names, and a database may be moved to such a server
        other = seen.setdefault(one.name.lower(), one)
        if other is not one:
            problems.append(f"{one.schema.qualified} and {other.schema.qualified} would both become {one.name.lower()}")
    if problems:
        raise Refused("\n".join(problems), hint=f"exclude one, or give it a target of its own beside {target}")
    return placed


def _name_problems(placed: MysqlPlacedTable) -> list[str]:
    columns = [placed.fold(c.name).lower() for c in placed.schema.columns]
    problems = [
        f"{placed.schema.qualified}: two columns would be called {c}: MariaDB and MySQL ignore their case"
        for c in sorted(set(columns))
        if columns.count(c) > 1
    ]
    if placed.name.lower().startswith(OWN):
        problems.append(f"{placed.schema.qualified}: names that begin with {OWN} belong to VENUS")
    return problems


def _key_problems(placed: MysqlPlacedTable) -> list[str]:
    schema = placed.schema
    keys = [
        ("the key", schema.key),
        *((f"index {i.name}", i.columns) for i in schema.indexes if i.unique and not i.definition),
    ]
    found = []
    for what, names in keys:
        size = sum(key_bytes(placed.types[n]) for n in names if n in placed.types)
        if size > KEY_BYTES_MAX:
            found.append(f"{schema.qualified}: {what} is {size:,} bytes long, InnoDB allows {KEY_BYTES_MAX:,}")
    return found
