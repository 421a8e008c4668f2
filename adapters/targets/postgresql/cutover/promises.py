"""Comparison of every table at the target with the source's description; a missing constraint weakens a guarantee.

This target spells the definitions: VENUS creates a temporary table as it would create the table now, and reads it like
the table itself. It leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from venus.adapters.targets.cutting import SchemaDifference
from venus.adapters.targets.postgresql.cutover import references
from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.schema import existing, own_types
from venus.adapters.targets.postgresql.schema.besides import bare, parts
from venus.adapters.targets.postgresql.schema.column_parts import column_parts, columns_here, stricter_parts
from venus.adapters.targets.postgresql.schema.comparison import (
    CHECK,
    DEFAULT,
    INDEX,
    REFERENCE,
    Difference,
    Part,
    Place,
    Problem,
    compare,
)
from venus.adapters.targets.postgresql.schema.constraints import Names, Reference, check_sql, index_sql
from venus.adapters.targets.postgresql.schema.ddl import create_table
from venus.adapters.targets.postgresql.schema.ddl import own_types as used_types
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import TargetError
from venus.model import OwnType

logger = logging.getLogger(__name__)

_SCRATCH = "pg_temp"
_UNIQUE_CONSTRAINT = "u"


def differences(session: Session, placed: Sequence[Placed], created: Collection[int]) -> list[SchemaDifference]:
    """Compare every table; `created` = those that VENUS has created, whose foreign keys the cut-over recreates."""
    there = {one.schema.qualified for one in placed}
    keys = references.present(session, placed)
    owed = references.planned(placed, placed)
    found = []
    for one in placed:
        ends = {(REFERENCE, f.name): str(f.ends) for f in keys if f.child == (one.namespace, one.name)}
        wanted = {_place(r): str(references.ends(r)) for r in owed if r.placed is one}
        for d in _differences(session, one, there, ends, wanted):
            made = one.schema.table_id in created and d.part.kind == REFERENCE
            if not made or d.problem is Problem.EXTRA:
                found.append(_to_schema_difference(one, d))
    found += [d for one, own in used_types(placed) for d in _of_domain(session, one, own)]
    return found


def _differences(
    session: Session, one: Placed, there: Collection[str], ends: dict[Place, str], wanted: dict[Place, str]
) -> list[Difference]:
    here = {place: text for place, text in _read(session, one).items() if place[0] != REFERENCE} | ends
    spelled = _spell(session, one) | wanted
    expected = [*column_parts(one), *parts(one, there, acting=True)]
    unique = {name for kind, name in here if kind == _UNIQUE_CONSTRAINT}
    return compare([_respell(p, spelled) for p in expected], here, stricter_parts(one, here, unique), exact=True)


def _place(reference: Reference) -> Place:
    """Return the place under which `parts` lists it."""
    return REFERENCE, Names(()).take(reference.placed, reference.key.name, reference.key.columns, "fkey")


def _respell(part: Part, spelled: dict[Place, str]) -> Part:
    """Return the part as this target spells it; a part that it cannot spell is compared by name only."""
    if part.kind not in (INDEX, CHECK, REFERENCE, DEFAULT):
        return part
    return replace(part, definition=spelled.get((part.kind, part.name), ""))


def _to_schema_difference(placed: Placed, found: Difference) -> SchemaDifference:
    what = f"{found.part.shown} {found.problem.value}"
    return SchemaDifference(
        table=placed.schema.qualified, what=what, statement=found.statement, blocks=found.blocks
    )  # fmt: skip


def _read(session: Session, placed: Placed) -> dict[Place, str]:
    """Read the objects and columns of a table."""
    rows = session.rows(statement("dictionary", "besides"), {"table": placed.sql})
    found = {(kind, name): bare(definition) for kind, name, definition in rows}
    keys = session.rows(statement("dictionary", "unique_keys"), {"table": placed.sql})
    return found | dict(columns_here(placed, existing.columns(session, placed), (names for (names,) in keys)))


def _spell(session: Session, placed: Placed) -> dict[Place, str]:
    """Return the expected definitions in this target's spelling; empty if it cannot create a temporary table."""
    scratch = replace(placed, namespace=_SCRATCH)
    session.run("BEGIN")
    try:
        for text in create_table(scratch):
            session.run(text)
        for text in _besides(scratch):
            _try(session, text)
        return _read(session, scratch)
    except TargetError as error:
        logger.warning("%s is compared by names alone: %s", placed.qualified, error)
        return {}
    finally:
        session.rollback()


def _besides(scratch: Placed) -> Iterator[str]:
    yield from (index_sql(scratch, index, Names(())) for index in scratch.schema.indexes)
    yield from (check_sql(scratch, check, Names(()))[0] for check in scratch.schema.checks)


def _try(session: Session, text: str) -> None:
    session.run("SAVEPOINT venus_spell")
    try:
        session.run(f"{text}; RELEASE SAVEPOINT venus_spell")
    except TargetError as error:
        if session.closed:
            raise
        logger.warning("%s: %s", text, error)
        session.run("ROLLBACK TO SAVEPOINT venus_spell; RELEASE SAVEPOINT venus_spell")


def _of_domain(session: Session, placed: Placed, own: OwnType) -> Iterator[SchemaDifference]:
    for what, mend in own_types.missing(session, placed, own):
        yield SchemaDifference(table=placed.schema.qualified, what=what, statement=mend, blocks=True)
