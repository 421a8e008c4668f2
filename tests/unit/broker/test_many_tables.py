"""The status of a business with very many tables fits into a message, and leaves out nothing silently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from venus.broker.machine.business import Business, TableFigures
from venus.broker.machine.review_schedule import ReviewSchedule
from venus.broker.status.broker_status import UNDESCRIBED_SHOWN_MAX, _undescribed_alarms
from venus.broker.status.table_selection import (
    ANSWER_BYTES_MAX,
    ANSWER_TABLES_MAX,
    SHOWN_MAX,
    TableSelection,
    requested_tables,
)
from venus.rpc import admin as admins
from venus.rpc.admin import AdminClient
from venus.rpc.channel import MESSAGE_BYTES_MAX
from venus.text.alarm_rules import classify_sentence
from venus.wire import broker_pb2

MANY = 200_000


def business_of(count: int, name: str = "main", namespace: str = "shop") -> Business:
    found = Business(1, name, ReviewSchedule(first_s=1.0))
    for n in range(count, 0, -1):
        found.tables[n] = TableFigures(namespace=namespace, name=f"Table_{n}", changes=n, rows=2 * n)
    return found


@pytest.fixture(scope="module")
def large_business() -> Business:
    return business_of(MANY)


def numbers(found: list[broker_pb2.TableStatus]) -> list[int]:
    return [table.table_id for table in found]


def test_the_first_tables_and_the_mentioned_ones_are_listed(large_business: Business) -> None:
    named = {150_000, 199_999, 3, 999_999}

    found = TableSelection(reported={"main": named}).describe(large_business)

    assert numbers(found) == [*range(1, SHOWN_MAX - 1), 150_000, 199_999]
    assert (found[2].namespace, found[2].name, found[2].committed_changes, found[2].rows_estimate) == (
        "shop",
        "Table_3",
        3,
        6,
    )


def test_few_tables_are_all_listed() -> None:
    assert numbers(TableSelection(reported={"main": {2}}).describe(business_of(3))) == [1, 2, 3]


def test_all_businesses_share_the_room_of_one_answer() -> None:
    tables = TableSelection(most=10)

    assert [numbers(tables.describe(business_of(7, name))) for name in ("one", "two", "three")] == [
        [1, 2, 3, 4, 5, 6, 7],
        [1, 2, 3],
        [],
    ]


def test_an_older_client_gets_as_much_as_a_message_holds(large_business: Business) -> None:
    found = requested_tables(broker_pb2.StatusRequest()).describe(large_business)
    assert len(found) == ANSWER_TABLES_MAX
    assert broker_pb2.BusinessStatus(tables=found).ByteSize() < ANSWER_BYTES_MAX

    wide = business_of(ANSWER_TABLES_MAX, namespace="\N{CJK UNIFIED IDEOGRAPH-4E00}" * 300)
    found = requested_tables(broker_pb2.StatusRequest(tables_max=2**32 - 1)).describe(wide)
    assert 0.9 * ANSWER_BYTES_MAX < broker_pb2.BusinessStatus(tables=found).ByteSize() < MESSAGE_BYTES_MAX / 2


def test_tables_are_found_by_name_however_many_exist(large_business: Business) -> None:
    request = broker_pb2.StatusRequest(
        tables_max=10, tables=["TABLE_199999", "shop.table_7", "other.table_8", "table_9.", "no_table"]
    )

    assert numbers(requested_tables(request).describe(large_business)) == [7, 199_999]


class FakeAdminClient(AdminClient):
    """A client of an Admin service with this business, which records the size of its answers."""

    def __init__(self, business: Business, *, is_older: bool = False) -> None:
        self.business, self.is_older = business, is_older
        self.sizes: list[int] = []

    def _ask(self, business: str, method: str, request: Any, kind: Any, timeout_s: float | None = None) -> Any:
        if self.is_older:
            request = broker_pb2.StatusRequest(tables_max=ANSWER_TABLES_MAX)
        entry = broker_pb2.BusinessStatus(
            business=self.business.name, tables=requested_tables(request).describe(self.business)
        )
        if not self.is_older:
            entry.tables_total = len(self.business.tables)
        self.sizes.append(entry.ByteSize())
        return broker_pb2.BrokerStatus(businesses=[entry])


def every_name(admin: AdminClient) -> Iterator[str]:
    (entry,) = admin.whole_status("main").businesses
    return (table.name for table in entry.tables)


def test_a_client_that_needs_every_table_gets_them_in_pages(large_business: Business) -> None:
    admin = FakeAdminClient(large_business)

    assert list(every_name(admin)) == [f"Table_{n}" for n in range(1, MANY + 1)]
    assert len(admin.sizes) <= 2 + MANY // admins.PAGE_TABLES
    assert max(admin.sizes) < MESSAGE_BYTES_MAX / 8
    assert len(admin.status("main").businesses[0].tables) == SHOWN_MAX


def test_few_tables_are_in_one_answer_and_an_older_broker_sends_all_at_once() -> None:
    for admin in (FakeAdminClient(business_of(3)), FakeAdminClient(business_of(30_000), is_older=True)):
        assert list(every_name(admin)) == [f"Table_{n}" for n in sorted(admin.business.tables)]
        assert len(admin.sizes) == 1


def test_tables_without_columns_are_named_and_the_rest_counted(large_business: Business) -> None:
    large_business.undescribed = dict.fromkeys(range(1, 5_001), (1,))

    found = _undescribed_alarms(large_business)

    large_business.undescribed = {}
    assert len(found) == UNDESCRIBED_SHOWN_MAX + 1
    assert found[0].startswith("shop.Table_1 has rows of version 1")
    assert found[-1] == "each of 4,980 more tables has rows of versions whose columns no producer sent"
    assert {classify_sentence(alarm)[0].name for alarm in found} == {"undescribed_rows"}
