"""Levels of the suite: which tests `make test`, `.ci/run`, `make test-all` and `make test-nightly` run.

A test has the level of its folder. A marker on the file, the test or a parameter overrides that; the highest one
counts. Without `--level`, pytest runs all tests that it is given.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

#: From `make test` to `make test-nightly`; each name is also a marker.
LEVELS = ("quick", "full", "slow", "nightly")
#: Level of each folder in tests/. `oracle` needs a real database and has no level; tests of the harness need not run on
#: each push.
FOLDERS = {
    "unit": "quick",
    "conformance": "quick",
    "simulation": "quick",
    "integration": "full",
    "story": "full",
    "fault": "full",
    "harness": "slow",
}
#: Order of files for the workers: those that take minutes first, so that short ones fill the gaps at the end.
ORDER = ("story", "fault", "conformance", "integration", "harness", "simulation", "unit")

_QUICK_MARK = re.compile(r"\bmark\.quick\b")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("levels").addoption(
        "--level",
        metavar="NAME,...",
        type=parse_levels,
        help=f"run only the tests of these levels: {', '.join(LEVELS)}",
    )


def parse_levels(text: str) -> tuple[str, ...]:
    """Return the levels of a comma-separated list."""
    levels = tuple(text.split(","))
    if unknown := [level for level in levels if level not in LEVELS]:
        raise ArgumentTypeError(f"no level is named {unknown[0]!r}")
    return levels


def level_of(folder: str, marks: Iterable[str]) -> str | None:
    """Return the level of a test in this folder with these markers, or None if it has no level."""
    if chosen := [LEVELS.index(mark) for mark in marks if mark in LEVELS]:
        return LEVELS[max(chosen)]
    return FOLDERS.get(folder)


@cache
def _has_quick_tests(file: Path) -> bool:
    return _QUICK_MARK.search(file.read_text(encoding="utf-8")) is not None


def _folder(path: Path, config: pytest.Config) -> str:
    """Return the folder of a file in tests/."""
    try:
        return path.relative_to(config.rootpath / "tests").parts[0]
    except (ValueError, IndexError):
        return ""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files without tests of the quick level, because `make test` would import all of them in each worker."""
    if config.getoption("level") != ("quick",) or not collection_path.name.startswith("test_"):
        return None
    if FOLDERS.get(_folder(collection_path, config)) in (None, "quick") or _has_quick_tests(collection_path):
        return None
    return True


@pytest.hookimpl(trylast=True)  # after the markers that conftest files add
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of other levels and those that need a real Oracle; put long ones first."""
    levels = config.getoption("level")
    if levels is None:
        return
    deselected = [item for item in items if _find_level(item) not in levels]
    config.hook.pytest_deselected(items=deselected)
    kept = [item for item in items if _find_level(item) in levels]
    items[:] = sorted(kept, key=lambda item: ORDER.index(_folder(item.path, config)))


def _find_level(item: pytest.Item) -> str | None:
    """Return the level of a test, or None if it has no level."""
    marks = [mark.name for mark in item.iter_markers()]
    return None if "oracle" in marks else level_of(_folder(item.path, item.config), marks)
