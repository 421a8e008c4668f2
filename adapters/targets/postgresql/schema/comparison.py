"""Comparison of a table's expected objects with those at the target; pure (VENUS 3.4). Each difference has a statement.

`venus status` lists what has changed at the source since a table was created (besides.py). The cut-over lists every
difference and refuses if the target guarantees less than the source (cutover/promises.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

#: (kind, name).
Place = tuple[str, str]
#: Definitions of the objects of a table.
Here = Mapping[Place, str]
#: Kinds of objects that share a name space. The name of an index, a check, a foreign key or a key is arbitrary.
INDEX, CHECK, REFERENCE, REQUIRED, KEY = "i", "c", "f", "n", "k"
COLUMN, TYPE, DEFAULT, NUMBERING = "column", "type", "default", "numbering"
_UNNAMED = frozenset({INDEX, CHECK, REFERENCE, KEY})


class Problem(Enum):
    """The ways in which a part of a table may differ."""

    MISSING = "is missing"
    ALTERED = "is another one"
    EXTRA = "is not at the source"


class Sort(Enum):
    """The sorts of parts of a table."""

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
#: (sort, problem) -> whether the target then guarantees less than the source, which forbids a cut-over.
#: Any other pair is no difference.
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
    """An index, a check, a foreign key, a column's NOT NULL or the like in one version of a table."""

    kind: str
    sort: Sort
    shown: str  # for messages
    name: str
    #: All names that a load may have given it, because its own name was in use.
    names: frozenset[str]
    #: The definition in the form of the target's dictionary; empty = unknown.
    definition: str
    add: str
    drop: str = ""

    def is_in(self, parts: Sequence[Part]) -> bool:
        """Return whether another version has the same object."""
        return any((p.kind, p.name, p.add) == (self.kind, self.name, self.add) for p in parts)


NONE: Mapping[Place, Part] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of a table that differs; `definition` is the target's under its name."""

    part: Part
    problem: Problem
    statement: str
    definition: str = ""

    @property
    def blocks(self) -> bool:
        """Whether the target guarantees less than the source."""
        return RULES[self.part.sort, self.problem]


def compare(parts: Sequence[Part], here: Here, others: Mapping[Place, Part] = NONE, *, exact: bool) -> list[Difference]:
    """Return the differing parts in their order, then those that only the target has.

    A part is found by its definition, otherwise by its name. `others` are parts that only the target may have. `exact`
    means that definitions are in the form of this target's dictionary; otherwise a part also counts as present under a
    name that a load may have given it.
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
    """Return the place of an equal definition: under the part's own name first, or any name if names are arbitrary."""
    if not part.definition:
        return None
    own = [(part.kind, name) for name in (part.name, *sorted(part.names))]
    others = [place for place in left if place[0] == part.kind] if part.kind in _UNNAMED else []
    return next((place for place in (*own, *others) if left.get(place) == part.definition), None)


def _difference(part: Part, problem: Problem, statement: str, definition: str = "") -> Difference:
    return Difference(part=part, problem=problem, statement=statement, definition=definition)
