"""Rows of a fill are written to store files directly; the full data is the same whatever is committed in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import Clock, Disk, Producer, the_business, wait_until_caught_up
from tests.support.waiting import eventually
from venus.broker.core import Core
from venus.broker.machine.business import Business
from venus.broker.pipeline.shared_log import StandaloneLog
from venus.broker.snapshot import materialiser, scrub, step
from venus.broker.snapshot.watched_rows import FoldedBatch
from venus.broker.store import keys
from venus.broker.store.rocks import SortedFile, Store
from venus.errors import StorageError
from venus.model import ChangeKind

Model = dict[bytes, bytes]


@pytest.fixture(autouse=True)
def _write_small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "FILES_BYTES_MIN", 1)
    monkeypatch.setattr(materialiser, "FILL_LINGER_S", 0.005)
    monkeypatch.setattr(materialiser, "IDLE_S", 0.01)


def begin_fill(engine: Core) -> Producer:
    producer = Producer(engine)
    engine.producers.record_fill(engines.BUSINESS, is_filling=True)
    return producer


def files_of_rows(engine: Core) -> list[int]:
    """Return the levels of the files that hold rows of the table."""
    prefix = keys.row_prefix(the_business(engine).number, 1)
    return [found.level for found in engine.store.list_files() if found.start.startswith(prefix)]


def test_the_rows_of_a_fill_are_a_file_that_nothing_merges(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = begin_fill(engine)
    producer.commit(engines.rows(0, 50))
    wait_until_caught_up(engine)

    assert files_of_rows(engine) == [6]
    assert len(engines.full_data(engine)) == 50
    engine.stop()
    engine = engines.make(tmp_path)
    assert len(engines.full_data(engine)) == 50
    engine.stop()


@pytest.mark.parametrize("what", ["the fill has ended", "the producer has gone", "the log is shared"])
def test_rows_outside_of_a_fill_are_written_as_usual(tmp_path: Path, what: str) -> None:
    class SharedLog(StandaloneLog):
        is_shared = True

    engine = engines.make(tmp_path, shared=SharedLog() if what == "the log is shared" else None)
    producer = begin_fill(engine)
    if what == "the fill has ended":
        engine.producers.record_fill(engines.BUSINESS, is_filling=False)
    elif what == "the producer has gone":
        engine.producers.leave(engines.BUSINESS)
        producer = Producer(engine)
    producer.commit(engines.rows(0, 50))
    wait_until_caught_up(engine)

    assert not engines.has_files(engine)
    engine.stop()


def test_rows_of_a_table_with_subscriptions_are_written_as_usual(tmp_path: Path) -> None:
    """Content subscriptions receive each batch with the rows before and after it."""

    class Observer:
        watched_tables = {1: frozenset({1})}
        seen = 0

        def on_folded(self, _business: Business, folded: Sequence[FoldedBatch]) -> None:
            self.seen += sum(len(section.after) for batch in folded for section in batch.sections)

        def on_refill(self, _business: Business) -> None:
            raise AssertionError

    engine, observer = engines.make(tmp_path), Observer()
    engine.materialiser._step.observer = observer
    begin_fill(engine).commit(engines.rows(0, 50))
    wait_until_caught_up(engine)

    assert not engines.has_files(engine)
    assert observer.seen == 50
    engine.stop()


def commit_random_batch(chance: random.Random, producer: Producer, model: Model, filled: int) -> int:
    """Commit a random batch, as a fill or the application might; return how many rows are filled by now."""
    kind = chance.choice(["fill", "fill", "fill", "update", "delete", "again", "truncate", "empty"])
    changes: list[tuple[bytes, bytes | None]] = []
    if kind == "fill":
        changes = list(engines.rows(filled, chance.randint(1, 30), b"%d" % producer.batch_no))
        filled += len(changes)
    elif kind in ("update", "delete", "again"):
        known = sorted(model)
        changes = [
            (key, None if kind == "delete" else b"%s %d" % (kind.encode(), producer.batch_no))
            for key in sorted(chance.sample(known, min(len(known), 9)), reverse=kind == "update")
        ]
    if kind == "truncate":
        if chance.random() < 0.3:
            producer.commit([], markers=[(ChangeKind.TRUNCATE, 0)])
            model.clear()
        return filled
    producer.commit(changes)
    for key, row in changes:
        model.pop(key, None) if row is None else model.update({key: row})
    return filled


@pytest.mark.parametrize("seed", range(6))
def test_the_full_data_is_correct_whatever_is_committed_between_rows_of_a_fill(tmp_path: Path, seed: int) -> None:
    chance, model, disk = random.Random(seed), Model(), Disk()
    engine = engines.make(tmp_path, free_bytes=disk)
    producer, filled = begin_fill(engine), 0
    for _ in range(8):
        disk.holds_full_data = True  # several batches wait, so that a step applies more than one
        for _ in range(chance.randint(1, 12)):
            filled = commit_random_batch(chance, producer, model, filled)
        disk.holds_full_data = False
        wait_until_caught_up(engine)
        assert engines.full_data(engine) == model
    assert engines.has_files(engine)
    engine.stop()

    engine = engines.make(tmp_path)
    assert engines.full_data(engine) == model
    engine.stop()


def test_rows_out_of_order_are_written_as_usual(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = begin_fill(engine)
    producer.commit(engines.rows(0, 50)[::-1])
    wait_until_caught_up(engine)

    assert not engines.has_files(engine)
    assert len(engines.full_data(engine)) == 50
    engine.stop()


def test_rows_ahead_of_their_offset_after_a_crash_are_no_damage(tmp_path: Path) -> None:
    """The file is on disk, but the offset up to which it has rows is not stored yet."""
    engine = engines.make(tmp_path)
    begin_fill(engine).commit(engines.rows(0, 50))
    wait_until_caught_up(engine)
    engine.stop()
    engines.make_full_data_from_start(tmp_path, met_before=False)

    disk, clock = Disk(), Clock()
    disk.holds_full_data = True
    engine = engines.make(tmp_path, clock, free_bytes=disk)
    assert the_business(engine).materialised.sequence == 0
    for _ in scrub.check_business(engine.store, the_business(engine), keep=False):
        pass
    disk.holds_full_data = False

    wait_until_caught_up(engine)
    assert len(engines.full_data(engine)) == 50
    engine.stop()


def test_what_a_crash_leaves_of_unfinished_files_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    store.new_file(keys.ROW).put_many([b"1"], [b"one"])
    left = list((tmp_path / "db.new").iterdir())
    store.close()

    Store(tmp_path / "db").close()

    assert left
    assert not (tmp_path / "db.new").exists()


def test_bodies_of_the_log_are_in_blob_files_which_go_with_the_log(tmp_path: Path) -> None:
    """A merge of the log moves keys, not bodies; a checkpoint contains the bodies too."""
    clock = Clock()
    engine = engines.make(tmp_path, clock, retain_bytes=0, cache_bytes=2 << 20)
    producer = Producer(engine)

    def blobs() -> set[str]:
        return {file.name for file in (tmp_path / "db").glob("*.blob")}

    producer.commit(engines.rows(0, 20, b"x" * 1000))
    wait_until_caught_up(engine)
    engine.store.checkpoint(tmp_path / "copy")
    first = blobs()
    assert first
    copy = Store(tmp_path / "copy", read_only=True)
    assert sum(len(value) for _, value in copy.scan(keys.RLOG, b"", b"")) > 20_000
    copy.close()

    def has_gone() -> bool:
        producer.commit(engines.rows(0, 20, b"y" * 1000))
        wait_until_caught_up(engine)
        clock.now_s += 1
        engine.store._views[keys.RLOG].flush(True)
        return not first & blobs()

    eventually(has_gone)
    engine.stop()


def test_a_business_that_keeps_its_log_does_not_keep_the_space_of_another(tmp_path: Path) -> None:
    """Blob files hold bodies of both businesses."""
    store, kept = Store(tmp_path / "db"), 0
    for n in range(24):
        batch = store.batch()
        batch.put(keys.RLOG, keys.log_key(1, n), random.Random(n).randbytes(200_000))
        batch.put(keys.RLOG, keys.log_key(2, n), random.Random(-n).randbytes(5_000))
        batch.delete_range(keys.RLOG, keys.log_key(1, 0), keys.log_key(1, n))
        store.write(batch, durable=False)
        store._views[keys.RLOG].flush(True)
        kept += 5_000

    def is_small() -> bool:
        with suppress(FileNotFoundError):  # the engine has removed a file since it was listed
            return sum(file.stat().st_size for file in (tmp_path / "db").glob("*.blob")) < kept + 8 * 200_000
        return False

    eventually(is_small)
    assert len(list(store.scan(keys.RLOG, b"", b""))) == 25
    store.close()


def test_merges_of_the_log_do_not_write_all_bodies_again(tmp_path: Path) -> None:
    """Each of two businesses trims its own part; RocksDB compacts after every fourth flush."""
    store, given = Store(tmp_path / "db"), 0
    before = bytes_written()
    for n in range(40):
        batch = store.batch()
        for number in (1, 2):
            batch.put(keys.RLOG, keys.log_key(number, n), random.Random(n * number).randbytes(100_000))
            given += 100_000
        batch.delete_range(keys.RLOG, keys.log_key(2, 0), keys.log_key(2, max(0, n - 20)))
        store.write(batch, durable=False)
        store._views[keys.RLOG].flush(True)
    store.close()

    assert bytes_written() - before < 4 * given  # once in the write-ahead log, once in a blob file


def bytes_written() -> int:
    """Return the number of bytes this process has written to files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def commit_tables(producer: Producer, first: int, count: int, rows: int) -> None:
    for table_id in range(first, first + count):
        producer.commit(engines.rows(0, rows), table_id=table_id)


