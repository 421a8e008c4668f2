"""Set-up of the session that applies to a target: its lock, and disabled foreign keys and triggers (features 2.11).

The source has already executed its triggers and cascades, and their effects arrive as separate changes. A second
execution at the target would do harm: deleting a parent and inserting it again would delete its children.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from venus.adapters.targets.postgresql.naming import quote
from venus.adapters.targets.postgresql.session import Refusal, TargetSession
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import DatabaseUnavailable, Refused, VenusError

if TYPE_CHECKING:
    from venus.adapters.targets.postgresql.database import PostgresDatabase, TableState

REPLICA = "foreign keys and triggers are off while VENUS applies (session_replication_role = replica)"
DEFERRED = "foreign keys are checked at the end of each transaction (this role may not set session_replication_role)"

#: How long to wait for the server process of a killed predecessor, which holds the lock until it notices.
LOCK_WAIT_S = 30.0
_PAUSE_S = 0.1


def try_replica_role(session: TargetSession) -> bool:
    """Disable foreign keys and ordinary triggers for this session if its role may; return whether they are disabled."""
    try:
        session.run(statement("dictionary", "replica_role"))
    except DatabaseUnavailable:
        raise
    except VenusError:  # an administrator may have disabled them with ALTER ROLE ... SET
        return session.row("SELECT current_setting('session_replication_role')") == ("replica",)
    return True


def find_referred_table(session: TargetSession, refusal: Refusal) -> tuple[str, str]:
    """Return schema and name of the table that a violated foreign key refers to; empty for another constraint."""
    table = ".".join(quote(part) for part in refusal.table)
    found = session.row(statement("dictionary", "referred_to"), {"table": table, "constraint": refusal.constraint})
    return (found[0], found[1]) if found else ("", "")


def refuse_acting_foreign_keys(session: TargetSession, target: PostgresDatabase, tables: list[TableState]) -> None:
    """Refuse foreign keys with an action, which would change rows a second time without the replica role."""
    names = [f"{quote(t.namespace)}.{quote(t.name)}" for t in tables]
    found = session.rows(statement("dictionary", "acting_foreign_keys"), {"tables": names})
    if found:
        lines = [f"{table}: foreign key {name} acts or is not deferrable" for table, name, _, _ in found]
        raise Refused(
            "\n".join(lines),
            hint=f"let the role of target {target.name} SET session_replication_role, or make them plain DEFERRABLE",
        )


def lock_target(target: PostgresDatabase, session: TargetSession, stop: threading.Event) -> bool:
    """Lock a target for this session; return whether foreign keys and triggers are disabled in it.

    Raises Refused if the target was never loaded or another process still works on it.
    """
    if not target.is_installed(session):
        raise target.not_loaded_error
    until = time.monotonic() + LOCK_WAIT_S
    while not target.try_lock(session):
        if stop.wait(_PAUSE_S) or time.monotonic() > until:
            target.require_lock(session)
    if not target.read_own_rows(session, "is_newest")[0][0]:
        target.install()  # loaded by an older VENUS
    session.run("SET venus.apply = 'on'; SET enable_hashjoin = off; SET enable_mergejoin = off")
    return try_replica_role(session)
