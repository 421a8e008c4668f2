"""The order of the steps in a lake's commit, and how the next process completes one that was interrupted.

No process is killed here: tests/fault/lake does that. These tests say which step was missing.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.delivery import FakeDelivery
from tests.support.brokers.feed import Feed, column, deletion, items, put, table
from tests.support.brokers.real_broker import RealBroker
from tests.support.masked_values import SECRET
from tests.support.pipelines import lakes
from venus.adapters.targets.parquet import load
from venus.adapters.targets.parquet.files import hidden_path, point_link
from venus.adapters.targets.parquet.lake_stream import run_lake
from venus.adapters.targets.parquet.manifest import LakeManifest, ParquetFolder
from venus.config import Settings, TargetSettings
from venus.errors import ProtocolError

pytestmark = pytest.mark.integration


class ProcessKilled(BaseException):
    """Raised at the step at which the process would be killed."""


@pytest.fixture
def settings(broker: FakeDelivery, feed: Feed, tmp_path: Path) -> Settings:
    """Load a lake of two tables."""
    made = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items(), items(2, "others"))
    feed.cut(*(put(i, f"label {i}", i) for i in range(20)), put(1, "other", 1, table=2))
    lakes.load(made)
    return made


def follow(settings: Settings, offset: int) -> None:
    with lakes.follow_in_thread(settings):
        lakes.check_state(settings, offset)
        lakes.wait_until_fresh(settings)


def read_links(root: Path) -> dict[str, str]:
    """Return what a reader sees: the files of the history, and the targets of the links."""
    found = {path.name: "" for path in (root / "history").rglob("*.parquet") if not path.name.startswith(".")}
    return found | {path.name: os.readlink(path) for path in (root / "current").iterdir()}


def test_no_file_is_visible_before_the_manifest_names_it(
    settings: Settings, broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, before = tmp_path / "lake", read_links(tmp_path / "lake")
    save = LakeManifest.save

    def kill_here(_: LakeManifest, path: Path) -> None:
        raise ProcessKilled

    def killed_at_a_state(manifest: LakeManifest, path: Path) -> None:
        if any(t.base.offset == manifest.offset for t in manifest.tables.values()):
            raise ProcessKilled
        save(manifest, path)

    def recover_after(saving: Callable[[LakeManifest, Path], None]) -> dict[str, str]:
        """Return the visible files after a kill in this block; then continue."""
        with monkeypatch.context() as patch:
            patch.setattr(LakeManifest, "save", saving)
            with pytest.raises(ProcessKilled):
                run_lake(settings, "lake", threading.Event())
        left = read_links(root)
        follow(settings, broker.next_offset)
        return left

    feed.cut(put(1, "new", 1), deletion(2))
    at_the_commit = recover_after(kill_here)
    after = read_links(root)
    feed.cut(put(3, "three", 3))
    at_the_refresh = recover_after(killed_at_a_state)

    assert at_the_commit == before
    links = {name for name in after if name.startswith("shop.")}
    assert {name: at_the_refresh[name] for name in links} == {name: after[name] for name in links}
    assert lakes.current_rows(root, items()) == feed.model[1]


def test_recovery_publishes_the_files_that_the_manifest_names(
    settings: Settings, broker: FakeDelivery, feed: Feed, tmp_path: Path
) -> None:
    """As after a kill right after the manifest's renaming: files still hidden, the link still to the previous state."""
    root, target = tmp_path / "lake", ParquetFolder(settings, "lake")
    feed.cut(put(1, "new", 1), deletion(2))
    follow(settings, broker.next_offset)
    manifest = lakes.manifest_of(settings)
    table = manifest.tables[1]
    (file,) = (root / "history/shop.items").rglob("*.parquet")
    manifest.publish = [target.layout.relative_path(file)]
    manifest.save(target.layout.manifest)
    file.rename(hidden_path(file))
    point_link(target.layout.current(table.folder), target.layout.version(table.folder, table.previous))
    lost = len(lakes.history(root, "shop.items")), lakes.current_rows(root, items()) == feed.model[1]

    assert target.recover() is not None

    assert lost == (0, False)
    assert lakes.history(root, "shop.items")["_offset"].to_pylist() == [21, 22]
    assert lakes.current_rows(root, items()) == lakes.newest_rows(settings, items()) == feed.model[1]


