"""A store of an unknown layout is refused, never misread."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.support.engines import engines
from tests.support.engines.engines import Producer
from venus.broker.log.entry import decode
from venus.broker.log.log import FORMAT, UPGRADES, check_format
from venus.broker.store import keys
from venus.broker.store.rocks import Store
from venus.errors import StorageError

pytestmark = pytest.mark.integration


def test_a_store_is_opened_again(tmp_path: Path) -> None:
    for first in (0, 5):
        engine = engines.make(tmp_path)
        Producer(engine).commit(engines.rows(first, 5))
        engine.stop()

    engine = engines.make(tmp_path)
    assert len(engines.full_data(engine)) == 10
    engine.stop()


@pytest.mark.parametrize(("found", "shown"), [(None, "layout 1"), (b"9", "layout 9")])
def test_another_layout_is_refused_with_the_remedy(tmp_path: Path, found: bytes | None, shown: str) -> None:
    engine = engines.make(tmp_path)
    Producer(engine).commit(engines.rows(0, 5))
    engine.stop()
    (place,) = (each.parent for each in tmp_path.rglob("CURRENT"))
    store = Store(place)
    batch = store.batch()
    if found is None:
        batch.delete(keys.STATE, keys.FORMAT)
    else:
        batch.put(keys.STATE, keys.FORMAT, found)
    store.write(batch, durable=True)

    with pytest.raises(StorageError, match=f"has {shown}, this broker reads {FORMAT.decode()}") as refused:
        check_format(store, UPGRADES)
    assert "`venus migrate` for each target" in refused.value.hint
    store.close()


def test_a_store_of_layout_2_is_upgraded_in_place(tmp_path: Path) -> None:
    """Entries without term and seal are rewritten; an upgrade that was interrupted starts over."""
    engine = engines.make(tmp_path)
    producer = Producer(engine)
    producer.commit(engines.rows(0, 5))
    left = producer.next_half(engines.rows(5, 5))
    producer.send(left)
    engine.stop()
    store = Store(tmp_path / "db")
    wanted = dict(store.scan(keys.RLOG, b"", b""))
    batch = store.batch()
    for key, value in list(wanted.items())[1:]:  # the first entry was rewritten before the power cut
        found = decode(value, keys.log_index(key), where="here")
        batch.put(keys.RLOG, key, struct.pack(">BQqQ", found.kind, found.epoch, found.at_us, found.digest) + found.body)
    batch.put(keys.STATE, keys.FORMAT, b"2")
    store.write(batch, durable=True)
    store.close()

    engine = engines.make(tmp_path)
    assert len(engines.full_data(engine)) == 5
    producer = Producer(engine)
    producer.batch_no, producer.sequence = 2, 10
    assert producer.decide(left).next_offset == 10
    engine.stop()
    store = Store(tmp_path / "db")
    assert wanted.items() <= dict(store.scan(keys.RLOG, b"", b"")).items()
    assert store.get(keys.STATE, keys.FORMAT) == FORMAT
    store.close()
