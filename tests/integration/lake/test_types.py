"""Columns and types of a lake: they change, widen to text, and have the same meaning for every reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import INT, TEXT, Feed, column, deletion, items, put, table
from tests.support.brokers.real_broker import RealBroker
from tests.support.pipelines import lakes
from venus.model import Kind, LogicalType

pytestmark = pytest.mark.integration
DATE = LogicalType(kind=Kind.DATE)
INT4 = LogicalType(kind=Kind.INT, length=4)


def test_tables_change_their_columns(broker: FakeDelivery, feed: Feed, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    settings = lakes.settings_of(broker.address, root)
    first = table(1, "items", column(1, "id", INT4), column(2, "label"), column(3, "amount", INT4))
    feed.describe(first)
    feed.cut(put(1, "a", 1), put(2, "b", 2))
    lakes.load(settings)
    second = replace(
        first,
        version=2,
        columns=(column(1, "id", INT4), column(3, "sum", INT), column(4, "colour", TEXT, default_sql="'red'")),
    )
    with lakes.follow_in_thread(settings):
        feed.describe(second)
        feed.cut(put(2, "20000000000", "blue"), put(3, "3", None))
        feed.describe(items(5, "late"))
        feed.cut(put(1, "new table", 1, table=5))
        lakes.check_state(settings, broker.next_offset)
        lakes.wait_until_fresh(settings)

    assert lakes.current_rows(root, second) == {
        ("1",): ("1", "red"),
        ("2",): ("20000000000", "blue"),
        ("3",): ("3", None),
    }
    assert lakes.current_rows(root, items(5, "late")) == feed.model[5]


@pytest.mark.parametrize(
    ("before", "now", "beyond"),
    [
        (INT4, INT, "3000000000"),
        (INT4, LogicalType(kind=Kind.DECIMAL, precision=20), "12345678901234567890"),
        (
            LogicalType(kind=Kind.DECIMAL, precision=4),
            LogicalType(kind=Kind.DECIMAL, precision=30),
            "123456789012345678901234567890",
        ),
        (LogicalType(kind=Kind.TEXT, length=1), LogicalType(kind=Kind.TEXT, length=30), "much longer"),
    ],
    ids=["int", "number", "decimal", "text"],
)
@pytest.mark.parametrize("loaded", [True, False], ids=["stream", "load"])
def test_a_wider_key_finds_the_rows_of_the_narrower_one(
    loaded: bool, before: LogicalType, now: LogicalType, beyond: str, real: RealBroker, tmp_path: Path
) -> None:
    root, feed = tmp_path / "lake", Feed(real)
    settings = lakes.settings_of(real.address, root)
    first = table(1, "items", column(1, "id", before), column(2, "label"))
    second = replace(first, version=2, columns=(column(1, "id", now), column(2, "label")))
    feed.describe(first)
    feed.cut(put("1", "a"), put("2", "b"), put("3", "c"))
    if loaded:
        lakes.load(settings)
        feed.cut(put("2", "before"))
    feed.describe(second)
    feed.cut(put(beyond, "wide"), put("2", "changed"), deletion("1"))
    if not loaded:
        lakes.load(settings)
    with lakes.follow_in_thread(settings):
        feed.cut(put(beyond, "wide again"), put("4", "d"))
        lakes.check_state(settings, real.next_offset)
        lakes.wait_until_fresh(settings)
    assert lakes.current_rows(root, second) == feed.model[1]


def test_a_table_with_another_key_is_read_again_from_the_broker(real: RealBroker, tmp_path: Path) -> None:
    root, feed = tmp_path / "lake", Feed(real)
    settings = lakes.settings_of(real.address, root)
    feed.describe(items())
    feed.cut(put(1, "a", 1), put(2, "b", 2))
    lakes.load(settings)
    other = table(1, "items", column(2, "label"), column(1, "id", INT), column(3, "amount", INT), key=("label",))
    other = replace(other, version=2)
    with lakes.follow_in_thread(settings):
        feed.describe(other)
        feed.truncate(1, put("a", 1, 1), put("b", 2, 2))  # a new fill, which capture starts when a key changes
        lakes.check_state(settings, real.next_offset)
        lakes.wait_until_fresh(settings)

    assert lakes.current_rows(root, other) == feed.model[1]


@pytest.mark.parametrize("when", ["load", "stream"])
def test_a_value_that_no_type_holds_turns_its_column_into_text(when: str, real: RealBroker, tmp_path: Path) -> None:
    root, feed = tmp_path / "lake", Feed(real)
    settings = lakes.settings_of(real.address, root)
    dated = table(1, "people", column(1, "id", INT), column(2, "born", DATE), column(3, "died", DATE))
    feed.describe(dated)
    feed.cut(*(put(i, "1999-12-31", "2000-01-01") for i in range(500)), batch_rows=100)
    if when == "load":
        feed.cut(put(77, "0044-03-15 BC", "infinity"))
    lakes.load(settings)
    with lakes.follow_in_thread(settings):
        if when == "stream":
            feed.cut(put(77, "0044-03-15 BC", "infinity"), put(78, "2001-01-01", None))
        feed.cut(put(1, "1970-01-01", None), deletion(2))
        lakes.check_state(settings, real.next_offset)
        lakes.wait_until_fresh(settings)

    (known,) = lakes.manifest_of(settings).tables.values()
    assert known.text_columns == ["born", "died"]
    assert "born, died" in known.note
    assert lakes.current_rows(root, dated) == feed.model[1]
    assert lakes.manifest_of(settings).unaccounted_changes == 0


def test_a_file_with_other_columns_is_rewritten_though_its_rows_are_unchanged(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    monkeypatch.setattr("venus.adapters.targets.parquet.refresh.SMALL_ROWS", 10)
    feed.describe(items())
    feed.cut(*(put(i, "a" * 10, i) for i in range(1000)))
    lakes.load(settings)
    wider = replace(items(), version=2, columns=(*items().columns, column(4, "colour", TEXT, default_sql="'red'")))
    with lakes.follow_in_thread(settings):
        feed.describe(wider)
        feed.cut(put(10, "changed", 1, "blue"))
        lakes.check_state(settings, broker.next_offset)
        lakes.wait_until_fresh(settings)

    wanted = {(str(i),): ("a" * 10, str(i), "red") for i in range(1000)} | {("10",): ("changed", "1", "blue")}
    assert lakes.current_rows(tmp_path / "lake", wider) == wanted


def test_composite_keys_of_other_types(broker: FakeDelivery, feed: Feed, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    settings = lakes.settings_of(broker.address, root)
    money = LogicalType(kind=Kind.DECIMAL, precision=12, scale=2)
    wide = table(1, "wide", column(1, "day", DATE), column(2, "price", money), column(3, "v"), key=("day", "price"))
    feed.describe(wide)
    model = {}
    for day in range(1, 20):
        key = (f"2026-01-{day:02d}", f"{day}.50")
        model[key] = (f"v{day}",)
    feed.cut(*(replace(put(0, *row), key=key) for key, row in model.items()))
    lakes.load(settings)
    with lakes.follow_in_thread(settings):
        changed = dict(list(model.items())[:5])
        feed.cut(*(replace(put(0, "new"), key=key) for key in changed))
        feed.cut(replace(deletion(0), key=("2026-01-19", "19.50")))
        lakes.check_state(settings, broker.next_offset)
        lakes.wait_until_fresh(settings)

    assert lakes.current_rows(root, wide) == feed.model[1]


def test_every_reader_sees_the_same_types(broker: FakeDelivery, feed: Feed, tmp_path: Path) -> None:
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    lakes.load(settings)
    with lakes.follow_in_thread(settings):
        feed.cut(put(1, "b", 2), deletion(1))
        lakes.check_state(settings, broker.next_offset)

    found = lakes.history(tmp_path / "lake", "shop.items").sort_by("_offset")

    assert found.schema.field("amount").type == pa.int64()
    assert found.select(["_offset", "_deleted", "id", "label"]).to_pylist() == [
        {"_offset": 1, "_deleted": False, "id": 1, "label": "b"},
        {"_offset": 2, "_deleted": True, "id": 1, "label": None},
    ]
