"""How long quarantined changes are kept: decided changes for a while, waiting changes for ever."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, following, items, put, query, wait_until_caught_up
from tests.support.pipelines.applying import check_counters, check_equal, load_target
from tests.support.waiting import eventually
from venus.adapters.targets.postgresql.database import PostgresDatabase
from venus.adapters.targets.relational.apply_loop import (
    PIECE_EVERY_S,
    PIECE_ROWS,
    ROUND_EVERY_S,
    QuarantineCleanup,
)
from venus.adapters.targets.relational.control import (
    list_quarantine,
    pause,
    read_table_states,
    resume,
    retry_quarantine,
    skip_quarantine,
)
from venus.config import Settings

pytestmark = pytest.mark.integration

CHECK = "ALTER TABLE shop.{} ADD CONSTRAINT not_odd CHECK (amount <> 666)"
NO_CHECK = "ALTER TABLE shop.{} DROP CONSTRAINT not_odd"
AGED = "UPDATE venus.quarantine SET created_at = now() - interval '40 days', decided_at = now() - interval '31 days'"


def read_quarantine(settings: Settings) -> list[tuple[str, str]]:
    """Return key and state of all quarantined changes."""
    return [(q.key, q.state) for q in list_quarantine(settings, "a", everything=True)]


def test_changes_decided_long_ago_are_removed_and_waiting_ones_stay(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), rows=9, on_error="quarantine")
    since = dict(feed.committed)
    query(database, CHECK.format("items"))
    with following(settings, "a"):
        feed.cut(*(put(i, "bad", 666) for i in (1, 2, 3, 4)))
        wait_until_caught_up(database, broker)
        first, second, third, _ = list_quarantine(settings, "a")
        skip_quarantine(settings, "a", [first.id, second.id], reason="known to be wrong")
        query(database, NO_CHECK.format("items"))
        retry_quarantine(settings, "a", [third.id])
    states = [('{"id": "1"}', "SKIPPED"), ('{"id": "2"}', "SKIPPED"), ('{"id": "3"}', "APPLIED")]
    assert read_quarantine(settings) == [*states, ('{"id": "4"}', "PARKED")]
    query(database, f'{AGED} WHERE key <> \'{{"id": "2"}}\'')  # also of the waiting change, which has none

    with following(settings, "a"):
        eventually(lambda: len(read_quarantine(settings)) == 2, "the old ones to go")
        feed.cut(put(5, "later", 5))
        wait_until_caught_up(database, broker)

    assert read_quarantine(settings) == [('{"id": "2"}', "SKIPPED"), ('{"id": "4"}', "PARKED")]
    check_counters(settings, feed, since)


def test_a_skipped_change_stays_while_its_table_may_read_it_again(
    database: str, broker: FakeDelivery, feed: Feed
) -> None:
    settings = load_target(database, feed, items(), items(2, "others"), rows=5)
    since = dict(feed.committed)
    for name in ("items", "others"):
        query(database, CHECK.format(name))
    with following(settings, "a"):
        feed.cut(put(1, "bad", 666), put(2, "fine", 2))
        feed.cut(put(1, "bad", 666, table=2))
        wait_until_caught_up(database, broker)
    skipped, other = list_quarantine(settings, "a")
    skip_quarantine(settings, "a", [skipped.id], reason="known to be wrong")
    pause(settings, "a", ["shop.items"])
    skip_quarantine(settings, "a", [other.id], reason="known to be wrong")
    query(database, AGED)

    with following(settings, "a"):
        eventually(lambda: read_table_states(settings, "a")[1].state == "ACTIVE", "the other table")
    with following(settings, "a"):  # a round that began before the other table followed was too early for it
        eventually(lambda: len(read_quarantine(settings)) == 1, "the other change to go")
        assert read_quarantine(settings) == [('{"id": "1"}', "SKIPPED")]
    with following(settings, "a"):  # it knows the quarantined changes, and has no earlier state
        resume(settings, "a", ["shop.items"])
        eventually(lambda: read_table_states(settings, "a")[0].state == "ACTIVE", "the table's return")
    with following(settings, "a"):
        eventually(lambda: read_quarantine(settings) == [], "the obsolete change to leave the quarantine")

    feed.model[1]["1",] = ("label 1", "1")
    del feed.model[2]["1",]
    check_equal(database, feed)
    check_counters(settings, feed, since)


def test_the_quarantine_is_cleared_in_pieces_with_pauses(database: str, broker: FakeDelivery, feed: Feed) -> None:
    settings = load_target(database, feed, items(), quarantine_keep_s=3600)
    query(
        database,
        'INSERT INTO venus.quarantine (group_name, business, table_id, schema_version, record_id, key, "offset", '
        "sequence, sqlstate, message, row_message, is_deleted, state, decided_at) "
        "SELECT g, 'main', 1, 1, '\\x00', '{}', n, n, '', '', '', false, 'APPLIED', now() - interval '2 hours' "
        f"FROM generate_series(1, {2 * PIECE_ROWS}) n, (VALUES ('main/a'), ('main/b')) v (g) ORDER BY n, g",
    )
    now = 100.0
    target = PostgresDatabase(settings, "a")
    session = target.connect()
    clearing = QuarantineCleanup(lambda: now)

    def count_rows() -> int:
        return int(query(database, "SELECT count(*) FROM venus.quarantine")[0][0])

    counts = [count_rows()]
    while True:
        clearing.step(target, session)
        clearing.step(target, session)  # too early
        if count_rows() == counts[-1]:
            break
        counts.append(count_rows())
        now += PIECE_EVERY_S
    assert [before - after for before, after in pairwise(counts)] == [PIECE_ROWS // 2] * 4
    assert query(database, "SELECT DISTINCT group_name FROM venus.quarantine") == [("main/b",)]

    query(database, "UPDATE venus.quarantine SET group_name = 'main/a'")
    now += ROUND_EVERY_S - PIECE_EVERY_S
    clearing.step(target, session)
    assert count_rows() == counts[-1], "the round has ended, the next one is not due"
    now += PIECE_EVERY_S
    clearing.step(target, session)
    assert count_rows() == counts[-1] - PIECE_ROWS
    session.close()
