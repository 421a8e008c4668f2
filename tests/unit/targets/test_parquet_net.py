"""The net effect of changes on a state: the last one of each key, markers, and only changes newer than the state."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.brokers.feed import INT, TEXT, column, table
from venus.adapters.targets.parquet import refresh
from venus.adapters.targets.parquet.files import folder_name, root_folder, state_schema
from venus.adapters.targets.parquet.lake_stream import REFRESH_PART, WAITING_MAX, RefreshSchedule
from venus.adapters.targets.parquet.refresh import (
    LakeNetChanges,
    can_convert,
    compute_net_changes,
    live_rows,
    untouched_rows,
)
from venus.codec.arrow_rows import CHANGE_FIELDS, DELETED, GONE_BEFORE, OFFSET, SEQUENCE, ArrowShape
from venus.model import Kind, LogicalType

INT4 = LogicalType(kind=Kind.INT, length=4)
SCHEMA = table(1, "t", column(1, "id", INT), column(2, "v", TEXT))
SHAPE = ArrowShape.of(SCHEMA)


def changes(*rows: tuple[int, int | None, str | None, bool, int | None]) -> pa.Table:
    """Build changes given as offset (the sequence is ten more), key, value, deleted, gone before."""
    columns = list(zip(*rows, strict=True))
    own = [columns[0], [o + 10 for o in columns[0]], columns[3], columns[4], [None] * len(rows)]
    schema = pa.schema([*CHANGE_FIELDS, *SHAPE.fields])
    values = [*own, columns[1], columns[2]]
    return pa.table([pa.array(v, f.type) for v, f in zip(values, schema, strict=True)], schema=schema)


def net_changes(
    base_offset: int, *rows: tuple[int, int | None, str | None, bool, int | None]
) -> tuple[LakeNetChanges, pa.Table]:
    """Return the net changes and the resulting rows; the changes are in two files."""
    all_ = changes(*rows)
    found = compute_net_changes(
        all_.select([*SCHEMA.key, *(f.name for f in CHANGE_FIELDS)]), SCHEMA.key, base_offset=base_offset
    )
    parts = [all_.slice(0, 1), all_.slice(1)]
    return found, pa.concat_tables([state_schema(SHAPE).empty_table(), *live_rows(parts, found, SHAPE)])


def state(*rows: tuple[int, str, int]) -> pa.Table:
    schema = state_schema(SHAPE)
    columns = zip(*rows, strict=True)
    return pa.table([pa.array(v, f.type) for v, f in zip(columns, schema, strict=True)], schema=schema)


def test_the_last_change_of_a_key_counts_and_other_rows_are_unchanged() -> None:
    found, live = net_changes(0, (0, 1, "a", False, None), (1, 2, "b", False, None), (2, 1, None, True, None))

    assert live.to_pylist() == [{"id": 2, "v": "b", "_sequence": 11}]
    kept = untouched_rows(state((1, "old", 1), (2, "old", 2), (3, "old", 3)), found)
    assert kept["id"].to_pylist() == [3]


def test_changes_within_the_state_do_not_count() -> None:
    found, live = net_changes(5, (4, 1, "older than the state", False, None), (5, 2, "b", False, None))

    assert live["id"].to_pylist() == [2]
    assert untouched_rows(state((1, "newer", 30)), found).num_rows == 1


def test_a_marker_removes_older_rows_in_every_file() -> None:
    found, live = net_changes(0, (0, 1, "a", False, None), (1, None, None, True, 11), (2, 3, "c", False, None))

    assert live["id"].to_pylist() == [3]
    assert untouched_rows(state((7, "old", 10), (8, "met by the sweep", 11)), found)["id"].to_pylist() == [8]


@pytest.mark.parametrize(
    ("columns", "key", "expected"),
    [
        ((column(1, "id", INT), column(2, "w", TEXT), column(3, "new", TEXT)), ("id",), True),
        ((column(1, "id", INT),), ("id",), True),
        ((column(1, "id", INT), column(2, "v", INT4)), ("id",), False),
        ((column(1, "id", INT), column(2, "v", TEXT)), ("v",), False),
        ((column(1, "id", INT4), column(2, "v", TEXT)), ("id",), False),
        ((column(1, "id", LogicalType(kind=Kind.DECIMAL, precision=19)), column(2, "v")), ("id",), True),
        ((column(1, "id", LogicalType(kind=Kind.DECIMAL, precision=18)), column(2, "v")), ("id",), False),
    ],
)
def test_a_state_follows_its_table_while_nothing_is_lost(columns: tuple, key: tuple, expected: bool) -> None:  # type: ignore[type-arg]
    assert can_convert(SHAPE, ArrowShape.of(replace(SCHEMA, version=2, columns=columns, key=key))) is expected


def test_states_are_rebuilt_in_turn_and_not_all_the_time() -> None:
    refreshes = RefreshSchedule(60.0)

    assert refreshes.due_table({1: 5, 2: 0}, 0.0) is None
    assert refreshes.due_table({1: 5, 2: 7}, 59.0) is None
    assert refreshes.due_table({1: 5, 2: 7}, 60.0) == 1
    refreshes.record_refresh(1, took_s=30.0, now_s=90.0)
    assert refreshes.due_table({1: 0, 2: 7}, 130.0) is None, "it takes a tenth of the time at most"
    assert refreshes.due_table({1: 0, 2: 7}, 90.0 + 30.0 * (1 / REFRESH_PART - 1)) == 2
    assert refreshes.due_table({1: 0, 2: WAITING_MAX + 1}, 131.0) == 2


def test_names_with_special_characters_become_valid_paths() -> None:
    assert folder_name("shop", "items") == "shop.items"
    assert folder_name("a.b", "c/d") == "a%2Eb.c%2Fd"
    assert root_folder("parquet:///srv/my%20lake").as_posix() == "/srv/my lake"
    assert root_folder("parquet:lake").as_posix() == "lake"
    for wrong in ("parquet://host/x", "parquet:///", "parquet:"):
        with pytest.raises(Exception, match="not the URL of a folder for Parquet files"):
            root_folder(wrong)


def test_a_key_of_several_columns_changed_many_times() -> None:
    rng = random.Random(3)
    numbers = [0.0, -1.5, math.nan, 7.25]
    rows = [(rng.choice("abc"), rng.choice(numbers), rng.random() < 0.3) for _ in range(400)]
    table = pa.table(
        {
            "word": [word for word, _, _ in rows],
            "number": [number for _, number, _ in rows],
            OFFSET: range(len(rows)),
            SEQUENCE: range(len(rows)),
            DELETED: [deleted for _, _, deleted in rows],
            GONE_BEFORE: pa.nulls(len(rows), pa.int64()),
        }
    )

    found = compute_net_changes(table, ("word", "number"), base_offset=0)

    last = {(word, str(number)): (n, deleted) for n, (word, number, deleted) in enumerate(rows)}
    assert np.flatnonzero(found.live).tolist() == sorted(n for n, deleted in last.values() if not deleted)
    assert sorted((row["word"], str(row["number"])) for row in found.keys.to_pylist()) == sorted(last)


def test_a_limited_part_of_a_file_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.parquet"
    pq.write_table(pa.table({"n": range(100), "t": ["x" * 1000] * 100}), path, row_group_size=10, use_dictionary=False)
    for rows, nbytes, most in ((30, 1 << 20, 30), (1000, 25_000, 20), (5, 1 << 20, 10)):
        monkeypatch.setattr(refresh, "PIECE_ROWS", rows)
        monkeypatch.setattr(refresh, "PIECE_BYTES", nbytes)
        pieces = list(refresh.read_pieces(path))
        assert max(piece.num_rows for piece in pieces) == most
        assert pa.concat_tables(pieces)["n"].to_pylist() == list(range(100))
