"""Test files that share a session of Spark run in one worker of the test run; all others are spread."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.spark.sparks import SESSION, OneSession

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scheduler() -> OneSession:
    made = OneSession.__new__(OneSession)
    made.config = SimpleNamespace(rootpath=ROOT)
    return made


def test_files_that_share_a_session_run_in_one_worker(scheduler: OneSession) -> None:
    sharing = ["tests/integration/spark/test_runner.py", "tests/integration/spark_source/test_source.py"]
    assert {scheduler._split_scope(f"{file}::test_a[b]") for file in sharing} == {SESSION}
    own = "tests/integration/spark/test_launch.py"
    assert scheduler._split_scope(f"{own}::test_a") == own
