"""What the source's user lacks of VENUS's own tables: until it is granted, capture holds its place and does nothing.

A session that only failed would be tried for ever, and nobody would be told why. So the stream to the broker is opened
all the same, without saying where the source is, and what lacks is reported over it; nothing is shipped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from venus.adapters.dialects.contract import OwnLack, Source
from venus.adapters.upper.ingest import Ingest
from venus.adapters.upper.report import Reporter
from venus.adapters.upper.session import CONNECT_TIMEOUT_MIN_S, Claim
from venus.conditions import AdapterCondition, own_at_source, problems

logger = logging.getLogger(__name__)

#: Between two looks whether it was granted.
LOOK_S = 3.0
REFUSED = "waiting for privileges"


def wait_for_grants(
    opened: Callable[[], Source],
    told: Sequence[OwnLack],
    producer: Ingest,
    claim: Claim,
    stop: threading.Event,
    reporter: Reporter,
    *,
    timeout_s: float,
) -> None:
    """Return when nothing lacks any more, or at the stop; `told` = what lacks now.

    It is looked at in new sessions: to one that is there a server may not say what was granted since.

    Raises Fenced when another upper adapter has taken over meanwhile, and Held if one is at work.
    """
    # the epoch stays out of the claim: it is not raised at the source, where a later one may be
    producer.connect(
        0, 0, timeout_s=max(timeout_s, CONNECT_TIMEOUT_MIN_S), owner=claim.owner, take_over=claim.take_over,
        gives_way=claim.gives_way,
    )  # fmt: skip
    claim.take_over = False
    reporter.state(REFUSED)
    _tell(producer, told)
    while told and not stop.wait(LOOK_S):
        producer.take_reviews()  # cannot be answered; raises what broke the stream
        reporter.tick()
        with closing(opened()) as source:
            lacks = source.own_lacking()
        if lacks != told:
            _tell(producer, lacks)
            told = lacks


def _tell(producer: Ingest, lacks: Sequence[OwnLack]) -> None:
    condition = AdapterCondition.of(own_at_source(lack.table, lack.grant) for lack in lacks)
    for problem in problems(condition):
        logger.warning("%s", problem)
    producer.report(condition)
