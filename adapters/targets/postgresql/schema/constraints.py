"""Keys, indexes, checks and foreign keys of a table: their statements, and their comparison (VENUS 3.4). Pure.

A full load creates constraints and indexes after the rows, because building an index once is cheaper than maintaining
it row by row. While VENUS applies changes, foreign keys have no actions: the source has executed the actions, and their
effects arrive as separate changes. The cut-over adds the actions to the foreign keys.

The comparison of a table's expected objects with those at the target gives a statement for each difference. `venus
status` lists what has changed at the source since a table was created (table_objects.py). The cut-over lists every
difference and refuses if the target guarantees less than the source (cutover/guarantees.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from venus.adapters.targets.postgresql.naming import PlacedTable, quote, shorten_name
from venus.model import Check, ForeignKey, Index, TableSchema


def add_key(placed: PlacedTable) -> str:
    """Return the statement for the primary key, which is the key of capture."""
    return f"ALTER TABLE {placed.sql} ADD PRIMARY KEY ({placed.key})"


def object_definitions(schema: TableSchema) -> tuple[object, ...]:
    """Return the indexes, checks, foreign keys and domains of a version, for a comparison with another version."""
    domains = [own for own in schema.types if own.base is not None]
    return schema.indexes, schema.checks, schema.foreign_keys, domains


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
        """Return and reserve a free name: the source's own name, otherwise one made of table and columns.

        `local` means that only constraints of the same table share the name space.
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
    """Return the name space of a table's constraints, whose name cannot be that of a schema."""
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
    """Return (add, validate) for each check constraint; `validate` is empty if it is NOT VALID at the source."""
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
        """Return the statement that adds the foreign key as NOT VALID; `acting` includes the source's actions."""
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
        """The statement that checks every row for this foreign key; empty if it is NOT VALID at the source."""
        return "" if self.key.not_valid else f"ALTER TABLE {self.placed.sql} VALIDATE CONSTRAINT {quote(self.name)}"

    @property
    def drop(self) -> str:
        """The statement that drops the foreign key if it exists."""
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


#: The kind and the name of an object.
ObjectPlace = tuple[str, str]
#: Definitions of the objects of a table.
ExistingObjects = Mapping[ObjectPlace, str]
#: Kinds of objects that share a name space. The names of indexes, checks, foreign keys and keys are arbitrary.
INDEX, CHECK, REFERENCE, REQUIRED, KEY = "i", "c", "f", "n", "k"
COLUMN, TYPE, DEFAULT, NUMBERING = "column", "type", "default", "numbering"
_UNNAMED = frozenset({INDEX, CHECK, REFERENCE, KEY})


class ObjectProblem(Enum):
    """The ways in which an object of a table (column, index, constraint) may differ from the source."""

    MISSING = "is missing"
    ALTERED = "differs"
    EXTRA = "is not at the source"


class ObjectCategory(Enum):
    """Category of an object of a table: its columns, their properties, indexes and constraints."""

    COLUMN = "column"
    TYPE = "type"
    REQUIRED = "NOT NULL"
    DEFAULT = "default"
    NUMBERING = "numbering"
    KEY = "key"
    UNIQUE = "unique"
    INDEX = "index"
    CHECK = "check"
    REFERENCE = "foreign key"


