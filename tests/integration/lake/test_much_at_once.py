"""Many tables, or very many changes of one table: memory and open files of a lake's loop stay limited."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, deletion, items, put
from tests.support.pipelines import lakes
from venus.adapters.targets.parquet import lake_stream, refresh
from venus.adapters.targets.parquet.lake_stream import PendingCommit
from venus.adapters.targets.parquet.manifest import ParquetFolder

pytestmark = pytest.mark.integration

TABLES = 60


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Limit this process to 40 more open files than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = (number for number in range(soft) if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, 40, None)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _many_tables(feed: Feed) -> None:
    feed.describe(*(items(n, f"t{n}") for n in range(1, TABLES + 1)))
    feed.cut(*(put(1, "old", 1, table=n) for n in range(1, TABLES + 1)))


def test_rows_that_wait_for_the_files_of_many_tables_share_one_budget(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_stream, "WAITING_BYTES_MAX", 1 << 20, raising=False)
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    _many_tables(feed)
    lakes.load(settings)
    for round_ in range(3):
        for n in range(1, TABLES + 1):
            feed.cut(*(put(key, "x" * 1000, round_, table=n) for key in range(40)))

    gathering = PendingCommit(ParquetFolder(settings, "lake"), lakes.manifest_of(settings))
    most = 0
    for increment in broker.increments:
        gathering.add(increment)
        most = max(most, sum(writer._waiting_bytes for writer in gathering._writers.values()))
    gathering.discard()

    assert most <= (1 << 20) + 100_000, "there are 7 MB in all"


def test_a_file_is_open_for_each_of_many_tables(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, few_descriptors: None
) -> None:
    settings = lakes.settings_of(broker.address, tmp_path / "lake", refresh_s=1000.0)
    _many_tables(feed)
    lakes.load(settings)
    feed.cut(*(put(2, "new", 2, table=n) for n in range(1, TABLES + 1)))
    with lakes.follow_in_thread(settings):
        lakes.check_state(settings, broker.next_offset)

    assert lakes.newest_rows(settings, feed.schemas[TABLES]) == feed.model[TABLES]


@pytest.mark.parametrize("limit", ["NET_ROWS_MAX", "NET_BYTES_MAX"])
def test_a_state_with_too_many_changes_behind_it_is_read_again(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(refresh, limit, 100, raising=False)
    put_together: list[int] = []
    net = refresh.read_net_changes

    def record_call(manifest: object, table: object, *args: object) -> object:
        put_together.append(table.waiting)  # type: ignore[attr-defined]
        return net(manifest, table, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(refresh, "read_net_changes", record_call)
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items())
    feed.cut(*(put(n, "old", n) for n in range(50)))
    lakes.load(settings)
    with lakes.follow_in_thread(settings):
        feed.cut(*(put(n, "new", n) for n in range(30, 500)), *(deletion(n) for n in range(10)))
        lakes.check_state(settings, broker.next_offset)
        lakes.wait_until_fresh(settings)

    assert lakes.current_rows(tmp_path / "lake", items()) == feed.model[1]
    assert not put_together or max(put_together) <= 100
    assert lakes.manifest_of(settings).unaccounted_changes == 0
