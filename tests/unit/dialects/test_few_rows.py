"""Few rows of a PostgreSQL source are passed on in one block, unless a section would be too large."""

from __future__ import annotations

from typing import Any

import pytest

from venus.adapters.dialects.postgresql import rows as copy_stream
from venus.adapters.dialects.postgresql.capture.cut import parse_row


def blocks(*values: tuple[str | None, ...], rows_max: int = 100, bytes_max: int = 100) -> list[bytes]:
    with copy_stream.FewRows(values) as rows:
        return list(rows.blocks(rows_max=rows_max, bytes_max=bytes_max))


def test_few_small_rows_are_one_block_without_a_search_for_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_on_search(*_: Any, **__: Any) -> None:
        pytest.fail("this takes as long as all the rest of reading one row")

    monkeypatch.setattr("numpy.flatnonzero", fail_on_search)
    assert blocks(("f", "1", "a\tb"), ("t", "2", None)) == [b"f\t1\ta\\tb\nt\t2\t\\N\n"]
    assert blocks() == []


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"rows_max": 2}, [b"1\n2\n", b"3\n"]), ({"bytes_max": 3}, [b"1\n", b"2\n", b"3\n"])],
)
def test_rows_too_large_for_one_section_are_divided(limits: dict[str, int], expected: list[bytes]) -> None:
    assert blocks(("1",), ("2",), ("3",), **limits) == expected


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("(f,108,all)", ["f", "108", "all"]),
        ("(t,1,)", ["t", "1", None]),
        ("(,,)", [None, None, None]),
        ('(f,"",)', ["f", "", None]),
        ('(f,"a, ""b"" c",d)', ["f", 'a, "b" c', "d"]),
        (r'(f,"\\","""","(")', ["f", "\\", '"', "("]),
        ('(f,"two\nlines",)', ["f", "two\nlines", None]),
        ('(f,"""",",")', ["f", '"', ","]),
    ],
)
def test_the_text_of_a_row_contains_its_values(row: str, values: list[str | None]) -> None:
    assert parse_row(row) == values
