"""How fast the engine alone is: half messages with commit and fsync, and rows becoming full data.

    python -m bench.engine [--rows 1000] [--row-bytes 100] [--seconds 5]

There is no gRPC, so the figures are an upper limit for the service. `random` keys are the worst case for the full data.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash

from venus.broker.core import Core
from venus.config import BrokerSettings
from venus.wire import broker_pb2, change_pb2

KEY_BYTES = 9
PRODUCED_AHEAD = 16


def halves(rows: int, row_bytes: int, *, shuffled: bool) -> Iterator[broker_pb2.Half]:
    """Yield half messages with this number of rows, whose keys have eight digits and rise or are random."""
    chance = random.Random(1)
    sizes = np.full(rows, KEY_BYTES, dtype="<u4").tobytes()
    row_sizes = np.full(rows, row_bytes - KEY_BYTES, dtype="<u4").tobytes()
    content = chance.randbytes(row_bytes - KEY_BYTES) * rows
    batch_no = 0
    while True:
        first = batch_no * rows + 1
        batch_no += 1
        numbers = [chance.randrange(10**8) if shuffled else first + i for i in range(rows)]
        body = change_pb2.BatchBody(
            batch_no=batch_no, first_sequence=first, count=rows, cut=batch_no, cut_end=True, captured_at_us=1
        )
        if batch_no == 1:
            body.schemas.add(table_id=1, version=1, namespace="bench", name="rows")
        body.tables.add(
            table_id=1,
            schema_version=1,
            count=rows,
            record_ids=b"".join(b"\x0a%08d" % number for number in numbers),
            record_id_sizes=sizes,
            rows=content,
            row_sizes=row_sizes,
            inserts_only=True,
        )
        encoded = body.SerializeToString()
        yield broker_pb2.Half(batch_no=batch_no, digest=xxhash.xxh3_64_intdigest(encoded), body=encoded)


def open_engine(path: Path) -> Core:
    """Start the broker's engine on an empty directory, with default settings and without gRPC."""

    def on_fatal(error: BaseException) -> None:
        raise SystemExit(f"the engine failed: {error}")

    settings = BrokerSettings()
    engine = Core(
        path,
        settings,
        clock_us=lambda: time.time_ns() // 1000,
        monotonic=time.monotonic,
        on_fatal=on_fatal,
    )
    engine.start()
    return engine


def run(rows: int, row_bytes: int, batches: int, *, shuffled: bool) -> None:
    """Commit prepared batches in the engine; print the rows a second that are committed, and in the full data too."""
    messages = [message for message, _ in zip(halves(rows, row_bytes, shuffled=shuffled), range(batches), strict=False)]
    path = Path(tempfile.mkdtemp(prefix="venus-bench-"))
    engine = open_engine(path)
    try:
        epoch = engine.producers.init("bench", "bench", 0, 0).result().epoch
        begin, cpu = time.perf_counter(), time.process_time()
        waiting = []
        for message in messages:
            engine.producers.take_halves("bench", epoch, [message])
            waiting.append(engine.producers.decide("bench", epoch, message.batch_no, message.digest, broker_pb2.COMMIT))
            if len(waiting) > PRODUCED_AHEAD:
                waiting.pop(0).result()
        for future in waiting:
            future.result()
        committed = time.perf_counter() - begin
        while engine.status("bench").businesses[0].materialised_offset < rows * batches:
            time.sleep(0.005)
        whole = time.perf_counter() - begin
        used = time.process_time() - cpu
    finally:
        engine.stop()
        shutil.rmtree(path, ignore_errors=True)
    total = rows * batches
    kind = "random" if shuffled else "rising"
    print(
        f"{rows:6d} rows a batch, {kind} keys: committed {total / committed:10,.0f} rows/s, "
        f"with full data {total / whole:10,.0f} rows/s, {used / total * 1e6:5.2f} us CPU a row"
    )


def main() -> None:
    """Measure batches of several sizes, with rising and with random keys."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 100, 1000, 5000])
    parser.add_argument("--row-bytes", type=int, default=100)
    parser.add_argument("--total", type=int, default=1_000_000)
    chosen = parser.parse_args()
    for rows in chosen.rows:
        for shuffled in (False, True):
            run(rows, chosen.row_bytes, max(1, min(chosen.total // rows, 5000)), shuffled=shuffled)


if __name__ == "__main__":
    main()
