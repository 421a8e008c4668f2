"""Replay one history of whole brokers by its seed, or run all seeds from FIRST up to but not including LAST."""

from __future__ import annotations

import logging
import sys

from tests.simulation import __main__ as command
from tests.simulation.brokers.world import BrokerWorld

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(command.main(BrokerWorld, __doc__))
