"""Replay one history (`python -m tests.simulation.brokers SEED`), or run many (`... FIRST LAST`)."""

from __future__ import annotations

import logging
import sys

from tests.simulation import __main__ as command
from tests.simulation.brokers.world import BrokerWorld

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(command.main(BrokerWorld, [int(argument) for argument in sys.argv[1:]]))
