"""Whether foreign keys and triggers of the target are out of the way while VENUS applies, and how (features 2.11).

The source has executed its triggers and cascades already; their effects arrive as changes of their own. Executed once
more at the target they would do harm: deleting a parent and inserting it again would take its children along.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from venus.adapters.targets.postgresql.naming import quoted
from venus.adapters.targets.postgresql.session import Refusal, Session
from venus.adapters.targets.postgresql.statements import statement
from venus.errors import DatabaseUnavailable, Refused, VenusError

if TYPE_CHECKING:
    from venus.adapters.targets.postgresql.database import PostgresTarget, TableState

REPLICA = "foreign keys and triggers are off while VENUS applies (session_replication_role = replica)"
DEFERRED = "foreign keys are checked at the end of each transaction (this role may not set session_replication_role)"


def may_be_replica(session: Session) -> bool:
    """Switch foreign keys and ordinary triggers off for this session, if its role may; say whether they are."""
    try:
        session.run(statement("dictionary", "replica_role"))
    except DatabaseUnavailable:
        raise
    except VenusError:  # an administrator may have done so, with ALTER ROLE ... SET
        return session.row("SELECT current_setting('session_replication_role')") == ("replica",)
    return True


def referred_to(session: Session, refusal: Refusal) -> tuple[str, str]:
    """Return schema and name of the table that a violated foreign key refers to; empty if it is no foreign key."""
    table = ".".join(quoted(part) for part in refusal.table)
    found = session.row(statement("dictionary", "referred_to"), {"table": table, "constraint": refusal.constraint})
    return (found[0], found[1]) if found else ("", "")


def refuse_acting_foreign_keys(session: Session, target: PostgresTarget, tables: list[TableState]) -> None:
    """Without the replica role, a foreign key with an action would change rows a second time."""
    names = [f"{quoted(t.namespace)}.{quoted(t.name)}" for t in tables]
    found = session.rows(statement("dictionary", "acting_foreign_keys"), {"tables": names})
    if found:
        lines = [f"{table}: foreign key {name} acts or is not deferrable" for table, name, _, _ in found]
        raise Refused(
            "\n".join(lines),
            hint=f"let the role of target {target.name} SET session_replication_role, or make them plain DEFERRABLE",
        )


#: A killed predecessor's server process may need a moment to notice.
LOCK_WAIT_S = 30.0
_PAUSE_S = 0.1


def take(target: PostgresTarget, session: Session, stop: threading.Event) -> bool:
    """Take a target; return whether foreign keys and triggers are off for this session (`replica.py`).

    Raises Refused if it was never loaded, or if another process still works on it.
    """
    if not target.installed(session):
        raise target.not_loaded
    until = time.monotonic() + LOCK_WAIT_S
    while not target.lock(session):
        if stop.wait(_PAUSE_S) or time.monotonic() > until:
            target.require_lock(session)
    if not target.own_rows(session, "is_newest")[0][0]:
        target.install()  # loaded by an older VENUS
    session.run("SET venus.apply = 'on'; SET enable_hashjoin = off; SET enable_mergejoin = off")
    return may_be_replica(session)
