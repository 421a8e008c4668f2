"""Find the first history that breaks without a rule: `python -m tests.simulation.search [WORDS OF THE RULE]`."""

from __future__ import annotations

import sys
import time

from tests.simulation.judge import Violation
from tests.simulation.patching import apply_edits
from tests.simulation.rules import RULES, Rule
from tests.simulation.world import World


def first_violation(rule: Rule, seeds: range) -> tuple[int, str] | None:
    """Return the first seed whose history breaks without the rule, and the broken invariant; None if none breaks."""
    with apply_edits(rule.edits):
        for seed in seeds:
            broken = violation(seed)
            if broken is not None:
                return seed, broken
    return None


def violation(seed: int) -> str | None:
    """Return the invariant that breaks in a history."""
    try:
        World(seed).run()
    except Violation as found:
        return found.invariant
    except (AssertionError, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _main(words: str) -> None:
    for rule in RULES:
        if words not in rule.text:
            continue
        began = time.process_time()
        found = first_violation(rule, range(1000))
        sys.stdout.write(f"{found}  {rule.text} ({time.process_time() - began:.1f} s)\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main(" ".join(sys.argv[1:]))
