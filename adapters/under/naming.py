"""Where a source table goes at a PostgreSQL target, and how it is called there. Pure (VENUS 3.4).

Names are kept as the source has them. A dictionary that stores unquoted names in upper case (Oracle) is folded to
lower case, because nobody wants to quote every name at the target. A name that PostgreSQL would cut off, or two tables
that would become one, are refused: a silent change of name is a lost table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from venus.config import Settings
from venus.errors import Refused
from venus.model import TableSchema

NAME_BYTES_MAX = 63
#: Dialects whose dictionary has unquoted names in upper case.
UPPER_CASE = frozenset({"oracle"})
#: What SQLite calls its only schema.
_DEFAULT_NAMESPACES = {"main": "public"}
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
OWN_SCHEMA = "venus"


def quoted(name: str) -> str:
    """Quote an identifier; always, so that no list of reserved words is needed."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string constant."""
    return "'" + text.replace("'", "''") + "'"


def is_heartbeat(schema: TableSchema) -> bool:
    """Tell VENUS's own heartbeat row, which measures lag and is no table of the application."""
    return schema.is_heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A source table and its names at the target."""

    schema: TableSchema
    namespace: str
    name: str

    @property
    def sql(self) -> str:
        """The table, ready for a statement."""
        return f"{quoted(self.namespace)}.{quoted(self.name)}"

    @property
    def qualified(self) -> str:
        """The table, for people."""
        return f"{self.namespace}.{self.name}"

    def column(self, name: str) -> str:
        """Return a column's name at the target, quoted."""
        return quoted(folded(name, self.schema.source_dialect))

    def columns(self, names: Iterable[str]) -> str:
        """Return a list of columns, ready for a statement."""
        return ", ".join(self.column(name) for name in names)

    @property
    def wire_columns(self) -> str:
        """Every column in wire order."""
        return self.columns(c.name for c in self.schema.wire_columns)

    @property
    def key(self) -> str:
        """The key's columns in key order."""
        return self.columns(self.schema.key)


def folded(name: str, dialect: str) -> str:
    """Return how a source name is written at the target."""
    return name.lower() if dialect in UPPER_CASE and name == name.upper() else name


def place(schema: TableSchema, settings: Settings, target: str) -> Placed:
    """Say where a table goes."""
    namespace = settings.targets[target].schema_
    if not namespace:
        own = folded(schema.namespace, schema.source_dialect)
        namespace = _DEFAULT_NAMESPACES.get(own, own) or "public"
    return Placed(schema=schema, namespace=namespace, name=folded(schema.name, schema.source_dialect))


def place_all(schemas: Iterable[TableSchema], settings: Settings, target: str) -> list[Placed]:
    """Place all tables but the heartbeat. Raises Refused with a line for each name that cannot be."""
    placed = [place(schema, settings, target) for schema in schemas if not is_heartbeat(schema)]
    problems = [problem for one in placed for problem in _name_problems(one)]
    seen: dict[tuple[str, str], Placed] = {}
    for one in placed:
        other = seen.setdefault((one.namespace, one.name), one)
        if other is not one:
            problems.append(f"{one.schema.qualified} and {other.schema.qualified} would both become {one.qualified}")
    if problems:
        raise Refused("\n".join(problems), hint="exclude one of them, or give its target another schema")
    return placed


def _name_problems(placed: Placed) -> list[str]:
    dialect = placed.schema.source_dialect
    columns = [folded(c.name, dialect) for c in placed.schema.columns]
    problems = [
        f"{placed.qualified}: the name {name} is longer than PostgreSQL's {NAME_BYTES_MAX} bytes"
        for name in (placed.namespace, placed.name, *columns)
        if len(name.encode()) > NAME_BYTES_MAX
    ]
    problems += [
        f"{placed.qualified}: PostgreSQL has a system column called {c}" for c in columns if c in _SYSTEM_COLUMNS
    ]
    problems += [
        f"{placed.qualified}: two columns would be called {c}" for c in sorted(set(columns)) if columns.count(c) > 1
    ]
    if placed.namespace == OWN_SCHEMA:
        problems.append(f"{placed.qualified}: the schema {OWN_SCHEMA} belongs to VENUS")
    return problems
