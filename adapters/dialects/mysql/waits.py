"""Who makes others wait at a MariaDB or MySQL server, as far as it tells."""

from __future__ import annotations

from venus.adapters.dialects.mysql.connection import Connection
from venus.adapters.dialects.mysql.names import literal
from venus.adapters.dialects.mysql.statements import statement
from venus.adapters.dialects.sessions import session_text
from venus.errors import SourceError


def told(connection: Connection, block: str) -> str:
    """Name the sessions that a query of the registry's finds; nothing without the privilege PROCESS."""
    database = literal(connection.address.database)
    try:
        rows = connection.rows(statement("registry", block, database=database))
    except SourceError:
        return ""
    return "; ".join(_session(*row) for row in rows)


def _session(number: str, user: str, host: str, command: str, query: str, since: str) -> str:
    opened = f"transaction open since {since}, the server's time" if since else ""
    return session_text(number, f"user {user}", host, opened, command, query=query)