def test_small_tables_of_a_fill_become_no_files_and_large_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file for each small table would delay all threads, and stay."""
    monkeypatch.setattr(step, "FILES_BYTES_MIN", 10_000)
    disk = Disk()
    engine = engines.make(tmp_path, free_bytes=disk)
    producer = begin_fill(engine)
    disk.holds_full_data = True
    commit_tables(producer, 1, 100, 20)
    disk.holds_full_data = False
    wait_until_caught_up(engine)
    assert not engines.has_files(engine)

    disk.holds_full_data = True
    commit_tables(producer, 101, 2, 2_000)
    commit_tables(producer, 103, 20, 20)
    disk.holds_full_data = False
    wait_until_caught_up(engine)
    assert 0 < engine.store._file_number <= 2 + step.FILES_MAX
    found = [(table_id, len(engines.full_data(engine, table_id))) for table_id in range(1, 123)]
    assert found == [(n, 2_000 if n in (101, 102) else 20) for n in range(1, 123)]
    engine.stop()


def test_a_step_makes_few_files_however_many_tables_it_has(tmp_path: Path) -> None:
    disk = Disk()
    engine = engines.make(tmp_path, free_bytes=disk)
    producer = begin_fill(engine)
    added: list[int] = []
    add_files = engine.store.add_files

    def count(family: str, new: Sequence[SortedFile]) -> None:
        added.append(len(new))
        add_files(family, new)

    engine.store.add_files = count  # type: ignore[method-assign]
    disk.holds_full_data = True
    commit_tables(producer, 1, 30, 50)
    disk.holds_full_data = False
    wait_until_caught_up(engine)

    assert max(added) == step.FILES_MAX
    assert [len(engines.full_data(engine, table_id)) for table_id in range(1, 31)] == [50] * 30
    engine.stop()


def test_a_full_disk_during_a_new_file_is_reported_with_a_remedy(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    (tmp_path / "db.new").mkdir()
    (tmp_path / "db.new" / "1.sst").symlink_to("/dev/full")
    file = store.new_file(keys.ROW)
    values = [random.Random(n).randbytes(1_000) for n in range(10_000)]

    with pytest.raises(StorageError, match=r"cannot add files to .*No space left") as full:
        file.put_many([b"%08d" % n for n in range(10_000)], values)
    assert "start the broker again" in full.value.hint
    store.drop_files([file])
    (tmp_path / "db.new").rmdir()
    (tmp_path / "db.new").touch()
    with pytest.raises(StorageError, match="cannot add files to"):
        store.new_file(keys.ROW)
    store.close()
