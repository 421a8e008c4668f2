"""Execution of an operator's command: one transaction at the target that excludes the apply loop.

The command locks the row of the applied offset first, so it never runs in the middle of a cut. It increments `control`,
so that the loop reads the states again before its next transaction. It works whether a loop is running or not.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from venus.adapters.targets.postgresql.apply_role import try_replica_role
from venus.adapters.targets.postgresql.cutover_mark import refuse_if_cut_over
from venus.adapters.targets.postgresql.database import (
    LOADING,
    PostgresDatabase,
    TableState,
    TargetPosition,
    transaction,
)
from venus.adapters.targets.postgresql.session import TargetSession
from venus.errors import Refused


@contextmanager
def open_control_session(target: PostgresDatabase) -> Iterator[TargetSession]:
    """Open a session for one command; roll back an open transaction at the end."""
    session = target.connect("control")
    try:
        yield session
    finally:
        session.rollback()
        session.close()


@contextmanager
def command_transaction(
    target: PostgresDatabase, *, writes_rows: bool = False
) -> Iterator[tuple[TargetSession, TargetPosition]]:
    """Open a transaction that excludes the loop. `writes_rows` disables foreign keys and triggers if the role may."""
    with open_control_session(target) as session:
        if not target.is_installed(session):
            raise target.not_loaded_error
        if writes_rows:
            try_replica_role(session)  # a refusal would end the transaction
        with transaction(session):
            session.run("SET LOCAL venus.apply = 'on'")
            refuse_if_cut_over(target, session)
            target.run_own(session, "hold_position")
            position = target.read_position(session)
            if position is None:
                raise target.not_loaded_error
            yield session, position
            target.run_own(session, "raise_control")


def find_tables(target: PostgresDatabase, session: TargetSession, patterns: Sequence[str]) -> list[TableState]:
    """Return the tables that match the patterns, by source name, target name or bare name."""
    states = target.read_tables(session)
    found = [t for t in states if any(_is_named(t, pattern) for pattern in patterns)]
    for pattern in patterns:
        if not any(_is_named(t, pattern) for t in states):
            known = ", ".join(t.source_name for t in states)
            raise Refused(f"target {target.name} has no table {pattern}", hint=f"its tables: {known}")
    loading = [t.source_name for t in found if t.state == LOADING]
    if loading:
        raise Refused(f"{', '.join(loading)}: being loaded", hint=f"venus migrate --target {target.name}")
    return found


def _is_named(state: TableState, pattern: str) -> bool:
    names = (state.source_name, f"{state.namespace}.{state.name}", state.name)
    return any(fnmatch.fnmatchcase(name, pattern) for name in names)
