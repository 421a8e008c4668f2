"""What every test may ask for."""

import gc
import os
import signal

import hypothesis
import pytest

from venus.cli.demo.servers import search_path

#: How long an example takes, or its making, says something of the machine alone.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
#: Pytest may run in a terminal; what a command prints into a pipe must not depend on its width.
os.environ.pop("COLUMNS", None)
#: Nor must the servers of the tests depend on its locale, which is perhaps not installed, or on the PATH of `su` on
#: Debian, which lacks the folder of useradd (the embedded PostgreSQL needs it).
os.environ["LC_ALL"] = "C.UTF-8"
os.environ["PATH"] = search_path()
#: A script's shell has what it starts with `&` ignore SIGINT, and so would every command that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.support.programs",  # the next ones import it
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
    """Mark as slow what is nightly, so that `-m "not slow"` leaves it out too."""
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Take what all tests share out of the garbage collector's sight.

    A broker that stops collects garbage, which took 0.2 s among the objects of 5,800 collected tests.
    """
    gc.collect()
    gc.freeze()
