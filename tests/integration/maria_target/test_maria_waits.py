"""A MariaDB target names the locks that it waits for, and the foreign keys that its rows violate."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import replace

import pytest

from tests.conformance.targets.places import MariaTargetPlace
from tests.conformance.targets.playing import Stage
from tests.support.brokers.feed import TEXT, column, items, make_referring_schema, put
from tests.support.waiting import eventually
from venus.adapters.targets.relational import lock_waits
from venus.rpc.conditions import problems

pytestmark = pytest.mark.integration

#: InnoDB repeats its last answer about waits if it is asked more often than every 0.1 s.
REFRESHED_S = 0.3


def place_of(stage: Stage) -> MariaTargetPlace:
    assert isinstance(stage.place, MariaTargetPlace)
    return stage.place


@pytest.mark.parametrize(
    ("statement", "what"),
    [("UPDATE items SET label = 'Mrs. Smith, 4711' WHERE id = 1", "shop.items"), ("SELECT * FROM items", "a row")],
    ids=["row", "definition"],
)
def test_a_session_with_a_lock_is_named_while_the_target_waits(
    statement: str, what: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_waits, "LOOK_S", 0.2)
    place, feed = place_of(stage), stage.feed
    feed.describe(items())
    feed.cut(put(1, "old", 1))
    stage.target.load()

    def read_problems() -> list[str]:
        return problems(stage.target.read_view().condition, stage.target.name)

    with closing(place.server.connect(place.database)) as other, stage.follow_in_thread() as reports:
        other.cursor().execute(statement)
        number = other.thread_id()  # type: ignore[no-untyped-call]
        if what == "a row":  # adding a column needs the metadata lock of the table
            feed.describe(replace(items(), version=2, columns=(*items().columns, column(9, "more", TEXT))))
            feed.model[1] = {key: (*row, None) for key, row in feed.model[1].items()}
            feed.cut(put(1, "new", 1, "more"))
        else:
            feed.cut(put(1, "new", 1))
        (said,) = eventually(read_problems, "status", every_s=REFRESHED_S)
        assert said.startswith(f"target {stage.target.name}: {what} is WAITING (for a lock of session {number} (")
        assert "transaction open since" in said
        assert "Smith" not in said
        eventually(lambda: any(f"session {number}" in report.error for report in reports), "the report")
        other.rollback()
        stage.wait_until_applied(feed.broker.next_offset)
        eventually(lambda: not read_problems(), "the end of it", every_s=REFRESHED_S)
    stage.compare_tables()


def test_a_foreign_key_that_rows_violate_is_reported_by_name(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.feed.describe(items(), make_referring_schema(items(2, "others"), "amount", items()))
    stage.feed.cut(put(1, "parent", 1), put(1, "child", 1, table=2), put(2, "orphan", 4711, table=2))
    with caplog.at_level(logging.WARNING):
        stage.target.load()
    assert "others (amount) -> items: 1 row without a parent, such as 4711" in caplog.text
