"""Many random histories of a table: the rows that full.py stores must equal the source's.

Batches arrive in order, or doubled and reordered; the fast path is used exactly when the materialiser would use it.
Truncates and sweeps are part of the history. If a rule is removed, the same histories must end wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.engines.stored import HEAD
from venus.broker.machine import folding
from venus.broker.machine.folding import ChangeSection, StoredKind, WrittenKind
from venus.codec.batch import EMPTY
from venus.codec.packed import PackedBytes, pack_items
from venus.codec.stored_rows import StoredRows
from venus.model import ChangeKind

#: `make test-all` runs forty times as many.
HISTORIES = 50
TABLE = 1


@dataclass
class History:
    """The source's changes, as the sections that capture made of them, and the source's final rows."""

    sections: list[ChangeSection]
    rows: dict[bytes, bytes]


def history(rng: random.Random, *, markers: bool) -> History:
    rows: dict[bytes, bytes] = {}
    sections: list[ChangeSection] = []
    sequence = 1
    while len(sections) < 25:
        if markers and rng.random() < 0.08:
            rows.clear()
            sections.append(marker(ChangeKind.TRUNCATE, sequence))
            sequence += 1
        elif markers and rng.random() < 0.08:
            sequence = sweep(rng, rows, sections, sequence)
        else:
            changes = [change(rng, rows) for _ in range(rng.randrange(1, 8))]
            sections.append(section(sequence, changes))
            sequence += len(changes)
    return History(sections, rows)


def change(rng: random.Random, rows: dict[bytes, bytes]) -> tuple[bytes, bytes | None]:
    record_id = b"%02d" % rng.randrange(20)
    if record_id in rows and rng.random() < 0.4:
        del rows[record_id]
        return record_id, None
    rows[record_id] = b"v%d" % rng.randrange(10**6)
    return record_id, rows[record_id]


def sweep(rng: random.Random, rows: dict[bytes, bytes], sections: list[ChangeSection], begin: int) -> int:
    """Read a table again from which rows vanished without a deletion."""
    sections.append(marker(ChangeKind.SWEEP_BEGIN, begin))
    for record_id in [r for r in rows if rng.random() < 0.5]:
        del rows[record_id]
    sequence = begin + 1
    if rows:
        sections.append(section(sequence, list(rows.items())))
        sequence += len(rows)
    sections.append(marker(ChangeKind.SWEEP_END, sequence, sweep_before=begin))
    return sequence + 1


def section(first: int, changes: Sequence[tuple[bytes, bytes | None]]) -> ChangeSection:
    return ChangeSection(
        table_id=TABLE,
        schema_version=1,
        kind=ChangeKind.CHANGES,
        first_sequence=first,
        count=len(changes),
        record_ids=PackedBytes.of(record_id for record_id, _ in changes),
        rows=PackedBytes.of(row or b"" for _, row in changes),
        is_deleted=bytes(row is None for _, row in changes),
    )


def marker(kind: ChangeKind, sequence: int, sweep_before: int = 0) -> ChangeSection:
    return ChangeSection(
        table_id=TABLE,
        schema_version=1,
        kind=kind,
        first_sequence=sequence,
        count=1,
        record_ids=EMPTY,
        rows=EMPTY,
        is_deleted=b"",
        sweep_before=sweep_before,
    )


def in_order(_rng: random.Random, sections: list[ChangeSection]) -> list[ChangeSection]:
    return sections


def resent(rng: random.Random, sections: list[ChangeSection]) -> list[ChangeSection]:
    out: list[ChangeSection] = []
    for i, each in enumerate(sections):
        out.append(each)
        if rng.random() < 0.2:
            out += sections[max(0, i - rng.randrange(1, 6)) : i + 1]
    return out


def reorder_sections(rng: random.Random, sections: list[ChangeSection]) -> list[ChangeSection]:
    late = [(i + rng.random() * 6, each) for i, each in enumerate(resent(rng, sections))]
    return [each for _, each in sorted(late, key=lambda pair: pair[0])]


class Table:
    """The column family `row` of one table, with the materialiser's choice of the write path."""

    def __init__(self, *, always_compare: bool = False, always_blind: bool = False) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.floor = 0
        self.sequence = 0
        self._always_compare = always_compare
        self._always_blind = always_blind

    def take(self, each: ChangeSection) -> None:
        blind = (each.first_sequence > self.sequence or self._always_blind) and not self._always_compare
        effect = folding.fold_section(each, b"", self.floor, None if blind else self._look_up)
        if effect.clear:
            self.stored.clear()
        self.stored.update(zip(effect.keys, effect.values, strict=True))
        self.floor = effect.floor
        self.sequence = max(self.sequence, each.first_sequence + each.count - 1)

    def rows(self) -> dict[bytes, bytes]:
        if not self.stored:
            return {}
        found = StoredRows(pack_items(list(self.stored.values())))
        assert found.record_ids.split() == list(self.stored), "a value names its own key"
        living = found.select(found.find_live(self.floor))
        return dict(zip(living.record_ids.split(), living.rows.split(), strict=True))

    def _look_up(self, record_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        return {record_id: self.stored[record_id] for record_id in record_ids if record_id in self.stored}


Deliver = Callable[[random.Random, list[ChangeSection]], list[ChangeSection]]


def count_wrong_histories(deliver: Deliver, n: int, *, markers: bool = True, **options: Any) -> int:
    """Return how many of `n` histories end in other rows than the source has."""
    found = 0
    for seed in range(n):
        rng = random.Random(seed)
        what = history(rng, markers=markers)
        table = Table(**options)
        for each in deliver(rng, what.sections):
            table.take(each)
        found += table.rows() != what.rows
    return found


@pytest.mark.parametrize("histories", [HISTORIES, pytest.param(40 * HISTORIES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("deliver", [in_order, resent, reorder_sections])
@pytest.mark.parametrize("always_compare", [False, True], ids=["as it comes", "compare path only"])
def test_the_full_data_equals_the_source(deliver: Deliver, always_compare: bool, histories: int) -> None:
    assert count_wrong_histories(deliver, histories, always_compare=always_compare) == 0


def test_both_paths_store_the_same_bytes() -> None:
    for seed in range(200):
        what = history(random.Random(seed), markers=False)
        fast, slow = Table(), Table(always_compare=True)
        for each in what.sections:
            fast.take(each)
            slow.take(each)
        assert fast.stored == slow.stored


def test_without_the_comparison_late_changes_replace_newer_ones() -> None:
    assert count_wrong_histories(reorder_sections, 200, always_blind=True) > 0


def test_without_tombstones_deleted_rows_reappear(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Table.take

    def take_without_tombstones(self: Table, each: ChangeSection) -> None:
        take(self, each)
        self.stored = {k: v for k, v in self.stored.items() if not HEAD.unpack_from(v)[2] & 1}

    monkeypatch.setattr(Table, "take", take_without_tombstones)

    assert count_wrong_histories(reorder_sections, 200, markers=False) > 0


def test_without_the_floor_truncated_rows_reappear(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = folding.fold_section
    monkeypatch.setattr(
        folding, "fold_section", lambda each, prefix, _floor, stored: replace(fold(each, prefix, 0, stored), floor=0)
    )

    assert count_wrong_histories(reorder_sections, 200) > 0


def test_the_papers_table_3_is_wrong_even_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 3 as printed in the paper ignores the update of an existing row."""
    printed = {**folding._RULES, (False, StoredKind.ROW): WrittenKind.NOTHING}
    monkeypatch.setattr(folding, "_RULES", printed)

    assert count_wrong_histories(in_order, 200, markers=False, always_compare=True) == 200


@pytest.mark.parametrize("equal", [True, False], ids=["equal sizes", "different sizes"])
def test_rows_are_split_at_their_ends(equal: bool) -> None:
    rows = [b"aa", b"bb", b"cc"] if equal else [b"", b"bbb", b"c"]
    each = replace(section(5, [(b"1", b""), (b"2", b""), (b"3", b"")]), rows=PackedBytes.of(rows))

    values = folding.encode_values(each)

    assert values == [HEAD.pack(5 + i, 1, 0, 1) + b"%d" % (i + 1) + row for i, row in enumerate(rows)]


def test_rows_under_the_floor_and_old_tombstones_are_garbage() -> None:
    values = folding.encode_values(section(10, [(b"a", b"x"), (b"b", None), (b"c", b"x"), (b"d", None)]))

    assert folding.find_garbage(values, floor=10, forget_below=0) == [0]
    assert folding.find_garbage(values, floor=0, forget_below=13) == [1]
    assert folding.find_garbage(values, floor=0, forget_below=14) == [1, 3]
