"""Differences in columns, keys, indexes, checks and foreign keys between source and target (VENUS 3.4). Reads only.

The stream neither creates nor drops constraints and indexes of a table with rows. Creating one can take as long as a
load, and an operator who dropped one at the target had a reason. `venus status` lists each difference with the
statement that removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from venus.adapters.targets.postgresql.naming import PlacedTable, place_table, quote, shorten_name
from venus.adapters.targets.postgresql.schema import own_types
from venus.adapters.targets.postgresql.schema.constraints import (
    CHECK,
    COLUMN,
    DEFAULT,
    INDEX,
    KEY,
    NUMBERING,
    REFERENCE,
    REQUIRED,
    TYPE,
    ConstraintNames,
    ExistingObjects,
    ObjectCategory,
    ObjectPlace,
    ObjectProblem,
    PlacedForeignKey,
    TableObject,
    add_key,
    check_sql,
    compare_objects,
    index_sql,
    object_definitions,
)
from venus.adapters.targets.postgresql.schema.ddl import (
    column_sql,
    column_type,
    counted_default,
    has_type,
    is_counted,
    is_identity,
    statements_after_column,
    statements_before_column,
    without_quotes,
)
from venus.adapters.targets.postgresql.schema.existing import ExistingColumn
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.states import TableState
from venus.errors import TargetError
from venus.model import Check, Column, ForeignKey, Index, TableSchema

#: How many times to read the objects of a table that is being changed.
READ_ATTEMPTS_MAX = 5
_CHANGED_MEANWHILE = "cache lookup failed"

#: The highest number of a numbered name that the search considers.
_NUMBERED_MAX = 9


def find_differences(target: RelationalDatabase, session: TargetSession) -> dict[str, tuple[str, ...]]:
    """Return how tables created by VENUS and changed at the source since differ from it, by the source's names."""
    versions: dict[int, list[TableSchema]] = {}
    for schema in target.read_changed_schemas(session):
        versions.setdefault(schema.table_id, []).append(schema)
    states = target.read_tables(session) if versions else []
    there = {f"{t.namespace}.{t.name}" for t in states}
    found = {
        t.source_name: _table_differences(target, session, t, versions[t.table_id], there)
        for t in states
        if t.created and t.table_id in versions
    }
    return {name: lines for name, lines in found.items() if lines}


def _table_differences(
    target: RelationalDatabase,
    session: TargetSession,
    state: TableState,
    versions: Sequence[TableSchema],
    there: set[str],
) -> tuple[str, ...]:
    """Return one line for each changed object of a table at the source that differs at the target."""
    now = next((v for v in versions if v.version == state.schema_version), None)
    if now is None:
        return ()
    # a table that halted because of a difference is not at the version with that difference yet
    newest = max((v for v in versions if _has_same_columns(v, now)), key=lambda v: v.version)
    placed = place_table(newest, target.settings, target.name)
    earlier = [replace(placed, schema=v) for v in versions if v.version < newest.version]
    definitions, required = object_definitions(newest), _required_columns(newest)
    if all(object_definitions(e.schema) == definitions and _required_columns(e.schema) == required for e in earlier):
        return ()  # most tables return here, without a query
    here = read_objects(session, placed)
    domains = [d for d in newest.types if d.base is not None and any(d not in v.schema.types for v in earlier)]
    return (
        *object_differences(placed, earlier, here, there),
        *(line for domain in domains for line in own_types.read_type_differences(session, placed, domain)),
    )


def read_objects(session: TargetSession, placed: PlacedTable) -> dict[tuple[str, str], str]:
    """Return the definitions of the objects of an existing table, by kind and name.

    PostgreSQL's functions that return definitions read the newest catalogue, but the query reads an older snapshot. A
    concurrent ALTER TABLE can therefore make the functions fail; VENUS then repeats the query.
    """
    for attempt in range(1, READ_ATTEMPTS_MAX + 1):
        try:
            rows = session.rows(statement("dictionary", "besides"), {"table": placed.sql})
        except TargetError as error:
            if _CHANGED_MEANWHILE not in str(error) or attempt == READ_ATTEMPTS_MAX:
                raise
        else:
            break
    # the definition of an object that was dropped since the query began is NULL
    return {(kind, name): strip_quotes(definition) for kind, name, definition in rows if definition is not None}


