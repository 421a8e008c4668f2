"""Fixtures and hooks of all tests."""

import gc
import os
import signal

import hypothesis
import pytest

from venus.cli.demo.servers import search_path

#: How long hypothesis takes for an example depends on the machine alone. Each run has the same examples, so that a new
#: one fails with the change that it comes with; `--hypothesis-profile=default` draws others.
hypothesis.settings.register_profile(
    "any machine", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
#: Pytest may run in a terminal, whose width must not change what a command prints into a pipe.
os.environ.pop("COLUMNS", None)
#: The servers of the tests must not depend on the terminal's locale, which may not be installed, or on the PATH of `su`
#: on Debian, which lacks the folder of useradd (the embedded PostgreSQL needs it).
os.environ["LC_ALL"] = "C.UTF-8"
os.environ["PATH"] = search_path()
#: A shell script lets commands that it starts with `&` ignore SIGINT, and the commands that tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.support.programs",  # before the next imports, which use it
    "tests.support.environment",
    "tests.support.processes.lifetimes",
    "tests.support.brokers.etcd",
    "tests.support.databases.mariadb",
    "tests.support.oracle.plsql",
    "tests.support.oracle.standin",
    "tests.support.databases.postgres",
    "tests.support.second_try",
    "tests.support.selection",
    "tests.support.spark.sparks",
]


@pytest.hookimpl(tryfirst=True)  # before -m is obeyed
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark nightly tests as slow too, so that `-m "not slow"` leaves them out."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exclude the objects that all tests share from garbage collection.

    A broker collects garbage when it stops, which took 0.2 s with the objects of 5,800 collected tests.
    """
    gc.collect()
    gc.freeze()
