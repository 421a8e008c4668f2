"""Garbage collection skips the objects of a broker's start, because it would stop all threads meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers.servers import settings

pytestmark = pytest.mark.integration

SERVING = """
import gc, os, signal, sys
from venus.broker.service.process import serve
from venus.config import Settings
from venus.process.system import delay_collection

delay_collection()  # as each command of VENUS does: another program's collector is left alone

def announce(_):
    print(gc.get_freeze_count(), len(gc.get_objects()), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

sys.exit(serve(Settings.model_validate_json(sys.argv[1]), announce))
"""


def test_a_full_collection_skips_the_objects_of_the_start(tmp_path: Path) -> None:
    options = settings(tmp_path / "data").model_dump_json()
    said = subprocess.run(
        [sys.executable, "-c", SERVING, options], stdout=subprocess.PIPE, text=True, timeout=120, check=True
    )
    frozen, left = map(int, said.stdout.split())
    assert frozen > 20 * left
