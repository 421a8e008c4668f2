"""The upper adapter ships a cut that is larger than its memory limit, piece by piece."""

from __future__ import annotations

import threading
import tracemalloc

from tests.support.databases.scripted_database import ScriptedDatabase
from tests.support.databases.scripted_source import Script, ScriptedSource
from tests.support.engines.scripted_broker import ScriptedBroker, ScriptedProducer
from venus.adapters.upper.cutting import Cutter
from venus.adapters.upper.periodic import Reporter
from venus.adapters.upper.session import SourceClaim, open_session
from venus.config import CaptureSettings
from venus.wire.broker_pb2 import Half

ROWS = 1_000_000


class CountingBroker(ScriptedBroker):
    """Keeps the numbers of half messages and drops their bodies, as a disk would."""

    def half(self, half: Half) -> None:
        super().half(Half(batch_no=half.batch_no, digest=half.digest))

    def check(self, half: Half) -> None:
        """Accept the digest unchecked."""


def test_a_cut_of_a_million_rows_keeps_only_a_few_batches_in_memory() -> None:
    database, broker = ScriptedDatabase("big"), CountingBroker()
    database.bulk(2, ROWS)
    script = Script()
    session = open_session(
        ScriptedSource(database, script), ScriptedProducer(broker, script), SourceClaim(owner="this one"), timeout_s=1
    )
    cutter = Cutter(session, CaptureSettings(batch_rows_max=5000), threading.Event(), Reporter(None))
    tracemalloc.start()
    try:
        assert cutter.cut()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert database.state.last_batch == ROWS / 5000
    assert database.state.next_sequence == ROWS + 1
    assert peak < 16 << 20  # a batch has half a megabyte, the whole cut 120
