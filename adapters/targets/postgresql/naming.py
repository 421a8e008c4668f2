"""Places and names of source tables at a PostgreSQL target. Pure (VENUS 3.4).

`[targets.X] names` decides. "auto" keeps the source's names, but folds those of a dictionary that stores unquoted names
in upper case (Oracle) to lower case, so that they need no quotes at the target. "lower" folds every name, "keep" none.
A name that PostgreSQL would truncate is shortened, always in the same way, and `venus check` lists it. Two tables or
columns with the same resulting name are refused, because one of them would be lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from venus.adapters.dialects.folders import upper_case_names
from venus.errors import Refused
from venus.model import OwnType, TableSchema

if TYPE_CHECKING:
    from venus.config import Settings

NAME_BYTES_MAX = 63
#: Replaces the name of SQLite's only schema.
_DEFAULT_NAMESPACES = {"main": "public"}
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
OWN_SCHEMA = "venus"
#: A constant and a quoted name, as PostgreSQL writes them.
_CONSTANT, _NAME = r"'(?:[^']|'')*'", r'"(?:[^"]|"")*"'


def quoted(name: str) -> str:
    """Quote an identifier, even if it needs no quotes, so that no list of reserved words is needed."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string constant."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A source table and its names at the target."""

    schema: TableSchema
    namespace: str
    name: str
    #: The target's rule for names.
    names: str = "auto"
    #: The configured schema of all tables; empty = each has its own.
    schema_of_all: str = ""

    def fold(self, name: str) -> str:
        """Return the name at the target of a name of the source, without quotes."""
        return fitted(folded(name, self.schema.source_dialect, self.names))

    def beside(self, other: TableSchema) -> Placed:
        """Return the place of another table of the same source."""
        namespace = self.schema_of_all or placed_namespace(other.namespace, other.source_dialect, self.names)
        name = fitted(folded(other.name, other.source_dialect, self.names))
        return replace(self, schema=other, namespace=namespace, name=name)

    @property
    def sql(self) -> str:
        """The quoted table for a statement."""
        return f"{quoted(self.namespace)}.{quoted(self.name)}"

    @property
    def rows_sql(self) -> str:
        """The quoted table for reading or deleting rows, without the rows of its child tables."""
        return f"ONLY {self.sql}" if self.schema.heirs else self.sql

    @property
    def qualified(self) -> str:
        """The table for messages."""
        return f"{self.namespace}.{self.name}"

    def type_place(self, own: OwnType) -> tuple[str, str]:
        """Return schema and name of one of the application's own types at the target."""
        namespace = self.schema_of_all or placed_namespace(own.namespace, self.schema.source_dialect, self.names)
        return namespace, self.fold(own.name)

    def type_name(self, own: OwnType) -> str:
        """Return the quoted type for a statement."""
        return ".".join(map(quoted, self.type_place(own)))

    @property
    def type_names(self) -> dict[str, str]:
        """The quoted names of the application's own types, by their spelling at the source."""
        return {own.spelled: self.type_name(own) for own in self.schema.types}

    def column(self, name: str) -> str:
        """Return a column's name at the target, quoted."""
        return quoted(self.fold(name))

    def rewritten(self, expression: str) -> str:
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
    def shortened(self) -> list[tuple[str, str]]:
        """Names that PostgreSQL's limit changes: (name at the source, name at the target)."""
        wanted = [self.schema.name, *(c.name for c in self.schema.columns)]
        folds = [(name, folded(name, self.schema.source_dialect, self.names)) for name in wanted]
        return [(name, fitted(fold)) for name, fold in folds if fitted(fold) != fold]

    def columns(self, names: Iterable[str]) -> str:
        """Return a list of quoted columns for a statement."""
        return ", ".join(self.column(name) for name in names)

    @property
    def wire_columns(self) -> str:
        """Every column in wire order."""
        return self.columns(c.name for c in self.schema.wire_columns)

    @property
    def key(self) -> str:
        """The key's columns in key order."""
        return self.columns(self.schema.key)


def folded(name: str, dialect: str, names: str = "auto") -> str:
    """Return the name at the target of a source name, before it is shortened."""
    if names == "lower":
        return name.lower()
    return name.lower() if names == "auto" and name == name.upper() and upper_case_names(dialect) else name


def fitted(name: str) -> str:
    """Shorten a name to PostgreSQL's limit, with a hash in place of the end; the result is always the same."""
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return name.encode()[: NAME_BYTES_MAX - 9].decode(errors="ignore") + "_" + digest


def place(schema: TableSchema, settings: Settings, target: str) -> Placed:
    """Return the place of a table at a target."""
    config = settings.targets[target]
    anywhere = Placed(schema=schema, namespace="", name="", names=config.names, schema_of_all=config.schema_)
    return anywhere.beside(schema)


def placed_namespace(namespace: str, dialect: str, names: str) -> str:
    """Return the target's schema for a source's namespace."""
    own = fitted(folded(namespace, dialect, names))
    return _DEFAULT_NAMESPACES.get(own, own) or "public"


def place_all(schemas: Iterable[TableSchema], settings: Settings, target: str) -> list[Placed]:
    """Place all tables except the heartbeat. Raises Refused with a line for each impossible name."""
    placed = [place(schema, settings, target) for schema in schemas if not schema.is_heartbeat]
    problems = [problem for one in placed for problem in _name_problems(one)]
    seen: dict[tuple[str, str], Placed] = {}
    for one in placed:
        other = seen.setdefault((one.namespace, one.name), one)
        if other is not one:
            problems.append(f"{one.schema.qualified} and {other.schema.qualified} would both become {one.qualified}")
    problems += _type_problems(placed, {place: one.schema.qualified for place, one in seen.items()})
    if problems:
        raise Refused("\n".join(problems), hint=f"exclude one, or set targets.{target}.schema or names")
    return placed


def _type_problems(placed: Iterable[Placed], taken: dict[tuple[str, str], str]) -> list[str]:
    """Return a line for each name that two types, or a type and a table, would share; many tables may use one type."""
    problems = []
    for one in placed:
        for own in one.schema.types:
            if (other := taken.setdefault(one.type_place(own), own.spelled)) != own.spelled:
                name = ".".join(one.type_place(own))
                problems.append(f"type {own.spelled} and {other} would both become {name}")
    return problems


def _name_problems(placed: Placed) -> list[str]:
    columns = [placed.fold(c.name) for c in placed.schema.columns]
    problems = []
    if len(placed.namespace.encode()) > NAME_BYTES_MAX:
        problems.append(f"{placed.qualified}: the schema's name is longer than PostgreSQL's {NAME_BYTES_MAX} bytes")
    problems += [
        f"{placed.qualified}: PostgreSQL has a system column called {c}" for c in columns if c in _SYSTEM_COLUMNS
    ]
    problems += [
        f"{placed.qualified}: two columns would be called {c}" for c in sorted(set(columns)) if columns.count(c) > 1
    ]
    if placed.namespace == OWN_SCHEMA:
        problems.append(f"{placed.qualified}: the schema {OWN_SCHEMA} belongs to VENUS")
    return problems
