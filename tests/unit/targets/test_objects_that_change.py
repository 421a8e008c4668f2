"""Objects of a target's table are read while another session alters the table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from venus.adapters.targets.postgresql.naming import PlacedTable
from venus.adapters.targets.postgresql.schema.table_objects import READ_ATTEMPTS_MAX, read_objects
from venus.adapters.targets.postgresql.session import TargetSession
from venus.errors import TargetError

PLACED = cast(PlacedTable, SimpleNamespace(sql="public.orders"))


class Session:
    """A session in which an index is replaced during the first reads."""

    def __init__(self, failures: int, text: str) -> None:
        self.failures, self.text, self.reads = failures, text, 0

    def rows(self, text: str, params: object = None) -> list[tuple[Any, ...]]:
        self.reads += 1
        if self.reads <= self.failures:
            raise TargetError(f"target main: {self.text} (XX000)")
        return [("i", "orders_day", "INDEX ON orders (day)"), ("c", "dropped_meanwhile", None)]


def read(session: Session) -> dict[tuple[str, str], str]:
    return read_objects(cast(TargetSession, session), PLACED)


def test_a_read_during_a_change_is_repeated() -> None:
    session = Session(2, "cache lookup failed for attribute 1 of relation 64405")

    assert list(read(session)) == [("i", "orders_day")]
    assert session.reads == 3


@pytest.mark.parametrize(
    ("text", "reads"), [("cache lookup failed for index 7", READ_ATTEMPTS_MAX), ("permission denied", 1)]
)
def test_a_repeated_error_is_raised(text: str, reads: int) -> None:
    session = Session(99, text)

    with pytest.raises(TargetError, match=text):
        read(session)
    assert session.reads == reads
