"""One source transaction of a million rows becomes one cut, in limited memory, completely or not at all."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.fault.upper.process import run_and_measure_memory
from tests.integration.upper.shop import Shop
from tests.support.brokers.servers import BrokerProcess, RssWatch, settings
from venus.config import CaptureSettings, SourceSettings
from venus.rpc.subscriber import Subscriber
from venus.wire.change_pb2 import BatchBody

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROWS = 1_000_000
LIMIT_BYTES = 512 << 20


def test_a_transaction_of_a_million_rows_is_one_cut_in_limited_memory(database: str, tmp_path: Path) -> None:
    assert psutil.virtual_memory().available > 4 * LIMIT_BYTES
    shop = Shop(database)
    with BrokerProcess(settings(tmp_path), new_interpreter=True) as broker, RssWatch(broker) as watch:
        chosen = settings(Path("unused"), address=broker.address).model_copy(
            update={
                "source": SourceSettings.model_validate({"url": database}),
                "capture": CaptureSettings(batch_rows_max=5000, heartbeat_s=3600),
            }
        )
        shop.install(chosen)
        run_and_measure_memory(chosen)
        shop.run(
            f"INSERT INTO customer SELECT g, 'customer number ' || g, repeat('x', 70) FROM generate_series(1, {ROWS}) g"
        )
        peak = run_and_measure_memory(chosen)
        assert peak < LIMIT_BYTES
        assert watch.peak_bytes < LIMIT_BYTES
        batches = _batches_of_the_last_cut(broker.address)
    assert sum(count for _, count, _ in batches) >= ROWS
    assert len(batches) >= ROWS / 5000
    assert {cut for cut, _, _ in batches} == {batches[0][0]}
    assert [end for *_, end in batches] == [False] * (len(batches) - 1) + [True]


def _batches_of_the_last_cut(address: str) -> list[tuple[int, int, bool]]:
    """Return (cut, count, cut_end) of each batch of the cut that has the million rows."""
    heads = []
    with Subscriber(address, "main", "heads", credit_bytes=64 << 20, transient=True) as reader:
        end = reader.open(0, 0).next_offset
        while reader.position < end:
            for increment in reader.increments(5.0):
                body = BatchBody.FromString(increment.body)
                heads.append((body.cut, body.count, body.cut_end))
    largest = max(heads, key=lambda head: head[1])[0]
    return [head for head in heads if head[0] == largest]