_M, _A, _E = ObjectProblem.MISSING, ObjectProblem.ALTERED, ObjectProblem.EXTRA
#: For each pair (category, problem) that is a difference: whether the target then guarantees less than the source,
#: which forbids a cut-over.
RULES: Mapping[tuple[ObjectCategory, ObjectProblem], bool] = {
    (ObjectCategory.COLUMN, _M): True,
    (ObjectCategory.TYPE, _A): False,
    (ObjectCategory.REQUIRED, _M): True,
    (ObjectCategory.REQUIRED, _E): False,
    (ObjectCategory.DEFAULT, _M): False,
    (ObjectCategory.DEFAULT, _A): False,
    (ObjectCategory.NUMBERING, _M): False,
    (ObjectCategory.KEY, _M): True,
    (ObjectCategory.UNIQUE, _M): True,
    (ObjectCategory.UNIQUE, _A): True,
    (ObjectCategory.UNIQUE, _E): False,
    (ObjectCategory.INDEX, _M): False,
    (ObjectCategory.INDEX, _A): False,
    (ObjectCategory.INDEX, _E): False,
    (ObjectCategory.CHECK, _M): True,
    (ObjectCategory.CHECK, _A): True,
    (ObjectCategory.CHECK, _E): False,
    (ObjectCategory.REFERENCE, _M): True,
    (ObjectCategory.REFERENCE, _A): True,
    (ObjectCategory.REFERENCE, _E): False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableObject:
    """An index, a check, a foreign key, a column's NOT NULL or the like in one version of a table."""

    kind: str
    category: ObjectCategory
    shown: str  # for messages
    name: str
    #: All names that a load may have given this object if its own name was in use.
    names: frozenset[str]
    #: The definition in the form of the target's dictionary; empty = unknown.
    definition: str
    add: str
    drop: str = ""

    def is_in(self, parts: Sequence[TableObject]) -> bool:
        """Return whether another version has the same object."""
        return any((p.kind, p.name, p.add) == (self.kind, self.name, self.add) for p in parts)


NONE: Mapping[ObjectPlace, TableObject] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDifference:
    """An object of a table that differs from the source; `definition`: what the target has under that name."""

    part: TableObject
    problem: ObjectProblem
    statement: str
    definition: str = ""

    @property
    def blocks(self) -> bool:
        """Whether the target guarantees less than the source, which forbids a cut-over."""
        return RULES[self.part.category, self.problem]


def compare_objects(
    parts: Sequence[TableObject],
    here: ExistingObjects,
    others: Mapping[ObjectPlace, TableObject] = NONE,
    *,
    exact: bool,
) -> list[ObjectDifference]:
    """Return the expected objects that the target lacks or has altered, then those that only the target has.

    An object is matched by its definition, or else by its name. `others` are objects that only the target may have.
    `exact` means that definitions are in the form of this target's dictionary; otherwise an object also counts as
    present under a name that a load may have given it.
    """
    left = dict(here)
    found, unmatched = [], []
    for part in parts:
        if (match := _find_equal(part, left)) is not None:
            del left[match]
        else:
            unmatched.append(part)
    for part in unmatched:
        known = left.pop((part.kind, part.name), None)
        if known is not None and part.definition:
            change = "; ".join(filter(None, (part.drop, part.add)))
            found.append(_difference(part, ObjectProblem.ALTERED, change, known))
        elif known is None and not (_may_be_there(part, left) and not (exact and part.definition)):
            found.append(_difference(part, ObjectProblem.MISSING, part.add))
    extra = [_difference(others[place], ObjectProblem.EXTRA, others[place].drop) for place in left if place in others]
    return [d for d in (*found, *extra) if (d.part.category, d.problem) in RULES]


def _may_be_there(part: TableObject, left: ExistingObjects) -> bool:
    """Return whether the target has an object of this kind under a name that a load may have given it."""
    return any((part.kind, name) in left for name in part.names)


def _find_equal(part: TableObject, left: ExistingObjects) -> ObjectPlace | None:
    """Return the place of an equal definition: under the part's own name first, or any name if names are arbitrary."""
    if not part.definition:
        return None
    own = [(part.kind, name) for name in (part.name, *sorted(part.names))]
    others = [place for place in left if place[0] == part.kind] if part.kind in _UNNAMED else []
    return next((place for place in (*own, *others) if left.get(place) == part.definition), None)


def _difference(part: TableObject, problem: ObjectProblem, statement: str, definition: str = "") -> ObjectDifference:
    """Return a difference, with the statement that removes it."""
    return ObjectDifference(part=part, problem=problem, statement=statement, definition=definition)
