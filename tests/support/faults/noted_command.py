"""A command of VENUS whose store notes what its disk must keep, so that the test can cut its power (power.py).

python -m tests.support.faults.noted_command NOTE WORDS...
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.engines import power
from venus.cli import main

if __name__ == "__main__":
    power.note_what_is_synced(Path(sys.argv.pop(1)))
    main()
