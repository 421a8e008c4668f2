"""Processes that tests start end with the test process, also when that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.processes.watchdog import find_marked

pytestmark = [pytest.mark.fault, pytest.mark.integration]
ROOT = Path(__file__).parents[2]
START_S = 120.0
END_S = 20.0

#: A test that starts everything tests start: daemons, sessions of their own, children of children.
_SUITE = """
import time
from pathlib import Path
from tests.support.brokers.servers import BrokerProcess, settings
from tests.support.pipelines.pipeline import Pipeline
from tests.support.spark.spark_connect import connect_server

def test_a_few(postgres_server):
    Path("started").touch()
    time.sleep(300)

def test_servers(postgres_server, mariadb_server, tmp_path):
    pipeline = Pipeline(tmp_path, "sqlite:///x.db", {})
    pipeline.configure()
    pipeline.start_broker()
    with BrokerProcess(settings(tmp_path / "other")):
        Path("started").touch()
        time.sleep(300)

def test_spark():
    with connect_server("."):
        Path("started").touch()
        time.sleep(300)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    names = ("processes.lifetimes", "databases.mariadb", "databases.postgres", "spark.sparks")
    plugins = [f"tests.support.{name}" for name in names]
    (tmp_path / "conftest.py").write_text(f"pytest_plugins = {plugins}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = x\n")
    (tmp_path / "test_it.py").write_text(_SUITE)
    return tmp_path


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["serial", "spread"])
def test_no_two_runs_share_a_folder(suite: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    (suite / "test_it.py").write_text(
        "def test_path(tmp_path):\n    with open('paths', 'a') as f: print(tmp_path, file=f)"
    )
    own = {"PYTHONPATH": str(ROOT), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_it.py"]
    for _ in range(2):
        subprocess.run(command, cwd=suite, env=os.environ | own, check=True, capture_output=True)

    paths = [Path(line).relative_to(tmp_path) for line in (suite / "paths").read_text().splitlines()]
    assert len({path.parts[0] for path in paths}) == 2, "each new run closes the folder that it shares to other users"
    assert not [path for path in paths if (tmp_path / path.parts[0]).exists()], "they succeeded"


@pytest.mark.parametrize(
    ("test", "options", "killed", "servers"),
    [
        ("test_servers", ("-n", "1"), "run", {"postgres", "mariadbd", "python"}),
        ("test_a_few", ("-n", "1"), "worker", {"postgres"}),
        pytest.param("test_spark", (), "run", {"java"}, marks=pytest.mark.spark),
    ],
    ids=["run", "worker", "spark"],
)
def test_no_process_is_left_over_by_a_kill(
    suite: Path, test: str, options: tuple[str, ...], killed: str, servers: set[str]
) -> None:
    sign = f"TEST_OF_LIFETIMES={suite}"  # a mark of this test's own, because the mechanism must not check itself
    own = {"PYTHONPATH": str(ROOT), "TEST_OF_LIFETIMES": str(suite), "PYTEST_DEBUG_TEMPROOT": str(suite)}
    environ = os.environ | own
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, f"test_it.py::{test}"]
    with (suite / "said").open("wb") as said:
        run = subprocess.Popen(
            command, cwd=suite, env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )
    try:
        started = wait_for(lambda: (suite / "started").exists() or run.poll() is not None, START_S)
        assert started, "it does not start"
        assert run.poll() is None, (suite / "said").read_text()
        running = {psutil.Process(pid) for pid in find_marked(sign)} - {psutil.Process(run.pid)}
        # a PostgreSQL child overwrites its environment with its process title
        running |= {child for process in running for child in process.children(recursive=True)}
        assert servers <= {process.name().rstrip("3.1") for process in running}
        victim = psutil.Process(run.pid)
        if killed == "worker":
            (victim,) = (child for child in victim.children() if child in running)
        victim.send_signal(signal.SIGKILL)

        _, left = psutil.wait_procs(running, timeout=END_S)
        assert not [process for process in left if process.is_running()]
        run.wait(END_S)  # with one worker less the run ends
        assert wait_for(lambda: not find_marked(sign), END_S)
    finally:
        for pid in find_marked(sign):
            os.kill(pid, signal.SIGKILL)
        run.wait(END_S)
