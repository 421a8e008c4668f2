"""Makes the tables that a load or the stream brings, or takes those that are there already (VENUS 3.4)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.database import ACTIVE, HALTED, PostgresTarget
from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.rows.verdicts import RowsRefused, guarded
from venus.adapters.targets.postgresql.schema import evolve, existing
from venus.adapters.targets.postgresql.schema.constraints import add_key, checks, indexes
from venus.adapters.targets.postgresql.schema.ddl import create_table, namespaces, type_sql
from venus.adapters.targets.postgresql.schema.own_types import add_labels, enum_differences, label_steps, make_types
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.adapters.targets.predicates import text_for
from venus.errors import Refused, TargetError
from venus.model import Kind, LogicalType, TableSchema
from venus.predicates.ranges import compiled
from venus.predicates.syntax import PredicateRefused

#: How what is left out names it.
_TYPE = "type of column"


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One reason why a load would be refused."""

    where: str
    message: str
    remedy: str

    @property
    def line(self) -> str:
        """One line for people."""
        return f"{self.where} {self.message}: {self.remedy}"


def missing_types(session: Session, placed: Sequence[Placed], target: str) -> list[Obstacle]:
    """Return a line for each column of a type that is neither here nor made by VENUS; one query for all tables."""
    wanted = [(one, column, name) for one in placed for column, name in _foreign_types(one)]
    spelled = sorted({name for _, _, name in wanted})
    if not spelled:
        return []
    missing = {name for (name,) in session.rows(statement("dictionary", "missing_types"), {"types": spelled})}
    return [
        Obstacle(
            where=f"{one.schema.qualified}.{column}",
            message=f"is of type {name}, which target {target} does not have",
            remedy=_remedy(one.schema, column),
        )
        for one, column, name in wanted
        if name in missing
    ]


def _foreign_types(placed: Placed) -> Iterator[tuple[str, str]]:
    """Yield (column, type) where only a PostgreSQL that happens to have the type can take the column."""
    made = placed.type_names
    for column in placed.schema.columns:
        innermost = _innermost(column.type)
        if innermost.kind is Kind.NATIVE and innermost.name not in made:
            yield column.name, type_sql(innermost, made)


def _innermost(kind: LogicalType) -> LogicalType:
    while kind.kind is Kind.ARRAY and kind.element is not None:
        kind = kind.element
    return kind


def _remedy(schema: TableSchema, column: str) -> str:
    told = [left.reason for left in schema.left_out if (left.what, left.name) == (_TYPE, column)]
    way = told[0] if told else "the target's PostgreSQL is older than the source's: upgrade it"
    return f"{way}; or exclude the table"


logger = logging.getLogger(__name__)


def new_table(target: PostgresTarget, session: Session, schema: TableSchema, offset: int) -> None:
    """Create a table that the stream brings; its rows follow in the stream. One that cannot be had is halted."""
    placed = target.place(schema)
    predicate = text_for(target.config.where, schema.qualified)
    session.run("SAVEPOINT venus_table")
    try:
        if predicate:
            compiled(predicate, schema)
        created = prepare_table(target, session, placed)
        session.run(f"{add_key(placed)}; RELEASE SAVEPOINT venus_table" if created else "RELEASE SAVEPOINT venus_table")
    except (Refused, PredicateRefused, TargetError) as refused:
        if session.closed:
            raise
        session.run("ROLLBACK TO SAVEPOINT venus_table; RELEASE SAVEPOINT venus_table")
        target.put_table(session, placed, HALTED, offset, created=False, predicate=predicate)
        reason = "; ".join(str(refused).split("\n"))
        target.set_state(session, schema.table_id, HALTED, held_from=offset, reason=reason)
        return
    target.put_table(session, placed, ACTIVE, offset, created=created, predicate=predicate)
    if created and (told := _besides(session, placed)):
        target.own(
            session, "set_version", table_id=schema.table_id, version=schema.version, reason="; ".join(told)
        )  # fmt: skip


def _besides(session: Session, placed: Placed) -> list[str]:
    """Make indexes and checks; return what the target would not have. The others' changes must not wait for that.

    The older rows, which a check that is NOT VALID may refuse, are still to come: people add it behind them.
    """
    names = existing.names_beside(session, [placed])
    made = checks(placed, names)
    told = [f"NOT VALID at the source, so run it at the target before the cut-over: {add}" for add, v in made if not v]
    for text in (*indexes(placed, names), *(f"{add}; {validate}" for add, validate in made if validate)):
        session.run("SAVEPOINT venus_besides")
        try:
            session.run(f"{text}; RELEASE SAVEPOINT venus_besides")
        except TargetError as error:
            if session.closed:
                raise
            session.run("ROLLBACK TO SAVEPOINT venus_besides; RELEASE SAVEPOINT venus_besides")
            logger.warning("%s: %s", text, error)
            told.append(f"{text}: {error}")
    return told


