"""Rules of the suite itself: how a test gets its level, which programs may be missing, which tests may be flaky."""

from __future__ import annotations

import ast
import os
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from tests.support.programs import count_missing
from tests.support.second_try import KNOWN, parse_known
from tests.support.selection import FOLDERS, ORDER, level_of, parse_levels

ROOT = Path(__file__).parents[2]
#: Number of lines in tests/known_flaky.txt. Lower it when a line is removed; it never rises.
KNOWN_FLAKY = 0


@pytest.mark.parametrize(
    ("folder", "marks", "level"),
    [
        ("unit", [], "quick"),
        ("unit", ["full"], "full"),
        ("unit", ["slow", "nightly"], "nightly"),
        ("story", [], "full"),
        ("story", ["integration", "quick"], "quick"),
        ("story", ["quick", "slow"], "slow"),
        ("harness", [], "slow"),
        ("oracle", [], None),
    ],
)
def test_a_marker_overrides_the_level_of_the_folder(folder: str, marks: list[str], level: str | None) -> None:
    assert level_of(folder, marks) == level


def test_an_unknown_level_is_rejected() -> None:
    assert parse_levels("quick,full") == ("quick", "full")
    with pytest.raises(ArgumentTypeError, match="no level is named 'fast'"):
        parse_levels("quick,fast")


def test_every_folder_of_tests_has_a_level() -> None:
    folders = {
        Path(folder).relative_to(ROOT / "tests").parts[0]
        for folder, _, files in os.walk(ROOT / "tests", followlinks=True)
        if any(name.startswith("test_") and name.endswith(".py") for name in files)
    }

    assert folders - FOLDERS.keys() == {"oracle"}, "which is run by `make test-oracle`"
    assert set(ORDER) == FOLDERS.keys()


def test_missing_programs_are_counted_from_the_reasons_of_skips() -> None:
    counts = count_missing(
        [
            "Skipped: missing on this machine: MariaDB (apt-get install --no-install-recommends mariadb-server)",
            "Skipped: missing on this machine: MariaDB (apt-get install --no-install-recommends mariadb-server)",
            "Skipped: one writer at a time",
        ]
    )

    assert counts == {"MariaDB": 2}


def test_known_flaky_tests_exist_and_become_fewer() -> None:
    known = parse_known((ROOT / KNOWN).read_text(encoding="utf-8"))

    assert len(known) <= KNOWN_FLAKY
    for nodeid in known:
        file, name = nodeid.partition("[")[0].split("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, nodeid
