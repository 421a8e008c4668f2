"""Keys, indexes, checks and foreign keys of a table as PostgreSQL statements. Pure: needs no database (VENUS 3.4).

A full load creates them after the rows, because building an index once is cheaper than maintaining it row by row.
Foreign keys have no actions while VENUS applies: the source has executed these, and their effects arrive as separate
changes. The cut-over adds the actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from venus.adapters.targets.postgresql.naming import PlacedTable, quote, shorten_name
from venus.model import Check, ForeignKey, Index


def add_key(placed: PlacedTable) -> str:
    """Return the statement for the primary key, which is the key of capture."""
    return f"ALTER TABLE {placed.sql} ADD PRIMARY KEY ({placed.key})"


class ConstraintNames:
    """Allocator of names for indexes and constraints; relations of one PostgreSQL schema share a name space.

    `taken` lists the (schema, name) pairs of existing relations.
    """

    def __init__(self, placed: Iterable[PlacedTable], taken: Iterable[tuple[str, str]] = ()) -> None:
        self._taken = set(taken)
        for one in placed:
            key = f"{one.name}_pkey"
            self._taken |= {(one.namespace, one.name), (one.namespace, key), (_table_space(one), key)}

    def take(self, placed: PlacedTable, wanted: str, parts: Sequence[str], suffix: str, *, local: bool = False) -> str:
        """Return the source's own name if it is free, otherwise one made of table and columns.

        `local` means that only the constraints of its table share the name space.
        """
        space = _table_space(placed) if local else placed.namespace
        name = placed.fold(wanted)
        if not name or name.startswith("sqlite_"):
            name = shorten_name("_".join((placed.name, *parts, suffix)))
        number = 1
        while (space, name) in self._taken:
            number += 1
            name = shorten_name("_".join((placed.name, *parts, f"{suffix}{number}")))
        self._taken.add((space, name))
        return name

    def reserve(self, placed: PlacedTable, name: str) -> None:
        """Reserve a name among the constraints of a table."""
        self._taken.add((_table_space(placed), name))


def _table_space(placed: PlacedTable) -> str:
    """Return the name space of a table's constraints, which is no valid schema name."""
    return f"{placed.namespace}.{placed.name}"


def index_statements(placed: PlacedTable, names: ConstraintNames) -> list[str]:
    """Return the statements for secondary indexes and unique constraints."""
    return [
        index_sql(placed, index, names)
        for index in placed.schema.indexes
        if index.definition or index.columns != placed.schema.key
    ]


def index_sql(placed: PlacedTable, index: Index, names: ConstraintNames) -> str:
    """Return the statement that creates an index or a unique constraint."""
    free = names.take(placed, index.name, index.columns, "key" if index.unique else "idx")
    name = quote(free)
    if index.constraint:
        names.reserve(placed, free)
        return f"ALTER TABLE {placed.sql} ADD CONSTRAINT {name} UNIQUE ({placed.columns(index.columns)})"
    terms = placed.rewrite(index.definition) or f"({placed.columns(index.columns)})"
    return f"CREATE {'UNIQUE ' if index.unique else ''}INDEX {name} ON {placed.sql} {terms}"


def check_statements(placed: PlacedTable, names: ConstraintNames) -> list[tuple[str, str]]:
    """Return (add, validate) for each check constraint; nothing validates one that is NOT VALID at the source."""
    return [check_sql(placed, check, names) for check in placed.schema.checks]


def check_sql(placed: PlacedTable, check: Check, names: ConstraintNames) -> tuple[str, str]:
    """Return (add, validate) for one check constraint; validate is empty if it is NOT VALID at the source."""
    name = quote(names.take(placed, check.name, (), "check", local=True))
    add = f"ALTER TABLE {placed.sql} ADD CONSTRAINT {name} CHECK ({placed.rewrite(check.sql)}) NOT VALID"
    return add, "" if check.not_valid else f"ALTER TABLE {placed.sql} VALIDATE CONSTRAINT {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedForeignKey:
    """A foreign key between two tables of this target."""

    placed: PlacedTable
    referred: PlacedTable
    key: ForeignKey
    name: str

    def add(self, *, acting: bool) -> str:
        """Return the statement that adds it as NOT VALID; `acting` includes the source's actions."""
        actions = ""
        if acting:
            actions += f" ON DELETE {self.key.on_delete}" if self.key.on_delete else ""
            actions += f" ON UPDATE {self.key.on_update}" if self.key.on_update else ""
        columns = self.referred.columns(self.key.referred_columns or self.referred.schema.key)
        return (
            f"ALTER TABLE {self.placed.sql} ADD CONSTRAINT {quote(self.name)} FOREIGN KEY "
            f"({self.placed.columns(self.key.columns)}) REFERENCES {self.referred.sql} ({columns}){actions} "
            "DEFERRABLE INITIALLY IMMEDIATE NOT VALID"
        )

    @property
    def validate(self) -> str:
        """The statement that checks every row of it; empty if it is NOT VALID at the source."""
        return "" if self.key.not_valid else f"ALTER TABLE {self.placed.sql} VALIDATE CONSTRAINT {quote(self.name)}"

    @property
    def drop(self) -> str:
        """The statement that drops it if it exists."""
        return f"ALTER TABLE {self.placed.sql} DROP CONSTRAINT IF EXISTS {quote(self.name)}"


def placed_foreign_keys(
    placed: PlacedTable, everything: Sequence[PlacedTable], names: ConstraintNames
) -> list[PlacedForeignKey]:
    """Return the foreign keys that refer to tables of this target."""
    by_name = {(one.schema.namespace, one.schema.name): one for one in everything}
    found = [(fk, by_name.get((fk.referred_namespace, fk.referred_table))) for fk in placed.schema.foreign_keys]
    return [
        PlacedForeignKey(
            placed=placed, referred=other, key=fk, name=names.take(placed, fk.name, fk.columns, "fkey", local=True)
        )
        for fk, other in found
        if other is not None
    ]


def foreign_key_statements(
    placed: PlacedTable, everything: Sequence[PlacedTable], names: ConstraintNames
) -> list[tuple[str, str]]:
    """Return (add, validate) for each foreign key, without actions."""
    return [(r.add(acting=False), r.validate) for r in placed_foreign_keys(placed, everything, names)]