def _required_columns(schema: TableSchema) -> set[str]:
    """Return the names of the columns that are NOT NULL."""
    return {c.name for c in schema.columns if not c.nullable}


def _has_same_columns(one: TableSchema, other: TableSchema) -> bool:
    return {c.name for c in one.columns} == {c.name for c in other.columns}


def object_differences(
    newest: PlacedTable, earlier: Sequence[PlacedTable], here: ExistingObjects, there: Collection[str]
) -> list[str]:
    """Return a line for each object changed at the source that differs here; `there`: the target's tables. Pure."""
    now, before = list(list_objects(newest, there)), [list(list_objects(one, there)) for one in earlier]
    names = {(p.kind, p.name) for p in now}
    gone = {(p.kind, p.name): p for one in before for p in one if (p.kind, p.name) not in names}
    lines = []
    for one in compare_objects(now, here, gone, exact=False):
        shown = one.part.shown
        if one.problem is ObjectProblem.EXTRA:
            lines.append(f"{shown} was dropped at the source: {one.statement}")
        elif all(one.part.is_in(version) for version in before):
            continue
        elif one.problem is ObjectProblem.MISSING:
            lines.append(f"{shown} was added at the source: {one.statement}")
        elif _is_earlier_definition(one.part, one.definition, before):
            lines.append(f"{shown} was altered at the source: {one.statement}")
    return lines


def _is_earlier_definition(part: TableObject, definition: str, before: Sequence[Sequence[TableObject]]) -> bool:
    """Return whether an earlier version had this definition."""
    return any((p.kind, p.name, p.definition) == (part.kind, part.name, definition) for one in before for p in one)


def list_objects(placed: PlacedTable, there: Collection[str], *, acting: bool = False) -> Iterator[TableObject]:
    """Yield the objects of a version of a table; foreign keys only if the referred table is in `there`. Pure.

    `there` contains names at this target, because either database of a pair may have described a version of a table.
    With `acting`, foreign keys include the source's actions.
    """
    schema = placed.schema
    yield from (_index_object(placed, i) for i in schema.indexes if i.definition or i.columns != schema.key)
    yield from (_check_object(placed, check) for check in schema.checks)
    required = [c.name for c in schema.columns if not c.nullable and c.name not in schema.key]
    yield from (_not_null_object(placed, name) for name in required)
    yield from (
        _reference_object(placed, key, acting=acting)
        for key in schema.foreign_keys
        if _place_referred(placed, key).qualified_name in there
    )


def _index_object(placed: PlacedTable, index: Index) -> TableObject:
    name, names = _possible_names(placed, index.name, index.columns, "key" if index.unique else "idx")
    terms = placed.rewrite(index.definition) or f"USING btree ({placed.columns(index.columns)})"
    place = f"{quote(placed.namespace)}.{quote(name)}"
    return TableObject(
        kind=INDEX,
        category=ObjectCategory.UNIQUE if index.unique else ObjectCategory.INDEX,
        name=name,
        names=names,
        shown=f"{'unique constraint' if index.constraint else 'index'} {name}",
        definition=strip_quotes(f"{'UNIQUE ' if index.unique else ''}INDEX {terms}"),
        add=index_sql(placed, index, ConstraintNames(())),
        drop=f"ALTER TABLE {placed.sql} DROP CONSTRAINT {quote(name)}" if index.constraint else f"DROP INDEX {place}",
    )


