"""Structure of a PostgreSQL table: checks, indexes, actions of foreign keys, defaults, own types (VENUS 3.4).

A target is PostgreSQL too, so VENUS carries each part of a table as the dictionary spells it. A part that needs an
object of the application that VENUS does not carry, such as a function, is listed with the reason. Enums and domains
of the application travel with the tables that use them, and the target creates them before these tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from venus.adapters.dialects.contract import Numbering, OtherObject
from venus.adapters.dialects.postgresql.connection import PostgresConnection, Row
from venus.adapters.dialects.postgresql.dictionary.types import PgType, logical_type
from venus.adapters.dialects.postgresql.sql import statement
from venus.errors import UnsupportedType
from venus.model import CHILD_TABLE, UNFINISHED, Check, Column, ForeignKey, Index, LeftOut, OwnType


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedType:
    """An enum or domain of the application, with the parts that no target gets."""

    type: OwnType
    left_out: tuple[LeftOut, ...] = ()


def read_own_types(
    connection: PostgresConnection, oids: Sequence[int], types: Mapping[int, PgType]
) -> dict[int, UsedType]:
    """Read the application's enums and domains that the columns of these tables use, by oid."""
    rows = connection.rows(statement("structure", "own_types"), {"tables": list(oids)})
    return {row[0]: found for row in rows if (found := _build_used_type(row, types)) is not None}


def _build_used_type(row: Row, types: Mapping[int, PgType]) -> UsedType | None:
    oid, namespace, name, spelled, sort, not_null, default, uses, collation, labels, checks = row
    made = OwnType(namespace=namespace, name=name, sql_name=spelled)
    if sort == "e":
        return UsedType(type=replace(made, labels=tuple(labels)))
    try:
        base = logical_type(oid, -1, spelled, types)
    except UnsupportedType:
        return None  # its columns are reported instead
    left = [_missing_object("check constraint", f"{spelled}.{n}", text, needs) for n, text, needs in checks if needs]
    if default and uses:
        left.append(_missing_object("default of domain", spelled, default, uses))
    if collation:
        why = "the target sorts by its own default"
        left.append(LeftOut(what="collation of domain", name=spelled, definition=collation, reason=why))
    made = replace(
        made,
        base=base,
        base_sql_name=types[oid].base_spelled,
        not_null=not_null,
        default_sql="" if uses else default,
        checks=tuple(
            Check(name=n, sql=_check_condition(text), not_valid=text.endswith(_NOT_VALID))
            for n, text, needs in checks
            if not needs
        ),
    )
    return UsedType(type=made, left_out=tuple(left))


def _check_condition(definition: str) -> str:
    """Return the condition in the definition of a CHECK constraint."""
    return definition.removesuffix(_NOT_VALID).removeprefix("CHECK (").removesuffix(")")


def find_uncarried_columns(
    columns: Iterable[Row], own: Mapping[int, UsedType], types: Mapping[int, PgType]
) -> list[LeftOut]:
    """Return the columns whose types are neither built in nor among `own`. `columns`: rows of the dictionary."""
    found = []
    for row in columns:
        oid = row[3]
        while types[oid].sort == "d" or types[oid].is_array:
            oid = types[oid].element if types[oid].is_array else types[oid].base
        if types[oid].namespace != "pg_catalog" and oid not in own:
            found.append(
                LeftOut(what="type of column", name=row[2], definition=row[5], reason=_type_remedy(types[oid]))
            )
    return found


def _type_remedy(found: PgType) -> str:
    """Return how an operator provides a type that VENUS does not create."""
    if found.extension:
        return f"of an extension: create it at the target first (CREATE EXTENSION {found.extension})"
    return "neither an enum nor a domain: create it at the target first (CREATE TYPE)"


def used_types(columns: Iterable[Row], own: Mapping[int, UsedType], types: Mapping[int, PgType]) -> list[UsedType]:
    """Return the types that the columns of one table need, each after its base type. `columns`: dictionary rows."""
    depths: dict[int, int] = {}
    for row in columns:
        oid, chain = row[3], []
        while oid:
            chain += [oid] if oid in own else []
            oid = types[oid].element if types[oid].is_array else types[oid].base
        for depth, each in enumerate(reversed(chain)):
            depths[each] = max(depth, depths.get(each, 0))
    return [own[oid] for oid in sorted(depths, key=lambda oid: (depths[oid], own[oid].type.sql_name))]


