"""A table leaves capture: from then on a change of its InnoDB table id is ignored."""

from __future__ import annotations

from tests.integration.mysql.conftest import Shop
from venus.adapters.dialects.mysql.capture.capture import WATCH_S


def test_a_truncation_of_a_table_that_leaves_stops_no_cut(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    follower = shop.capture()
    shop.source.capture.refresh_schemas()
    shop.source.installer.release([follower.table_id("t")])
    shop.source.capture.refresh_schemas()
    shop.run("TRUNCATE TABLE t")
    for _ in range(3):
        shop.clock.now += 2 * WATCH_S
        shop.source.capture.write_heartbeat()
        cut = shop.source.capture.open_cut([])  # raises SchemaChanged for a table with another table id
        assert cut is not None
        cut.rollback()