def _check_object(placed: PlacedTable, check: Check) -> TableObject:
    name, names = _possible_names(placed, check.name, (), "check")
    return TableObject(
        kind=CHECK,
        category=ObjectCategory.CHECK,
        shown=f"check {name}",
        name=name,
        names=names,
        definition=strip_quotes(f"CHECK ({placed.rewrite(check.sql)})"),
        add="; ".join(filter(None, check_sql(placed, check, ConstraintNames(())))),
        drop=f"ALTER TABLE {placed.sql} DROP CONSTRAINT {quote(name)}",
    )


def _not_null_object(placed: PlacedTable, column: str) -> TableObject:
    name, alter = placed.fold(column), f"ALTER TABLE {placed.sql} ALTER COLUMN {placed.column(column)}"
    return TableObject(
        kind=REQUIRED,
        category=ObjectCategory.REQUIRED,
        shown=f"NOT NULL of column {name}",
        name=name,
        names=frozenset((name,)),
        definition="",
        add=f"{alter} SET NOT NULL",
        drop=f"{alter} DROP NOT NULL",
    )


def _reference_object(placed: PlacedTable, key: ForeignKey, *, acting: bool) -> TableObject:
    name, names = _possible_names(placed, key.name, key.columns, "fkey")
    made = PlacedForeignKey(placed=placed, referred=_place_referred(placed, key), key=key, name=name)
    return TableObject(
        kind=REFERENCE,
        category=ObjectCategory.REFERENCE,
        shown=f"foreign key {name}",
        name=name,
        names=names,
        definition="",
        add="; ".join(filter(None, (made.add(acting=acting), made.validate))),
        drop=f"ALTER TABLE {placed.sql} DROP CONSTRAINT {quote(name)}",
    )


def _place_referred(placed: PlacedTable, key: ForeignKey) -> PlacedTable:
    """Return the table that a foreign key refers to, with its names at the target."""
    return placed.place_sibling(replace(placed.schema, namespace=key.referred_namespace, name=key.referred_table))


def _possible_names(
    placed: PlacedTable, wanted: str, columns: Sequence[str], suffix: str
) -> tuple[str, frozenset[str]]:
    """Return the intended name of an object, and all names that `ConstraintNames` may have given it."""
    name = ConstraintNames(()).take(placed, wanted, columns, suffix)
    stem = "_".join((placed.name, *columns, suffix))
    numbered = (shorten_name(f"{stem}{number}") for number in range(2, _NUMBERED_MAX + 1))
    return name, frozenset((name, shorten_name(stem), *numbered))


def strip_quotes(definition: str) -> str:
    """Return a definition without the quotes of names, which differ between source and dictionary."""
    return definition.replace('"', "").removesuffix(" NOT VALID")


_DRAWN = "nextval("
_UNIQUE = "UNIQUE "


def column_objects(placed: PlacedTable) -> Iterator[TableObject]:
    """Yield the columns of a table, their types, defaults and counters, and its key; NOT NULL of the key's columns."""
    for column in placed.schema.columns:
        name, alter = placed.fold(column.name), f"ALTER TABLE {placed.sql} ALTER COLUMN {placed.column(column.name)}"
        added = f"ALTER TABLE {placed.sql} ADD COLUMN {column_sql(placed, column).removesuffix(' NOT NULL')}"
        yield _table_object(COLUMN, ObjectCategory.COLUMN, f"column {name}", name, add=added)
        kind = column_type(placed, column)
        yield _table_object(
            TYPE, ObjectCategory.TYPE, f"type of column {name}", name, without_quotes(kind), add=f"{alter} TYPE {kind}"
        )
        if is_identity(placed, column) or is_counted(placed, column):
            add = _numbering_sql(placed, column, alter)
            yield _table_object(NUMBERING, ObjectCategory.NUMBERING, f"numbering of column {name}", name, add=add)
        elif column.default_sql:
            add = f"{alter} SET DEFAULT {column.default_sql}"
            yield _table_object(
                DEFAULT, ObjectCategory.DEFAULT, f"default of column {name}", name, column.default_sql, add=add
            )
        if column.name in placed.schema.key:
            yield _table_object(
                REQUIRED, ObjectCategory.REQUIRED, f"NOT NULL of column {name}", name, add=f"{alter} SET NOT NULL"
            )
    key = ", ".join(sorted(map(placed.fold, placed.schema.key)))
    yield _table_object(KEY, ObjectCategory.KEY, f"key ({key})", key, key, add=add_key(placed))


