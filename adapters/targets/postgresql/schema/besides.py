"""Differences in indexes, checks, foreign keys and NOT NULL between source and target (VENUS 3.4). Reads only.

The stream neither creates nor drops these for a table with rows: creating one can take as long as a load, and an
operator who has dropped one here had a reason. `venus status` lists each difference with the statement that removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from venus.adapters.targets.postgresql.database import PostgresTarget, TableState
from venus.adapters.targets.postgresql.naming import Placed, fitted, quoted
from venus.adapters.targets.postgresql.schema import own_types
from venus.adapters.targets.postgresql.schema.comparison import (
    CHECK,
    INDEX,
    REFERENCE,
    REQUIRED,
    Here,
    Part,
    Problem,
    Sort,
    compare,
)
from venus.adapters.targets.postgresql.schema.constraints import Names, Reference, check_sql, index_sql
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.model import Check, ForeignKey, Index, TableSchema

#: The highest number of a numbered name that is looked for.
_NUMBERED_MAX = 9


def differing(target: PostgresTarget, session: Session) -> dict[str, tuple[str, ...]]:
    """Return the differences of the changed tables that VENUS has created, by the source's name of the table."""
    versions: dict[int, list[TableSchema]] = {}
    for schema in target.changed_schemas(session):
        versions.setdefault(schema.table_id, []).append(schema)
    states = target.tables(session) if versions else []
    there = {t.source_name for t in states}
    found = {
        t.source_name: _differing(target, session, t, versions[t.table_id], there)
        for t in states
        if t.created and t.table_id in versions
    }
    return {name: lines for name, lines in found.items() if lines}


def _differing(
    target: PostgresTarget, session: Session, state: TableState, versions: Sequence[TableSchema], there: set[str]
) -> tuple[str, ...]:
    now = next((v for v in versions if v.version == state.schema_version), None)
    if now is None:
        return ()
    # a table that a difference has halted is not at the version with that difference yet
    newest = max((v for v in versions if _same_columns(v, now)), key=lambda v: v.version)
    placed = target.place(newest)
    earlier = [replace(placed, schema=v) for v in versions if v.version < newest.version]
    if all(_besides(one.schema) == _besides(newest) for one in earlier):
        return ()  # most tables end here, without a query
    rows = session.rows(statement("dictionary", "besides"), {"table": placed.sql})
    here = {(kind, name): bare(definition) for kind, name, definition in rows}
    domains = [d for d in newest.types if d.base is not None and any(d not in v.schema.types for v in earlier)]
    return (
        *differences(placed, earlier, here, there),
        *(line for domain in domains for line in own_types.unlike(session, placed, domain)),
    )


def _besides(schema: TableSchema) -> tuple[object, ...]:
    domains = [own for own in schema.types if own.base is not None]
    required = {c.name for c in schema.columns if not c.nullable}
    return schema.indexes, schema.checks, schema.foreign_keys, domains, required


def _same_columns(one: TableSchema, other: TableSchema) -> bool:
    return {c.name for c in one.columns} == {c.name for c in other.columns}


def differences(newest: Placed, earlier: Sequence[Placed], here: Here, there: Collection[str]) -> list[str]:
    """Return the changes at the source that differ here, one line each; `there` = the tables of this target. Pure."""
    now, before = list(parts(newest, there)), [list(parts(one, there)) for one in earlier]
    names = {(p.kind, p.name) for p in now}
    gone = {(p.kind, p.name): p for one in before for p in one if (p.kind, p.name) not in names}
    lines = []
    for one in compare(now, here, gone, exact=False):
        shown = one.part.shown
        if one.problem is Problem.EXTRA:
            lines.append(f"{shown} was dropped at the source: {one.statement}")
        elif all(one.part.is_in(version) for version in before):
            continue
        elif one.problem is Problem.MISSING:
            lines.append(f"{shown} was added at the source: {one.statement}")
        elif _was(one.part, one.definition, before):
            lines.append(f"{shown} was altered at the source: {one.statement}")
    return lines


