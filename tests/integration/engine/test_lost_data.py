"""Column families record each other's state: a store that lost part of its data is not served."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import BUSINESS, Producer
from tests.support.processes import forked
from tests.support.waiting import eventually
from venus.broker.machine import records
from venus.broker.machine.business import Business
from venus.broker.machine.records import encode_materialised_position
from venus.broker.snapshot import offline
from venus.broker.store import keys
from venus.broker.store.rocks import Store, StoreBatch
from venus.cli.app import run
from venus.errors import ConfigError, Corruption

pytestmark = pytest.mark.integration
Damage = Callable[[Store, StoreBatch, Business], None]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Make a store with ten batches, deletions among the newest, and one undecided half message."""
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    for n in range(8):
        producer.commit(engines.rows(n * 10, 20, b"v%d" % n))
    producer.commit([(b"%08d" % n, None) for n in range(5)])
    producer.commit(engines.rows(0, 3, b"again"))
    producer.send(producer.next_half(engines.rows(500, 3)))
    eventually(lambda: engines.status(engine).materialised_offset == 168)
    engine.stop()
    return tmp_path


def harm(data: Path, damage: Damage) -> None:
    store = Store(data / "db")
    (business,) = records.load_all(store, 6.0)
    business.log.find_end(store)
    batch = store.batch()
    damage(store, batch, business)
    store.write(batch, durable=True)
    store.close()


def log_end(store: Store, batch: StoreBatch, business: Business) -> None:
    batch.delete(keys.RLOG, keys.log_key(1, business.log.end - 1))


def log_start(store: Store, batch: StoreBatch, business: Business) -> None:
    batch.delete(keys.RLOG, keys.log_key(1, 1))


def damage_undecided_body(store: Store, batch: StoreBatch, business: Business) -> None:
    batch.delete(keys.RLOG, keys.log_key(1, business.applying.halves[0].index))


def lose_undecided_half(store: Store, batch: StoreBatch, business: Business) -> None:
    """Remove the body of the undecided half message; only its entry in the log stays."""
    batch.delete_range(keys.STATE, keys.HALF, keys.after_prefix(keys.HALF))


def delete_family(name: str) -> Damage:
    def damage(store: Store, batch: StoreBatch, business: Business) -> None:
        batch.delete_range(name, b"", b"\xff")

    damage.__name__ = name
    return damage


def lose_queue_end(store: Store, batch: StoreBatch, business: Business) -> None:
    batch.delete(keys.QUEUE, keys.queue_key(1, 165))


def lose_queue_middle(store: Store, batch: StoreBatch, business: Business) -> None:
    batch.delete(keys.QUEUE, keys.queue_key(1, 40))


def lose_queue_start(store: Store, batch: StoreBatch, business: Business) -> None:
    batch.delete(keys.QUEUE, keys.queue_key(1, 0))


def lose_business_record(store: Store, batch: StoreBatch, business: Business) -> None:
    batch.delete(keys.STATE, keys.core_key(1))


def change_full_data_offset(store: Store, batch: StoreBatch, business: Business) -> None:
    later = encode_materialised_position(business.materialised).replace(b'"offset": 168', b'"offset": 160')
    batch.put(keys.STATE, keys.materialised_key(1), later)


def lose_newest_rows(store: Store, batch: StoreBatch, business: Business) -> None:
    prefix = keys.row_prefix(1, 1)
    batch.delete_range(keys.ROW, prefix + b"%08d" % 0, prefix + b"%08d" % 3)


def lose_tombstones(store: Store, batch: StoreBatch, business: Business) -> None:
    prefix = keys.row_prefix(1, 1)
    batch.delete_range(keys.ROW, prefix + b"%08d" % 3, prefix + b"%08d" % 5)


def restore_older_rows(store: Store, batch: StoreBatch, business: Business) -> None:
    key = keys.row_prefix(1, 1) + b"%08d" % 2
    value = store.get(keys.ROW, key)
    assert value is not None
    batch.put(keys.ROW, key, (3).to_bytes(8, "big") + value[8:])


def lose_columns(store: Store, batch: StoreBatch, business: Business) -> None:
    batch.delete_range(keys.STATE, keys.SCHEMA, keys.after_prefix(keys.SCHEMA))


DAMAGES: list[Damage] = [
    log_end,
    log_start,
    damage_undecided_body,
    lose_undecided_half,
    lose_queue_end,
    lose_queue_middle,
    lose_queue_start,
    lose_business_record,
    change_full_data_offset,
    lose_newest_rows,
    lose_tombstones,
    restore_older_rows,
    lose_columns,
    *(delete_family(name) for name in keys.FAMILIES),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_store_that_lost_a_part_is_refused(data: Path, damage: Damage) -> None:
    harm(data, damage)

    with pytest.raises(Corruption) as refused:
        engines.make(data)

    assert "\n" not in str(refused.value)
    assert "`venus migrate` for each target" in refused.value.hint
    assert any(found.finding for found in offline.check_directory(data))


def test_an_intact_store_is_served_and_passes_the_check(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.make(data)
    assert engine.status(BUSINESS).businesses[0].next_offset == 168
    monkeypatch.chdir(data.parent)
    (data.parent / "venus.toml").write_text(f'[broker]\ndata_dir = "{data}"\n')
    command = [sys.executable, "-m", "venus.cli", "broker", "--check"]  # the lock excludes only other processes
    refused = forked.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode == 3
    assert "a broker runs on" in refused.stderr
    engine.stop()

    assert run(["broker", "--check"]) == 0
    shown = capsys.readouterr().out
    assert "ok    main shop.t1: 90 records in the full data" in shown
    assert "no damage found" in shown

    harm(data, restore_older_rows)
    assert run(["broker", "--check"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_check_without_data_names_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "venus.toml").write_text('[broker]\ndata_dir = "nowhere"\n')

    assert run(["broker", "--check"]) == 2

    assert "nowhere has no broker's data" in capsys.readouterr().err


def test_a_damaged_block_is_also_found_while_the_layout_is_read(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    (data.parent / "venus.toml").write_text(f'[broker]\ndata_dir = "{data}"\n')
    engine = engines.make(data)
    engine.store.checkpoint(data.parent / "copy")  # writes all memtables to files
    engine.stop()
    for table in (data / "db").glob("*.sst"):
        content = bytearray(table.read_bytes())
        content[5] ^= 4
        table.write_bytes(content)

    assert run(["broker", "--check"]) == 1
    shown = capsys.readouterr().out
    assert "WRONG" in shown
    assert "1 finding: none of this may be served" in " ".join(shown.split())


def test_a_store_without_a_witness_is_reported_as_such(data: Path) -> None:
    (data / "db.witness").unlink()
    files = next(iter(offline.check_directory(data)))

    assert files.seen.startswith("in order, with no witness")


def test_an_empty_store_is_refused_by_the_check(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()

    with pytest.raises(ConfigError, match="has no broker's data"):
        list(offline.check_directory(tmp_path))
    assert list((tmp_path / "db").iterdir()) == []