def _table_object(
    kind: str, category: ObjectCategory, shown: str, name: str, definition: str = "", *, add: str, drop: str = ""
) -> TableObject:
    """Return an object of a table that can have only one name."""
    return TableObject(
        kind=kind,
        category=category,
        shown=shown,
        name=name,
        names=frozenset((name,)),
        definition=definition,
        add=add,
        drop=drop,
    )


def _numbering_sql(placed: PlacedTable, column: Column, alter: str) -> str:
    """Return the statements that give a column its counter."""
    if is_identity(placed, column):
        return f"{alter} ADD GENERATED BY DEFAULT AS IDENTITY"
    default = f"{alter} SET DEFAULT {counted_default(placed, column)}"
    return "; ".join((*statements_before_column(placed, column), default, *statements_after_column(placed, column)))


def existing_columns(
    placed: PlacedTable, columns: Sequence[ExistingColumn], keys: Iterable[Iterable[str]]
) -> Iterator[tuple[ObjectPlace, str]]:
    """Yield columns, types, counters and keys of an existing table; a type that can hold all values counts as equal."""
    wanted = {placed.fold(c.name): c for c in placed.schema.columns}
    for there in columns:
        column = wanted.get(there.name)
        if column is None:
            continue
        spelled = there.own or there.type
        fits = has_type(placed, column, spelled)
        yield (COLUMN, there.name), ""
        yield (TYPE, there.name), without_quotes(column_type(placed, column) if fits else spelled)
        if there.identity or there.default.startswith(_DRAWN):
            yield (NUMBERING, there.name), ""
        elif there.default:
            yield (DEFAULT, there.name), there.default
    for key in keys:
        name = ", ".join(sorted(key))
        yield (KEY, name), name


def stricter_objects(
    placed: PlacedTable, here: ExistingObjects, unique: Collection[str]
) -> dict[ObjectPlace, TableObject]:
    """Return objects at the target that may refuse rows, with their DROPs. `unique`: names of unique constraints."""
    nullable = {placed.fold(c.name) for c in placed.schema.columns if c.nullable and c.name not in placed.schema.key}
    found = {}
    for (kind, name), definition in here.items():
        drop = f"ALTER TABLE {placed.sql} DROP CONSTRAINT {quote(name)}"
        if kind == REQUIRED and name in nullable:
            drop = f"ALTER TABLE {placed.sql} ALTER COLUMN {quote(name)} DROP NOT NULL"
            found[kind, name] = _table_object(
                kind, ObjectCategory.REQUIRED, f"NOT NULL of column {name}", name, add="", drop=drop
            )
        elif kind == INDEX and definition.startswith(_UNIQUE) and definition != _key_index(placed):
            if name not in unique:
                drop = f"DROP INDEX {quote(placed.namespace)}.{quote(name)}"
            found[kind, name] = _table_object(
                kind, ObjectCategory.UNIQUE, f"unique index {name}", name, add="", drop=drop
            )
        elif kind in (CHECK, REFERENCE):
            category = ObjectCategory.CHECK if kind == CHECK else ObjectCategory.REFERENCE
            found[kind, name] = _table_object(kind, category, f"{category.value} {name}", name, add="", drop=drop)
    return found


def _key_index(placed: PlacedTable) -> str:
    """Return the unique index on the key that a table may have in place of a primary key."""
    return f"{_UNIQUE}INDEX USING btree ({placed.key})".replace('"', "")
