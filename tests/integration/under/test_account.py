"""The counters add up: every change below the applied offset counts as applied, quarantined, skipped or held."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest

from tests.integration.under.test_quarantine import CHECK, NO_CHECK
from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import (
    INT,
    Feed,
    applied_offset,
    column,
    deletion,
    following,
    items,
    put,
    query,
    rows_at,
    settings_for,
    table,
    unique_label,
    wait_until_caught_up,
)
from tests.support.brokers.real_broker import RealBroker
from tests.support.waiting import eventually
from venus.adapters.targets.registry import open_target
from venus.adapters.targets.relational.control import (
    list_quarantine,
    pause,
    read_progress,
    read_table_states,
    request_resync,
    resume,
    retry_quarantine,
    skip_quarantine,
)
from venus.adapters.targets.relational.full_sync import full_sync
from venus.adapters.targets.relational.resync import SideLoad
from venus.adapters.under.cut_assembler import CutPiece, SectionRole, SectionWalk
from venus.cli.overview import target_problems
from venus.codec.batch import TableChanges
from venus.config import Settings

pytestmark = pytest.mark.integration

BEAT = table(9, "venus_heartbeat", column(1, "id", INT), column(2, "beat_at", INT))
#: Paths of rows into a target: in one round trip, or through staging tables in pieces.
WAYS = {"at once": {}, "staged": {"keyed_rows_max": 0, "cut_group_rows_max": 30}}


@pytest.fixture
def feed(real: RealBroker) -> Feed:
    return Feed(real)


def start(feed: Feed, database: str, *, rows: int = 30, **options: Any) -> Settings:
    """Load a target whose first table has rows."""
    feed.describe(unique_label(items()), items(2, "others"), BEAT)
    feed.cut(*(put(i, f"label {i}", i) for i in range(1, rows + 1)))
    settings = settings_for(feed.broker.address, {"a": database}, **options)
    full_sync(settings, "a")
    return settings


def write_cuts(feed: Feed, cuts: int, seed: int = 3) -> None:
    """Write cuts in which keys occur repeatedly, with heartbeats among them and an empty batch."""
    rng = random.Random(seed)
    for n in range(cuts):
        keys = rng.choices(range(1, 40), k=8)
        changes = [deletion(k) if rng.random() < 0.3 else put(k, f"{seed} {n} {i}", n) for i, k in enumerate(keys)]
        feed.cut(*changes, put(n % 7, "o", n, table=2), put(1, 1_700_000_000_000_000 + n, table=9))
    feed.cut()


def unaccounted_rows(feed: Feed) -> float | None:
    """Return the broker's metric of unaccounted rows for target a."""
    assert isinstance(feed.broker, RealBroker)
    with urlopen(f"http://{feed.broker.http_address}/metrics", timeout=30) as answer:
        found = re.search(
            r'^venus_unaccounted_rows\{business="main",group="main/a"\} (\S+)$', answer.read().decode(), re.M
        )
    return float(found[1]) if found else None


def wait_until_accounted(settings: Settings, feed: Feed, database: str) -> None:
    """Wait until everything below the newest offset was processed; no row may ever be unaccounted for."""
    wait_until_caught_up(database, feed.broker)
    assert read_progress(settings, "a").unaccounted == 0


def state(settings: Settings) -> str:
    return read_table_states(settings, "a")[0].state


def wait_until_active(settings: Settings) -> None:
    eventually(lambda: state(settings) == "ACTIVE", "the table's return")


def check_equal(feed: Feed, database: str) -> None:
    for number in (1, 2):
        assert rows_at(database, feed.schemas[number]) == feed.model[number]


