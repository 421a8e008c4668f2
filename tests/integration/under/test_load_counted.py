"""A load counts the rows of each table, which alone reveals another session's change between two splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, items, put, query, settings_for
from tests.support.pipelines.applying import check_equal
from venus.adapters.targets.relational.control import read_table_states
from venus.adapters.targets.relational.full_sync import full_sync
from venus.config import Settings
from venus.errors import TargetError

pytestmark = pytest.mark.integration

T = TypeVar("T")
R = TypeVar("R")


class MeddledLoad:
    """Runner that loads in this process, after which another session changes the target."""

    def __init__(self, database: str, text: str) -> None:
        self._database, self._text = database, text

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        for task in tasks:
            yield function(task)
        query(self._database, self._text)


def describe(database: str, feed: Feed) -> Settings:
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, 11)))
    return settings_for(feed.broker.address, {"a": database})


@pytest.mark.parametrize(
    ("meddling", "rows"),
    [
        ("DELETE FROM shop.items WHERE id = 3", 9),
        ("INSERT INTO shop.items VALUES (77, 'a stranger', 7)", 11),
    ],
)
def test_a_table_with_rows_of_another_writer_fails_the_load(
    meddling: str, rows: int, database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = describe(database, feed)

    with pytest.raises(TargetError, match=f"shop.items has {rows} rows after 10 were loaded"):
        full_sync(settings, "a", runner=MeddledLoad(database, meddling))
    assert query(database, "SELECT count(*) FROM venus.applied") == [(0,)]

    full_sync(settings, "a")
    assert [t.state for t in read_table_states(settings, "a")] == ["ACTIVE"]
    check_equal(database, feed)