def test_the_plan_of_an_interrupted_load_has_no_plain_keys(
    real: RealBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, key_file, people = (
        Feed(real),
        tmp_path / "masking.key",
        table(1, "people", column(1, "id"), column(2, "note")),
    )
    feed.describe(people)
    feed.cut(*(put(f"plain{n}", "note") for n in range(60)))
    key_file.write_bytes(SECRET)
    key_file.chmod(0o600)
    root = tmp_path / "lake"
    target = {"url": f"parquet://{root}", "columns": {"people.id": "hmac"}, "masking_key_file": str(key_file)}
    made = lakes.settings_of(real.address, root)
    made = made.model_copy(update={"targets": {"lake": TargetSettings.model_validate(target)}})

    def kill(*_: object) -> None:
        raise ProcessKilled

    with monkeypatch.context() as patch:
        patch.setattr(load.StateLoad, "run", kill)
        with pytest.raises(ProcessKilled):
            lakes.load(made)
    plan = json.loads(ParquetFolder(made, "lake").layout.load.read_text(encoding="utf-8"))["snapshot"]
    assert b"people" in base64.b64decode(plan), "it is there to be looked at"
    assert b"plain" not in base64.b64decode(plan)

    lakes.load(made)

    assert len(lakes.current_rows(root, people)) == 60


def test_files_that_no_manifest_names_are_removed(
    settings: Settings, broker: FakeDelivery, feed: Feed, tmp_path: Path
) -> None:
    """A writer may never return: other writers use other files, and its files would stay for ever."""
    root, target = tmp_path / "lake", ParquetFolder(settings, "lake")
    for n in range(3):
        feed.cut(put(1, "new", n))
        follow(settings, broker.next_offset)
    folder, before = root / "history/shop.others/version=1", read_links(root)
    folder.mkdir(parents=True, exist_ok=True)
    hidden_path(folder / "00000000000000000007.parquet").write_bytes(b"half of a file")
    state = root / "versions/shop.items/00000000000000000099"
    state.mkdir()
    (state / "part-00000-99.parquet").write_bytes(b"an unknown state")
    table = lakes.manifest_of(settings).tables[1]

    assert target.recover() is not None

    assert not list(root.rglob("*.tmp"))
    assert {path.name for path in state.parent.iterdir()} == {table.base.folder, table.previous}
    assert read_links(root) == before


def test_a_load_continues_with_the_missing_splits(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(1000)))
    read_split, finished = load.load_split, list[str]()

    def killed_in_the_middle(job: Any) -> int:
        if len(finished) == 2:
            raise ProcessKilled
        rows = read_split(job)
        finished.append(job.path.name)
        return rows

    monkeypatch.setattr(load, "load_split", killed_in_the_middle)
    settings = settings.model_copy(update={"apply": settings.apply.model_copy(update={"load_workers": 1})})
    monkeypatch.setattr(load, "SPLITS_PER_WORKER", 4)
    monkeypatch.setattr("venus.adapters.targets.parquet.load.SPLITS_PER_WORKER", 4)
    with pytest.raises(ProcessKilled):
        lakes.load(settings)
    read = broker.splits_read
    (folder,) = (tmp_path / "lake/versions/shop.items").iterdir()
    inodes = {name: (folder / name).stat().st_ino for name in finished}
    monkeypatch.setattr(load, "load_split", read_split)

    loaded = lakes.load(settings)

    assert (read, broker.splits_read, broker.snapshots_opened) == (2, 4, 1)
    assert {name: (folder / name).stat().st_ino for name in finished} == inodes
    assert loaded == {"shop.items": 1000}
    assert lakes.current_rows(tmp_path / "lake", items()) == feed.model[1]


@pytest.mark.parametrize("left", ["an expired snapshot", "{"])
def test_a_load_that_cannot_continue_starts_over_at_once(
    left: str,
    broker: FakeDelivery,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(100)))

    def kill_here(_: object) -> None:
        raise ProcessKilled

    monkeypatch.setattr(load, "publish", kill_here)
    with pytest.raises(ProcessKilled):
        lakes.load(settings)
    monkeypatch.undo()
    feed.cut(put(1, "behind that cut", 1))
    if left == "{":
        ParquetFolder(settings, "lake").layout.load.write_text(left)
    else:
        broker.pinned.clear()

    lakes.load(settings)

    assert broker.snapshots_opened == 2
    assert lakes.current_rows(tmp_path / "lake", items()) == feed.model[1]
    assert "cannot resume the interrupted load" in caplog.text
    assert "loading again from the start" not in caplog.text, "nothing was tried with it"


def test_a_load_with_a_wrong_number_of_rows_fails(broker: FakeDelivery, feed: Feed, tmp_path: Path) -> None:
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items())
    feed.cut(*(put(i, "x", i) for i in range(3)))
    broker.sums_off = (1, 0)

    with pytest.raises(ProtocolError, match=r"shop\.items: 3 rows were loaded of the 4"):
        lakes.load(settings)

    assert not (tmp_path / "lake" / "current").exists()
    broker.sums_off = (0, 0)
    assert lakes.load(settings) == {"shop.items": 3}


def test_a_split_that_was_half_written_is_read_again(
    broker: FakeDelivery, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a file has no final name: its rows are not taken as the split's."""
    settings = lakes.settings_of(broker.address, tmp_path / "lake")
    feed.describe(items())
    feed.cut(*(put(i, f"label {i}", i) for i in range(1000)))

    def kill_here(_: object) -> None:
        raise ProcessKilled

    monkeypatch.setattr(load, "publish", kill_here)
    with pytest.raises(ProcessKilled):
        lakes.load(settings)
    left = [path.name for path in (tmp_path / "lake/versions").rglob("*") if path.is_file()]
    monkeypatch.undo()

    lakes.load(settings)

    assert left
    assert all(name.endswith(".tmp") for name in left)
    assert not list((tmp_path / "lake").rglob("*.tmp"))
    assert lakes.current_rows(tmp_path / "lake", items()) == feed.model[1]
