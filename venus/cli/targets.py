"""What `venus check` says of the targets: can they be reached, and can they have the tables? Reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from venus.errors import VenusError
from venus.model import Finding

if TYPE_CHECKING:
    from venus.config import Settings
    from venus.model import TableSchema


def check_targets(settings: Settings, schemas: list[TableSchema]) -> list[Finding]:
    """Ask every target about these tables; what cannot be reached is a finding, not a failure."""
    from venus.adapters.targets.registry import open_target

    found = []
    for name in settings.targets:
        try:
            found += open_target(settings, name).check(schemas)
        except VenusError as error:
            found.append(
                Finding(where=f"target {name}", message=str(error), remedy=error.hint, blocks=not error.retryable)
            )
    return found