def prepare_table(target: PostgresTarget, session: Session, placed: Placed, *, own: bool = False) -> bool:
    """Create a table, or take one that is there by the rule `on_existing`; return whether it was created.

    `own` = this target's from before: its rows are the caller's affair, and a load may not have come to its key.
    Raises Refused with a line per difference.
    """
    if own:
        add_labels(placed, lambda: target.connect("labels"))
    there = existing.read(session, placed)
    if there is None:
        if missing := missing_types(session, [placed], target.name):
            raise Refused("\n".join(o.line for o in missing), hint="then start again")
        for text in namespaces([placed]):
            session.run(text)
        make_types(session, placed)
        for text in create_table(placed):
            session.run(text)
        return True
    found = enum_differences(session, placed)
    found += [line for line in existing.differences(placed, there) if not (own and existing.NO_KEY in line)]
    if found:
        raise Refused("\n".join(found), hint=existing.HINT)
    rule = target.config.on_existing
    if not own and rule == "truncate":
        existing.empty(session, placed, target.config.empty_by)
    elif not own and rule == "refuse" and existing.has_rows(session, placed):
        raise Refused(f"{placed.qualified} has rows already", hint=existing.empty_hint(target.name))
    return False


def keep_version(target: PostgresTarget, session: Session, schema: TableSchema, known: TableSchema | None) -> None:
    """Keep a table version: a batch names it only once. Labels that its enums lack are added before, durably.

    `known` = the newest version of the table that the target has.
    """
    if known is not None and schema.types:
        add_labels(target.place(schema), lambda: target.connect("labels"), known)
    target.put_schema(session, schema)


def step_to(
    target: PostgresTarget,
    session: Session,
    catalogue: Catalogue,
    schema: TableSchema,
    *,
    rekeying: bool = False,
) -> evolve.Step:
    """Return the way from the version that a table has at the target to this one; `rekeying` is `evolve.step`'s."""
    known = catalogue.newest(schema.table_id)
    old, new = target.place(known), target.place(schema)
    versions = [one for (table_id, _), one in catalogue.schemas.items() if table_id == schema.table_id]
    earlier = [one for one in versions if one.version <= known.version]
    present = {c.name: c.own or c.type for c in existing.columns(session, old)}
    kept = evolve.kept_columns(earlier, known)
    labels = label_steps(session, old, new, target.name) if schema.types else evolve.NO_LABELS
    return evolve.step(old, new, labels, present=present, kept=kept, target=target.name, rekeying=rekeying)


class SchemaChanges:
    """The schema changes of one transaction, which starts at offset `start`."""

    def __init__(self, target: PostgresTarget, session: Session, catalogue: Catalogue, start: int) -> None:
        self._target = target
        self._session = session
        self._catalogue = catalogue
        self._start = start
        #: Whether anything was done that the rest of the process has not read.
        self.changed = False

    def keep(self, schema: TableSchema) -> None:
        """Keep a table version, unless this target has met it."""
        key = (schema.table_id, schema.version)
        if key in self._catalogue.schemas:
            return
        known = self._catalogue.newest(schema.table_id) if schema.table_id in self._catalogue.tables else None
        keep_version(self._target, self._session, schema, known)
        self._catalogue.schemas[key] = schema
        self.changed = True

    def create(self, schema: TableSchema) -> None:
        """Make a table that the target does not have; one that cannot be had is halted."""
        new_table(self._target, self._session, schema, self._start)
        self._look_again()

    def evolve(self, schema: TableSchema) -> None:
        """Bring a table to this version. Raises RowsRefused with the reason if that cannot be done."""
        table_id = schema.table_id
        known = self._catalogue.tables[table_id]
        if schema.version < known.schema_version:
            raise RowsRefused(
                table_id, f"a change of schema version {schema.version} came behind {known.schema_version}", []
            )
        step = step_to(self._target, self._session, self._catalogue, schema)
        if step.refused:
            raise RowsRefused(table_id, step.refused, [])
        for text in step.statements:
            guarded(self._session, table_id, text)
        self._target.own(
            self._session, "set_version", table_id=table_id, version=schema.version, reason="; ".join(step.remarks)
        )
        self._look_again()

    def _look_again(self) -> None:
        self._catalogue.tables = {t.table_id: t for t in self._target.tables(self._session)}
        self.changed = True
