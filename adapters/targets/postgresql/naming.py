"""Places and names of source tables at a PostgreSQL target. Pure (VENUS 3.4).

`[targets.X] names` selects the naming rule. "auto" keeps the source's names, but folds names from a dictionary that
stores unquoted names in upper case (Oracle) to lower case, so that they need no quotes at the target. "lower" folds
every name, "keep" none. A name that PostgreSQL would truncate is shortened deterministically; `venus check` lists it.
Two tables or columns with the same resulting name are refused, because one of them would be lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from venus.adapters.targets.relational.names import POSTGRES_NAME_BYTES, PostgresNames, fold_name, shorten_bytes
from venus.errors import Refused
from venus.model import OwnType, TableSchema

if TYPE_CHECKING:
    from venus.config import Settings

_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
OWN_SCHEMA = "venus"
#: A constant and a quoted name, as PostgreSQL writes them.
_CONSTANT, _NAME = r"'(?:[^']|'')*'", r'"(?:[^"]|"")*"'


def quote(name: str) -> str:
    """Quote an identifier, even if it needs no quotes, so that no list of reserved words is needed."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Quote a string constant."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedTable:
    """A source table and its names at the target."""

    schema: TableSchema
    namespace: str
    name: str
    #: The target's rule for names.
    names: str = "auto"
    #: The configured schema of all tables; empty = the schema of each table at the source.
    schema_of_all: str = ""

    @property
    def rule(self) -> PostgresNames:
        """The rule for the names of all tables."""
        return PostgresNames(names=self.names, schema_of_all=self.schema_of_all)

    def fold(self, name: str) -> str:
        """Return the target's name for a name at the source, without quotes."""
        return self.rule.fold(name, self.schema.source_dialect)

    def place_sibling(self, other: TableSchema) -> PlacedTable:
        """Return another table of the same source with its names at the target."""
        dialect, rule = other.source_dialect, self.rule
        namespace, name = rule.namespace(other.namespace, dialect), rule.fold(other.name, dialect)
        return replace(self, schema=other, namespace=namespace, name=name)

    @property
    def sql(self) -> str:
        """The quoted table for a statement."""
        return f"{quote(self.namespace)}.{quote(self.name)}"

    @property
    def rows_sql(self) -> str:
        """The quoted table for reading or deleting rows, without the rows of its child tables."""
        return f"ONLY {self.sql}" if self.schema.child_tables else self.sql

    @property
    def qualified_name(self) -> str:
        """The table's name in messages to people."""
        return f"{self.namespace}.{self.name}"

    def type_place(self, own: OwnType) -> tuple[str, str]:
        """Return schema and name of one of the application's own types at the target."""
        return self.rule.namespace(own.namespace, self.schema.source_dialect), self.fold(own.name)

    def type_name(self, own: OwnType) -> str:
        """Return the quoted type for a statement."""
        return ".".join(map(quote, self.type_place(own)))

    @property
    def type_names(self) -> dict[str, str]:
        """The quoted names of the application's own types, by their spelling at the source."""
        return {own.sql_name: self.type_name(own) for own in self.schema.types}

    def column(self, name: str) -> str:
        """Return a column's name at the target, quoted."""
        return quote(self.fold(name))

    def rewrite(self, expression: str) -> str:
        """Return an expression with the names at the target in place of the source's quoted column names and casts."""
        known, types = {c.name for c in self.schema.columns}, self.type_names
        casts = [rf'::{re.escape(spelled)}(?![\w"$])' for spelled in types]

        def rewrite_match(found: re.Match[str]) -> str:
            text = found[0]
            if text.startswith("::"):
                return f"::{types[text[2:]]}"
            name = text[1:-1].replace('""', '"')
            return self.column(name) if text[0] == '"' and name in known else text

        return re.sub("|".join((_CONSTANT, *casts, _NAME)), rewrite_match, expression)

    @property
    def shortened_names(self) -> list[tuple[str, str]]:
        """Return the names that PostgreSQL's limit changes: (name at the source, name at the target)."""
        wanted = [self.schema.name, *(c.name for c in self.schema.columns)]
        folds = [(name, fold_name(name, self.schema.source_dialect, self.names)) for name in wanted]
        return [(name, shorten_name(fold)) for name, fold in folds if shorten_name(fold) != fold]

    def columns(self, names: Iterable[str]) -> str:
        """Return a list of quoted columns for a statement."""
        return ", ".join(self.column(name) for name in names)

    @property
    def wire_columns(self) -> str:
        """Every column in wire order, as a quoted list for a statement."""
        return self.columns(c.name for c in self.schema.wire_columns)

    @property
    def key(self) -> str:
        """The key's columns in key order, as a quoted list for a statement."""
        return self.columns(self.schema.key)


def shorten_name(name: str) -> str:
    """Shorten a name to PostgreSQL's limit, with a hash in place of the end; the result is always the same."""
    return shorten_bytes(name, POSTGRES_NAME_BYTES)


def place_table(schema: TableSchema, settings: Settings, target: str) -> PlacedTable:
    """Return a source table with its names at a target."""
    config = settings.targets[target]
    anywhere = PlacedTable(schema=schema, namespace="", name="", names=config.names, schema_of_all=config.schema_)
    return anywhere.place_sibling(schema)


def place_all(schemas: Iterable[TableSchema], settings: Settings, target: str) -> list[PlacedTable]:
    """Return all tables but the heartbeat with their names at a target. Raises Refused with a line per bad name."""
    placed = [place_table(schema, settings, target) for schema in schemas if not schema.is_heartbeat]
    problems = [problem for one in placed for problem in _name_problems(one)]
    seen: dict[tuple[str, str], PlacedTable] = {}
    for one in placed:
        other = seen.setdefault((one.namespace, one.name), one)
        if other is not one:
            problems.append(
                f"{one.schema.qualified_name} and {other.schema.qualified_name} would both become {one.qualified_name}"
            )
    problems += _type_problems(placed, {place: one.schema.qualified_name for place, one in seen.items()})
    if problems:
        raise Refused("\n".join(problems), hint=f"exclude one, or set targets.{target}.schema or names")
    return placed


def _type_problems(placed: Iterable[PlacedTable], taken: dict[tuple[str, str], str]) -> list[str]:
    """Return a line for each name that two types, or a type and a table, would share; many tables may use one type."""
    problems = []
    for one in placed:
        for own in one.schema.types:
            if (other := taken.setdefault(one.type_place(own), own.sql_name)) != own.sql_name:
                name = ".".join(one.type_place(own))
                problems.append(f"type {own.sql_name} and {other} would both become {name}")
    return problems


def _name_problems(placed: PlacedTable) -> list[str]:
    """Return a line for each reason why PostgreSQL cannot have a table's names."""
    columns = [placed.fold(c.name) for c in placed.schema.columns]
    problems = []
    if len(placed.namespace.encode()) > POSTGRES_NAME_BYTES:
        problems.append(
            f"{placed.qualified_name}: the schema's name is longer than PostgreSQL's {POSTGRES_NAME_BYTES} bytes"
        )
    problems += [
        f"{placed.qualified_name}: PostgreSQL has a system column called {c}" for c in columns if c in _SYSTEM_COLUMNS
    ]
    problems += [
        f"{placed.qualified_name}: two columns would be called {c}"
        for c in sorted(set(columns))
        if columns.count(c) > 1
    ]
    if placed.namespace == OWN_SCHEMA:
        problems.append(f"{placed.qualified_name}: the schema {OWN_SCHEMA} belongs to VENUS")
    return problems
