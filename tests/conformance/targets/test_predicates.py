"""Predicates of single tables: the same at every kind of target that supports them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conformance.targets.playing import Stage
from tests.support.brokers.feed import items, put
from venus.errors import ConfigError

pytestmark = pytest.mark.integration


def test_a_second_table_of_the_same_name_halts_alone_if_it_has_a_predicate(real_stage: Stage) -> None:
    where = {"items": "label = 'EU'"}
    if "/lake" in str(real_stage.settings.targets[real_stage.place.name].url.get_secret_value()):
        with pytest.raises(ConfigError, match="it gets every row"):
            real_stage.configure(where=where)
        return
    stage = real_stage.configure(where=where)
    stage.feed.describe(items())
    stage.feed.cut(put(1, "EU", 1), put(2, "US", 1))
    stage.target.load()
    stage.feed.describe(replace(items(2, "items"), namespace="hr"))
    for key in (10, 20):  # still the same after a restart
        with stage.follow_in_thread():
            stage.feed.cut(put(key, "EU", 1), put(key + 1, "US", 1), put(key, "EU", 1, table=2))
            stage.wait_until_applied(stage.feed.broker.next_offset)
        second = stage.table("hr.items")
        assert second.state == "HALTED"
        assert 'where.items: more than one table has this name: write "shop.items" or "hr.items"' in second.reason
        assert f"change [targets.{stage.place.name}.where] and start `venus sync` again" in second.reason
        assert (stage.table("shop.items").state, stage.table("shop.items").reason) == ("ACTIVE", "")
    assert set(stage.place.rows(stage.settings, items())) == {("1",), ("10",), ("20",)}
    assert stage.target.read_view().unaccounted_rows == 0
