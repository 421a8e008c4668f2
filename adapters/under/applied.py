"""Says of each cut that it is applied, for whoever follows cuts through all processes (venus/cutlog.py)."""

from __future__ import annotations

import time
from collections.abc import Iterable

from venus import cutlog
from venus.adapters.under.cuts import Cut


def say_applied(business: str, target: str, cuts: Iterable[Cut], begun_us: int = 0) -> None:
    """Say that a target's transaction with these cuts, begun at `begun_us`, is durable."""
    if not cutlog.wanted():
        return
    now_us = time.time_ns() // 1000
    for cut in cuts:
        last = cut.pieces[-1]
        cutlog.ended(
            cutlog.Stage(
                name="applied", business=business, cut=cut.number, captured_at_us=last.batch.captured_at_us,
                began_us=last.committed_at_us, ended_us=now_us,
                facts={"target": target, "rows": cut.rows, "next_offset": cut.end},
                steps={"arrived": last.arrived_us, "begun": begun_us},
            )
        )  # fmt: skip
