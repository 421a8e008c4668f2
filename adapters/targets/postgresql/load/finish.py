"""The steps of a full load after the rows: keys, indexes, foreign keys, statistics, sequences (VENUS 3.4).

Every step checks whether it was done already, because a load may be killed between any two steps.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from venus.adapters.targets.postgresql.naming import Placed
from venus.adapters.targets.postgresql.schema import existing
from venus.adapters.targets.postgresql.schema.constraints import Names, add_key, checks, foreign_keys, indexes
from venus.adapters.targets.postgresql.schema.ddl import is_counted, is_identity
from venus.adapters.targets.postgresql.session import Session
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import TargetError

logger = logging.getLogger(__name__)

#: SQLSTATEs for an index or constraint that exists already.
_THERE = ("42P07", "42710")


def finish_table(session: Session, placed: Placed) -> None:
    """Add the key unless it exists."""
    there = existing.read(session, placed)
    if there is not None and any(existing.NO_KEY in line for line in existing.differences(placed, there)):
        session.run(add_key(placed))


def finish_tables(session: Session, created: Sequence[Placed], everything: Sequence[Placed]) -> list[str]:
    """Add indexes, checks and foreign keys to the tables that VENUS has created; return what the target rejects."""
    warnings: list[str] = []
    # a foreign key shares its name space with its table's constraints; the cut-over gives it the same name
    names, of_keys = existing.names_beside(session, everything), Names(everything)
    for placed in created:
        indexes(placed, of_keys)
        checks(placed, of_keys)
        for text in indexes(placed, names):
            warnings += _tried(session, text)
    for placed in created:
        for add, validate in checks(placed, names):
            warnings += _checked(session, add, validate)
    for placed in created:
        for add, validate in foreign_keys(placed, everything, of_keys):
            warnings += _tried(session, add) or (_tried(session, validate) if validate else [])
    for placed in everything:
        session.run(f"ANALYZE {placed.sql}")
        _set_sequences(session, placed)
    return warnings


def _checked(session: Session, add: str, validate: str) -> list[str]:
    """Add a check if all rows satisfy it. Otherwise the next of the violating rows would halt the table.

    A check that is NOT VALID at the source also refuses such rows there, and is created as NOT VALID.
    """
    lines = _tried(session, add)
    if lines or not validate:
        return lines
    if lines := _tried(session, validate):
        session.run(validate.replace(" VALIDATE CONSTRAINT ", " DROP CONSTRAINT "))
    return lines


def _tried(session: Session, text: str) -> list[str]:
    """Run a statement that the data may violate: SQLite, for example, does not enforce all that it declares."""
    try:
        session.run(text)
    except TargetError as error:
        if any(f"({code})" in str(error) for code in _THERE):
            return []
        logger.warning("%s: %s", text, error)
        return [f"{text}: {error}"]
    return []


def _set_sequences(session: Session, placed: Placed) -> None:
    """Continue the target's sequences behind the loaded rows."""
    for column in placed.schema.columns:
        if is_identity(placed, column) or is_counted(placed, column):
            name, rows = placed.column(column.name), placed.rows_sql
            # a statement with parameters needs %% for a literal %
            text = statement(
                "dictionary", "set_sequence", column=name.replace("%", "%%"), table=rows.replace("%", "%%")
            )
            session.run(text, {"table": placed.sql, "column": placed.fold(column.name)})
