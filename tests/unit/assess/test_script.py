"""The remedies as a script: executable ones are statements, all others are comments."""

from __future__ import annotations

import tomllib

import pytest

from venus.adapters.assess.report import build_exclusion, build_script, is_statement
from venus.model import Finding


def finding(remedy: str = "", **more: object) -> Finding:
    return Finding(where="app.t", message="a reason", remedy=remedy, blocks=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("remedy", "runs"),
    [
        ('GRANT CREATE TABLE TO "VENUS";', True),
        ("GRANT SELECT ON a TO v; GRANT SELECT ON b TO v;", True),
        ("ALTER TABLE ... ENGINE=InnoDB, or exclude the table", False),
        ("ALTER USER ... QUOTA UNLIMITED ON ...;", False),
        ("exclude the table", False),
        ("GRANT SELECT ON a TO v; or exclude it", False),
        ("", False),
    ],
)
def test_an_executable_remedy_is_a_statement(remedy: str, runs: bool) -> None:
    assert is_statement(remedy) == runs


def statements(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("--")]


def test_statements_stay_statements_and_the_rest_become_comments() -> None:
    found = build_script(
        [
            finding("GRANT A TO B;"),
            finding("exclude the table"),
            finding("or another key", script=("ALTER TABLE t ADD k int",)),
            Finding(where="x", message="a note", remedy="GRANT C TO D;"),
        ],
        transactional=False,
    )

    assert statements(found) == ["GRANT A TO B;", "ALTER TABLE t ADD k int;"]
    assert "-- fix: exclude the table" in found
    assert "-- or: or another key" in found


def test_transactional_ddl_is_wrapped_in_a_transaction() -> None:
    found = build_script([finding(script=("ALTER TABLE t ADD k int",))], transactional=True)

    assert statements(found) == ["BEGIN;", "ALTER TABLE t ADD k int;", "COMMIT;"]


def test_a_name_with_a_line_break_does_not_end_a_comment() -> None:
    odd = Finding(
        where="app.t\nDROP TABLE t;", message="x\nDROP TABLE u;", remedy="exclude\nDROP TABLE v;", blocks=True
    )

    assert statements(build_script([odd], transactional=False)) == []


def test_without_a_blocking_finding_there_is_no_script() -> None:
    assert build_script([Finding(where="x", message="a note")], transactional=True) == ""


def test_excluded_tables_become_lines_of_the_configuration() -> None:
    names = ["app.t", 'app.od"d\\ name', "app.line\nbreak", "app.größe"]

    assert tomllib.loads(build_exclusion(names))["source"]["exclude"] == names
    assert build_exclusion([]) == ""
