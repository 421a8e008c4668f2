"""Replay one history: `python -m tests.simulation.first_load SEED`."""

import sys

from tests.simulation.first_load.world import World

if __name__ == "__main__":
    World(int(sys.argv[1])).run()
