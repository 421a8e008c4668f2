"""Replay one history (`python -m tests.simulation.tiers SEED`), or run many (`... FIRST LAST`)."""

from __future__ import annotations

import logging
import sys

from tests.simulation import __main__ as command
from tests.simulation.tiers.world import TierWorld

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(command.main(TierWorld, [int(argument) for argument in sys.argv[1:]]))
