"""A lake's manifest is read as it was saved, and one of a newer version is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from venus.adapters.targets.parquet.manifest import LakeManifest, LakeTable
from venus.errors import Corruption


@pytest.fixture
def path(tmp_path: Path) -> Path:
    saved = tmp_path / "manifest.json"
    table = LakeTable(table_id=1, name="shop.items", folder="shop.items", schema_version=1, shapes=[(1, [])])
    LakeManifest(group="lake", offset=7, epoch=2, sequence=7, counted_from=0, tables={1: table}).save(saved)
    return saved


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_it_is_read_as_it_was_saved(path: Path) -> None:
    found = LakeManifest.read(path)

    assert found is not None
    assert (found.group, found.offset, found.tables[1].name) == ("lake", 7, "shop.items")


@pytest.mark.parametrize(
    ("newer", "named"),
    [
        ({"format": "venus-lake/2"}, "has format venus-lake/2, which this version does not know"),
        ({"compacted": 3, "also": 1}, "has also, compacted, which this version does not know"),
        ({"format": "venus-lake/2", "compacted": 3}, "has format venus-lake/2"),
    ],
)
def test_one_of_a_newer_version_is_refused(path: Path, newer: dict[str, Any], named: str) -> None:
    change(path, **newer)

    with pytest.raises(Corruption, match=named) as refused:
        LakeManifest.read(path)
    assert refused.value.hint == "run the VENUS that wrote it, or load this target into an empty folder"
    assert "\n" not in str(refused.value)
