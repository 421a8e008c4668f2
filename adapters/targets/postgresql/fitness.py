"""Checks whether a target can have its tables, before any row is read (VENUS 3.4). Reads only.

A load would find the same obstacles when it creates the tables, but that may be hours later, after the first fill.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from venus.adapters.targets.postgresql.database import DEFERRED, REPLICA, PostgresDatabase
from venus.adapters.targets.postgresql.naming import OWN_SCHEMA, PlacedTable, place_all, quote
from venus.adapters.targets.postgresql.schema import existing
from venus.adapters.targets.postgresql.schema import own_types as owntypes
from venus.adapters.targets.postgresql.schema.ddl import list_own_types
from venus.adapters.targets.postgresql.schema.tables import Obstacle, find_missing_types
from venus.adapters.targets.postgresql.session import TargetSession, try_replica_role
from venus.adapters.targets.postgresql.statements import statement
from venus.adapters.targets.predicates import check_predicates
from venus.errors import ConfigError, LoginRefused, Refused, VenusError
from venus.model import Finding, TableSchema


def find_obstacles(target: PostgresDatabase, session: TargetSession, schemas: Iterable[TableSchema]) -> list[Obstacle]:
    """Return all obstacles to creating these tables or using existing ones. Raises Refused if names collide."""
    placed = place_all(schemas, target.settings, target.name)
    own = {(t.namespace, t.name) for t in target.read_tables(session)} if target.is_installed(session) else set()
    others = [one for one in placed if (one.namespace, one.name) not in own]
    return [
        *find_missing_types(session, placed, target.name),
        *_check_privileges(session, others, target.name),
        *_check_types(session, others),
        *_check_tables(target, session, others),
    ]


def check(target: PostgresDatabase, schemas: Sequence[TableSchema]) -> list[Finding]:
    """Check that the database is reachable and can have these tables; being unreachable is a finding, not an error."""
    where = f"target {target.name}"
    names = [*_check_predicates(target, schemas), *_check_names(target, schemas)]
    try:
        with closing(target.connect("check")) as session:
            constraints = REPLICA if try_replica_role(session) else DEFERRED
            found = [
                *names,
                Finding(where=where, message=f"reachable; {constraints}"),
                *_check_encoding(session, where),
            ]
            if any(name.blocks for name in names):
                return found
            more = find_obstacles(target, session, schemas)
    except VenusError as error:
        blocks = isinstance(error, LoginRefused) or not error.retryable
        return [*names, Finding(where=where, message=str(error), remedy=error.hint, blocks=blocks)]
    return [*found, *(Finding(where=o.where, message=o.message, remedy=o.remedy, blocks=True) for o in more)]


def _check_encoding(session: TargetSession, where: str) -> Iterator[Finding]:
    """Yield a finding if the database's encoding lacks characters: it refuses rows with them."""
    ((encoding, database),) = session.rows(statement("dictionary", "encoding"))
    if encoding not in ("UTF8", "SQL_ASCII"):  # SQL_ASCII accepts any bytes
        yield Finding(
            where=where,
            message=f"encoding is {encoding}: rows with characters that it lacks are refused",
            remedy=f"create {quote(database)} with ENCODING 'UTF8', or continue if the source has no such characters",
        )


def _check_predicates(target: PostgresDatabase, schemas: Sequence[TableSchema]) -> list[Finding]:
    """Return a finding for each predicate, or one for the predicate that does not fit its table."""
    try:
        found = check_predicates(target.config.where, schemas, target.name)
    except ConfigError as error:
        return [Finding(where=f"target {target.name}", message=str(error), remedy=error.hint, blocks=True)]
    names = {s.table_id: s.qualified for s in schemas}
    return [
        Finding(where=f"target {target.name}", message=f"{names[table_id]} gets the rows where {text}")
        for table_id, text in found.items()
    ]


def _check_names(target: PostgresDatabase, schemas: Sequence[TableSchema]) -> list[Finding]:
    """Return a finding for each name that the target cannot have, and for each that it shortens."""
    where = f"target {target.name}"
    try:
        placed = place_all(schemas, target.settings, target.name)
    except Refused as refused:
        lines = str(refused).split("\n")
        return [Finding(where=where, message=line, remedy=refused.hint, blocks=True) for line in lines]
    return [
        Finding(where=where, message=f"{one.schema.qualified}: the name {long} is too long and becomes {short}")
        for one in placed
        for long, short in one.shortened
    ]


def refuse_unfit(target: PostgresDatabase, schemas: Iterable[TableSchema]) -> None:
    """Raise Refused with one line for each obstacle to a load, or ConfigError for an unfit predicate."""
    schemas = list(schemas)
    check_predicates(target.config.where, schemas, target.name)
    session = target.connect("check")
    try:
        found = find_obstacles(target, session, schemas)
    finally:
        session.close()
    if found:
        raise Refused("\n".join(o.line for o in found), hint="`venus check` lists the same obstacles; no row was read")


# -- types ---------------------------------------------------------------------------------------------------------


def _check_types(session: TargetSession, placed: Sequence[PlacedTable]) -> Iterator[Obstacle]:
    for one, own in list_own_types(placed):
        for line in owntypes.read_type_differences(session, one, own):
            yield Obstacle(where=one.schema.qualified, message=f"needs a type: {line}", remedy=owntypes.HINT)


# -- tables and privileges -------------------------------------------------------------------------------------------


def _check_tables(
    target: PostgresDatabase, session: TargetSession, placed: Sequence[PlacedTable]
) -> Iterator[Obstacle]:
    by_name = {one.sql: one for one in placed}
    for (name,) in session.rows(statement("dictionary", "present"), {"tables": list(by_name)}):
        one = by_name[name]
        there = existing.read_table(session, one)
        lines = existing.table_differences(one, there) if there is not None else []
        for line in lines:
            yield Obstacle(where=one.schema.qualified, message=f"is there already: {line}", remedy=existing.HINT)
        if not lines and target.config.on_existing == "refuse" and existing.has_rows(session, one):
            yield Obstacle(
                where=one.schema.qualified,
                message=f"is there already: {one.qualified} has rows",
                remedy=existing.empty_hint(target.name),
            )


def _check_privileges(session: TargetSession, placed: Sequence[PlacedTable], target: str) -> Iterator[Obstacle]:
    namespaces = dict.fromkeys([OWN_SCHEMA, *(one.namespace for one in placed)])
    rows = session.rows(statement("dictionary", "may_create"), {"namespaces": list(namespaces)})
    for name, exists, may, role, database in rows:
        if may:
            continue
        what = f"SCHEMA {quote(name)}" if exists else f"DATABASE {quote(database)}"
        yield Obstacle(
            where=f"target {target}",
            message=f"does not let role {role} create tables in schema {name}"
            if exists
            else f"does not let role {role} create schema {name}",
            remedy=f"GRANT {'USAGE, ' if exists else ''}CREATE ON {what} TO {quote(role)};",
        )