def _was(part: Part, definition: str, before: Sequence[Sequence[Part]]) -> bool:
    """Return whether an earlier version had this definition."""
    return any((p.kind, p.name, p.definition) == (part.kind, part.name, definition) for one in before for p in one)


def parts(placed: Placed, there: Collection[str], *, acting: bool = False) -> Iterator[Part]:
    """Yield the objects of a version of a table; a foreign key only if the table it refers to is `there`. Pure.

    `acting` includes the source's actions in foreign keys.
    """
    schema = placed.schema
    yield from (_index(placed, i) for i in schema.indexes if i.definition or i.columns != schema.key)
    yield from (_check(placed, check) for check in schema.checks)
    yield from (_required(placed, c.name) for c in schema.columns if not c.nullable and c.name not in schema.key)
    yield from (
        _reference(placed, key, acting=acting)
        for key in schema.foreign_keys
        if f"{key.referred_namespace}.{key.referred_table}" in there
    )


def _index(placed: Placed, index: Index) -> Part:
    name, names = _names(placed, index.name, index.columns, "key" if index.unique else "idx")
    terms = placed.rewritten(index.definition) or f"USING btree ({placed.columns(index.columns)})"
    place = f"{quoted(placed.namespace)}.{quoted(name)}"
    return Part(
        kind=INDEX, sort=Sort.UNIQUE if index.unique else Sort.INDEX, name=name, names=names,
        shown=f"{'unique constraint' if index.constraint else 'index'} {name}",
        definition=bare(f"{'UNIQUE ' if index.unique else ''}INDEX {terms}"), add=index_sql(placed, index, Names(())),
        drop=f"ALTER TABLE {placed.sql} DROP CONSTRAINT {quoted(name)}" if index.constraint else f"DROP INDEX {place}",
    )  # fmt: skip


def _check(placed: Placed, check: Check) -> Part:
    name, names = _names(placed, check.name, (), "check")
    return Part(
        kind=CHECK, sort=Sort.CHECK, shown=f"check {name}", name=name, names=names,
        definition=bare(f"CHECK ({placed.rewritten(check.sql)})"),
        add="; ".join(filter(None, check_sql(placed, check, Names(())))),
        drop=f"ALTER TABLE {placed.sql} DROP CONSTRAINT {quoted(name)}",
    )  # fmt: skip


def _required(placed: Placed, column: str) -> Part:
    name, alter = placed.fold(column), f"ALTER TABLE {placed.sql} ALTER COLUMN {placed.column(column)}"
    return Part(
        kind=REQUIRED, sort=Sort.REQUIRED, shown=f"NOT NULL of column {name}", name=name, names=frozenset((name,)),
        definition="",
        add=f"{alter} SET NOT NULL", drop=f"{alter} DROP NOT NULL",
    )  # fmt: skip


def _reference(placed: Placed, key: ForeignKey, *, acting: bool) -> Part:
    name, names = _names(placed, key.name, key.columns, "fkey")
    other = replace(placed.schema, namespace=key.referred_namespace, name=key.referred_table)
    made = Reference(placed=placed, referred=placed.beside(other), key=key, name=name)
    return Part(
        kind=REFERENCE, sort=Sort.REFERENCE, shown=f"foreign key {name}", name=name, names=names, definition="",
        add="; ".join(filter(None, (made.add(acting=acting), made.validate))),
        drop=f"ALTER TABLE {placed.sql} DROP CONSTRAINT {quoted(name)}",
    )  # fmt: skip


def _names(placed: Placed, wanted: str, columns: Sequence[str], suffix: str) -> tuple[str, frozenset[str]]:
    """Return the intended name of an object, and all names that `Names` may have given it."""
    name = Names(()).take(placed, wanted, columns, suffix)
    stem = "_".join((placed.name, *columns, suffix))
    numbered = (fitted(f"{stem}{number}") for number in range(2, _NUMBERED_MAX + 1))
    return name, frozenset((name, fitted(stem), *numbered))


def bare(definition: str) -> str:
    """Return a definition without the quotes of names, which differ between source and dictionary."""
    return definition.replace('"', "").removesuffix(" NOT VALID")
