"""Halting of a replica that cannot apply an entry of its log. A leader ends its process instead.

Every replica applies the same entries by the same steps. So this only happens if the versions of the brokers differ,
or because of broken memory or a bug. A replica that skipped the entry would diverge from the others.
"""

from __future__ import annotations

import logging

from venus.broker.machine.business import Business
from venus.errors import VenusError

logger = logging.getLogger(__name__)


class CannotApply(Exception):
    """Raised with the business whose next entry cannot be applied."""

    def __init__(self, business: Business, index: int, error: Exception) -> None:
        super().__init__(_describe_failure(index, error))
        self.business, self.index, self.error = business, index, error


def halt_reason(index: int, error: Exception) -> str:
    """Return why a replica stops, and the way out."""
    return (
        f"{_describe_failure(index, error)}, so this replica has stopped; do all brokers have the same version "
        "of VENUS? If so, "
        "stop this one, remove its broker.data_dir and start it: it installs the leader's copy"
    )


def leader_end_reason(stuck: CannotApply) -> str:
    """Return why a leader ends, and the way out. It must not advise removing what may be the only complete copy."""
    return (
        f"{stuck.business.name}: {_describe_failure(stuck.index, stuck.error)}, and this broker leads, so it "
        "stops and another one "
        "takes over; do all brokers have the same version of VENUS? If so, and as soon as `venus status` at another "
        "one names a leader, remove this one's broker.data_dir and start it: it installs the leader's copy"
    )


def _describe_failure(index: int, error: Exception) -> str:
    what = str(error) if isinstance(error, VenusError) else repr(error)
    return f"log entry {index} cannot be applied here ({what})"


def halt(business: Business, index: int, error: Exception) -> None:
    """Stop a replica until this process ends. The host reports it in one line."""
    business.halted = halt_reason(index, error)
    logger.error("%s: log entry %d cannot be applied", business.name, index, exc_info=error)
