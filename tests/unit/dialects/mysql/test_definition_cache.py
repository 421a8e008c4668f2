"""The cache of table definitions: they are read one at a time, and an entry that may be outdated is not used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from venus.adapters.dialects.mysql import registry
from venus.adapters.dialects.mysql.dictionary.tables import MysqlDictionary, MysqlTable
from venus.adapters.dialects.mysql.registry import DefinitionCache

TABLE = MysqlTable(
    database="shop",
    name="item",
    engine="InnoDB",
    comment="",
    rows_estimate=5,
    columns=(),
    declared={},
    key=(),
    key_problems=(),
    indexes=(),
    foreign_keys=(),
    unsupported=(),
    written="2026-01-01",
    is_recent=False,
)


def dictionary(*tables: MysqlTable) -> MysqlDictionary:
    return cast(MysqlDictionary, SimpleNamespace(tables={table.name: table for table in tables}))


def cache_of(table: MysqlTable) -> DefinitionCache:
    cache = DefinitionCache()
    cache.store([table.name], {table.name: "a definition"}, dictionary(table))
    return cache


@pytest.mark.parametrize(
    ("known", "now", "is_stale"),
    [
        (TABLE, TABLE, False),
        (TABLE, replace(TABLE, rows_estimate=6), False),
        (TABLE, replace(TABLE, written="2026-01-02"), True),
        (TABLE, replace(TABLE, comment="altered"), True),
        (replace(TABLE, is_recent=True), replace(TABLE, is_recent=True), True),
    ],
    ids=["the same", "more rows", "written again", "altered", "written in this second"],
)
def test_a_definition_is_kept_while_its_table_is_unchanged(known: MysqlTable, now: MysqlTable, is_stale: bool) -> None:
    assert cache_of(known).find_stale(["item"], dictionary(now)) == (["item"] if is_stale else [])


def test_a_definition_that_is_no_longer_visible_is_forgotten() -> None:
    cache = cache_of(TABLE)
    cache.store(["item"], {}, dictionary(TABLE))

    assert cache.definition("item") == ""
    assert cache.find_stale(["item"], dictionary(TABLE)) == ["item"]


def test_a_table_that_is_altered_between_two_statements_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a definition would be kept with the columns of another one."""
    shown = iter(["before", "after", "after", "after"])

    def read_definitions(_: object, names: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(names, next(shown))

    known = SimpleNamespace(schema=SimpleNamespace(name="item"))
    monkeypatch.setattr(registry, "read_mark", lambda _: "mark")
    monkeypatch.setattr(registry, "read_tables", lambda _: [known])
    monkeypatch.setattr(registry, "read_dictionary", lambda *_, **__: dictionary(TABLE))
    monkeypatch.setattr(registry, "read_definitions", read_definitions)
    monkeypatch.setattr(registry, "_build_captured_table", lambda *given: given[3])
    connection: Any = SimpleNamespace(options=SimpleNamespace(zero_dates_null=False))

    found = registry.load_capture_state(connection)

    assert found.captured == cast(Any, ("after",))
