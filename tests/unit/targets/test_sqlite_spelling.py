"""Values that are carried back to a SQLite file have the spelling of their column."""

from __future__ import annotations

from typing import Any

import pytest

from venus.adapters.dialects.sqlite.dictionary.types import declared_type
from venus.adapters.dialects.sqlite.rows import value_rule
from venus.adapters.targets.sqlite.spelling import find_spelling, list_spellings
from venus.model import Column, Kind

ID = "00000000-0000-0000-0000-00000000000a"
#: A declared type, the values of a column, a canonical text, and its expected spelling there.
COLUMNS: list[tuple[str, list[Any], str, Any]] = [
    (
        "DATETIME",
        ["2026-01-01 10:00:00", "2026-01-01 10:00:00.500000"],
        "2026-02-01 00:00:00.25",
        "2026-02-01 00:00:00.250000",
    ),
    ("DATETIME", ["2026-01-01 10:00:00.000000"], "2026-02-01 00:00:00", "2026-02-01 00:00:00.000000"),
    ("DATETIME", ["2026-01-01T10:00:00.000Z"], "2026-02-01 00:00:00.25", "2026-02-01T00:00:00.250Z"),
    ("DATETIME", ["2026-01-01T10:00:00.000Z"], "2026-02-01 00:00:00.123456", "2026-02-01T00:00:00.123456Z"),
    ("TIMESTAMPTZ", ["2026-01-01T10:00:00+00:00"], "2026-02-01 00:00:00+00", "2026-02-01T00:00:00+00:00"),
    ("TIME", ["10:00:00.500"], "11:00:00", "11:00:00.000"),
    ("BOOLEAN", ["false", "true"], "t", "true"),
    ("BOOLEAN", [0], "t", 1),
    ("UUID", ["0123456789ABCDEF0123456789ABCDEF"], ID, "0000000000000000000000000000000A"),
    ("UUID", [bytes(range(16))], ID, bytes([0] * 15 + [10])),
    ("DECIMAL(10,2)", [1, 0.1], "2.00", 2),
    ("DECIMAL(10,2)", [1, 0.1], "2.50", 2.5),
]


@pytest.mark.parametrize(("declared", "stored", "text", "spelled"), COLUMNS)
def test_a_column_keeps_its_spelling(declared: str, stored: list[Any], text: str, spelled: Any) -> None:
    kind = declared_type(declared)
    assert kind is not None
    rule = value_rule(Column(name="v", number=1, type=kind, source_type=declared), in_key=False)
    known = [(value, rule.canonical_text(value)) for value in stored]
    found = find_spelling(list_spellings(kind.kind, declared), known)
    assert found.other is None
    assert [found.write(canonical) for _, canonical in known] == stored
    assert found.write(text) == spelled
    assert type(found.write(text)) is type(spelled)
    assert rule.canonical_text(spelled) == text


def test_a_column_with_several_spellings_is_named() -> None:
    values = [("2026-01-01T10:00:00", "2026-01-01 10:00:00"), ("2026-01-02 10:00:00", "2026-01-02 10:00:00")]
    found = find_spelling(list_spellings(Kind.TIMESTAMP, "DATETIME"), values)
    assert found.other == ("2026-01-02 10:00:00", "2026-01-02T10:00:00")
