"""Makes the tables that a load or the stream brings, or takes those that are there already (VENUS 3.4)."""

from __future__ import annotations

import logging

from venus.adapters.targets.postgresql.database import ACTIVE, HALTED, PostgresTarget
from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.schema import existing
from venus.adapters.targets.postgresql.schema.constraints import add_key, checks, indexes
from venus.adapters.targets.postgresql.schema.ddl import create_table, namespaces
from venus.adapters.targets.postgresql.schema.missing import missing_types
from venus.adapters.targets.postgresql.schema.own_types import add_labels, enum_differences, make_types
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.predicates import text_for
from venus.errors import Refused, TargetError
from venus.model import TableSchema
from venus.predicates.ranges import compiled
from venus.predicates.syntax import PredicateRefused

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
