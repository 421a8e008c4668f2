"""The broker asks: half messages that nobody decided are reviewed on the live stream of the current epoch (VENUS 3.3).

`Producers` says which are due and counts only reviews that were delivered; without a producer nothing is sent, nothing
is counted, and nothing is ever discarded.
"""

from __future__ import annotations

import asyncio
import logging

from venus.broker.core import Core
from venus.broker.service.ingest import Ingest
from venus.broker.service.loop_bridge import Lane, LoopBridge
from venus.errors import VenusError

logger = logging.getLogger(__name__)

REVIEW_EVERY_S = 0.25
#: The same while nothing is undecided, unless a first review comes sooner behind its half message than four of these.
QUIET_EVERY_S = 1.0


async def ask_for_reviews(core: Core, bridge: LoopBridge, ingest: Ingest, *, first_s: float) -> None:
    """Run for ever; `first_s` = how long after a half message its first review is due."""
    quiet_s = max(REVIEW_EVERY_S, min(QUIET_EVERY_S, first_s / 4))
    while True:
        await asyncio.sleep(REVIEW_EVERY_S if core.producers.has_undecided else quiet_s)
        if not core.producers.has_undecided:
            continue  # the usual case costs no thread a turn
        try:
            due = await bridge.blocking(Lane.CONTROL, core.producers.due_reviews)
        except VenusError as error:
            logger.warning("reviews: %s", error)
            continue
        except Exception:  # without this task nobody would be asked any more
            logger.exception("the broker could not find out which reviews are due")
            continue
        for business, epoch, halves in due:
            stream = ingest.live.get(business)
            if stream is not None and stream.epoch == epoch:
                stream.outbox.review(halves)
