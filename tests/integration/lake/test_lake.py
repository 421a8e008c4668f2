"""A lake follows the broker: its Parquet files have exact states and changes, whatever happens."""

from __future__ import annotations

import errno
import os
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import INT, Feed, column, deletion, items, put, table
from tests.support.brokers.real_broker import RealBroker
from tests.support.brokers.servers import business_status
from tests.support.pipelines import lakes
from tests.support.waiting import eventually
from venus.adapters.targets.parquet.manifest import ParquetFolder
from venus.adapters.under import circuit
from venus.config import Settings
from venus.errors import Refused
from venus.model import Kind, LogicalType
from venus.rpc.admin import AdminClient
from venus.wire import broker_pb2

pytestmark = pytest.mark.integration

DATE = LogicalType(kind=Kind.DATE)
INT4 = LogicalType(kind=Kind.INT, length=4)


def write_random_cuts(feed: Feed, rng: random.Random, cuts: int) -> None:
    for n in range(cuts):
        keys = rng.sample(range(1, 300), 20)
        changes = [deletion(k) if rng.random() < 0.3 else put(k, f"{n} {k}", n) for k in keys]
        feed.cut(*changes, put(n % 40, "o", n, table=2), batch_rows=7)


@pytest.mark.parametrize(("folder", "file_mode", "folder_mode"), [(None, 0o600, 0o700), (0o750, 0o640, 0o750)])
def test_a_lake_has_the_permissions_of_its_folder(
    real: RealBroker, tmp_path: Path, folder: int | None, file_mode: int, folder_mode: int
) -> None:
    root, feed = tmp_path / "lake", Feed(real)
    if folder is not None:
        root.mkdir()
        root.chmod(folder)
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(20)))
    before = os.umask(0o022)
    try:
        lakes.load(lakes.settings_of(real.address, root))
    finally:
        found = os.umask(before)

    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in (root, *root.rglob("*")) if not path.is_symlink()}
    assert modes == {(False, file_mode), (True, folder_mode)}
    assert found == 0o022


def test_the_whole_life_of_a_lake(real: RealBroker, tmp_path: Path) -> None:
    root, feed, rng = tmp_path / "lake", Feed(real), random.Random(11)
    settings = lakes.settings_of(real.address, root)
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, f"label {i}", i) for i in range(2000)), batch_rows=500)
    write_random_cuts(feed, rng, 10)

    assert lakes.load(settings) == {"shop.items": len(feed.model[1]), "shop.others": len(feed.model[2])}
    start = real.next_offset
    assert lakes.current_rows(root, items()) == feed.model[1]
    with lakes.follow_in_thread(settings):
        write_random_cuts(feed, rng, 20)
        feed.truncate(1, put(7, "after", 7))
        write_random_cuts(feed, rng, 10)
        at = feed.sweep_begin(2)
        feed.cut(put(3, "met", 1, table=2))
        feed.model[2] = {("3",): ("met", "1")}
        feed.sweep_end(2, at)
        real.stop()
        real.start()
        write_random_cuts(feed, rng, 10)
        lakes.check_state(settings, real.next_offset)
        lakes.wait_until_fresh(settings)
        with AdminClient(real.address) as admin:
            eventually(lambda: acknowledged_offset(admin) == real.next_offset, "the acknowledgement")

    for table_id, schema in feed.schemas.items():
        assert lakes.current_rows(root, schema) == lakes.newest_rows(settings, schema) == feed.model[table_id]
    offsets = sorted(
        o for name in ("items", "others") for o in lakes.history(root, f"shop.{name}")["_offset"].to_pylist()
    )
    begin = at - 1  # the beginning of a sweep changes no row; here offset = sequence - 1
    assert offsets == [o for o in range(start, real.next_offset) if o != begin]
    assert lakes.manifest_of(settings).unaccounted_changes == 0


def acknowledged_offset(admin: AdminClient) -> int:
    (business,) = admin.status("main").businesses
    return next(c.acknowledged for c in business.consumers if c.group == "main/lake")


