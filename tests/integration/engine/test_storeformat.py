"""A store of another layout is refused, never misread."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import engines
from tests.support.engines import Producer
from venus.broker.store import keys
from venus.broker.store.format import FORMAT, check_format
from venus.broker.store.rocks import Store
from venus.errors import StorageError

pytestmark = pytest.mark.integration


def test_a_store_is_taken_up_again(tmp_path: Path) -> None:
    for first in (0, 5):
        engine = engines.make(tmp_path)
        Producer(engine).commit(engines.rows(first, 5))
        engine.stop()

    engine = engines.make(tmp_path)
    assert len(engines.full_data(engine)) == 10
    engine.stop()


@pytest.mark.parametrize(("found", "shown"), [(None, "layout 1"), (b"3", "layout 3")])
def test_another_layout_is_refused_with_the_way_out(tmp_path: Path, found: bytes | None, shown: str) -> None:
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
        check_format(store)
    assert "resync --all" in refused.value.hint
    store.close()
