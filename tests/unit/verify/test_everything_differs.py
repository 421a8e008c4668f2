"""If everything differs, a comparison reads and keeps no more than it shows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from venus.adapters.dialects.verify_contract import Buckets, Key, Slice, Subject
from venus.adapters.verify import slice_tasks
from venus.adapters.verify.rows import Row
from venus.adapters.verify.slice_tasks import ComparisonSide, OpenSides, Positions, SliceResult, SliceTask
from venus.adapters.verify.table_comparison import whole_slice
from venus.model import Column, LogicalType, TableSchema
from venus.model import Kind as Type

ROWS = 20_000
SCHEMA = TableSchema(
    table_id=1,
    version=1,
    namespace="main",
    name="t",
    key=("id",),
    columns=(
        Column(name="id", number=1, type=LogicalType(kind=Type.INT, length=8)),
        Column(name="v", number=2, type=LogicalType(kind=Type.TEXT)),
    ),
)


@dataclass
class _Side:
    """Rows of a given size, each with another value than on the other side."""

    value: str
    wide: int = 1
    rows_in_all: int = ROWS
    moved: int = 0
    repeated: dict[Key, int] = field(default_factory=dict)
    read: int = 0
    most_at_once: int = 0

    def buckets(self, part: Slice) -> Buckets:
        return {0: (self.rows_in_all, hash(self.value))}

    def hashes(self, part: Slice, buckets: Collection[int]) -> dict[Key, int]:
        return {(str(n),): hash((self.value, n)) for n in range(self.rows_in_all)}

    def rows(self, part: Slice, keys: Seq[Key]) -> dict[Key, Row]:
        self.read += len(keys)
        self.most_at_once = max(self.most_at_once, len(keys))
        return {key: (key[0], (self.value + key[0]) * self.wide) for key in keys}


def _compare(ours: _Side, theirs: _Side, differences_max: int) -> SliceResult:
    sides = {ComparisonSide.SOURCE: ours, ComparisonSide.TARGET: theirs}
    sessions = SimpleNamespace(side=lambda place, *_: sides[place], source=None)
    ends = SimpleNamespace(left=ComparisonSide.SOURCE, right=ComparisonSide.TARGET)
    more: dict[str, Any] = {"suspects_max": differences_max} if "suspects_max" in SliceTask.__dataclass_fields__ else {}
    task = SliceTask(ends=cast(Any, ends), subject=Subject(schema=SCHEMA), part=whole_slice(ROWS), **more)
    return slice_tasks._compare(task, cast(OpenSides, sessions), Positions(next_sequence=None, reached=None))


def test_a_slice_stops_after_the_reported_number_of_differences() -> None:
    ours, theirs = _Side("a"), _Side("b")

    found = _compare(ours, theirs, 100)

    assert 100 < len(found.suspects) <= 2_100
    assert found.cut_short
    assert ours.read <= 2_000
    assert found.rows == ROWS


def test_few_differences_of_a_slice_are_all_found() -> None:
    found = _compare(_Side("a", rows_in_all=5000), _Side("b", rows_in_all=5000), 5000)

    assert sorted(int(s.key[0]) for s in found.suspects) == list(range(5000))
    assert not found.cut_short


def test_wide_rows_that_all_differ_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_tasks, "SUSPECT_BYTES_MAX", 4 << 20, raising=False)
    ours, theirs = _Side("a", wide=200), _Side("b", wide=200)
    tracemalloc.start()
    found = _compare(ours, theirs, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert found.cut_short
    assert max(ours.most_at_once, theirs.most_at_once) <= 2_000
    assert peak < 24 << 20, "all of both sides are 45 MB"
