"""The cases in `cases/`, run by pytest in this process on one scratch schema.

pytest is part of the extra `prove`. Pytest's configuration, plugins and environment variables are ignored, so that the
user's cannot change the run. Each case finds the schema empty, and leaves it empty.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from venus.adapters.dialects.proving_contract import ScratchSchema
from venus.cli.prove.results import FAILED, PASSED, SKIPPED, CaseResult, Details, ProofReport, describe_failure
from venus.errors import ConfigError, VenusError

CASES = Path(__file__).parent / "cases"
#: The title of a file's cases in the report.
TITLES = {
    "test_changes": "Changes of an application",
    "test_cuts": "Cuts: one snapshot, whole or not at all",
    "test_fills": "Reading existing rows",
    "test_halts": "A row that cannot be carried",
    "test_install": "Installation and removal",
    "test_oracle": "What only Oracle has",
    "test_registry": "Registry",
    "test_release": "A table leaves capture and returns",
    "test_row_counts": "Statistics",
    "test_schema_changes": "DDL of an application",
    "test_survey": "Assessment",
    "test_types": "The hardest values of every type, there and back",
    "test_uncaptured": "Tables that are not captured",
}
#: Environment variables of pytest that would change the run.
_FOREIGN = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")
#: The parameters at the end of a case's name.
_PARAMETERS = re.compile(r"\[(.*)\]$")
Progress = Callable[[str, int, int], None]


def run_cases(scratch: ScratchSchema, report: ProofReport, details: Details, *, only: str, progress: Progress) -> None:
    """Run the cases whose names match `only`, or all if it is empty. Raises KeyboardInterrupt and ConfigError."""
    plugin = CasePlugin(scratch, report, details, progress)
    arguments = [str(CASES), "--import-mode=importlib", f"--rootdir={CASES}", f"--confcutdir={CASES}", "-c", os.devnull]
    # progress goes to the stream that the command had at its start
    arguments += ["--capture=sys", "-p", "no:terminal", "-p", "no:cacheprovider", *(["-k", only] if only else [])]
    others = [folder for folder in CASES.iterdir() if folder.is_dir() and folder.name != scratch.dialect]
    arguments += [f"--ignore={folder}" for folder in others]
    with _without_foreign_settings():
        code = pytest.main(arguments, plugins=[plugin])
    if plugin.interrupted:
        raise KeyboardInterrupt
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise ConfigError(f"--cases {only!r} matches no case", hint="the report of a whole run lists all names")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise VenusError(f"the cases could not be run: pytest ended with {code!r}; {'; '.join(plugin.trouble)}")


@contextmanager
def _without_foreign_settings() -> Iterator[None]:
    """Hide pytest's environment variables, and the folder of bytecode, which may not be writable."""
    before = {name: os.environ.pop(name, None) for name in (*_FOREIGN, "PYTEST_DISABLE_PLUGIN_AUTOLOAD")}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        os.environ.update({name: value for name, value in before.items() if value is not None})


class CasePlugin:
    """The plugin that provides the `place` of cases and records their outcomes."""

    def __init__(self, scratch: ScratchSchema, report: ProofReport, details: Details, progress: Progress) -> None:
        self._scratch = scratch
        self._report = report
        self._details = details
        self._progress = progress
        self._total = self._done = 0
        self._began = 0.0
        self.interrupted = False
        #: Reports of files that could not be collected.
        self.trouble: list[str] = []
        self._failed: BaseException | None = None
        self._skipped = ""

    @pytest.fixture
    def place(self) -> Iterator[ScratchSchema]:
        """Give a case the empty schema, and empty it afterwards."""
        self._scratch.prepare()
        try:
            yield self._scratch
        finally:
            self._scratch.clear()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the number of cases."""
        self._total = len(session.items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that cannot be imported."""
        if report.failed:
            self.trouble.append(f"{Path(report.nodeid).name}: {str(report.longrepr).strip().splitlines()[-1]}")

    def pytest_keyboard_interrupt(self) -> None:
        """Record that the user has interrupted the run."""
        self.interrupted = True

    def pytest_runtest_logstart(self) -> None:
        """Record the beginning of a case."""
        self._began, self._failed, self._skipped = time.monotonic(), None, ""

    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Record the outcome of a phase of a case; the first error counts."""
        if call.excinfo is None:
            return
        error = call.excinfo.value
        if isinstance(error, pytest.skip.Exception):
            self._skipped = str(error)
        elif not isinstance(error, KeyboardInterrupt) and self._failed is None:
            self._failed = error
            self._details.add(f"{item.name} ({call.when})", error)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record the outcome of a case."""
        file, _, name = nodeid.partition("::")
        outcome = FAILED if self._failed else SKIPPED if self._skipped else PASSED
        why = describe_failure(self._failed) if self._failed else self._skipped
        result = CaseResult(name=format_name(name), outcome=outcome, seconds=time.monotonic() - self._began, why=why)
        stem = Path(file).stem
        self._report.section(TITLES.get(stem, stem)).cases.append(result)
        self._done += 1
        self._progress("cases", self._done, self._total)


def format_name(name: str) -> str:
    """Return the name of a case as a phrase."""
    text = name.removeprefix("test_")
    parameters = _PARAMETERS.search(text)
    text = text[: parameters.start()] if parameters else text
    return text.replace("_", " ") + (f" ({parameters[1]})" if parameters else "")
