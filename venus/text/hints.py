"""Hints for mistakes: the known name nearest to an unknown one, and the line of an option in a TOML file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from venus.errors import ConfigError


def find_option_line(text: str, path: list[str]) -> int:
    """Return the line of a TOML key or of the section nearest to it, 0 if there is none."""
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


def suggest_nearest(name: str, known: Iterable[str], *, prefix: str = "", in_full: bool = False) -> str:
    """Return ` (did you mean orders?)`, or nothing; upper and lower case are equal.

    A table may be named without its schema; `in_full` suggests it with its schema nevertheless.
    """
    candidates: dict[str, str] = {}
    for full in known:
        short = full.partition(".")[2] or full
        candidates |= {short.upper(): full if in_full else short, full.upper(): full}
    found = difflib.get_close_matches(name.upper(), candidates, n=1, cutoff=0.5)
    return f" (did you mean {prefix}{candidates[found[0]]}?)" if found else ""


def find_named_table(name: str, tables: Seq[tuple[str, ...]], target: str) -> str:
    """Return the first name of the one table that has the name `name`. Raises ConfigError for none and for several."""
    found = [names[0] for names in tables if name in names]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name!r} matches more than one table: write {' or '.join(found)}")
    known = [names[0] for names in tables]
    hint = "its tables: " + ", ".join(sorted(known)[:12]) if known else f"run `venus migrate --target {target}`"
    raise ConfigError(f"target {target} has no table {name!r}{suggest_nearest(name, known)}", hint=hint)
