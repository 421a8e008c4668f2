"""Tables at a target: new tables, use of existing ones, and schema changes from the stream (VENUS 3.4).

A schema change is executed before the rows of the new version, in the same transaction. A schema change that the target
cannot follow halts its table. A column whose type only some PostgreSQL servers have is an obstacle, which is reported
with its remedy.

`check` runs before any row is read, and changes nothing. It shows whether a target can have its tables. A load would
find the same obstacles when it creates the tables, but possibly hours later, after the first fill.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from venus.adapters.targets.postgresql.naming import OWN_SCHEMA, PlacedTable, place_all, place_table, quote
from venus.adapters.targets.postgresql.schema import evolve, existing
from venus.adapters.targets.postgresql.schema import own_types as owntypes
from venus.adapters.targets.postgresql.schema.constraints import add_key, check_statements, index_statements
from venus.adapters.targets.postgresql.schema.ddl import create_schemas, create_table, list_own_types, type_sql
from venus.adapters.targets.postgresql.schema.existing import HINT, empty_hint, has_rows, read_table, table_differences
from venus.adapters.targets.postgresql.schema.own_types import (
    add_labels,
    create_types,
    plan_label_steps,
    read_enum_differences,
)
from venus.adapters.targets.postgresql.session import (
    DEFERRED,
    REPLICA,
    TargetSession,
    open_session,
    statement,
    try_replica_role,
)
from venus.adapters.targets.predicates import check_predicates, predicate_text
from venus.adapters.targets.relational.catalogue import TargetCatalogue
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.place import VersionStep
from venus.adapters.targets.relational.states import ACTIVE
from venus.errors import ConfigError, LoginRefused, Refused, TargetError, VenusError
from venus.masking.projection import source_of
from venus.model import Finding, Kind, LogicalType, TableSchema
from venus.predicates.ranges import compile_predicate
from venus.predicates.syntax import PredicateRefused

logger = logging.getLogger(__name__)

#: The kind of entry in `TableSchema.left_out` for a column with such a type.
_TYPE = "type of column"


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One reason why a load would be refused."""

    where: str
    message: str
    remedy: str

    @property
    def line(self) -> str:
        """The obstacle as one line of text."""
        return f"{self.where} {self.message}: {self.remedy}"


def find_missing_types(session: TargetSession, placed: Sequence[PlacedTable], target: str) -> list[Obstacle]:
    """Return an obstacle for each column whose type the target lacks and VENUS does not create; uses one query."""
    wanted = [(one, column, name) for one in placed for column, name in _unusual_types(one)]
    spelled = sorted({name for _, _, name in wanted})
    if not spelled:
        return []
    missing = {name for (name,) in session.rows(statement("dictionary", "missing_types"), {"types": spelled})}
    return [
        Obstacle(
            where=f"{one.schema.qualified_name}.{column}",
            message=f"is of type {name}, which target {target} does not have",
            remedy=_remedy(one.schema, column),
        )
        for one, column, name in wanted
        if name in missing
    ]


def _unusual_types(placed: PlacedTable) -> Iterator[tuple[str, str]]:
    """Yield (column, type) for types that VENUS does not create and not every PostgreSQL has."""
    made = placed.type_names
    for column in placed.schema.columns:
        innermost = _element_type(column.type)
        if innermost.kind is Kind.NATIVE and innermost.name not in made:
            yield column.name, type_sql(innermost, made)


def _element_type(kind: LogicalType) -> LogicalType:
    """Return the innermost element type of an array; any other type unchanged."""
    while kind.kind is Kind.ARRAY and kind.element is not None:
        kind = kind.element
    return kind


def _remedy(schema: TableSchema, column: str) -> str:
    """Return the remedy for a column whose type the target lacks."""
    reasons = [left.reason for left in schema.left_out if (left.what, left.name) == (_TYPE, column)]
    way = reasons[0] if reasons else "the target's PostgreSQL is older than the source's: upgrade it"
    return f"{way}; or exclude the table"