_DEFAULT_COLLATION = 'pg_catalog."default"'
_NOT_ENFORCED = " NOT ENFORCED"
_NOT_VALID = " NOT VALID"
_ACTIONS = {"c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}


@dataclass(slots=True)
class PostgresStructure:
    """Checks, indexes, defaults and actions of foreign keys of one table, and the parts that are not carried."""

    checks: list[Check] = field(default_factory=list)
    indexes: list[Index] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    #: Actions on DELETE and on UPDATE, by the name of a foreign key.
    actions: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: Foreign keys that are not enforced.
    unenforced: set[str] = field(default_factory=set)
    #: Foreign keys that are not validated, so that older rows may violate them.
    not_valid: set[str] = field(default_factory=set)
    #: Defaults by column number, without those that need an object of the application.
    defaults: dict[int, str] = field(default_factory=dict)

    def with_defaults(self, columns: Iterable[Column]) -> tuple[Column, ...]:
        """Return the columns with their defaults, except for literals and clocks, which the columns have already."""
        return tuple(
            replace(c, default_sql=self.defaults[c.number])
            if c.number in self.defaults and not c.default_sql and not c.identity
            else c
            for c in columns
        )

    def enforced_foreign_keys(self, keys: Iterable[ForeignKey]) -> tuple[ForeignKey, ...]:
        """Return the enforced foreign keys with their actions."""
        none = ("", "")
        return tuple(
            replace(
                k,
                on_delete=self.actions.get(k.name, none)[0],
                on_update=self.actions.get(k.name, none)[1],
                not_valid=k.name in self.not_valid,
            )
            for k in keys
            if k.name not in self.unenforced
        )


def read_structure(connection: PostgresConnection, oids: Sequence[int]) -> Mapping[int, PostgresStructure]:
    """Read the structure of these tables, by oid."""
    found: dict[int, PostgresStructure] = defaultdict(PostgresStructure)
    tables = {"tables": list(oids)}
    for row in connection.rows(statement("structure", "checks"), tables):
        _add_check(found[row[0]], row)
    for row in connection.rows(statement("structure", "indexes"), tables):
        _add_index(found[row[0]], row)
    for row in connection.rows(statement("structure", "actions"), tables):
        _add_reference(found[row[0]], row)
    for oid, child, parent in connection.rows(statement("structure", "heirs"), tables):
        found[oid].left_out.append(_child_table(child, parent))
    for row in connection.rows(statement("structure", "defaults"), tables):
        _add_default(found[row[0]], row)
    return found


def _add_reference(structure: PostgresStructure, row: Row) -> None:
    """Add the actions of a foreign key, and what the target does not enforce like the source."""
    _, name, on_delete, on_update, match, definition = row
    if definition is None:  # dropped since the snapshot
        structure.unenforced.add(name)
        return
    structure.actions[name] = (_ACTIONS.get(on_delete, ""), _ACTIONS.get(on_update, ""))
    if definition.endswith(_NOT_ENFORCED):
        structure.unenforced.add(name)
        structure.left_out.append(_unenforced_constraint("foreign key", name, definition))
        return
    if definition.endswith(_NOT_VALID):
        structure.not_valid.add(name)
    if match == "f":
        structure.left_out.append(
            LeftOut(what="foreign key", name=name, definition="MATCH FULL", reason="it becomes MATCH SIMPLE")
        )


def _unenforced_constraint(what: str, name: str, definition: str) -> LeftOut:
    """Return the entry about a constraint that is left out because the source does not enforce it."""
    why = "the source does not enforce it, so rows may violate it"
    return LeftOut(what=what, name=name, definition=definition, reason=why)


def _add_check(structure: PostgresStructure, row: Row) -> None:
    """Add a check to the structure, or to the parts that are left out, with the reason."""
    _, name, definition, sort, uses = row
    if definition is None:
        return  # dropped since the snapshot
    if sort == "x":
        why = "a replaced row would conflict with itself; add it after the cut-over"
        structure.left_out.append(LeftOut(what="exclusion constraint", name=name, definition=definition, reason=why))
    elif uses:
        structure.left_out.append(_missing_object("check constraint", name, definition, uses))
    elif definition.endswith(_NOT_ENFORCED):
        structure.left_out.append(_unenforced_constraint("check constraint", name, definition))
    else:
        text = definition.removesuffix(_NOT_VALID).removesuffix(" NO INHERIT")
        structure.checks.append(
            Check(
                name=name, sql=text.removeprefix("CHECK (").removesuffix(")"), not_valid=definition.endswith(_NOT_VALID)
            )
        )


def _child_table(child: str, parent: str) -> LeftOut:
    """Return the entry about a child by inheritance, whose rows a query of the parent does not see at the target."""
    why = (
        f"a query of {parent} does not see its rows at the target; capture both, and after the load run there"
        f" ALTER TABLE {child} INHERIT {parent}"
    )
    return LeftOut(what=CHILD_TABLE, name=child, definition=f"INHERITS ({parent})", reason=why)


def _missing_object(what: str, name: str, definition: str, uses: str) -> LeftOut:
    """Return the entry about a part that is left out because it uses an object that is not carried."""
    return LeftOut(what=what, name=name, definition=definition, reason=f"it needs {uses}, which is not carried")


def _add_index(structure: PostgresStructure, row: Row) -> None:
    """Add an index to the structure, or to the parts that are left out, with the reason."""
    _, name, unique, valid, method, constraint, deferrable, columns, plain, definition, uses = row
    if constraint == "x":
        return  # reported as a constraint
    if definition is None:
        return  # dropped since the snapshot
    if uses or not valid:
        missing = _missing_object("index", name, definition, uses or "")
        structure.left_out.append(missing if uses else replace(missing, reason=UNFINISHED))
        return
    if unique and method != "btree":
        why = "it compares periods (WITHOUT OVERLAPS); add it after the cut-over"
        structure.left_out.append(LeftOut(what="unique constraint", name=name, definition=definition, reason=why))
        return
    if deferrable:
        why = "DEFERRABLE is left out: it becomes an immediate unique index"
        structure.left_out.append(LeftOut(what="unique constraint", name=name, definition=definition, reason=why))
    structure.indexes.append(
        Index(
            name=name,
            columns=tuple(columns or ()),
            unique=unique,
            constraint=constraint == "u" and plain,
            definition="" if plain else definition,
        )
    )


def _add_default(structure: PostgresStructure, row: Row) -> None:
    _, number, expression, generated, identity, alone = row
    if generated or identity:
        return
    if alone:
        structure.defaults[number] = expression


def columns_left_out(
    structure: PostgresStructure, rows: Iterable[Row], columns: Iterable[Column], *, partitioned: bool
) -> list[LeftOut]:
    """Return the parts of a table that are not carried. `rows`: the result of the dictionary's block `columns`."""
    made = {c.number: c for c in columns}
    found = []
    if partitioned:
        found.append(LeftOut(what="partitions", name="", definition="", reason="they become one plain table"))
    for row in rows:
        number, name, generated, default, collation = row[1], row[2], row[8], row[9], row[12]
        if number not in made:
            continue
        column = made[number]
        if collation not in ("", _DEFAULT_COLLATION):
            why = "the target sorts by its own default"
            found.append(LeftOut(what="collation of column", name=name, definition=collation, reason=why))
        if generated:
            why = "its values are carried; the target does not compute it for new rows"
            found.append(LeftOut(what="generated column", name=name, definition=default, reason=why))
        elif default and not column.default_sql and not column.identity:
            why = "it needs an object of the application that is not carried"
            found.append(LeftOut(what="default of column", name=name, definition=default, reason=why))
    return [*structure.left_out, *found]


def read_numberings(connection: PostgresConnection, namespaces: Sequence[str]) -> list[Numbering]:
    """Return every sequence of these schemas."""
    rows = connection.rows(statement("structure", "numberings"), {"namespaces": list(namespaces)})
    return [
        Numbering(
            namespace=table_namespace or namespace,
            name=name,
            next_value=int(value),
            increment=int(step),
            minimum=int(low),
            maximum=int(high),
            cycle=cycle,
            table=table,
            column=column,
            always=always,
        )
        for namespace, name, value, step, low, high, cycle, table_namespace, table, column, always in rows
    ]


def read_other_objects(connection: PostgresConnection, namespaces: Sequence[str]) -> list[OtherObject]:
    """Return the objects in these schemas other than tables and sequences."""
    rows = connection.rows(statement("structure", "others"), {"namespaces": list(namespaces)})
    return [OtherObject(kind=kind, name=name) for kind, name in rows]
