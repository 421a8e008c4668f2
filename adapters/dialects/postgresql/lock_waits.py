"""Lock waits and the sessions that hold the locks, as text for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from venus.adapters.dialects.postgresql.sql import statement
from venus.adapters.dialects.statements import describe_session

#: Lock modes that block readers; those of transactions that capture waits for, writers included; those that block
#: CREATE TRIGGER.
FROM_READERS = ("AccessExclusiveLock",)
FROM_CAPTURE = ("RowExclusiveLock", "AccessExclusiveLock")
FROM_TRIGGERS = (
    "RowExclusiveLock",
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
)


class LockQuerySession(Protocol):
    """A session at a source or a target that can run queries about locks."""

    def rows(self, text: str, params: Any = None) -> list[tuple[Any, ...]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLock:
    """A lock on a table (empty: on a row) that sessions wait for, with its holder as text."""

    table: str
    holder: str


def find_waits(session: LockQuerySession, sessions: str, seconds: float) -> list[HeldLock]:
    """Return the locks that sessions with these names (LIKE) have waited for at least this long, with their holders."""
    return _build_held_locks(
        session, session.rows(statement("waits", "waits"), {"sessions": sessions, "seconds": seconds})
    )


def find_holders(session: LockQuerySession, tables: Iterable[int], modes: Sequence[str]) -> list[HeldLock]:
    """Return the holders of locks in these modes on one of these tables."""
    values = {"tables": list(tables), "modes": list(modes)}
    return _build_held_locks(session, session.rows(statement("waits", "holders"), values))


def find_open_transactions(session: LockQuerySession) -> list[HeldLock]:
    """Return the oldest transactions of other sessions in this database, because a row does not show its holder."""
    return _build_held_locks(session, session.rows(statement("waits", "open_transactions")))


def _build_held_locks(session: LockQuerySession, rows: Sequence[tuple[Any, ...]]) -> list[HeldLock]:
    found = [
        HeldLock(table=table, holder=_describe_holder(*session_row)) for table, *session_row in rows if session_row[0]
    ]
    if any(not row[1] for row in rows):
        table = next(row[0] for row in rows if not row[1])
        found += [HeldLock(table=table, holder=text) for text in _describe_prepared_transactions(session)]
    return list(dict.fromkeys(found))


def _describe_holder(pid: int, user: str, application: str, since: str, state: str, query: str) -> str:
    opened = f"transaction open since {since} UTC" if since else ""
    return describe_session(pid, f"user {user}" if user else "", application, opened, state, query=query)


def _describe_prepared_transactions(session: LockQuerySession) -> list[str]:
    """Return a text for each prepared transaction, which holds locks without a session."""
    return [
        f"prepared transaction '{gid}' (owner {owner}, prepared {since} UTC), which COMMIT PREPARED or "
        "ROLLBACK PREPARED ends"
        for gid, owner, since in session.rows(statement("waits", "prepared"))
    ] or ["a prepared transaction"]