def create_stream_table(target: RelationalDatabase, session: TargetSession, schema: TableSchema, offset: int) -> None:
    """Create a table that is new in the stream, before its rows arrive; a table that cannot be created halts."""
    placed = place_table(schema, target.settings, target.name)
    predicate = predicate_text(target.config.where, schema.qualified_name)
    session.run("SAVEPOINT venus_table")
    try:
        if predicate:
            compile_predicate(predicate, source_of(schema))
        created = prepare_table(target, session, placed)
        session.run(f"{add_key(placed)}; RELEASE SAVEPOINT venus_table" if created else "RELEASE SAVEPOINT venus_table")
    except (Refused, PredicateRefused, TargetError) as refused:
        if session.is_closed:
            raise
        session.run("ROLLBACK TO SAVEPOINT venus_table; RELEASE SAVEPOINT venus_table")
        target.put_halted(session, placed, offset, "; ".join(str(refused).split("\n")), predicate)
        return
    target.put_table(session, placed, ACTIVE, offset, created=created, predicate=predicate)
    if created and (warnings := _create_table_objects(session, placed)):
        target.run_own(
            session, "set_version", table_id=schema.table_id, version=schema.version, reason="; ".join(warnings)
        )


def _create_table_objects(session: TargetSession, placed: PlacedTable) -> list[str]:
    """Create indexes and checks; return the rejected ones, which must not stop the changes of other tables.

    The operator adds a NOT VALID check afterwards, because older rows, which it may refuse, have not arrived yet.
    """
    names = existing.free_names(session, [placed])
    made = check_statements(placed, names)
    warnings = [
        f"NOT VALID at the source, so run it at the target before the cut-over: {add}" for add, v in made if not v
    ]
    for text in (*index_statements(placed, names), *(f"{add}; {validate}" for add, validate in made if validate)):
        session.run("SAVEPOINT venus_besides")
        try:
            session.run(f"{text}; RELEASE SAVEPOINT venus_besides")
        except TargetError as error:
            if session.is_closed:
                raise
            session.run("ROLLBACK TO SAVEPOINT venus_besides; RELEASE SAVEPOINT venus_besides")
            logger.warning("%s: %s", text, error)
            warnings.append(f"{text}: {error}")
    return warnings


def prepare_table(
    target: RelationalDatabase, session: TargetSession, placed: PlacedTable, *, own: bool = False
) -> bool:
    """Create a table, or use an existing one by the rule `on_existing`; return whether it was created.

    `own`: the target already had the table, so the caller handles the rows, and a load may not have added the key yet.
    Raises Refused with one line for each difference.
    """
    if own:
        add_labels(placed, lambda: open_session(target, "labels"))
    there = existing.read_table(session, placed)
    if there is None:
        if missing := find_missing_types(session, [placed], target.name):
            raise Refused("\n".join(o.line for o in missing), hint="mend that, then start again")
        for text in create_schemas([placed]):
            session.run(text)
        create_types(session, placed)
        for text in create_table(placed):
            session.run(text)
        return True
    found = read_enum_differences(session, placed)
    found += [line for line in existing.table_differences(placed, there) if not (own and existing.NO_KEY in line)]
    if found:
        raise Refused("\n".join(found), hint=existing.HINT)
    rule = target.config.on_existing
    if not own and rule == "truncate":
        existing.empty_table(session, placed, target.config.empty_by)
    elif not own and rule == "refuse" and existing.has_rows(session, placed):
        raise Refused(f"{placed.qualified_name} has rows already", hint=existing.empty_hint(target.name))
    return False


def store_version(
    target: RelationalDatabase, session: TargetSession, schema: TableSchema, known: TableSchema | None
) -> None:
    """Store a table version, because a batch describes it only once. First, durably add missing labels of its enums.

    `known` is the current version of the table at the target.
    """
    if known is not None and schema.types:
        add_labels(place_table(schema, target.settings, target.name), lambda: open_session(target, "labels"), known)
    target.put_schema(session, schema)


def plan_step_to(
    target: RelationalDatabase,
    session: TargetSession,
    catalogue: TargetCatalogue,
    schema: TableSchema,
    *,
    rekeying: bool = False,
) -> VersionStep:
    """Return the step from a table's current version at the target to this one; see `evolve.plan_step`."""
    known = catalogue.current_schema(schema.table_id)
    old, new = place_table(known, target.settings, target.name), place_table(schema, target.settings, target.name)
    versions = [one for (table_id, _), one in catalogue.schemas.items() if table_id == schema.table_id]
    earlier = [one for one in versions if one.version <= known.version]
    present = {c.name: c.own or c.type for c in existing.read_columns(session, old)}
    kept = evolve.kept_columns(earlier, known)
    labels = plan_label_steps(session, old, new, target.name) if schema.types else evolve.NO_LABELS
    return evolve.plan_step(old, new, labels, present=present, kept=kept, target=target.name, rekeying=rekeying)