@pytest.mark.parametrize("way", WAYS)
def test_every_row_is_accounted_for_whatever_happens_to_a_table(way: str, database: str, feed: Feed) -> None:
    settings = start(feed, database, apply=WAYS[way])
    with following(settings, "a"):
        write_cuts(feed, 12)
        wait_until_accounted(settings, feed, database)

        pause(settings, "a", ["items"])
        write_cuts(feed, 6, seed=4)
        wait_until_accounted(settings, feed, database)
        assert read_table_states(settings, "a")[0].rows_held > 0
        resume(settings, "a", ["items"])
        write_cuts(feed, 6, seed=5)
        wait_until_active(settings)
        wait_until_accounted(settings, feed, database)
        assert read_table_states(settings, "a")[0].rows_held == 0

        query(database, CHECK)
        feed.cut(put(1, "good", 1), put(2, "bad", 666), put(1, "o", 1, table=2))
        wait_until_accounted(settings, feed, database)
        feed.cut(put(3, "behind it", 1))
        wait_until_accounted(settings, feed, database)
        assert (state(settings), read_table_states(settings, "a")[0].rows_held) == ("HALTED", 3)
        (row,) = list_quarantine(settings, "a")
        skip_quarantine(settings, "a", [row.id], reason="known")
        wait_until_active(settings)
        wait_until_accounted(settings, feed, database)
        query(database, NO_CHECK)

        feed.truncate(1, put(5, "after", 1))
        write_cuts(feed, 4, seed=6)
        before = feed.sweep_begin(1)
        feed.cut(*(put(int(str(key[0])), f"met {key[0]!s}", 1) for key in list(feed.model[1])[:3]))
        met = {key: row for key, row in feed.model[1].items() if str(row[0]).startswith("met")}
        feed.sweep_end(1, before)
        feed.model[1] = met
        wait_until_accounted(settings, feed, database)

        query(database, "DELETE FROM shop.items")
        request_resync(settings, "a", "items")
        write_cuts(feed, 6, seed=7)
        eventually(lambda: not read_progress(settings, "a").resyncing, "the end of the resync")
        wait_until_accounted(settings, feed, database)
        eventually(lambda: unaccounted_rows(feed) == 0, "the metric")
        check_equal(feed, database)
    assert target_problems(open_target(settings, "a").read_view(), None) == []


def test_quarantined_rows_are_accounted_for(database: str, feed: Feed) -> None:
    settings = start(feed, database, on_error="quarantine", apply={"keyed_rows_max": 3})
    query(database, CHECK)
    with following(settings, "a"):
        feed.cut(put(1, "bad", 666), put(2, "worse", 666), put(3, "fine", 3))
        wait_until_accounted(settings, feed, database)
        feed.cut(put(1, "behind 1", 1), put(2, "behind 2", 2), put(4, "fine 4", 4))
        wait_until_accounted(settings, feed, database)
        assert read_table_states(settings, "a")[0].rows_quarantined == 4
        first = list_quarantine(settings, "a")[0]
        skip_quarantine(settings, "a", [first.id], reason="known")
        wait_until_accounted(settings, feed, database)
        query(database, NO_CHECK)
        retry_quarantine(settings, "a")
        wait_until_accounted(settings, feed, database)
        query(database, f"UPDATE shop.items SET amount = 1 WHERE amount = 666; {CHECK}")
        feed.cut(put(6, "bad", 666))
        wait_until_accounted(settings, feed, database)
        feed.truncate(1)
        wait_until_accounted(settings, feed, database)
        assert read_table_states(settings, "a")[0].rows_quarantined == 0


