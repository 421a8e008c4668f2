"""Where an option stands in a TOML file, so that a message can name the line."""

from __future__ import annotations

import re


def line_of(text: str, path: list[str]) -> int:
    """Find the line where a TOML key or the section nearest to it is written, 0 if nowhere."""
    section: list[str] = []
    best, best_depth = 0, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            section = here = _key_parts(header[1])
        elif key := re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*'|\s*\.\s*)+?)\s*=""", line):
            here = section + _key_parts(key[1])
        else:
            continue
        depth = len(here) if here == path[: len(here)] else 0
        if depth > best_depth:
            best, best_depth = number, depth
    return best


def _key_parts(dotted: str) -> list[str]:
    return [a or b or c for a, b, c in re.findall(r"""([\w-]+)|"([^"]*)"|'([^']*)'""", dotted)]
