"""Places and names of source tables at a MariaDB or MySQL target. Pure (VENUS 3.4).

All tables are in the database of the URL, or in that of `[targets.X] schema`. As at a PostgreSQL target, `[targets.X]
names` decides how names are folded. A name of more than 64 characters is shortened deterministically.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from venus.adapters.targets.mysql.types import KEY_BYTES_MAX, declared_columns, key_bytes
from venus.adapters.targets.relational.names import fold_name, shorten_chars
from venus.adapters.targets.relational.place import RelationalPlace, refuse_clashes
from venus.model import TableSchema

NAME_CHARS_MAX = 64


def quote(name: str) -> str:
    """Quote an identifier."""
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True, kw_only=True)
class MysqlPlacedTable(RelationalPlace):
    """A source table and its names at the target."""

    def quote(self, name: str) -> str:
        return quote(name)

    def fold(self, name: str) -> str:
        return shorten_chars(fold_name(name, self.schema.source_dialect, self.names), NAME_CHARS_MAX)

    @cached_property
    def types(self) -> dict[str, str]:
        return declared_columns(self.schema)


def place_table(schema: TableSchema, database: str, names: str) -> MysqlPlacedTable:
    """Return a source table with its names at the target."""
    name = shorten_chars(fold_name(schema.name, schema.source_dialect, names), NAME_CHARS_MAX)
    return MysqlPlacedTable(schema=schema, namespace=database, name=name, names=names)


def place_all(schemas: Iterable[TableSchema], database: str, names: str, target: str) -> list[MysqlPlacedTable]:
    """Return all tables but the heartbeat with their names. Raises Refused with a line for each bad name or key."""
    placed = [place_table(schema, database, names) for schema in schemas if not schema.is_heartbeat]
    return refuse_clashes(placed, _key_problems, target, "MariaDB and MySQL")


def _key_problems(placed: MysqlPlacedTable) -> list[str]:
    """Return the keys and unique indexes that are too long for InnoDB, one line each."""
    schema = placed.schema
    keys = [
        ("the key", schema.key),
        *((f"index {i.name}", i.columns) for i in schema.indexes if i.unique and not i.definition),
    ]
    found = []
    for what, names in keys:
        size = sum(key_bytes(placed.types[n]) for n in names if n in placed.types)
        if size > KEY_BYTES_MAX:
            found.append(f"{schema.qualified_name}: {what} is {size:,} bytes long, InnoDB allows {KEY_BYTES_MAX:,}")
    return found
