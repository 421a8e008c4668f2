"""Guarantees at the cut-over: every table compared with the source's description, and the foreign keys.

A missing constraint weakens a guarantee. Definitions are compared in the form of this target's dictionary. VENUS
creates a temporary table from the source's description, and reads its definition like that of the real table. Nothing
remains afterwards.

VENUS applies changes with foreign keys disabled if its role may do so, so PostgreSQL's VALID proves nothing about newer
rows. A query over the rows themselves checks that every row has its parent. After this check, the foreign keys are
recreated with the source's actions, and PostgreSQL validates each key again.

The cut-over also adds domain checks that are NOT VALID at the source. PostgreSQL casts every value that is written to a
domain, so a target that already had such a check would refuse older values of the source.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from venus.adapters.targets.cutover_contract import SchemaDifference
from venus.adapters.targets.postgresql.database import cutover_sql
from venus.adapters.targets.postgresql.naming import PlacedTable, quote
from venus.adapters.targets.postgresql.schema import existing, own_types
from venus.adapters.targets.postgresql.schema.constraints import (
    CHECK,
    DEFAULT,
    INDEX,
    REFERENCE,
    ConstraintNames,
    ObjectDifference,
    ObjectPlace,
    ObjectProblem,
    PlacedForeignKey,
    TableObject,
    check_sql,
    check_statements,
    compare_objects,
    index_sql,
    index_statements,
    placed_foreign_keys,
)
from venus.adapters.targets.postgresql.schema.ddl import create_table, later_checks
from venus.adapters.targets.postgresql.schema.ddl import list_own_types as used_types
from venus.adapters.targets.postgresql.schema.table_objects import (
    column_objects,
    existing_columns,
    list_objects,
    read_objects,
    stricter_objects,
)
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.adapters.targets.relational.session import transaction
from venus.errors import TargetError
from venus.model import OwnType

logger = logging.getLogger(__name__)

_SCRATCH = "pg_temp"
_UNIQUE_CONSTRAINT = "u"


def find_schema_differences(
    session: TargetSession, placed: Sequence[PlacedTable], created: Collection[int]
) -> list[SchemaDifference]:
    """Return where tables at the target differ from the source's descriptions.

    Missing or altered foreign keys of tables that VENUS `created` are left out, because the cut-over recreates them.
    """
    there = {one.qualified_name for one in placed}
    keys = read_foreign_keys(session, placed)
    owed = plan_references(placed, placed)
    found = []
    for one in placed:
        ends = {(REFERENCE, f.name): str(f.ends) for f in keys if f.child == (one.namespace, one.name)}
        wanted = {_reference_place(r): str(foreign_key_ends(r)) for r in owed if r.placed is one}
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
    """Compare the objects of one table; `ends`: its foreign keys at the target, `wanted`: those at the source."""
    here = {place: text for place, text in _read_objects(session, one).items() if place[0] != REFERENCE} | ends
    definitions = _read_target_definitions(session, one) | wanted
    expected = [*column_objects(one), *list_objects(one, there, acting=True)]
    unique = {name for kind, name in here if kind == _UNIQUE_CONSTRAINT}
    return compare_objects(
        [_with_target_definition(p, definitions) for p in expected],
        here,
        stricter_objects(one, here, unique),
        exact=True,
    )


def _reference_place(reference: PlacedForeignKey) -> ObjectPlace:
    """Return the kind and name under which `list_objects` lists a foreign key."""
    return REFERENCE, ConstraintNames(()).take(reference.placed, reference.key.name, reference.key.columns, "fkey")


def _with_target_definition(part: TableObject, definitions: dict[ObjectPlace, str]) -> TableObject:
    """Return an object with its definition as this target writes it; without one, only names are compared."""
    if part.kind not in (INDEX, CHECK, REFERENCE, DEFAULT):
        return part
    return replace(part, definition=definitions.get((part.kind, part.name), ""))


def _to_schema_difference(placed: PlacedTable, found: ObjectDifference) -> SchemaDifference:
    what = f"{found.part.shown} {found.problem.value}"
    return SchemaDifference(
        table=placed.schema.qualified_name,
        what=what,
        statement=found.statement,
        blocks=found.blocks,
        is_extra=found.problem is ObjectProblem.EXTRA,
    )


def _read_objects(session: TargetSession, placed: PlacedTable) -> dict[ObjectPlace, str]:
    """Return the definitions of a table's columns, keys, indexes and constraints, by kind and name."""
    found = read_objects(session, placed)
    keys = session.rows(statement("dictionary", "unique_keys"), {"table": placed.sql})
    return found | dict(existing_columns(placed, existing.read_columns(session, placed), (names for (names,) in keys)))


