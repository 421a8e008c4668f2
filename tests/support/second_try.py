"""`--second-try`: failed tests run once more alone; a test that passes then is called FLAKY.

The second try is a serial pytest of its own, after the workers have ended. It distinguishes a flaky test from a defect,
but a flaky test still counts as failed unless tests/known_flaky.txt names it. Each flaky test is printed last with its
first failure, so the counts of the closing line and the exit status always agree.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import pytest

#: Flaky tests that do not fail the run; each line has the date of its entry and the id of the test.
KNOWN = "tests/known_flaky.txt"
#: More failures than this are not flaky: none of them is tried again.
TRIED_MAX = 20

_BAD = ("failed", "error")
Outcomes = dict[str, set[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("second try")
    group.addoption("--second-try", action="store_true", help="try what failed once more alone; a pass is FLAKY")
    group.addoption("--outcomes", metavar="FILE", help="append the outcome of each phase of each test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--second-try") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondTry(config), "second-try")
    if answers := config.getoption("--outcomes"):
        config.pluginmanager.register(Outcome(Path(answers)), "outcomes")


class Outcome:
    """Plugin of the second session: it writes a line for each phase, so that a test without lines has not passed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append the outcome of a phase of a test to the file."""
        with self._path.open("a") as file:
            file.write(json.dumps([report.nodeid, f"{report.when} {report.outcome}"]) + "\n")


def parse_known(text: str) -> dict[str, date]:
    """Return the date of each entry by the id of its test; `#` begins a comment."""
    entries = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return {nodeid: date.fromisoformat(day) for day, nodeid in entries}


def has_passed(outcomes: set[str]) -> bool:
    """Return whether a test ran and no phase of it failed or was skipped."""
    return outcomes == {"setup passed", "call passed", "teardown passed"}


@dataclass(slots=True)
class SecondTry:
    """Plugin of the first session's controller, not of its workers."""

    config: pytest.Config
    flaky: dict[str, list[pytest.TestReport]] = field(default_factory=dict)

    @property
    def _terminal(self) -> pytest.TerminalReporter:
        found = self.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(found, pytest.TerminalReporter)
        return found

    def _known_flaky(self) -> dict[str, date]:
        file = self.config.rootpath / KNOWN
        return parse_known(file.read_text(encoding="utf-8")) if file.exists() else {}

    @pytest.hookimpl(trylast=True)  # after xdist, which ends its workers, and the fixtures of this session
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Repeat the failed tests. An interrupted, broken or shortened session keeps its result."""
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail or session.shouldstop:
            return
        reports = [report for bad in _BAD for report in self._terminal.stats.get(bad, [])]
        first: dict[str, list[pytest.TestReport]] = {}
        for report in reports:
            if isinstance(report, pytest.TestReport):  # not for a module that cannot be imported
                first.setdefault(report.nodeid, []).append(report)
        if len(first) > TRIED_MAX:
            self._terminal.write_sep("=", f"{len(first)} tests failed, more than {TRIED_MAX}: none is tried again")
            return
        if not first:
            return
        outcomes = self._try(list(first))
        self.flaky = {nodeid: first[nodeid] for nodeid in first if has_passed(outcomes.get(nodeid, set()))}
        self._count(session, reports)

    def _try(self, nodeids: Sequence[str]) -> Outcomes:
        """Run these tests in a pytest of their own, print its output, and return the outcome of each phase."""
        self._terminal.write_line("")
        self._terminal.write_sep("=", f"second try, alone: {len(nodeids)} that failed")
        with tempfile.TemporaryDirectory() as folder:
            answers, asked = Path(folder) / "outcomes", Path(folder) / "asked"
            answers.touch()
            asked.write_text("".join(f"{nodeid}\n" for nodeid in nodeids))
            command = [
                sys.executable,
                "-m",
                "pytest",
                f"@{asked}",
                "-qq",
                "-rN",
                "-p",
                "no:cacheprovider",
                f"--rootdir={self.config.rootpath}",
                f"--outcomes={answers}",
            ]
            with subprocess.Popen(
                command,
                cwd=self.config.rootpath,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    self._terminal.write(line)
            outcomes: Outcomes = {}
            for line in answers.read_text().splitlines():
                nodeid, outcome = json.loads(line)
                outcomes.setdefault(nodeid, set()).add(outcome)
        return outcomes

    def _count(self, session: pytest.Session, reports: Sequence[pytest.CollectReport | pytest.TestReport]) -> None:
        """Let the closing line and the exit status show the result of the second try."""
        if not self.flaky:
            return
        stats = self._terminal.stats
        stats["flaky"] = [found[0] for found in self.flaky.values()]
        known = self.flaky.keys() & self._known_flaky()
        if not known:
            return
        for bad in _BAD:
            left = [report for report in stats.pop(bad, []) if report.nodeid not in known]
            if left:
                stats[bad] = left
        # A test whose fixtures failed after it counts as passed already.
        counted = {report.nodeid for report in stats.get("passed", [])}
        stats.setdefault("passed", []).extend(self.flaky[nodeid][0] for nodeid in known if nodeid not in counted)
        forgiven = sum(report.nodeid in known for report in reports)
        session.testsfailed -= forgiven
        if session.testsfailed == 0:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # wraps pytest's own summary, so that this comes last
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Print the flaky tests with their first failures, then their names."""
        yield
        if not self.flaky:
            return
        terminalreporter.section("FLAKY: failed beside others, passed alone", sep="=")
        for nodeid, found in self.flaky.items():
            for report in found:
                terminalreporter.section(f"first failure of {nodeid} ({report.when})", sep="_")
                terminalreporter.write_line(report.longreprtext)
                for title, content in report.sections:
                    terminalreporter.section(title, sep="-")
                    terminalreporter.write_line(content.rstrip("\n"))
        known = self._known_flaky()
        for nodeid in self.flaky:
            since = f" (known since {known[nodeid]})" if nodeid in known else ""
            terminalreporter.write_line(f"FLAKY {nodeid}{since}")
        if new := len(self.flaky.keys() - known.keys()):
            terminalreporter.write_line(f"{new} flaky and not in {KNOWN}: the run fails")
