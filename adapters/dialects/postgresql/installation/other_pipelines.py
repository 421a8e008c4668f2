"""Other pipelines of VENUS that write to a captured database.

Sessions of other pipelines set session_replication_role = replica if their role may, so that ordinary triggers do not
fire; triggers that are ENABLE ALWAYS do. The pipeline by which the database itself follows another one does not count:
its changes are not captured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from venus.adapters.dialects.postgresql.connection import PostgresConnection
from venus.adapters.dialects.postgresql.installation.triggers import ALWAYS, ORDINARY
from venus.adapters.dialects.postgresql.sql import statement


def read_own_tables(connection: PostgresConnection) -> dict[str, bool]:
    """Return VENUS's own tables except the logs, each with whether this role may read it."""
    return dict(connection.rows(statement("triggers", "others")))


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPipelines:
    """The other pipelines that may write to a database."""

    #: Their consumer groups.
    groups: tuple[str, ...]
    #: The states that triggers of VENUS may have; a new trigger gets the first.
    trigger_states: tuple[str, ...]

    @classmethod
    def read(cls, connection: PostgresConnection, own_tables: Mapping[str, bool]) -> Self:
        """Read which other pipelines exist. Triggers keep their state even after the last pipeline has ended."""
        groups = _read_groups(connection, own_tables)
        if connection.options.always or groups:
            return cls(groups=groups, trigger_states=(ALWAYS,))
        return cls(groups=(), trigger_states=(ORDINARY, ALWAYS) if "applied" in own_tables else (ORDINARY,))


def _read_groups(connection: PostgresConnection, own_tables: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the consumer groups of the other pipelines that write to this database."""
    if "applied" not in own_tables:
        return ()
    if not own_tables["applied"]:
        return ("a target of another role",)
    rules = {"cutover": "is_not_cut_over", "side": "is_not_follower"}
    conditions = [statement("triggers", rule) for table, rule in rules.items() if own_tables.get(table)]
    rows = connection.rows(statement("triggers", "pipelines", writes=" AND ".join(["true", *conditions])))
    return tuple(group for (group,) in rows)
