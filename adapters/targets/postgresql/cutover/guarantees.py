"""Comparison of every table at the target with the source's description; a missing constraint weakens a guarantee.

This target spells the definitions: VENUS creates a temporary table as it would create the table now, and reads it like
the table itself. It leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from venus.adapters.targets.cutover_contract import SchemaDifference
from venus.adapters.targets.postgresql.cutover import references
from venus.adapters.targets.postgresql.naming import PlacedTable
from venus.adapters.targets.postgresql.schema import existing, own_types
from venus.adapters.targets.postgresql.schema.comparison import (
    CHECK,
    DEFAULT,
    INDEX,
    REFERENCE,
    ObjectDifference,
    ObjectPlace,
    ObjectProblem,
    TableObject,
    compare_objects,
)
from venus.adapters.targets.postgresql.schema.constraints import ConstraintNames, PlacedForeignKey, check_sql, index_sql
from venus.adapters.targets.postgresql.schema.ddl import create_table
from venus.adapters.targets.postgresql.schema.ddl import list_own_types as used_types
from venus.adapters.targets.postgresql.schema.table_objects import (
    column_objects,
    existing_columns,
    list_objects,
    read_objects,
    stricter_objects,
)
from venus.adapters.targets.postgresql.session import TargetSession
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import TargetError
from venus.model import OwnType

logger = logging.getLogger(__name__)

_SCRATCH = "pg_temp"
_UNIQUE_CONSTRAINT = "u"


def find_schema_differences(
    session: TargetSession, placed: Sequence[PlacedTable], created: Collection[int]
) -> list[SchemaDifference]:
    """Compare every table; `created` = those that VENUS has created, whose foreign keys the cut-over recreates."""
    there = {one.schema.qualified for one in placed}
    keys = references.read_foreign_keys(session, placed)
    owed = references.plan_references(placed, placed)
    found = []
    for one in placed:
        ends = {(REFERENCE, f.name): str(f.ends) for f in keys if f.child == (one.namespace, one.name)}
        wanted = {_place(r): str(references.foreign_key_ends(r)) for r in owed if r.placed is one}
        for d in _table_differences(session, one, there, ends, wanted):
            made = one.schema.table_id in created and d.part.kind == REFERENCE
            if not made or d.problem is ObjectProblem.EXTRA:
                found.append(_to_schema_difference(one, d))
    found += [d for one, own in used_types(placed) for d in _domain_differences(session, one, own)]
    return found


def _table_differences(
    session: TargetSession,
    one: PlacedTable,
    there: Collection[str],
    ends: dict[ObjectPlace, str],
    wanted: dict[ObjectPlace, str],
) -> list[ObjectDifference]:
    here = {place: text for place, text in _read_objects(session, one).items() if place[0] != REFERENCE} | ends
    spelled = _spell(session, one) | wanted
    expected = [*column_objects(one), *list_objects(one, there, acting=True)]
    unique = {name for kind, name in here if kind == _UNIQUE_CONSTRAINT}
    return compare_objects(
        [_with_own_spelling(p, spelled) for p in expected], here, stricter_objects(one, here, unique), exact=True
    )


def _place(reference: PlacedForeignKey) -> ObjectPlace:
    """Return the place under which `parts` lists it."""
    return REFERENCE, ConstraintNames(()).take(reference.placed, reference.key.name, reference.key.columns, "fkey")


def _with_own_spelling(part: TableObject, spelled: dict[ObjectPlace, str]) -> TableObject:
    """Return the part as this target spells it; a part that it cannot spell is compared by name only."""
    if part.kind not in (INDEX, CHECK, REFERENCE, DEFAULT):
        return part
    return replace(part, definition=spelled.get((part.kind, part.name), ""))


def _to_schema_difference(placed: PlacedTable, found: ObjectDifference) -> SchemaDifference:
    what = f"{found.part.shown} {found.problem.value}"
    return SchemaDifference(table=placed.schema.qualified, what=what, statement=found.statement, blocks=found.blocks)


def _read_objects(session: TargetSession, placed: PlacedTable) -> dict[ObjectPlace, str]:
    """Read the objects and columns of a table."""
    found = read_objects(session, placed)
    keys = session.rows(statement("dictionary", "unique_keys"), {"table": placed.sql})
    return found | dict(existing_columns(placed, existing.read_columns(session, placed), (names for (names,) in keys)))


def _spell(session: TargetSession, placed: PlacedTable) -> dict[ObjectPlace, str]:
    """Return the expected definitions in this target's spelling; empty if it cannot create a temporary table."""
    scratch = replace(placed, namespace=_SCRATCH)
    session.run("BEGIN")
    try:
        for text in create_table(scratch):
            session.run(text)
        for text in _object_statements(scratch):
            _try(session, text)
        return _read_objects(session, scratch)
    except TargetError as error:
        logger.warning("%s is compared by names alone: %s", placed.qualified, error)
        return {}
    finally:
        session.rollback()


def _object_statements(scratch: PlacedTable) -> Iterator[str]:
    yield from (index_sql(scratch, index, ConstraintNames(())) for index in scratch.schema.indexes)
    yield from (check_sql(scratch, check, ConstraintNames(()))[0] for check in scratch.schema.checks)


def _try(session: TargetSession, text: str) -> None:
    session.run("SAVEPOINT venus_spell")
    try:
        session.run(f"{text}; RELEASE SAVEPOINT venus_spell")
    except TargetError as error:
        if session.closed:
            raise
        logger.warning("%s: %s", text, error)
        session.run("ROLLBACK TO SAVEPOINT venus_spell; RELEASE SAVEPOINT venus_spell")


def _domain_differences(session: TargetSession, placed: PlacedTable, own: OwnType) -> Iterator[SchemaDifference]:
    for what, mend in own_types.missing_constraints(session, placed, own):
        yield SchemaDifference(table=placed.schema.qualified, what=what, statement=mend, blocks=True)
