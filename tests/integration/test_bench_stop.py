"""`python -m bench.all` leaves no server running when it is ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
#: A figure whose measurement lasts until the command is ended.
ENDLESS = """
import sys, threading
from pathlib import Path
from bench import all
from bench.figures.figure import Figure
from bench.processes import EmbeddedPostgres

home = Path(sys.argv.pop())

def measure(quick):
    postgres = EmbeddedPostgres(home)
    try:
        print(postgres.pid, flush=True)
        threading.Event().wait()
    finally:
        postgres.stop()

all.FIGURES = (Figure(id="E1", title="endless", measure=measure),)
sys.exit(all.main())
"""


def is_at_work(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie that its parent has not waited for counts as ended."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_bench_that_is_ended_by_sigterm_stops_its_database(tmp_path: Path) -> None:
    words = [sys.executable, "-c", ENDLESS, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as bench:
        assert bench.stdout is not None
        server = psutil.Process(int(bench.stdout.readline()))
        try:
            bench.send_signal(signal.SIGTERM)
            assert bench.wait(60) == 128 + signal.SIGTERM
            assert not is_at_work(server)
            assert not (tmp_path / "data").exists()
        finally:
            if is_at_work(server):
                server.terminate()
