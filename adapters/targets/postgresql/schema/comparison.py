"""Compares what a table should have with what it has at the target; pure (VENUS 3.4). Each difference has a statement.

Used by `venus status`, which says what has changed at the source since a table was made (besides.py), and by the
cut-over, which lists everything and refuses where the target promises less than the source (cutover/promises.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

#: (kind, name).
Place = tuple[str, str]
#: Definitions: what a table has.
Here = Mapping[Place, str]
#: Kinds: what shares a name space. Of an index, a check, a foreign key and a key, the name says nothing of what it is.
INDEX, CHECK, REFERENCE, REQUIRED, KEY = "i", "c", "f", "n", "k"
COLUMN, TYPE, DEFAULT, NUMBERING = "column", "type", "default", "numbering"
_UNNAMED = frozenset({INDEX, CHECK, REFERENCE, KEY})


class Problem(Enum):
    """How a part of a table differs."""

    MISSING = "is missing"
    ALTERED = "is another one"
    EXTRA = "is not at the source"


class Sort(Enum):
    """What a part of a table is."""

    COLUMN = "column"
    TYPE = "type"
    REQUIRED = "NOT NULL"
    DEFAULT = "default"
    NUMBERING = "numbering"
    KEY = "key"
    UNIQUE = "unique"
    INDEX = "index"
    CHECK = "check"
    REFERENCE = "foreign key"


_M, _A, _E = Problem.MISSING, Problem.ALTERED, Problem.EXTRA
#: (what, how it differs) -> whether the target then promises less than the source, which forbids a cut-over.
#: What is not in here is no difference.
RULES: Mapping[tuple[Sort, Problem], bool] = {
    (Sort.COLUMN, _M): True,
    (Sort.TYPE, _A): False,
    (Sort.REQUIRED, _M): True,
    (Sort.REQUIRED, _E): False,
    (Sort.DEFAULT, _M): False,
    (Sort.DEFAULT, _A): False,
    (Sort.NUMBERING, _M): False,
    (Sort.KEY, _M): True,
    (Sort.UNIQUE, _M): True,
    (Sort.UNIQUE, _A): True,
    (Sort.UNIQUE, _E): False,
    (Sort.INDEX, _M): False,
    (Sort.INDEX, _A): False,
    (Sort.INDEX, _E): False,
    (Sort.CHECK, _M): True,
    (Sort.CHECK, _A): True,
    (Sort.CHECK, _E): False,
    (Sort.REFERENCE, _M): True,
    (Sort.REFERENCE, _A): True,
    (Sort.REFERENCE, _E): False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An index, a check, a foreign key, a column's NOT NULL or the like, as one version of a table has it."""

    kind: str
    sort: Sort
    shown: str  # for people
    name: str
    #: What a load may have called it, where its own name was taken.
    names: frozenset[str]
    #: As the target's dictionary would say it; empty = that cannot be told.
    definition: str
    add: str
    drop: str = ""

    def is_in(self, parts: Sequence[Part]) -> bool:
        """Whether another version has it, just like this."""
        return any((p.kind, p.name, p.add) == (self.kind, self.name, self.add) for p in parts)


NONE: Mapping[Place, Part] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of a table that differs; `definition` = what the target has under its name."""

    part: Part
    problem: Problem
    statement: str
    definition: str = ""

    @property
    def blocks(self) -> bool:
        """Whether the target promises less than the source."""
        return RULES[self.part.sort, self.problem]


def compare(parts: Sequence[Part], here: Here, others: Mapping[Place, Part] = NONE, *, exact: bool) -> list[Difference]:
    """Return what differs, in the order of `parts`, then what only the target has.

    A part is found by its definition, else by its name. `others` = what the target may have and the source does not.
    `exact` = definitions are spelled as the dictionary of this target does; else a name that a load may have given to a
    part says that it is there.
    """
    left = dict(here)
    found, unmatched = [], []
    for part in parts:
        if (match := _equal(part, left)) is not None:
            del left[match]
        else:
            unmatched.append(part)
    for part in unmatched:
        known = left.pop((part.kind, part.name), None)
        if known is not None and part.definition:
            change = "; ".join(filter(None, (part.drop, part.add)))
            found.append(_difference(part, Problem.ALTERED, change, known))
        elif known is None and not (_may_be_there(part, left) and not (exact and part.definition)):
            found.append(_difference(part, Problem.MISSING, part.add))
    extra = [_difference(others[place], Problem.EXTRA, others[place].drop) for place in left if place in others]
    return [d for d in (*found, *extra) if (d.part.sort, d.problem) in RULES]


def _may_be_there(part: Part, left: Here) -> bool:
    return any((part.kind, name) in left for name in part.names)


def _equal(part: Part, left: Here) -> Place | None:
    """Return what is like the part: under its own name first, under another one where names say nothing."""
    if not part.definition:
        return None
    own = [(part.kind, name) for name in (part.name, *sorted(part.names))]
    others = [place for place in left if place[0] == part.kind] if part.kind in _UNNAMED else []
    return next((place for place in (*own, *others) if left.get(place) == part.definition), None)


def _difference(part: Part, problem: Problem, statement: str, definition: str = "") -> Difference:
    return Difference(part=part, problem=problem, statement=statement, definition=definition)
