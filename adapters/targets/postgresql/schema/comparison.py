"""Comparison of a table's expected objects with those at the target; pure (VENUS 3.4). Each difference has a statement.

`venus status` lists what has changed at the source since a table was created (table_objects.py). The cut-over lists
every difference and refuses if the target guarantees less than the source (cutover/guarantees.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

#: (kind, name).
ObjectPlace = tuple[str, str]
#: Definitions of the objects of a table.
ExistingObjects = Mapping[ObjectPlace, str]
#: Kinds of objects that share a name space. The name of an index, a check, a foreign key or a key is arbitrary.
INDEX, CHECK, REFERENCE, REQUIRED, KEY = "i", "c", "f", "n", "k"
COLUMN, TYPE, DEFAULT, NUMBERING = "column", "type", "default", "numbering"
_UNNAMED = frozenset({INDEX, CHECK, REFERENCE, KEY})


class ObjectProblem(Enum):
    """The ways in which a part of a table may differ."""

    MISSING = "is missing"
    ALTERED = "is another one"
    EXTRA = "is not at the source"


class ObjectSort(Enum):
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


_M, _A, _E = ObjectProblem.MISSING, ObjectProblem.ALTERED, ObjectProblem.EXTRA
#: (sort, problem) -> whether the target then guarantees less than the source, which forbids a cut-over.
#: Any other pair is no difference.
RULES: Mapping[tuple[ObjectSort, ObjectProblem], bool] = {
    (ObjectSort.COLUMN, _M): True,
    (ObjectSort.TYPE, _A): False,
    (ObjectSort.REQUIRED, _M): True,
    (ObjectSort.REQUIRED, _E): False,
    (ObjectSort.DEFAULT, _M): False,
    (ObjectSort.DEFAULT, _A): False,
    (ObjectSort.NUMBERING, _M): False,
    (ObjectSort.KEY, _M): True,
    (ObjectSort.UNIQUE, _M): True,
    (ObjectSort.UNIQUE, _A): True,
    (ObjectSort.UNIQUE, _E): False,
    (ObjectSort.INDEX, _M): False,
    (ObjectSort.INDEX, _A): False,
    (ObjectSort.INDEX, _E): False,
    (ObjectSort.CHECK, _M): True,
    (ObjectSort.CHECK, _A): True,
    (ObjectSort.CHECK, _E): False,
    (ObjectSort.REFERENCE, _M): True,
    (ObjectSort.REFERENCE, _A): True,
    (ObjectSort.REFERENCE, _E): False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableObject:
    """An index, a check, a foreign key, a column's NOT NULL or the like in one version of a table."""

    kind: str
    sort: ObjectSort
    shown: str  # for messages
    name: str
    #: All names that a load may have given it, because its own name was in use.
    names: frozenset[str]
    #: The definition in the form of the target's dictionary; empty = unknown.
    definition: str
    add: str
    drop: str = ""

    def is_in(self, parts: Sequence[TableObject]) -> bool:
        """Return whether another version has the same object."""
        return any((p.kind, p.name, p.add) == (self.kind, self.name, self.add) for p in parts)


NONE: Mapping[ObjectPlace, TableObject] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDifference:
    """A part of a table that differs; `definition` is the target's under its name."""

    part: TableObject
    problem: ObjectProblem
    statement: str
    definition: str = ""

    @property
    def blocks(self) -> bool:
        """Whether the target guarantees less than the source."""
        return RULES[self.part.sort, self.problem]


def compare_objects(
    parts: Sequence[TableObject],
    here: ExistingObjects,
    others: Mapping[ObjectPlace, TableObject] = NONE,
    *,
    exact: bool,
) -> list[ObjectDifference]:
    """Return the differing parts in their order, then those that only the target has.

    A part is found by its definition, otherwise by its name. `others` are parts that only the target may have. `exact`
    means that definitions are in the form of this target's dictionary; otherwise a part also counts as present under a
    name that a load may have given it.
    """
    left = dict(here)
    found, unmatched = [], []
    for part in parts:
        if (match := _find_equal(part, left)) is not None:
            del left[match]
        else:
            unmatched.append(part)
    for part in unmatched:
        known = left.pop((part.kind, part.name), None)
        if known is not None and part.definition:
            change = "; ".join(filter(None, (part.drop, part.add)))
            found.append(_difference(part, ObjectProblem.ALTERED, change, known))
        elif known is None and not (_may_be_there(part, left) and not (exact and part.definition)):
            found.append(_difference(part, ObjectProblem.MISSING, part.add))
    extra = [_difference(others[place], ObjectProblem.EXTRA, others[place].drop) for place in left if place in others]
    return [d for d in (*found, *extra) if (d.part.sort, d.problem) in RULES]


def _may_be_there(part: TableObject, left: ExistingObjects) -> bool:
    return any((part.kind, name) in left for name in part.names)


def _find_equal(part: TableObject, left: ExistingObjects) -> ObjectPlace | None:
    """Return the place of an equal definition: under the part's own name first, or any name if names are arbitrary."""
    if not part.definition:
        return None
    own = [(part.kind, name) for name in (part.name, *sorted(part.names))]
    others = [place for place in left if place[0] == part.kind] if part.kind in _UNNAMED else []
    return next((place for place in (*own, *others) if left.get(place) == part.definition), None)


def _difference(part: TableObject, problem: ObjectProblem, statement: str, definition: str = "") -> ObjectDifference:
    return ObjectDifference(part=part, problem=problem, statement=statement, definition=definition)
