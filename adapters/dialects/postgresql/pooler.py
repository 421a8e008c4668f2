"""Refuses a connection pooler that gives a session another server connection for each transaction.

What VENUS sets for its session, prepares there and locks would be somebody else's then: values would be read under
other settings, and two processes could apply to one target. A pooler that keeps a session together is none of our
business.
"""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg2
import psycopg2.extensions

from venus.errors import ConfigError

Raw = psycopg2.extensions.connection

#: Whoever is alone at a pooler has to be given the same server connection; beside others it takes some luck.
_ATTEMPTS = 3
#: A pool of one connection, kept for its session, has none left to compare with.
_PATIENCE_S = 5.0


def refuse_shared_sessions(raw: Raw, place: str, option: str) -> None:
    """Raise ConfigError if this connection's transactions go to different sessions of the server.

    A server tells each client the number of its process; a pooler makes up another one.
    """
    try:
        shared = raw.info.backend_pid != _backend(raw) and _is_shared(raw)
    except psycopg2.Error:  # the next statement meets it as well, and says what it means
        return
    if shared:
        raw.close()
        raise ConfigError(
            f"{place} is reached through a connection pooler in transaction mode, which VENUS cannot use",
            hint=f"let {option} name the server itself, or a pool that keeps sessions (PgBouncer: pool_mode = session)",
        )


def _backend(raw: Raw) -> int:
    with raw.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        ((number,),) = cursor.fetchall()
    return int(number)


def _is_shared(raw: Raw) -> bool:
    """Whether somebody else gets the server connection that we have, while we are connected."""
    found: list[bool] = []

    def look() -> None:
        try:
            for _ in range(_ATTEMPTS):
                ours = _backend(raw)
                with closing(psycopg2.connect(raw.dsn, password=raw.info.password, connect_timeout=5)) as other:
                    theirs = _backend(other)  # in a transaction, which keeps it for a moment
                    found.append(theirs == ours or _backend(raw) != ours)
                if found[-1]:
                    return
        except psycopg2.Error:  # it cannot be told
            pass

    looking = threading.Thread(target=look, name="venus-pooler", daemon=True)
    looking.start()
    looking.join(_PATIENCE_S)
    return any(found)