def _read_target_definitions(session: TargetSession, placed: PlacedTable) -> dict[ObjectPlace, str]:
    """Return the expected definitions as this target formats them; empty if it cannot create a temporary table."""
    scratch = replace(placed, namespace=_SCRATCH)
    session.run("BEGIN")
    try:
        for text in create_table(scratch):
            session.run(text)
        for text in _object_statements(scratch):
            _try_statement(session, text)
        return _read_objects(session, scratch)
    except TargetError as error:
        logger.warning("%s is compared by names alone: %s", placed.qualified_name, error)
        return {}
    finally:
        session.rollback()


def _object_statements(scratch: PlacedTable) -> Iterator[str]:
    """Yield the statements that create the indexes and checks of a temporary table."""
    yield from (index_sql(scratch, index, ConstraintNames(())) for index in scratch.schema.indexes)
    yield from (check_sql(scratch, check, ConstraintNames(()))[0] for check in scratch.schema.checks)


def _try_statement(session: TargetSession, text: str) -> None:
    """Run a statement under a savepoint; log an error of the target, and continue."""
    session.run("SAVEPOINT venus_definitions")
    try:
        session.run(f"{text}; RELEASE SAVEPOINT venus_definitions")
    except TargetError as error:
        if session.is_closed:
            raise
        logger.warning("%s: %s", text, error)
        session.run("ROLLBACK TO SAVEPOINT venus_definitions; RELEASE SAVEPOINT venus_definitions")


def _domain_differences(session: TargetSession, placed: PlacedTable, own: OwnType) -> Iterator[SchemaDifference]:
    """Yield the constraints that a domain lacks at the target, as differences of a table that uses it."""
    for what, mend in own_types.missing_constraints(session, placed, own):
        yield SchemaDifference(table=placed.schema.qualified_name, what=what, statement=mend, blocks=True)


