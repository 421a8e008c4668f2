"""Runs the cases of `venus prove` (`cases` is a link to them) once for each dialect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance.place_oracle import StandInPlace
from tests.conformance.places import MariaPlace, Place, PostgresPlace, SqlitePlace
from tests.support.oracle.standin import StandIn

PLACES = ("postgresql", "sqlite", "mariadb", "oracle-standin")
#: These need a real Oracle: tests/oracle runs them.
collect_ignore = ["cases/oracle"]


#: What adds little to the stand-in of an Oracle, whose dictionary is slow: left to `make test-all`.
_SLOW = re.compile(
    r"10 MB|large_transaction|names_of_tables.*-(?!select|Mixed Case|co:lon)"
    r"|nothing_is_seen.*-(0|60)|another_process_finds|had_missed_changes|has_paused|several_tables|(fill|sweep)_that_halts"
)
#: More of the same on every dialect, a quarter of the CPU: left to `make test-full`.
_FULL = re.compile(r"10 MB|names_of_tables.*-(?!select|Mixed Case|co:lon)|cut_off_is_finished_by_the_next.*-(?!2\])")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what repeats another test, and what is slow on one dialect only."""
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
