"""The steps around the rows of a full load: tables before them; keys, indexes and counters after them (VENUS 3.4).

Each step checks whether it was done already, because a load may be killed between any two of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from venus.adapters.targets.postgresql.naming import PlacedTable
from venus.adapters.targets.postgresql.schema import existing
from venus.adapters.targets.postgresql.schema.constraints import (
    ConstraintNames,
    add_key,
    check_statements,
    foreign_key_statements,
    index_statements,
)
from venus.adapters.targets.postgresql.schema.ddl import is_counted, is_identity
from venus.adapters.targets.postgresql.schema.tables import prepare_table
from venus.adapters.targets.postgresql.session import TargetSession, statement
from venus.adapters.targets.relational.database import RelationalDatabase
from venus.adapters.targets.relational.states import LOADING, TableState
from venus.errors import Refused, TargetError

logger = logging.getLogger(__name__)


def make_tables(
    target: RelationalDatabase,
    session: TargetSession,
    placed: Sequence[PlacedTable],
    before: Mapping[tuple[str, str], TableState],
) -> set[int]:
    """Create or empty these tables, and return those that VENUS has created. Raises Refused, listing all differences.

    `before`: the tables that this target had before. An interrupted load may have added foreign keys to these tables.
    """
    _drop_own_foreign_keys(session, placed, before)
    made: set[int] = set()
    differences: list[str] = []
    hint = ""
    for one in placed:
        known = before.get((one.namespace, one.name))
        if known is not None and known.created and known.state == LOADING:
            _drop_outdated(session, one)
        try:
            created = prepare_table(target, session, one, own=known is not None)
        except Refused as refused:
            differences += str(refused).split("\n")
            hint = refused.hint
            continue
        if known is not None:
            existing.empty_table(session, one, target.config.empty_by)
            created = created or known.created
        if created:
            made.add(one.schema.table_id)
    if differences:
        raise Refused("\n".join(differences), hint=hint)
    return made


def _drop_own_foreign_keys(
    session: TargetSession, placed: Sequence[PlacedTable], before: Mapping[tuple[str, str], TableState]
) -> None:
    """Drop foreign keys that a load has added, because they prevent emptying tables; the load's end adds them again."""
    states = [(one.sql, before.get((one.namespace, one.name))) for one in placed]
    created = [sql for sql, known in states if known is not None and known.created]
    params = {"children": created, "parents": [one.sql for one in placed]}
    for (drop,) in session.rows(statement("dictionary", "drop_foreign_keys"), params):
        session.run(drop)


def _drop_outdated(session: TargetSession, placed: PlacedTable) -> None:
    """Drop a table of an unfinished load if it has the columns or the key of an older version."""
    there = existing.read_table(session, placed)
    if there is None:
        return
    found = existing.table_differences(placed, there)
    if not any(existing.NO_KEY not in line or there.unique_keys for line in found):
        return
    try:
        session.run(f"DROP TABLE {placed.sql}")
    except TargetError as error:
        if session.is_closed:
            raise
        reason = f"{placed.qualified_name} is of an older version, and the load cannot create it again: {error}"
        raise Refused(reason, hint="drop what depends on it at the target, then repeat") from error


#: SQLSTATEs for an index or constraint that exists already.
_THERE = ("42P07", "42710")


def finish_table(session: TargetSession, placed: PlacedTable) -> None:
    """Add the primary key to a loaded table unless it exists."""
    there = existing.read_table(session, placed)
    if there is not None and any(existing.NO_KEY in line for line in existing.table_differences(placed, there)):
        session.run(add_key(placed))


def finish_tables(
    session: TargetSession, created: Sequence[PlacedTable], everything: Sequence[PlacedTable]
) -> list[str]:
    """Add indexes, checks and foreign keys to tables that VENUS has created; return those the target rejects."""
    warnings: list[str] = []
    # a foreign key shares its name space with its table's constraints; the cut-over gives it the same name
    names, of_keys = existing.free_names(session, everything), ConstraintNames(everything)
    for placed in created:
        index_statements(placed, of_keys)
        check_statements(placed, of_keys)
        for text in index_statements(placed, names):
            warnings += _try_statement(session, text)
    for placed in created:
        for add, validate in check_statements(placed, names):
            warnings += _add_check(session, add, validate)
    for placed in created:
        for add, validate in foreign_key_statements(placed, everything, of_keys):
            warnings += _try_statement(session, add) or (_try_statement(session, validate) if validate else [])
    for placed in everything:
        session.run(f"ANALYZE {placed.sql}")
        _set_sequences(session, placed)
    return warnings


def _add_check(session: TargetSession, add: str, validate: str) -> list[str]:
    """Add a check if all rows satisfy it; otherwise the next change of a violating row would halt the table.

    A check that is NOT VALID at the source also refuses changes of violating rows there, so it is created as NOT VALID.
    """
    lines = _try_statement(session, add)
    if lines or not validate:
        return lines
    if lines := _try_statement(session, validate):
        session.run(validate.replace(" VALIDATE CONSTRAINT ", " DROP CONSTRAINT "))
    return lines


def _try_statement(session: TargetSession, text: str) -> list[str]:
    """Run a statement that rows may violate; return the target's error as a line, or nothing.

    Rows may violate declared constraints, because a source such as SQLite does not enforce all of them.
    """
    try:
        session.run(text)
    except TargetError as error:
        if any(f"({code})" in str(error) for code in _THERE):
            return []
        logger.warning("%s: %s", text, error)
        return [f"{text}: {error}"]
    return []


def _set_sequences(session: TargetSession, placed: PlacedTable) -> None:
    """Set the target's sequences to continue after the numbers in the loaded rows."""
    for column in placed.schema.columns:
        if is_identity(placed, column) or is_counted(placed, column):
            name, rows = placed.column(column.name), placed.rows_sql
            # a statement with parameters needs %% for a literal %
            text = statement(
                "dictionary", "set_sequence", column=name.replace("%", "%%"), table=rows.replace("%", "%%")
            )
            session.run(text, {"table": placed.sql, "column": placed.fold(column.name)})
