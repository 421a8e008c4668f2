"""Which table is at fault when the target refuses a transaction at its COMMIT (features 2.16).

Deferred constraints and constraint triggers act there, and what a trigger raises names no table. So the cut is applied
again, and they are made to act before COMMIT, one after the other: whoever raises then is known by its table.
"""

from __future__ import annotations

from collections.abc import Sequence

from venus.adapters.targets.postgresql.catalogue import Catalogue
from venus.adapters.targets.postgresql.naming import quoted
from venus.adapters.targets.postgresql.replica import referred_to
from venus.adapters.targets.postgresql.rows.verdicts import RowsRefused
from venus.adapters.targets.postgresql.session import Refusal, Session, Superseded
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import TargetError


def commit_one_by_one(session: Session, catalogue: Catalogue, written: Sequence[int]) -> None:
    """Commit, with what acts at COMMIT made to act before, by name. Raises RowsRefused for the table at fault.

    Names need not be unique; and if COMMIT is still refused, a trigger of yet another table acts. Then one of several
    tables is at fault.
    """
    by_name = {_name(catalogue, table_id): table_id for table_id in written}
    deferred: dict[str, list[int]] = {}
    for table, constraint in session.rows(statement("dictionary", "deferred"), {"tables": list(by_name)}):
        deferred.setdefault(constraint, []).append(by_name[table])
    for constraint, table_ids in deferred.items():
        try:
            session.run(f"SET CONSTRAINTS {constraint} IMMEDIATE")
        except Superseded:
            raise
        except TargetError as refusal:
            named = table_of(session, catalogue, refusal)
            raise _refused(refusal, table_ids if named is None else [named]) from refusal
    try:
        session.run("COMMIT")
    except TargetError as refusal:
        if not written:
            raise
        raise _refused(refusal, written, f" of a transaction that has written to {', '.join(by_name)}") from refusal


def table_of(session: Session, catalogue: Catalogue, refusal: TargetError) -> int | None:
    """Return the table that violates a constraint, or to which somebody else's table refers. May roll back."""
    if not isinstance(refusal, Refusal):
        return None
    by_name = {(t.namespace, t.name): t.table_id for t in catalogue.tables.values()}
    if refusal.table in by_name or not refusal.constraint:
        return by_name.get(refusal.table)
    session.rollback()
    return by_name.get(referred_to(session, refusal))


def _refused(refusal: TargetError, table_ids: Sequence[int], where: str = "") -> RowsRefused:
    said = refusal.summary if isinstance(refusal, Refusal) else str(refusal)
    return RowsRefused(table_ids[0], f"refused at the COMMIT{where}: {said}", [], candidates=table_ids)


def _name(catalogue: Catalogue, table_id: int) -> str:
    state = catalogue.tables[table_id]
    return f"{quoted(state.namespace)}.{quoted(state.name)}"
