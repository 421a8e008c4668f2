"""Which tables the labels of a broker set name. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from venus.model import is_heartbeat


def is_wanted(names: Iterable[str], namespace: str, table: str) -> bool:
    """Whether a table is one of those; VENUS's own heartbeat always is, as lag is measured by it."""
    known = (table.lower(), f"{namespace}.{table}".lower())
    return is_heartbeat(namespace, table) or any(name.lower() in known for name in names)