def find_obstacles(
    target: RelationalDatabase, session: TargetSession, schemas: Iterable[TableSchema]
) -> list[Obstacle]:
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


def check(target: RelationalDatabase, schemas: Sequence[TableSchema]) -> list[Finding]:
    """Check that the database is reachable and can have these tables. An unreachable one is a finding, not an error."""
    where = f"target {target.name}"
    names = [*_check_predicates(target, schemas), *_check_names(target, schemas)]
    try:
        with closing(open_session(target, "check")) as session:
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
    """Yield a finding if the database's encoding lacks characters, so that rows with these would be refused."""
    ((encoding, database),) = session.rows(statement("dictionary", "encoding"))
    if encoding not in ("UTF8", "SQL_ASCII"):  # SQL_ASCII accepts any bytes
        yield Finding(
            where=where,
            message=f"encoding is {encoding}: rows with characters that it lacks are refused",
            remedy=f"create {quote(database)} with ENCODING 'UTF8', or continue if the source has no such characters",
        )


def _check_predicates(target: RelationalDatabase, schemas: Sequence[TableSchema]) -> list[Finding]:
    """Return a finding for each predicate, or a single finding for a predicate that does not fit its table."""
    try:
        found = check_predicates(target.config.where, schemas, target.name)
    except ConfigError as error:
        return [Finding(where=f"target {target.name}", message=str(error), remedy=error.hint, blocks=True)]
    names = {s.table_id: s.qualified_name for s in schemas}
    return [
        Finding(where=f"target {target.name}", message=f"{names[table_id]} gets the rows where {text}")
        for table_id, text in found.items()
    ]


def _check_names(target: RelationalDatabase, schemas: Sequence[TableSchema]) -> list[Finding]:
    """Return a finding for each name that is impossible at the target, and for each name that it shortens."""
    where = f"target {target.name}"
    try:
        placed = place_all(schemas, target.settings, target.name)
    except Refused as refused:
        lines = str(refused).split("\n")
        return [Finding(where=where, message=line, remedy=refused.hint, blocks=True) for line in lines]
    return [
        Finding(where=where, message=f"{one.schema.qualified_name}: the name {long} is too long and becomes {short}")
        for one in placed
        for long, short in one.shortened_names
    ]


def refuse_unfit(target: RelationalDatabase, schemas: Iterable[TableSchema]) -> None:
    """Raise Refused with one line for each obstacle to a load, or ConfigError for an unfit predicate."""
    schemas = list(schemas)
    check_predicates(target.config.where, schemas, target.name)
    session = open_session(target, "check")
    try:
        found = find_obstacles(target, session, schemas)
    finally:
        session.close()
    if found:
        raise Refused("\n".join(o.line for o in found), hint="`venus check` lists the same obstacles; no row was read")


# -- types ---------------------------------------------------------------------------------------------------------


def _check_types(session: TargetSession, placed: Sequence[PlacedTable]) -> Iterator[Obstacle]:
    """Yield an obstacle for each enum or domain that exists at the target and differs from the source's."""
    for one, own in list_own_types(placed):
        for line in owntypes.read_type_differences(session, one, own):
            yield Obstacle(where=one.schema.qualified_name, message=f"needs a type: {line}", remedy=owntypes.HINT)


# -- tables and privileges -------------------------------------------------------------------------------------------


def _check_tables(
    target: RelationalDatabase, session: TargetSession, placed: Sequence[PlacedTable]
) -> Iterator[Obstacle]:
    """Yield an obstacle for each existing table that cannot be used, or has rows although that is refused."""
    by_name = {one.sql: one for one in placed}
    for (name,) in session.rows(statement("dictionary", "present"), {"tables": list(by_name)}):
        one = by_name[name]
        there = read_table(session, one)
        lines = table_differences(one, there) if there is not None else []
        for line in lines:
            yield Obstacle(where=one.schema.qualified_name, message=f"is there already: {line}", remedy=HINT)
        if not lines and target.config.on_existing == "refuse" and has_rows(session, one):
            yield Obstacle(
                where=one.schema.qualified_name,
                message=f"is there already: {one.qualified_name} has rows",
                remedy=empty_hint(target.name),
            )


def _check_privileges(session: TargetSession, placed: Sequence[PlacedTable], target: str) -> Iterator[Obstacle]:
    """Yield an obstacle for each schema in which the target's role may not create tables."""
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
