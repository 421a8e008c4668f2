"""Lock waits and the sessions that hold the locks, as text for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from venus.adapters.dialects.postgresql.statements import statement
from venus.adapters.dialects.sessions import session_text

#: Modes that block readers; modes of transactions that capture waits for, writers included; modes that block CREATE
#: TRIGGER.
FROM_READERS = ("AccessExclusiveLock",)
FROM_CAPTURE = ("RowExclusiveLock", "AccessExclusiveLock")
FROM_TRIGGERS = (
    "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock", "ShareRowExclusiveLock", "ExclusiveLock",
    "AccessExclusiveLock",
)  # fmt: skip


class Asked(Protocol):
    """A session at a source or a target."""

    def rows(self, text: str, params: Any = None) -> list[tuple[Any, ...]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A lock on a table (empty: on a row) that sessions wait for, with its holder as text."""

    table: str
    holder: str


def waits(session: Asked, sessions: str, seconds: float) -> list[Wait]:
    """Return the holders for which sessions with these names (LIKE) have waited at least this long."""
    return _told(session, session.rows(statement("waits", "waits"), {"sessions": sessions, "seconds": seconds}))


def holders(session: Asked, tables: Iterable[int], modes: Sequence[str]) -> list[Wait]:
    """Return the holders of locks in these modes on one of these tables."""
    values = {"tables": list(tables), "modes": list(modes)}
    return _told(session, session.rows(statement("waits", "holders"), values))


def _told(session: Asked, rows: Sequence[tuple[Any, ...]]) -> list[Wait]:
    found = [Wait(table=table, holder=_holder(*session_row)) for table, *session_row in rows if session_row[0]]
    if any(not row[1] for row in rows):
        table = next(row[0] for row in rows if not row[1])
        found += [Wait(table=table, holder=text) for text in _prepared(session)]
    return list(dict.fromkeys(found))


def _holder(pid: int, user: str, application: str, since: str, state: str, query: str) -> str:
    opened = f"transaction open since {since} UTC" if since else ""
    return session_text(pid, f"user {user}" if user else "", application, opened, state, query=query)


def _prepared(session: Asked) -> list[str]:
    return [
        f"prepared transaction '{gid}' (owner {owner}, prepared {since} UTC), which COMMIT PREPARED or "
        "ROLLBACK PREPARED ends"
        for gid, owner, since in session.rows(statement("waits", "prepared"))
    ] or ["a prepared transaction"]
