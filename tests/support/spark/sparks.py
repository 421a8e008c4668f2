"""Sessions of Spark for the tests: one for a whole test run, because a start takes seconds.

A cluster on this machine runs in a process of its own, and its executors leave folders inside PySpark.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadFileScheduling

from venus.config import Settings
from venus.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A whole cluster in processes of this machine: two executors with one core and 1024 MB each.
CLUSTER = "local-cluster[2,1,1024]"
APPLICATIONS = "applications"
#: Fixture that marks a file as sharing the session.
SESSION = "spark_session"


class OneSession(LoadFileScheduling):  # type: ignore[misc]
    """Scheduler that distributes by file, but sends all files that share a session of Spark to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return SESSION if _shares(self.config.rootpath / file) else file


@cache
def _shares(file: Path) -> bool:
    """Return whether the tests of a file use the shared session."""
    return SESSION in file.read_text()


@pytest.hookimpl(optionalhook=True)  # a run without xdist does not know this hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Use one JVM for the whole run, not one for each of its workers."""
    return OneSession(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def spark_session() -> Iterator[SparkSession]:
    """Run Spark on two workers of this machine, started as the product does it."""
    with open_session(Settings.model_validate({"spark": {"conf": {"spark.driver.memory": "512m"}}})) as session:
        yield session


def note_application(name: str, folder: Path) -> None:
    """Record an application's name for `executors_leave_nothing`, because its driver may be killed."""
    with (folder / APPLICATIONS).open("a") as file:
        file.write(f"{name}\n")


@pytest.fixture
def executors_leave_nothing(tmp_path: Path) -> Iterator[None]:
    """Remove the folders of the recorded applications only, because other tests run beside this one."""
    yield
    noted, found = tmp_path / APPLICATIONS, importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    work = Path(found.origin).parent / "work"  # executors always use this folder
    for name in noted.read_text().split() if noted.exists() else ():
        shutil.rmtree(work / name, ignore_errors=True)