#: The child, its columns, the parent, the parent's columns.
Ends = tuple[tuple[str, str], tuple[str, ...], tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetForeignKey:
    """A foreign key of the target's dictionary, or one that VENUS has yet to add."""

    name: str
    child: tuple[str, str]
    parent: tuple[str, str]
    columns: tuple[str, ...]
    referred: tuple[str, ...]
    orphans: int = 0
    example: str = ""
    #: NOT VALID at the source: rows there may lack a parent.
    not_valid: bool = False

    @property
    def ends(self) -> Ends:
        """Tables and columns at both ends, which identify a foreign key regardless of its name."""
        return self.child, self.columns, self.parent, self.referred

    @property
    def text(self) -> str:
        """The foreign key as text for messages."""
        return f"{'.'.join(self.child)} ({', '.join(self.columns)}) -> {'.'.join(self.parent)}"


def plan_references(placed: Sequence[PlacedTable], created: Sequence[PlacedTable]) -> list[PlacedForeignKey]:
    """Return the foreign keys that VENUS creates, with the names that the load has given them."""
    names = ConstraintNames(placed)
    for one in created:
        index_statements(one, names)
    for one in created:
        check_statements(one, names)
    return [r for one in created for r in placed_foreign_keys(one, placed, names)]


def read_foreign_keys(session: TargetSession, placed: Sequence[PlacedTable]) -> list[TargetForeignKey]:
    """Read the foreign keys of the tables from the target's dictionary."""
    rows = session.rows(cutover_sql("foreign_keys"), {"tables": [p.sql for p in placed]})
    return [
        TargetForeignKey(name=name, child=(cn, c), parent=(pn, p), columns=tuple(columns), referred=tuple(referred))
        for name, cn, c, pn, p, columns, referred in rows
    ]


def count_orphans(
    session: TargetSession,
    there: Sequence[TargetForeignKey],
    owed: Sequence[PlacedForeignKey],
    placed: Sequence[PlacedTable],
) -> list[TargetForeignKey]:
    """Return every foreign key with the number of rows that lack a parent; `placed`: every table of the target."""
    known = {f.ends for f in there}
    missing = [f for f in map(_to_foreign_key, owed) if f.ends not in known]
    lenient = {f.ends for f in map(_to_foreign_key, plan_references(placed, placed)) if f.not_valid}
    return [_with_orphan_count(session, replace(f, not_valid=f.ends in lenient)) for f in (*there, *missing)]


def foreign_key_ends(reference: PlacedForeignKey) -> Ends:
    """Return the tables and columns at both ends of a foreign key that VENUS creates."""
    return _to_foreign_key(reference).ends


def _to_foreign_key(reference: PlacedForeignKey) -> TargetForeignKey:
    child, parent, key = reference.placed, reference.referred, reference.key
    return TargetForeignKey(
        name=reference.name,
        child=(child.namespace, child.name),
        parent=(parent.namespace, parent.name),
        columns=tuple(child.fold(c) for c in key.columns),
        referred=tuple(parent.fold(c) for c in (key.referred_columns or parent.schema.key)),
        not_valid=key.not_valid,
    )


def _with_orphan_count(session: TargetSession, found: TargetForeignKey) -> TargetForeignKey:
    mine = [f"c.{quote(c)}" for c in found.columns]
    text = cutover_sql(
        "orphans",
        child=".".join(map(quote, found.child)),
        parent=".".join(map(quote, found.parent)),
        child_columns=", ".join(mine),
        all_set=" AND ".join(f"{c} IS NOT NULL" for c in mine),
        match=" AND ".join(f"p.{quote(r)} = {c}" for r, c in zip(found.referred, mine, strict=True)),
    )
    row = session.row(text)
    count, example = row if row is not None else (0, None)
    return replace(found, orphans=int(count), example=example or "")


def recreate_references(
    session: TargetSession,
    there: Sequence[TargetForeignKey],
    owed: Sequence[PlacedForeignKey],
    invalid: Collection[str],
    *,
    acting: bool,
) -> list[str]:
    """Recreate VENUS's foreign keys, with the source's actions if `acting`; return those that the target refuses.

    Keys in `invalid` are not validated, because rows violate them: these keys hold for new rows only.
    """
    named = {f.ends: f.name for f in there}
    warnings = []
    for reference in owed:
        name = named.get(_to_foreign_key(reference).ends, reference.name)
        current = replace(reference, name=name)
        try:
            with transaction(session):
                session.run(current.drop)
                session.run(current.add(acting=acting))
            if name not in invalid and current.validate:
                session.run(current.validate)
        except TargetError as error:
            logger.warning("%s: %s", current.add(acting=acting), error)
            warnings.append(f"foreign key {name}: {error}")
    return warnings


def unvalidated_checks(session: TargetSession, placed: Sequence[PlacedTable]) -> list[tuple[str, str]]:
    """Return table and name of the check constraints that are not validated for every row."""
    return [(t, n) for t, n in session.rows(cutover_sql("unvalidated_checks"), {"tables": [p.sql for p in placed]})]


def add_domain_checks(session: TargetSession, created: Sequence[PlacedTable]) -> list[str]:
    """Add the domain checks that are NOT VALID at the source; return those that the target refuses. May be repeated."""
    refused = []
    for drop, add in later_checks(created):
        try:
            with transaction(session):
                session.run(drop)
                session.run(add)
        except TargetError as error:
            logger.warning("%s: %s", add, error)
            refused.append(f"{add}: {error}")
    return refused


def drop_domain_checks(session: TargetSession, created: Sequence[PlacedTable]) -> None:
    """Drop the domain checks that `add_domain_checks` adds."""
    for drop, _ in later_checks(created):
        session.run(drop)