@pytest.mark.parametrize("held", ["paused", "halted"])
def test_a_resync_counts_exactly_the_held_changes_below_its_cut(
    held: str, database: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut lies between changes that were held before, and changes that were held while the resync was loading."""
    settings = start(feed, database)
    load = SideLoad._load
    behind_cut: list[int] = []

    def load_with_new_cuts(self: SideLoad, *arguments: Any) -> None:
        load(self, *arguments)
        write_cuts(feed, 5, seed=9)
        wait_until_caught_up(database, feed.broker)
        behind_cut.append(self.cut or 0)

    monkeypatch.setattr(SideLoad, "_load", load_with_new_cuts)
    query(database, CHECK)
    with following(settings, "a"):
        if held == "paused":
            pause(settings, "a", ["items"])
        else:
            feed.cut(put(1, "bad", 666))
            wait_until_accounted(settings, feed, database)
        write_cuts(feed, 5, seed=8)
        feed.cut(put(1, "good again", 1))
        wait_until_accounted(settings, feed, database)
        waiting = read_table_states(settings, "a")[0].rows_held
        query(database, NO_CHECK)
        request_resync(settings, "a", "items")
        eventually(lambda: not read_progress(settings, "a").resyncing, "the end of the resync")
        assert behind_cut[0] < applied_offset(database)
        assert read_progress(settings, "a").unaccounted == 0
        if held == "paused":
            first = read_table_states(settings, "a")[0]
            assert 0 < first.rows_held == 5 * 8
            assert first.rows_applied == waiting
            resume(settings, "a", ["items"])
        wait_until_active(settings)
        wait_until_accounted(settings, feed, database)
        check_equal(feed, database)
    assert query(database, "SELECT count(*) FROM venus.held") == [(0,)]


def _lose_section(monkeypatch: pytest.MonkeyPatch, *, nth: int = 1) -> None:
    """Drop one section of table 1, as a defect would."""
    walk = SectionWalk.walk
    met: list[int] = []

    def lose_section(self: SectionWalk, piece: CutPiece) -> Iterator[tuple[SectionRole, TableChanges, int]]:
        for role, section, offset in walk(self, piece):
            met.extend([1] if section.table_id == 1 else [])
            if section.table_id != 1 or len(met) != nth:
                yield role, section, offset

    monkeypatch.setattr(SectionWalk, "walk", lose_section)


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_section_is_noticed_and_a_resync_of_all_tables_repairs_it(
    way: str, database: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = start(feed, database, apply=WAYS[way])
    _lose_section(monkeypatch)
    with following(settings, "a"):
        feed.cut(put(1, "lost", 1), put(1, "o", 1, table=2))
        wait_until_caught_up(database, feed.broker)
        feed.cut(put(2, "not lost", 2))
        wait_until_caught_up(database, feed.broker)
        assert read_progress(settings, "a").unaccounted == 1
        eventually(lambda: unaccounted_rows(feed) == 1, "the metric")
        (problem,) = target_problems(open_target(settings, "a").read_view(), None)
        assert "1 change below its offset is unaccounted for" in problem
        assert rows_at(database, items())["1",] == ("label 1", "1")
        request_resync(settings, "a", "*")
        eventually(lambda: not read_progress(settings, "a").resyncing, "the end of the resync")
        wait_until_accounted(settings, feed, database)
        eventually(lambda: unaccounted_rows(feed) == 0, "the metric")
        check_equal(feed, database)


def test_rows_that_are_never_sent_to_the_target_are_noticed(
    database: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = start(feed, database, apply={"keyed_rows_max": 0})
    monkeypatch.setattr("venus.adapters.targets.postgresql.rows.merging.RowMerger.flush", lambda self, pending: None)
    with following(settings, "a"):
        feed.cut(put(1, "lost", 1), put(2, "lost too", 1))
        wait_until_caught_up(database, feed.broker)
    assert read_progress(settings, "a").unaccounted == 2


def test_a_held_change_that_is_not_read_again_is_noticed(
    database: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = start(feed, database)
    with following(settings, "a"):
        pause(settings, "a", ["items"])
        feed.cut(put(1, "first", 1))
        feed.cut(put(2, "second", 2), put(3, "third", 2))
        wait_until_accounted(settings, feed, database)
        _lose_section(monkeypatch, nth=2)
        resume(settings, "a", ["items"])
        wait_until_active(settings)
        assert read_progress(settings, "a").unaccounted == 2


def test_a_change_of_an_unknown_table_is_not_counted(database: str, feed: Feed) -> None:
    settings = start(feed, database)
    with following(settings, "a"):
        query(database, "DELETE FROM venus.target_table WHERE name = 'others'; UPDATE venus.applied SET control = 99")
        feed.cut(put(1, "no one", 1, table=2))
        wait_until_caught_up(database, feed.broker)
    assert read_progress(settings, "a").unaccounted == 1


def test_a_resync_ahead_of_the_stream_contains_the_changes_below_its_cut(database: str, broker: FakeDelivery) -> None:
    feed = Feed(broker)
    settings = start(feed, database)
    with following(settings, "a"):
        pause(settings, "a", ["items"])
        feed.cut(put(1, "held", 1))
        wait_until_accounted(settings, feed, database)
        broker.hold_from = broker.next_offset
        feed.cut(put(2, "contained", 2), put(1, "o", 1, table=2))
        request_resync(settings, "a", "items")
        eventually(lambda: not read_progress(settings, "a").resyncing, "the end of the resync")
        assert read_table_states(settings, "a")[0].held_from == broker.next_offset > applied_offset(database)
        assert read_progress(settings, "a").unaccounted == 0
        broker.release()
        feed.cut(put(3, "behind", 3))
        wait_until_accounted(settings, feed, database)
        first = read_table_states(settings, "a")[0]
        assert (first.rows_applied, first.rows_held) == (2, 1)
        resume(settings, "a", ["items"])
        wait_until_active(settings)
        wait_until_accounted(settings, feed, database)
        check_equal(feed, database)


def test_changes_are_counted_once_if_a_table_catches_up_beyond_its_resyncs_cut(
    database: str, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = start(feed, database, apply={"cut_group_rows_max": 10})
    load = SideLoad._load

    def load_with_new_cuts(self: SideLoad, *arguments: Any) -> None:
        load(self, *arguments)
        write_cuts(feed, 80, seed=9)
        wait_until_caught_up(database, feed.broker)
        resume(settings, "a", ["items"])
        eventually(
            lambda: (read_table_states(settings, "a")[0].held_from or 1 << 60) > (self.cut or 0), "some catching up"
        )

    monkeypatch.setattr(SideLoad, "_load", load_with_new_cuts)
    with following(settings, "a"):
        pause(settings, "a", ["items"])
        write_cuts(feed, 3, seed=8)
        wait_until_accounted(settings, feed, database)
        request_resync(settings, "a", "items")
        eventually(lambda: not read_progress(settings, "a").resyncing, "the end of the resync")
        wait_until_active(settings)
        wait_until_accounted(settings, feed, database)
        check_equal(feed, database)
