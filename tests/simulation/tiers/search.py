"""Find the first history that breaks without a rule: `python -m tests.simulation.tiers.search [WORDS]`."""

from __future__ import annotations

import logging
import sys

from tests.simulation.judge import Violation
from tests.simulation.patching import apply_edits
from tests.simulation.rules import Rule
from tests.simulation.tiers.rules import RULES
from tests.simulation.tiers.world import TierWorld


def violation(seed: int) -> str | None:
    """Return the invariant that breaks in a history."""
    try:
        TierWorld(seed).run()
    except Violation as found:
        return found.invariant
    return None


def first_violation(rule: Rule, seeds: range) -> tuple[int, str] | None:
    """Return the first seed whose history breaks without the rule, and the broken invariant; None if none breaks."""
    with apply_edits(rule.edits):
        for seed in seeds:
            if (broken := violation(seed)) is not None:
                return seed, broken
    return None


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    words = " ".join(sys.argv[1:])
    for wanted in RULES:
        if words in wanted.text:
            sys.stdout.write(f"{first_violation(wanted, range(150))}  {wanted.text}\n")
            sys.stdout.flush()
