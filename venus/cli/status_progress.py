"""What `venus status` says of loads under way, and of the last comparison of each target."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from venus.figures import seconds_shown
from venus.model import counted

if TYPE_CHECKING:
    from venus.adapter_figures import Comparison
    from venus.cli.overview import BrokerView, Overview


def compared_shown(found: Overview) -> list[str]:
    """Say when each target was last compared, and with which verdict."""
    now_us = time.time_ns() / 1000
    return [
        f"target {target.name}: {comparison_shown(target.compared, now_us)}"
        for target in found.targets
        if target.compared is not None and not target.cut_over
    ]


def comparison_shown(compared: Comparison, now_us: float) -> str:
    """Return the outcome of a comparison in words."""
    ago = seconds_shown(max(0.0, (now_us - compared.ended_at_us) / 1e6))
    counts = {"different": compared.different, "undecided": compared.undecided}
    told = "".join(f", {counted(n, f'{what} row')}" for what, n in counts.items() if n)
    part = ", not everything was compared" if compared.partial else ""
    what = f"{counted(compared.rows, 'row')} of {counted(compared.tables, 'table')}"
    return f"last verified {ago} ago: {compared.verdict} ({what}{told}{part})"


def loads_shown(broker: BrokerView) -> list[str]:
    """Say how far the loads under way are: those of the source into the broker, and those of targets from there."""
    shown = [f"{fill.name} is read: {progress_shown(fill.rows, fill.rows_expected)}" for fill in broker.fills]
    for lease in broker.leases:
        if lease.rows_read:
            left = f", about {seconds_shown(lease.load_left_s)} left" if lease.load_left_s is not None else ""
            shown.append(
                f"{lease.holder or 'a load'} loads: {progress_shown(lease.rows_read, lease.rows_expected)}{left}"
            )
    return shown


def progress_shown(rows: int, expected: int) -> str:
    """Return rows of about how many."""
    return f"{rows:,} of about {max(rows, expected):,} rows"
