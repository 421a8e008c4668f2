"""Runs the cases of `venus prove` (the folder `cases` is a link to them) once for each dialect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.conformance.places import MariaPlace, Place, PostgresPlace, SqlitePlace
from tests.support.oracle.standin import StandIn

PLACES = ("postgresql", "sqlite", "mariadb", "oracle-standin")
#: These cases need a real Oracle: tests/oracle runs them.
collect_ignore = ["cases/oracle"]


#: Cases that test little more on the Oracle stand-in, whose dictionary is slow: only `make test-all` runs them.
_SLOW = re.compile(
    r"10 MB|large_transaction|names_of_tables.*-(?!select|Mixed Case|co:lon)"
    r"|nothing_is_seen.*-(0|60)|another_process_finds|had_missed_changes|has_paused|several_tables|(fill|sweep)_that_halts"
)
#: Cases that repeat others on every dialect and take a quarter of the CPU time: only `make test-full` runs them.
_FULL = re.compile(r"10 MB|names_of_tables.*-(?!select|Mixed Case|co:lon)|cut_off_is_finished_by_the_next.*-(?!2\])")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases that repeat another one as `full`, and cases that are slow on the stand-in alone as `slow`."""
    for item in items:
        if _FULL.search(item.name.replace("oracle-standin", "")):
            item.add_marker(pytest.mark.full)
        if "oracle-standin" in item.name and _SLOW.search(item.name.replace("oracle-standin", "")):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Make an empty database."""
    if request.param == "sqlite":
        return SqlitePlace(path=tmp_path / "app.db")
    if request.param == "mariadb":
        return MariaPlace(
            server=request.getfixturevalue("mariadb_server"), url=request.getfixturevalue("mariadb_exact_database")
        )
    if request.param == "oracle-standin":
        standin = StandIn(request.getfixturevalue("mariadb_oracle_server"))
        standin.prepare()
        return StandInPlace(standin)
    return PostgresPlace(server=request.getfixturevalue("postgres_server"), url=request.getfixturevalue("database"))
