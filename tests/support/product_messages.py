"""All texts that the product can print, and the check that a message quoted in a document is one of them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("venus", "adapters", "spark", "migrations")
#: Names and figures in a quoted message: words in capitals, digits and three dots.
_PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]*\b|\.\.\.|\b\d[\d,.]*\b")
#: Words whose number the product chooses.
_AGREEING = re.compile(r"\b(?:is|are|changes?|rows?|replicas?|leases?|refers?)\b")
#: A shorter fragment identifies no message.
_FRAGMENT_CHARS_MIN = 9


@cache
def product_texts() -> str:
    """Return all literal texts of the product, one a line, with a line break in place of each formatted value."""
    found: set[str] = set()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            found.update(_texts(ast.parse(path.read_text(encoding="utf-8"))))
        for kind in ("*.sql", "*.js"):
            found.update(path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob(kind))
    return "\n".join(sorted(found))


def _texts(tree: ast.AST) -> list[str]:
    """Return the string literals of a module; a formatted value is a line break."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) and isinstance(p.value, str) else "\n" for p in node.values]
            found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            found.append(node.value)
    return found


def missing_fragments(message: str) -> list[str]:
    """Return the fragments of a quoted message that the product never prints.

    A message that consists of names and short words, like `TABLE is HALTED`, must at least name a state of the product.
    """
    fragments = [each for each in _split(_PLACEHOLDER, message) if len(each) >= _FRAGMENT_CHARS_MIN]
    if not fragments:
        fragments = [word for word in re.findall(r"[A-Z]{5,}", message) if word != "TABLE"] or [message]
    return [fragment for fragment in fragments if not _is_printed(fragment)]


def _split(by: re.Pattern[str], text: str) -> list[str]:
    """Split a text at a pattern, and strip the punctuation of each part."""
    return [part for each in by.split(text) if (part := each.strip(" :;,.()'`"))]


def _is_printed(fragment: str) -> bool:
    """Return whether the product prints this fragment, or all of its parts."""
    texts = product_texts()
    if fragment in texts:
        return True
    parts = _split(_AGREEING, fragment)
    return any(len(part) >= _FRAGMENT_CHARS_MIN for part in parts) and all(part in texts for part in parts)
