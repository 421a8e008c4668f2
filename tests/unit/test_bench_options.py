"""The scripts of the benchmarks read only the options that they declare: no test runs all of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [path for path in sorted((ROOT / "bench").rglob("*.py")) if "parse_args()" in path.read_text()]


def read_declared_options(tree: ast.AST) -> set[str]:
    """Return the attributes that argparse sets."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            chosen = [
                one.value.value for one in node.keywords if one.arg == "dest" and isinstance(one.value, ast.Constant)
            ]
            longest = next((name for name in names if name.startswith("--")), names[0])
            found.add(str(chosen[0]) if chosen else longest.lstrip("-").replace("-", "_"))
    return found


def read_used_options(tree: ast.AST) -> set[str]:
    """Return the attributes read from variables that hold the parsed options."""
    holders = {
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "parse_args"
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in holders
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_reads_only_its_own_options(script: Path) -> None:
    tree = ast.parse(script.read_text())

    assert read_used_options(tree) - read_declared_options(tree) == set()


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) > 10
