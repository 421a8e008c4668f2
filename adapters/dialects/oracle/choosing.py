"""Which of the listed tables are captured: patterns, VENUS's own tables left out."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from venus.adapters.dialects.oracle.tables import Listed
from venus.adapters.dialects.patterns import Patterns, choosing_nothing


def chosen(listed: Seq[Listed], include: Seq[str], exclude: Seq[str]) -> list[Listed]:
    """Return the tables to capture, without VENUS's own."""
    included, excluded = Patterns(map(_spelled, include)), Patterns(map(_spelled, exclude))
    return [
        t
        for t in application(listed)
        if not t.kind.left_out and included.match(*spellings(t)) and not excluded.match(*spellings(t))
    ]


def left_out(listed: Seq[Listed], include: Seq[str], exclude: Seq[str]) -> list[Listed]:
    """Return the tables that the patterns choose and that hold no rows of the application's own."""
    ordinary = [replace(t, kind=replace(t.kind, left_out="")) for t in listed if t.kind.left_out]
    names = {(t.owner, t.name) for t in chosen(ordinary, include, exclude)}
    return [t for t in listed if (t.owner, t.name) in names]


def application(listed: Seq[Listed]) -> list[Listed]:
    """Leave out VENUS's own tables."""
    return [t for t in listed if not t.is_own]


def spellings(listed: Listed) -> tuple[str, ...]:
    """Return what patterns are compared with: /TABLE and OWNER.TABLE; upper and lower case count as the same."""
    return f"/{listed.name}".upper(), f"{listed.owner}.{listed.name}".upper()


def unmatched(listed: Seq[Listed], patterns: Seq[str]) -> list[str]:
    """Return the patterns that choose nothing: most likely misspelt."""
    return choosing_nothing(patterns, map(spellings, application(listed)), spelled=_spelled)


def _spelled(pattern: str) -> str:
    """Return a pattern as it is compared; without a dot it is about tables of any owner."""
    return pattern.upper() if "." in pattern else f"/{pattern}".upper()
