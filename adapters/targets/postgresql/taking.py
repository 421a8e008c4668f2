"""A session becomes the only one that applies to a target."""

from __future__ import annotations

import threading
import time

from venus.adapters.targets.postgresql.database import PostgresTarget
from venus.adapters.targets.postgresql.replica import may_be_replica
from venus.adapters.targets.postgresql.session import Session

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
