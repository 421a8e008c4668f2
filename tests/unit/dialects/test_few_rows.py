"""Few rows of a PostgreSQL source: handed on as they are, unless a section would be too large."""

from __future__ import annotations

from typing import Any, cast

import pytest

from venus.adapters.dialects.postgresql import stream
from venus.adapters.dialects.postgresql.connection import Connection


class Answers:
    """A connection that has read these rows."""

    def __init__(self, *rows: tuple[str | None, ...]) -> None:
        self._rows = list(rows)

    def texts(self, _: str) -> list[tuple[str | None, ...]]:
        return self._rows


def blocks(answers: Answers, *, rows_max: int = 100, bytes_max: int = 100) -> list[bytes]:
    with stream.FewRows(cast("Connection", answers), "EXECUTE it") as rows:
        return list(rows.blocks(rows_max=rows_max, bytes_max=bytes_max))


def test_few_small_rows_are_one_block_and_nobody_looks_for_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*_: Any, **__: Any) -> None:
        pytest.fail("this takes as long as all the rest of reading one row")

    monkeypatch.setattr("numpy.flatnonzero", looked)
    assert blocks(Answers(("f", "1", "a\tb"), ("t", "2", None))) == [b"f\t1\ta\\tb\nt\t2\t\\N\n"]
    assert blocks(Answers()) == []


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"rows_max": 2}, [b"1\n2\n", b"3\n"]), ({"bytes_max": 3}, [b"1\n", b"2\n", b"3\n"])],
)
def test_what_is_too_much_for_a_section_is_divided(limits: dict[str, int], expected: list[bytes]) -> None:
    assert blocks(Answers(("1",), ("2",), ("3",)), **limits) == expected
