"""Losses of unclean elections, kept in the coordinator's records of the businesses that this broker leads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.pipeline.home_commands import groups_with_targets
from venus.broker.replicas import unclean_losses
from venus.broker.replicas.host import Host
from venus.broker.replicas.ports import Coordination
from venus.broker.replicas.replicated_logs import ReplicatedLogs, write_refusal
from venus.errors import Refused, Unavailable
from venus.replication.records import Leadership

logger = logging.getLogger(__name__)

#: Between two tries to change the record of a business.
SWAP_EVERY_S = 0.5
CLOSE_WAIT_S = 10.0
LOOK_EVERY_S = 0.05


class LossTracker:
    """Keeps loss windows in the records until every group is repaired. Used in the host's loop."""

    def __init__(self, core: Core, shared: ReplicatedLogs, host: Host, coordination: Coordination) -> None:
        self._core, self._shared, self._host, self._coordination = core, shared, host, coordination
        self._swapped_at: dict[str, float] = {}
        self._shown: dict[str, Leadership] = {}

    def tick(self) -> None:
        """Update the records from the logs."""
        for name, replica in self._host.replicas.items():
            known = replica.known
            if not replica.leads or known is None or not known.unclean_terms:
                continue
            after = unclean_losses.record_losses(known, self._core.catalogue.find(name).committed.losses)
            if after is not None:
                self._swap(known, after)

    def _swap(self, known: Leadership, after: Leadership) -> None:
        now = time.monotonic()
        if now < self._swapped_at.get(known.business, 0.0) + SWAP_EVERY_S:
            return
        self._swapped_at[known.business] = now
        for window in after.losses:
            if window not in known.losses:
                logger.error(
                    "%s: the unclean election of term %d may have lost %s", known.business, window.term, window
                )
        for term in set(known.unclean_terms) - set(after.unclean_terms):
            logger.warning("%s: what the unclean election of term %d may have lost is closed", known.business, term)
        self._coordination.swap(known, after)

    async def close(self, business: str, group: str, terms: Collection[int]) -> list[str]:
        """Record that a group's target equals source and full data; return the groups still to compare.

        Raises NotLeader, Unavailable; Refused until the producer has reported what is missing.
        """
        end = time.monotonic() + CLOSE_WAIT_S
        while time.monotonic() < end:
            replica = self._host.replicas.get(business)
            if replica is None or not replica.leads or replica.known is None:
                raise write_refusal(business, self._shared.standing(business))
            known = replica.known
            if open_terms := set(terms) & set(unclean_losses.unrecorded_terms(known)):
                raise Refused(
                    f"{business}: what the unclean election of term {min(open_terms)} lost is not known yet",
                    hint="`venus sync` reports it; then compare again",
                )
            groups = _target_groups(self._core.catalogue.find(business))
            after = unclean_losses.record_verification(known, group, terms, groups)
            if after == known:
                return sorted(
                    {g for w in known.losses if w.term in terms for g in unclean_losses.groups_to_verify(w, groups)}
                )
            self._swap(known, after)
            await asyncio.sleep(LOOK_EVERY_S)
        raise Unavailable(f"{business}: the coordinator did not take the change within {CLOSE_WAIT_S:g} s")


def _target_groups(business: Business) -> list[str]:
    """Return the groups that have targets here. Transient readers and downstream sets have none."""
    with business.lock:
        return groups_with_targets(business.consumers)
