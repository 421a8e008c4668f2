"""Rules beyond the import contracts: which modules need one, and no import cycles among a package's parts.

In addition, no function or file is longer than can be read at once.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from configparser import ConfigParser
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
_CONTRACTS = ("importlinter:contract:pure", "importlinter:contract:pure_but_for_its_neighbours")
#: "Pure." of a whole module; not "Pure, but for `read`", and not "`History` is pure".
_CLAIM = re.compile(
    r"(?:\bPure\b|[,;] (?:and )?pure\b)(?! but|, but| bookkeeping)|\bwithout any I/O\b|\bas pure functions\b"
)

#: Longest function body in these folders, in lines; tests may be longer.
BODY_LINES = 40
#: Longest file in these folders and in tests/, in lines.
FILE_LINES = 450
CODE = ("venus", "adapters", "spark", "migrations", "bench")

#: Known circles of siblings: the list may only get shorter.
KNOWN_CIRCLES: dict[str, AbstractSet[str]] = {}


def modules() -> Iterator[tuple[str, str]]:
    """Return each module's name and docstring."""
    folders = {"venus": "venus", "adapters": "venus.adapters", "spark": "venus.spark", "migrations": "venus.migrations"}
    for folder, package in folders.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            if parts[0] not in ("adapters", "spark", "migrations", "wire"):
                name = ".".join([package, *parts]).removesuffix(".__init__")
                yield name, ast.get_docstring(ast.parse(file.read_text())) or ""


def test_modules_that_claim_to_be_pure_have_a_contract() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    held = [name for contract in _CONTRACTS for name in config[contract]["source_modules"].split()]
    claimed = [name for name, docstring in modules() if _CLAIM.search(docstring)]

    assert len(held) == len(set(held))
    assert set(claimed) - set(held) == set(), "claim it, and no contract holds them to it"
    assert set(held) - set(claimed) == set(), "are held to it, and do not say so"


def circles(edges: Mapping[str, AbstractSet[str]]) -> list[set[str]]:
    """Return the groups of nodes that reach each other."""
    reached = {node: set(edges[node]) for node in edges}
    for through in edges:
        for node in edges:
            if through in reached[node]:
                reached[node] |= reached[through]
    groups = {frozenset({node} | {n for n in reached[node] if node in reached[n]}) for node in edges}
    return [set(group) for group in groups if len(group) > 1]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [{"a", "b", "c"}]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("venus", cache_dir=None)  # it once showed imports that no longer existed


def test_the_parts_of_a_package_form_no_circle(graph: grimp.ImportGraph) -> None:
    found: dict[str, AbstractSet[str]] = {}
    for package in sorted(m for m in graph.modules if graph.find_children(m)):
        parts = graph.find_children(package)
        inside = {module: part for part in parts for module in graph.find_descendants(part) | {part}}
        edges: dict[str, set[str]] = {part: set() for part in parts}
        for module, part in inside.items():
            targets = graph.find_modules_directly_imported_by(module)
            edges[part] |= {inside[target] for target in targets if target in inside} - {part}
        for circle in circles(edges):
            found[package] = {part.removeprefix(f"{package}.") for part in circle}

    assert found == KNOWN_CIRCLES


def bodies(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Return each function with the lines of its body; a signature does not count, because it may have many options."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            yield node.name, node.end_lineno - body[0].lineno + 1 if body and node.end_lineno else 0


def test_the_lines_of_a_body_are_counted_correctly() -> None:
    text = """
class A:
    def f(
        self,
    ):
        '''Do.

        So.
        '''
        if 1:
            pass
async def g():
    def h(): return 1

    return h
def nothing():
    '''It is.'''
"""

    assert dict(bodies(ast.parse(text))) == {"f": 2, "g": 3, "h": 1, "nothing": 0}


def test_every_function_is_short_enough() -> None:
    files = [f for folder in CODE for f in sorted((ROOT / folder).rglob("*.py")) if "wire" not in f.parts]
    assert len(files) > 400
    long = {
        f"{file.relative_to(ROOT)}: {name}": lines
        for file in files
        for name, lines in bodies(ast.parse(file.read_text()))
        if lines >= BODY_LINES
    }

    assert long == {}, "cut them where they become easier to read"


def test_every_file_is_short_enough() -> None:
    files = {
        file.resolve()
        for folder in (*CODE, "tests")
        for file in (ROOT / folder).rglob("*.py")
        if "wire" not in file.parts
    }
    lines = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8").count("\n") for file in files}

    assert len(lines) > 400
    assert {file: count for file, count in lines.items() if count > FILE_LINES} == {}, "cut them by concepts"


def imports_in_strings() -> Iterator[tuple[str, str, str]]:
    """Yield the file, module and name of each import of VENUS in a program inside a string of a test."""
    for file in sorted(file for folder in ("tests", "bench") for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or "import" not in node.value:
                continue
            for module, names in re.findall(r"^(?:\s|.*; )?from (venus[\w.]*) import ([\w, ]+)", node.value, re.M):
                yield from ((str(file.relative_to(ROOT)), module, name.strip()) for name in names.split(","))


def test_programs_in_strings_import_existing_names() -> None:
    found = list(imports_in_strings())
    missing = [
        f"{file}: {module}.{name}"
        for file, module, name in found
        if not hasattr(importlib.import_module(module), name) and importlib.util.find_spec(f"{module}.{name}") is None
    ]

    assert len(found) >= 20
    assert missing == []
