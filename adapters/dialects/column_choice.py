"""The choice of captured tables and columns by patterns: `tables`, `exclude` and `[source.columns]`. Pure.

The patterns may name thousands of tables: plain names are looked up in a set, and all wildcards form one regular
expression.

VENUS neither reads nor compares an excluded column, and does not create it at a target. Indexes, checks and foreign
keys that need an excluded column are left out too. The table's schema lists everything that no target gets as
`LeftOut`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any, Protocol

from venus.model import Check, Finding, ForeignKey, Index, LeftOut

_WILD = re.compile(r"[*?\[]")


class Patterns:
    """A list of name patterns with wildcards, compiled once to match many names."""

    def __init__(self, patterns: Iterable[str]) -> None:
        patterns = list(patterns)
        self._plain = frozenset(p for p in patterns if not _WILD.search(p))
        wild = "|".join(translate(p) for p in patterns if _WILD.search(p))
        self._wild = re.compile(wild) if wild else None

    def match(self, *names: str) -> bool:
        """Whether any pattern matches any of these names, which are forms of the name of one table or column."""
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

    `normalise` converts a pattern into the form that the dialect compares.
    """
    known = {name for table in names for name in table}

    def has_match(pattern: str) -> bool:
        return any(map(re.compile(translate(pattern)).match, known)) if _WILD.search(pattern) else pattern in known

    return [pattern for pattern in patterns if not has_match(normalise(pattern))]


EXCLUDED = "excluded in [source.columns]"
#: The remedy for a column that cannot be carried.
WAY_OUT = "exclude the column in [source.columns] exclude, or the table in [source] exclude"
_TEXT = re.compile(r"'(?:[^']|'')*'")
_NAME = re.compile(r'"((?:[^"]|"")*)"|(\w+)')


class _Settings(Protocol):
    """The configuration; this module reads only [source.columns]."""

    @property
    def source(self) -> Any: ...


def column_pattern_names(namespace: str, table: str, column: str) -> tuple[str, str]:
    """Return the two names by which a pattern can match a column: with and without the namespace."""
    return f"{namespace}.{table}.{column}", f"{table}.{column}"


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """The columns that `[source.columns]` excludes from capture; `include` overrides `exclude`."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    _included: Patterns = field(init=False, repr=False, compare=False)
    _excluded: Patterns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_included", Patterns(self.include))
        object.__setattr__(self, "_excluded", Patterns(self.exclude))

    @classmethod
    def from_settings(cls, settings: _Settings) -> ColumnChoice:
        """Return the choice that `[source.columns]` of the configuration makes."""
        return cls(settings.source.columns.include, settings.source.columns.exclude)

    def excludes(self, namespace: str, table: str, column: str) -> bool:
        """Whether this choice excludes a column from capture."""
        names = column_pattern_names(namespace, table, column)
        return self._excluded.match(*names) and not self._included.match(*names)

    def excluded_columns(self, namespace: str, table: str, columns: Iterable[tuple[str, str]]) -> tuple[LeftOut, ...]:
        """Return the excluded columns of a table; `columns` has pairs of name and declared type."""
        if not self.exclude:
            return ()
        return tuple(
            LeftOut(what="column", name=name, definition=declared, reason=EXCLUDED)
            for name, declared in columns
            if self.excludes(namespace, table, name)
        )

    def findings(self, columns: Iterable[tuple[str, str, str]]) -> Iterator[Finding]:
        """Yield a finding for each pattern without a match; `columns` has (namespace, table, column) of all tables."""
        if not (self.include or self.exclude):
            return
        known = [column_pattern_names(*names) for names in columns]
        for pattern in (*self.include, *self.exclude):
            if not any(Patterns([pattern]).match(*names) for names in known):
                message = f"{pattern!r} matches no column of a captured table"
                yield Finding(where="[source.columns]", message=message, remedy="write TABLE.COLUMN", blocks=True)


NO_CHOICE = ColumnChoice()


def split_by_columns(
    gone: frozenset[str], indexes: Seq[Index], checks: Seq[Check], keys: Seq[ForeignKey]
) -> tuple[tuple[Index, ...], tuple[Check, ...], tuple[ForeignKey, ...], tuple[LeftOut, ...]]:
    """Return the indexes, checks and foreign keys that need no column of `gone`, and the others as left out."""
    kept_indexes = tuple(i for i in indexes if not _index_mentions(i, gone))
    lost = (i for i in indexes if i not in kept_indexes)
    left = [_left_out("index", i.name, i.definition or f"({', '.join(i.columns)})") for i in lost]
    left += [_left_out("check constraint", c.name, c.sql) for c in checks if mentions(c.sql, gone)]
    left += [
        _left_out("foreign key", k.name, f"({', '.join(k.columns)})") for k in keys if not gone.isdisjoint(k.columns)
    ]
    return (
        kept_indexes,
        tuple(c for c in checks if not mentions(c.sql, gone)),
        tuple(k for k in keys if gone.isdisjoint(k.columns)),
        tuple(left),
    )


def mentions(expression: str, names: Collection[str]) -> bool:
    """Whether an SQL expression names one of these columns."""
    found = (quoted.replace('""', '"') or bare for quoted, bare in _NAME.findall(_TEXT.sub("", expression)))
    return any(name in names for name in found)


def _index_mentions(index: Index, gone: Collection[str]) -> bool:
    return any(column in gone for column in index.columns) or mentions(index.definition, gone)


def _left_out(what: str, name: str, definition: str) -> LeftOut:
    """Return the record of an object that no target gets because it needs an excluded column."""
    why = "it has a column that is not carried"
    return LeftOut(what=what, name=name, definition=definition, reason=why)
