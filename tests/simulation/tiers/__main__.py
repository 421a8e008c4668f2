"""Replay one history of a network of broker sets by its seed, or run all from FIRST up to but not including LAST."""

from __future__ import annotations

import logging
import sys

from tests.simulation import __main__ as command
from tests.simulation.tiers.world import TierWorld

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(command.main(TierWorld, __doc__))