def test_a_commit_has_whole_cuts_and_a_state_is_as_of_its_offset(
    broker: FakeDelivery, feed: Feed, tmp_path: Path
) -> None:
    settings = lakes.settings_of(broker.address, tmp_path / "lake", refresh_s=1000.0)
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    lakes.load(settings)
    broker.hold_from = broker.next_offset + 5
    feed.cut(*(put(i, "b", i) for i in range(1, 9)), batch_rows=5)

    with lakes.follow_in_thread(settings) as reports:
        eventually(lambda: len(reports) > 2, "some reports")
        before = lakes.manifest_of(settings).offset
        broker.release()
        lakes.check_state(settings, broker.next_offset)

    assert before == 1, "half a cut was committed"
    assert lakes.newest_rows(settings, items()) == feed.model[1]
    assert len(lakes.current_rows(tmp_path / "lake", items())) == 1, "the state before the refresh"


def files_of(folder: Path) -> set[tuple[int, int]]:
    """Return the number and the time of each file: a new file may have the number of a removed one."""
    return {(found.st_ino, found.st_mtime_ns) for found in (path.stat() for path in folder.iterdir())}


def test_files_with_unchanged_rows_are_kept_and_old_states_are_removed(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "lake"
    settings = lakes.settings_of(broker.address, root)
    monkeypatch.setattr("venus.adapters.targets.parquet.refresh.SMALL_ROWS", 10)
    feed.describe(items())
    feed.cut(*(put(i, "a" * 10, i) for i in range(1000)))
    lakes.load(settings)
    before = files_of(root / "current/shop.items")
    with lakes.follow_in_thread(settings):
        for n in range(4):
            feed.cut(put(10, "changed", n))
            lakes.check_state(settings, broker.next_offset)
            lakes.wait_until_fresh(settings)

    after = files_of(root / "current/shop.items")
    assert len(before) >= 4
    assert len(before & after) == len(before) - 1
    assert lakes.current_rows(root, items()) == feed.model[1]
    assert len(list((root / "versions/shop.items").iterdir())) <= 2


def make_lake_that_cannot_follow(broker: FakeDelivery, feed: Feed, root: Path) -> Settings:
    """Load a lake, let it follow one change, and remove the next one from the queue."""
    settings = lakes.settings_of(broker.address, root)
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    lakes.load(settings)
    with lakes.follow_in_thread(settings):
        feed.cut(put(2, "b", 2))
        lakes.check_state(settings, broker.next_offset)
    feed.cut(put(3, "c", 3))
    broker.log_start = broker.next_offset
    return settings


def test_a_lake_that_cannot_follow_is_loaded_again_and_its_history_is_kept(
    broker: FakeDelivery, feed: Feed, tmp_path: Path
) -> None:
    root = tmp_path / "lake"
    settings = make_lake_that_cannot_follow(broker, feed, root)
    rows = lakes.load(settings)

    assert rows == {"shop.items": 3}
    assert len(list(root.glob("history-until-2-*/shop.items/version=1/*.parquet"))) == 1


def test_a_load_that_is_killed_after_its_commit_still_archives_the_history(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "lake"
    settings = make_lake_that_cannot_follow(broker, feed, root)
    with monkeypatch.context() as patched:
        patched.setattr(ParquetFolder, "finish_load", lambda *_: (_ for _ in ()).throw(MemoryError))
        patched.setattr(ParquetFolder, "recover", ParquetFolder.read_manifest)
        with pytest.raises(MemoryError):
            lakes.load(settings)
    with lakes.follow_in_thread(settings):
        feed.cut(put(4, "d", 4))
        lakes.check_state(settings, broker.next_offset)
        lakes.wait_until_fresh(settings)

    assert lakes.current_rows(root, items()) == feed.model[1]
    assert len(list(root.glob("history-until-2-*/shop.items/version=1/*.parquet"))) == 1
    assert lakes.history(root, "shop.items")["_offset"].to_pylist() == [3]
    assert not (root / "load.json").exists()


def test_a_full_disk_is_waited_for(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    lakes.load(settings)
    original, failures = os.fsync, [0]

    def fail_now_and_then(descriptor: int) -> None:
        failures[0] += 1
        if failures[0] in (2, 3, 7, 11):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fail_now_and_then)
    with lakes.follow_in_thread(settings) as reports:
        for n in range(4):
            feed.cut(put(1, "b", n), put(n + 2, "c", n))
            lakes.check_state(settings, broker.next_offset)
        lakes.wait_until_fresh(settings)

    assert failures[0] > 11
    assert any("No space left" in report.error for report in reports)
    assert lakes.current_rows(tmp_path / "lake", items()) == feed.model[1]
    assert sorted(lakes.history(tmp_path / "lake", "shop.items")["_offset"].to_pylist()) == list(
        range(1, broker.next_offset)
    )


def test_a_slow_folder_is_isolated_probed_and_followed_again(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit, "SLOW_CLASSES", ((0.7, 3.0),))
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items())
    feed.cut(put(1, "a", 1))
    lakes.load(settings)
    original, slow, asked = os.fsync, [True], list[float]()

    def fsync(descriptor: int) -> None:
        asked.append(time.monotonic())
        if slow[0]:
            time.sleep(0.4)
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with lakes.follow_in_thread(settings) as reports:
        feed.cut(put(1, "slowly", 2))
        lakes.check_state(settings, broker.next_offset)
        eventually(lambda: any("isolated for 3 s" in report.error for report in reports))
        assert next(report for report in reports if report.error).circuit == "open"
        feed.cut(put(1, "meanwhile", 3))
        eventually(lambda: longest_gap(asked) > 2.9, "a probe after a pause without writes")
        probed = len(reports)  # the probe is still slow: the folder is isolated once more
        eventually(lambda: any("isolated for" in report.error for report in reports[probed:]))
        slow[0] = False
        lakes.check_state(settings, broker.next_offset)
        eventually(lambda: reports[-1].circuit == "closed" and not reports[-1].error)
    assert lakes.current_rows(tmp_path / "lake", items()) == feed.model[1]


def longest_gap(times_s: list[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(list(times_s)))


def test_a_url_that_cannot_be_a_lake_is_refused(broker: FakeDelivery, feed: Feed, tmp_path: Path) -> None:
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "thesis.doc").touch()
    with pytest.raises(Refused, match="that VENUS did not write"):
        lakes.load(settings)
    (tmp_path / "lake" / "thesis.doc").unlink()
    feed.describe(table(1, "odd", column(1, "id", INT), column(2, "_offset")))
    feed.cut(put(1, "x"))
    with pytest.raises(Refused, match=r"shop\.odd: column _offset"):
        lakes.load(settings)
    with ParquetFolder(settings, "lake").hold_lock(), pytest.raises(Refused, match="another process"):
        lakes.load(settings)


def test_a_paused_lake_keeps_its_increments_over_reconnections(tmp_path: Path) -> None:
    """A lake holds all its tables or none: it keeps the increments that it has not committed."""
    real = RealBroker(tmp_path / "data", retain_bytes=20_000)
    root, feed = tmp_path / "lake", Feed(real)
    settings = lakes.settings_of(real.address, root)
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, "old", i) for i in range(20)), put(1, "old", 1, table=2))
    lakes.load(settings)
    target = ParquetFolder(settings, "lake")
    with lakes.follow_in_thread(settings):
        target.set_paused(paused=True)
        eventually(lambda: any(c.reported.report.paused for c in business_status(real.address).consumers), "the pause")
        held_from = real.next_offset
        more_than_is_retained(feed, "first")
    real.stop()
    real.start()
    with lakes.follow_in_thread(settings):
        more_than_is_retained(feed, "second")
        eventually(lambda: _consumer(real).connected, "the stream")
        time.sleep(2.5)  # the broker trims its queue each second
        kept = _consumer(real)
        target.set_paused(paused=False)
        lakes.check_state(settings, real.next_offset)
        lakes.wait_until_fresh(settings)
        eventually(lambda: business_status(real.address).log_start > held_from, "the trimming")

    assert kept.kept == kept.acknowledged <= held_from
    for table_id, schema in feed.schemas.items():
        assert lakes.current_rows(root, schema) == feed.model[table_id]
    assert lakes.manifest_of(settings).unaccounted_changes == 0
    real.stop()


def more_than_is_retained(feed: Feed, word: str) -> None:
    for n in range(10):
        feed.cut(put(n, word, n), *(put(i, f"{word} {n}" * 20, i, table=2) for i in range(100)))


def _consumer(real: RealBroker) -> broker_pb2.ConsumerStatus:
    return next(c for c in business_status(real.address).consumers if c.group == "main/lake")
