"""What an unclean election or a promotion may have lost, as the source knows it (VENUS 3.1, `availability`).

The broker asks when it was chosen, or promoted, without being known to have everything. Batches that the source has
committed and the broker lacks cannot be sent again: their log rows are gone, and the rows may have changed since. So
the broker is told where the source stands and goes on behind that; `venus verify --repair` ships the rows that differ.
"""

from __future__ import annotations

import logging

from venus.adapters.dialects.contract import SourceState
from venus.adapters.upper.ingest import Ingest

logger = logging.getLogger(__name__)


def pass_over(producer: Ingest, state: SourceState, committed: int, *, timeout_s: float) -> None:
    """Tell a broker that has nothing after batch `committed` what the source has, and wait until it has gone on."""
    if state.last_batch > committed:
        logger.error(
            "capture: the broker lacks batches %s to %s, after an unclean election or a promotion: "
            "`venus verify --repair` ships their rows again",
            committed + 1,
            state.last_batch,
        )
    producer.pass_over(state.last_batch, state.next_sequence)
    producer.wait_decided(max(state.last_batch, committed), timeout_s)
