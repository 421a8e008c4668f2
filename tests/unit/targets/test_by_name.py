"""No code asks for a kind of database: registries choose the kind, and capabilities describe the differences."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from venus.adapters.dialects import DIALECTS
from venus.adapters.dialects.contract import Option
from venus.adapters.dialects.contract import SourceCapabilities as DialectCapabilities
from venus.adapters.dialects.registry import options_of
from venus.adapters.targets.contract import UNSUPPORTED_TEXTS, TargetCapabilities
from venus.adapters.targets.registry import KINDS

ROOT = Path(__file__).parents[3]
NAMES = {*DIALECTS, *DIALECTS.values(), *KINDS, *KINDS.values()}
#: Folders that belong to one kind.
OWN = [ROOT / "adapters" / "dialects" / d for d in set(DIALECTS.values())]
OWN += [ROOT / "adapters" / "targets" / k for k in set(KINDS.values())]
#: Cases of `venus prove`, which are tests.
CASES = ROOT / "venus" / "cli" / "prove" / "cases"


def find_name_checks() -> Iterator[str]:
    """Yield every line outside of a kind's own folder that compares with the name of a kind."""
    for home in ("adapters", "venus", "spark"):
        for path in (ROOT / home).rglob("*.py"):
            if any(path.is_relative_to(own) for own in (*OWN, CASES)):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare | ast.MatchValue):
                    found = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
                    if any(isinstance(value, str) and value in NAMES for value in found):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}"


def find_foreign_names() -> Iterator[str]:
    """Yield every line in a kind's own folder with the name of another kind as a value."""
    for folder in OWN:
        own = {scheme for kinds in (DIALECTS, KINDS) for scheme, kind in kinds.items() if kind == folder.name}
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and node.value in NAMES - own - {folder.name}:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"


def find_questions(capability: str) -> Iterator[Path]:
    """Yield every line that asks for a capability of a target."""
    for path in (ROOT / "venus" / "cli").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if f'"{capability}"' in text or f"capabilities.{capability}" in text:
            yield path
    for path in (ROOT / "adapters").rglob("*.py"):
        if f'"{capability}"' in path.read_text(encoding="utf-8") and path.name != "contract.py":
            yield path


def test_no_kind_is_asked_for_by_its_name() -> None:
    assert list(find_name_checks()) == []


def test_no_kind_knows_another_by_its_name() -> None:
    assert list(find_foreign_names()) == []


def test_every_capability_of_a_target_is_used_and_its_absence_is_reported() -> None:
    names = {f.name for f in fields(TargetCapabilities)} - {"kind"}

    assert set(UNSUPPORTED_TEXTS) == names
    assert [name for name in names if not list(find_questions(name))] == []


def test_every_capability_of_a_dialect_is_used() -> None:
    names = {f.name for f in fields(DialectCapabilities)}
    callers = [path.read_text(encoding="utf-8") for path in (ROOT / "venus" / "cli").rglob("*.py")]
    callers += [
        p.read_text(encoding="utf-8") for home in ("upper", "verify") for p in (ROOT / "adapters" / home).rglob("*.py")
    ]

    assert [name for name in names if not any(f"capabilities.{name}" in text for text in callers)] == []


def test_code_for_some_dialects_is_in_their_packages() -> None:
    found = {dialect: options_of(dialect) for dialect in set(DIALECTS.values())}

    assert found == {
        "mysql": frozenset({Option.COLUMNS, Option.LOG_ROWS_MAX}),
        "oracle": frozenset(Option),
        "postgresql": frozenset({Option.COLUMNS, Option.LOG_BYTES_MAX}),
        "sqlite": frozenset({Option.COLUMNS, Option.LOG_ROWS_MAX}),
    }
