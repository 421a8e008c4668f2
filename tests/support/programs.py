"""Programs that no wheel contains: a developer's run skips the tests that need a missing program, CI fails.

The end of a run lists each missing program, the number of tests skipped because of it, and how to install it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

import pytest

#: `.ci/run` sets it to `required`: then a missing program is an error.
SETTING = "TEST_PROGRAMS"
#: Debian's package for each program.
PACKAGES = {
    "MariaDB": "mariadb-server",
    "Chromium": "chromium",
    "PostgreSQL with TLS": "postgresql",
    "etcd": "etcd-server etcd-client",
}
_INSTALL = "apt-get install --no-install-recommends"
_MISSING = "missing on this machine: "


def reject_missing(program: str) -> NoReturn:
    """End a test that needs this program: fail if all programs are required, otherwise skip."""
    reason = f"{_MISSING}{program} ({_INSTALL} {PACKAGES[program]})"
    if os.environ.get(SETTING) == "required":
        pytest.fail(f"{reason}; {SETTING}=required does not allow to skip the test", pytrace=False)
    pytest.skip(reason)


def count_missing(reasons: Iterable[str]) -> Counter[str]:
    """Return the number of these skip reasons that name each program."""
    counts: Counter[str] = Counter()
    for reason in reasons:
        _, found, rest = reason.partition(_MISSING)
        if found:
            counts[rest.partition(" (")[0]] += 1
    return counts


@pytest.hookimpl(wrapper=True, tryfirst=True)  # wraps pytest's own summary, so that this comes after it
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> object:
    """Print the skipped tests with their missing programs, and how to install all of them."""
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    counts = count_missing(str(r.longrepr[2]) for r in skipped if isinstance(r.longrepr, tuple))
    if not counts:
        return
    terminalreporter.section("skipped: programs that are missing on this machine")
    for program, count in counts.most_common():
        terminalreporter.write_line(f"{count} {'test needs' if count == 1 else 'tests need'} {program}")
    terminalreporter.write_line(f"{_INSTALL} {' '.join(PACKAGES[program] for program in sorted(counts))}")
