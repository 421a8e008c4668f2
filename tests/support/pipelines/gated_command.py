"""A command that switches between two databases, and waits after one step until a file exists.

python -m tests.support.pipelines.gated_command DATABASE STATE FILE WORDS... It waits once the record of this database
(`@source`, or the name of the target) has this state. So a test can act before the next step, however slowly the
machine schedules it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

from tests.support.waiting import eventually
from venus.adapters.cutover.switch import Switch
from venus.adapters.targets.cutover_contract import FallBackSide
from venus.cli import main

T = TypeVar("T")
#: Equal to the time for which tests wait for a command.
WAIT_S = 240.0


def run_gated(database: str, state: str, file: Path) -> None:
    """Run the command given by the remaining arguments, with this gate."""
    run_step = Switch.run_step

    def run_step_and_wait(switch: Switch, side: FallBackSide, step: Callable[[], T]) -> T:
        done = run_step(switch, side, step)
        if side.name == database and not file.exists():
            record = side.read()
            if record is not None and record.state.name == state:
                eventually(file.exists, f"{file} to exist", timeout_s=WAIT_S)
        return done

    with patch.object(Switch, "run_step", run_step_and_wait):
        main()


if __name__ == "__main__":
    run_gated(sys.argv.pop(1), sys.argv.pop(1), Path(sys.argv.pop(1)))
