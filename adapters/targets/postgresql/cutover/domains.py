"""Checks of domains that are NOT VALID at the source; the cut-over adds them to the target.

PostgreSQL casts every value that is written to a domain, so a target with such a check could not take the older values
of the source.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from venus.adapters.targets.postgresql.database import transaction
from venus.adapters.targets.postgresql.naming import PlacedTable
from venus.adapters.targets.postgresql.schema.ddl import later_checks
from venus.adapters.targets.postgresql.session import TargetSession
from venus.errors import TargetError

logger = logging.getLogger(__name__)


def add_checks(session: TargetSession, created: Sequence[PlacedTable]) -> list[str]:
    """Add the checks; return what the target refused. May be repeated."""
    refused = []
    for drop, add in later_checks(created):
        try:
            with transaction(session):
                session.run(drop)
                session.run(add)
        except TargetError as error:
            logger.warning("%s: %s", add, error)
            refused.append(f"{add}: {error}")
    return refused


def drop_checks(session: TargetSession, created: Sequence[PlacedTable]) -> None:
    """Drop the checks."""
    for drop, _ in later_checks(created):
        session.run(drop)
