"""A comparison's conditions in SQL, in words that every database has, and the half of a reader that has no checksums.

See verifying.py for what is asked of a reader.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import NoReturn

from venus.adapters.dialects.verifying import Key, Slice, Subject

ALWAYS, NEVER = "1 = 1", "1 = 0"


def where_of(subject: Subject) -> str:
    """Return the condition that a row is to be compared at all."""
    return f"({subject.where})" if subject.where else ALWAYS


def range_condition(subject: Subject, key: str, part: Slice, buckets: Collection[int] | None) -> str:
    """Return the condition that a row lies in these buckets of a range slice; None = all. `key` is SQL."""
    return f"{where_of(subject)} AND ({' OR '.join(_between(key, *r) for r in part.ranges(buckets)) or NEVER})"


def _between(key: str, low: int | None, high: int | None) -> str:
    conditions = [f"{key} >= {low}"] * (low is not None) + [f"{key} < {high}"] * (high is not None)
    return f"({' AND '.join(conditions) or ALWAYS})"


class ReadsRows:
    """A reader whose database is asked for no checksums: rows are read, and summed up by whoever compares."""

    pushes_down = False

    def buckets(self, subject: Subject, part: Slice) -> NoReturn:
        _not_asked(subject)

    def hashes(self, subject: Subject, part: Slice, buckets: Collection[int]) -> NoReturn:
        _not_asked(subject)

    def forms(self, subject: Subject, keys: Seq[Key]) -> NoReturn:
        _not_asked(subject)


def _not_asked(subject: Subject) -> NoReturn:
    raise AssertionError(f"{subject.schema.qualified}: no checksum is asked of this database")
