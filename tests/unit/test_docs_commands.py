"""The program accepts every `venus ...` line of the documents: commands, options, their values, arguments.

Stories execute the commands that can run: test_readme.py, test_first_week.py, test_night.py. Here the program's own
parser parses each line, so that a renamed option or a lost argument is found.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from typer.core import TyperGroup
from typer.main import get_command

from tests.support import documents
from venus.cli.app import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [
        ROOT / "README.md",
        ROOT / "docker" / "compose.yaml",
        *(ROOT / "docs").rglob("*.md"),
    ]
)


def refusal(line: str) -> str:
    """Return the reason why the program refuses a line; empty if it accepts it."""
    for words in documents.alternatives(line):
        try:
            parse(get_command(app), words[1:])
        except Exception as error:  # Typer brings its own Click, whose classes have no public name
            if hasattr(error, "format_message"):
                return f"{' '.join(words)}: {error.format_message()}"
            if type(error).__name__ != "Exit":  # --help, --version
                raise
    return ""


def parse(program: Any, words: list[str]) -> None:
    """Parse as the program does, without executing anything. Raises its errors."""
    command: Any = program
    context = command.make_context("venus", words)
    while isinstance(command, TyperGroup):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return  # a command group, named as a whole
        name, found, rest = command.resolve_command(context, rest)
        if not rest:
            return  # a command, named without its arguments
        command = found
        context = command.make_context(name, rest, parent=context)


def test_the_grants_in_the_documents_are_those_of_the_program() -> None:
    """Oracle's own statements: no stand-in accepts them, so they are compared with the output of `venus check`."""
    blocks = re.findall(
        r"^```sql\n(.*?)^```", (ROOT / "docs/reference/oracle-dba.md").read_text(), re.DOTALL | re.MULTILINE
    )
    said = [found for block in blocks for found in sqlglot.parse(block, read="oracle") if found is not None]
    files = [path for kind in ("*.py", "*.sql") for path in (ROOT / "adapters/dialects/oracle").rglob(kind)]
    code = "".join(path.read_text() for path in files).upper()
    special = re.findall(r"GV_\$\w+|CREATE ANY TRIGGER|ADMINISTER DATABASE TRIGGER", "".join(blocks))

    assert len(said) >= 6
    assert len(special) == 4
    assert [name for name in special if name not in code] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_line_is_accepted(document: Path) -> None:
    assert [why for line in documents.read(document) if (why := refusal(line))] == []


@pytest.mark.parametrize("unit", sorted((ROOT / "docs/systemd").glob("*.service")), ids=lambda path: path.name)
def test_the_service_files_start_accepted_command_lines(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=/opt/venus/bin/(venus .+)$", unit.read_text(), re.MULTILINE)

    assert refusal(line) == ""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("venus status --wach", "No such option: --wach"),
        ("venus stats", "No such command 'stats'"),
        ("venus cluster policy shop", "Missing argument"),
        ("venus install-triggers --only", "No such option"),
        ("venus status [--every MANY]", "Invalid value for '--every'"),
        ("venus half commit|rolback 3", "No such command 'rolback'"),
    ],
)
def test_a_refused_command_line_is_found(line: str, why: str) -> None:
    assert why in refusal(line)
