"""Damaged files and full disks: the broker refuses with a remedy, serves no damaged data and writes no half message."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Errors, Producer
from tests.support.waiting import eventually
from venus.broker.store import keys
from venus.broker.store.files import FreeSpace
from venus.broker.store.rocks import Store
from venus.errors import Corruption, StorageError, StoreFull
from venus.model import Verdict
from venus.wire import broker_pb2

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.support.engines.engines"])
MIB = 1 << 20


def commit_and_die(path: Path, batches: int) -> None:
    """Commit batches and stop without a shutdown, so that only the log of the store has them."""
    producer = Producer(engines.make(path))
    for number in range(batches):
        producer.commit(engines.rows(number * 10, 10, b"z" * 50))
    os.kill(os.getpid(), signal.SIGKILL)


def killed_store(path: Path, batches: int) -> Path:
    process = PROCESSES.Process(target=commit_and_die, args=(path, batches))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    return max((path / "db").glob("*.log"), key=lambda found: found.stat().st_size)


@pytest.mark.fault
def test_a_flipped_byte_in_the_log_is_refused_with_a_remedy(tmp_path: Path) -> None:
    log = killed_store(tmp_path, 20)
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0x01
    log.write_bytes(content)

    with pytest.raises(Corruption) as refused:
        engines.make(tmp_path)

    assert str(tmp_path / "db") in str(refused.value)
    assert "`venus migrate` for each target" in refused.value.hint


@pytest.mark.fault
def test_a_torn_end_of_the_log_loses_nothing_acknowledged(tmp_path: Path) -> None:
    log = killed_store(tmp_path, 20)
    with log.open("ab") as torn:
        torn.write(b"\x12\x34\x56\x78\x99")

    engine = engines.make(tmp_path)

    assert engine.status(BUSINESS).businesses[0].next_offset == 200
    engine.stop()


def damage_body(path: Path, index: int) -> None:
    """Flip a bit of a row in a stored body before the store computes its checksums, as faulty memory does."""
    store = Store(path / "db")
    batch = store.batch()
    key = keys.log_key(1, index)
    entry = store.get(keys.RLOG, key)
    assert entry is not None
    batch.put(keys.RLOG, key, entry[:-1].replace(b"zz", b"z{", 1) + entry[-1:])
    store.write(batch, durable=True)
    store.close()


@pytest.mark.fault
def test_a_body_that_was_damaged_in_the_log_never_becomes_full_data(tmp_path: Path) -> None:
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    for number in range(3):
        producer.commit(engines.rows(number * 10, 10, b"z" * 50))
    engine.stop()
    store = Store(tmp_path / "db")
    prepared = [keys.log_index(key) for key, value in store.scan(keys.RLOG, b"", b"") if b"zz" in value]
    store.close()
    damage_body(tmp_path, prepared[1])
    engines.make_full_data_from_start(tmp_path, met_before=False)  # a restarted broker reads every body from the log

    errors = Errors()
    engine = engines.make(tmp_path, errors=errors)
    eventually(lambda: errors.fatal or engine.status(BUSINESS).businesses[0].materialised_offset == 30)
    engine.stop()

    (found,) = errors.fatal
    assert isinstance(found, Corruption)
    assert "batch 2 of main is damaged" in str(found)
    store = Store(tmp_path / "db")
    assert all(b"{" not in value for _, value in store.scan_prefix(keys.ROW, keys.row_prefix(1, 1)))
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mount is not permitted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.fault
def test_half_messages_are_refused_before_the_disk_is_full_and_accepted_later(small_disk: Path) -> None:
    errors = Errors()
    engine = engines.make(small_disk / "data", errors=errors, free_bytes_min=40 * MIB, retain_bytes=0)
    producer = Producer(engine)
    accepted = 0
    refused = None
    while refused is None:
        message = producer.next_half(engines.rows(accepted * 10, 10, os.urandom(50_000)))
        try:
            producer.send(message)
            accepted += 1
        except StoreFull as error:
            refused = error
    assert "free_bytes_min" in refused.hint
    assert FreeSpace(small_disk, 0).read_free() > 20 * MIB
    assert any("MiB free" in alarm for alarm in engine.status().alarms)

    last = broker_pb2.Half(batch_no=message.batch_no - 1, digest=producer.last_digest)
    producer.decide(last)  # accepted half messages can still be decided

    subprocess.run(["mount", "-o", "remount,size=512m", str(small_disk)], check=True)
    producer.send(message)
    producer.decide(message)
    eventually(lambda: engine.status().businesses[0].materialised_offset == (accepted + 1) * 10)
    assert len(engines.full_data(engine)) == (accepted + 1) * 10
    assert errors.fatal == []
    engine.stop()


@pytest.mark.fault
def test_a_full_disk_stops_the_broker_and_keeps_all_acknowledged_batches(small_disk: Path) -> None:
    errors = Errors()
    # as with a quota: the file system promises more space than it has
    engine = engines.make(small_disk / "data", errors=errors, free_bytes=engines.Disk())
    producer = Producer(engine)
    answered = 0
    failed = None
    while failed is None:
        try:
            producer.commit(engines.rows(answered, 1, os.urandom(MIB // 2)))
            answered += 1
        except StorageError as error:
            failed = error
    assert not isinstance(failed, StoreFull)
    eventually(lambda: len(errors.fatal) == 1)
    with pytest.raises(StorageError):
        producer.engine.producers.init(BUSINESS, "later", 0, 0).result(engines.WAIT_S)
    assert any("restarted" in alarm for alarm in engine.status().alarms)
    engine.stop()

    subprocess.run(["mount", "-o", "remount,size=512m", str(small_disk)], check=True)
    engine = engines.make(small_disk / "data")
    found = engine.status(BUSINESS).businesses[0]
    assert found.next_offset >= answered
    assert [i.base_offset for i in engines.queue(engine)] == list(range(found.next_offset))
    for ref in found.halves:
        ack = Producer(engine, source_last_batch=found.last_batch)
        ack.decide(broker_pb2.Half(batch_no=ref.batch_no, digest=ref.digest), Verdict.ROLLBACK)
    engine.stop()
