"""Lists of name patterns with wildcards, as in the options `tables` and `exclude`. Pure.

A list may name each of thousands of tables: plain names are looked up in a set, wildcards form one expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from fnmatch import translate

_WILD = re.compile(r"[*?\[]")


class Patterns:
    """A list of patterns, compiled once for any number of names."""

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = list(patterns)
        self._plain = frozenset(p for p in patterns if not _WILD.search(p))
        wild = "|".join(translate(p) for p in patterns if _WILD.search(p))
        self._wild = re.compile(wild) if wild else None

    def match(self, *names: str) -> bool:
        """Whether one of the patterns matches one of the names of a table."""
        if not self._plain.isdisjoint(names):
            return True
        return self._wild is not None and any(map(self._wild.match, names))


def exact_pattern(name: str) -> str:
    """Return the pattern that matches only this name."""
    return _WILD.sub(r"[\g<0>]", name)


def find_useless_patterns(
    patterns: Iterable[str], names: Iterable[Seq[str]], *, normalise: Callable[[str], str] = lambda pattern: pattern
) -> list[str]:
    """Return the patterns that match none of the names of any table: most likely they are misspelt.

    `spelled` converts a pattern into the form that the dialect compares.
    """
    known = {name for table in names for name in table}

    def chooses(form: str) -> bool:
        return any(map(re.compile(translate(form)).match, known)) if _WILD.search(form) else form in known

    return [pattern for pattern in patterns if not chooses(normalise(pattern))]
