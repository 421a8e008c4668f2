"""`pytest --second-try`: a test that passes only alone is FLAKY; counts and exit status hide no failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.second_try import KNOWN, TRIED_MAX

ROOT = Path(__file__).parents[2]

#: Options that load only the plugin, and repeat quickly.
_BARE = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
#: A suite whose tests know how often each was called.
_SUITE = """
import os, pathlib
import pytest

def calls(name):
    with pathlib.Path(__file__).with_name(name + ".calls").open("a+") as file:
        file.write("x")
        file.flush()
        file.seek(0)
        return len(file.read())

def fails_first(name):
    assert calls(name) > 1, f"the first failure of {name}"

"""
_GOOD = "def test_good(): pass\n"
_BAD = "def test_bad(): assert not calls('bad'), 'always'\n"
_FLAKY = "def test_flaky_{0}(): fails_first('{0}')\n"


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    text: str

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts of the closing line as a program that reads many runs parses them."""
        found = re.fullmatch(r"=+ (.*) in [\d.]+s(?: \(.*\))? =+", self.text.splitlines()[-1])
        assert found is not None, self.text
        return {word: int(number) for number, word in (part.split() for part in found[1].split(", "))}


Run = Callable[..., Outcome]


@pytest.fixture
def suite(tmp_path: Path) -> Run:
    """Make a suite of these tests and run it."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -ra\n")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.support.second_try"]\n')

    def run(*tests: str, options: tuple[str, ...] = ("--second-try",), known: tuple[str, ...] = ()) -> Outcome:
        (tmp_path / KNOWN).parent.mkdir(exist_ok=True)
        (tmp_path / KNOWN).write_text("# a remark\n" + "".join(f"2026-11-26 {nodeid}\n" for nodeid in known))
        for number, text in enumerate(tests):
            (tmp_path / f"test_{number}.py").write_text(_SUITE + text)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=tmp_path, env=environ | _BARE, capture_output=True, text=True, timeout=120)
        return Outcome(done.returncode, done.stdout)

    return run


@pytest.mark.parametrize(
    "options", [(), ("-p", "xdist.plugin", "-n", "2", "--dist", "loadfile")], ids=["serial", "spread"]
)
def test_a_test_that_passes_only_alone_is_named_with_its_first_failure(suite: Run, options: tuple[str, ...]) -> None:
    flaky = "test_1.py::test_flaky_one"
    said = suite(_GOOD, _FLAKY.format("one"), options=("--second-try", *options), known=(flaky,))

    assert said.code == 0
    assert said.counts == {"passed": 2, "flaky": 1}
    assert "AssertionError: the first failure of one" in said.text
    assert said.text.splitlines()[-2] == f"FLAKY {flaky} (known since 2026-11-26)"


def test_a_defect_fails_twice_and_fails_the_run(suite: Run) -> None:
    said = suite(_GOOD, _BAD, _FLAKY.format("one"))

    assert said.code == 1
    assert said.counts == {"passed": 1, "failed": 2, "flaky": 1}
    assert "FLAKY test_1.py" not in said.text


def test_a_flaky_test_that_is_not_known_fails_the_run(suite: Run) -> None:
    said = suite(_FLAKY.format("one"), _FLAKY.format("two"), known=("test_1.py::test_flaky_two",))

    assert said.code == 1
    assert said.counts == {"passed": 1, "failed": 1, "flaky": 2}
    assert said.text.splitlines()[-2] == f"1 flaky and not in {KNOWN}: the run fails"


def test_too_many_failures_for_flakiness_are_not_repeated(suite: Run) -> None:
    said = suite("".join(_FLAKY.format(f"n{n}") for n in range(TRIED_MAX + 1)))

    assert said.code == 1
    assert said.counts == {"failed": TRIED_MAX + 1}
    assert "none is tried again" in said.text


_FIXTURE = """
@pytest.fixture
def place():
    {0}
    yield
    {1}

def test_there(place): pass
"""


@pytest.mark.parametrize(
    "text", [_FIXTURE.format("fails_first('up')", ""), _FIXTURE.format("", "fails_first('down')")], ids=["up", "down"]
)
def test_a_fixture_that_fails_once_makes_its_test_flaky(suite: Run, text: str) -> None:
    said = suite(text, known=("test_0.py::test_there",))

    assert said.code == 0
    assert said.counts == {"passed": 1, "flaky": 1}


@pytest.mark.parametrize(
    "text",
    [
        "def test_gone():\n    if calls('s') > 1: pytest.skip('no more')\n    assert False",
        "def test_gone():\n    if calls('c') > 1: os._exit(0)\n    assert False",
        "if not calls('m') > 1:\n    def test_gone(): assert False",
    ],
    ids=["skipped", "ended", "not-found"],
)
def test_a_test_that_did_not_run_the_second_time_has_not_passed(suite: Run, text: str) -> None:
    said = suite(text)

    assert said.code == 1
    assert said.counts == {"failed": 1}


def test_a_worker_that_dies_is_a_failure_until_its_test_passes(suite: Run) -> None:
    spread = ("--second-try", "-p", "xdist.plugin", "-n", "1", "--dist", "loadfile")
    text = "def test_kills():\n    if calls('k') == 1: os.kill(os.getpid(), 9)\n"
    said = suite(text, options=spread, known=("test_0.py::test_kills",))

    assert said.code == 0
    assert said.counts == {"passed": 1, "flaky": 1}
    assert "crashed while running" in said.text


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        ("import nowhere", (), 2),
        (_FLAKY.format("x") + "def test_stopped(): raise KeyboardInterrupt", (), 2),
        ("def test_fails_inside(): pass\ndef pytest_generate_tests(metafunc): raise SystemExit('inside')", (), 3),
        (_GOOD, ("--no-such-option",), 4),
        ("", (), 5),
        (_FLAKY.format("x") + _GOOD, ("-x",), 1),
    ],
    ids=["collection", "interrupt", "internal", "usage", "no-tests", "cut-short"],
)
def test_a_run_without_tests_keeps_its_exit_status(suite: Run, text: str, options: tuple[str, ...], code: int) -> None:
    said = suite(text, options=("--second-try", *options))

    assert said.code == code
    assert "second try, alone" not in said.text


def test_a_module_that_cannot_be_imported_fails_the_run_beside_a_flaky_test(suite: Run) -> None:
    said = suite("import nowhere", _FLAKY.format("one"), options=("--second-try", "--continue-on-collection-errors"))

    assert said.code == 1
    assert said.counts == {"error": 1, "failed": 1, "flaky": 1}


def test_without_the_option_a_failure_is_a_failure(suite: Run) -> None:
    said = suite(_FLAKY.format("one"), options=())

    assert said.code == 1
    assert said.counts == {"failed": 1}
