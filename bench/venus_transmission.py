"""VENUS as one of the systems of bench/transmission.py: broker, producer and consumer in a process each."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bench.rounds import Receiver, Round, Sender
from venus.codec.batch import digest
from venus.config import BrokerSettings, SecuritySettings, Settings
from venus.model import Verdict
from venus.rpc.admin import AdminClient
from venus.rpc.producer import Producer
from venus.rpc.subscriber import Subscriber
from venus.wire import broker_pb2, change_pb2

BUSINESS = "bench"
KEY_BYTES = 12
ROW_BYTES = 100
WINDOW_BYTES = 32 << 20
SCHEMA = change_pb2.TableSchema(table_id=1, version=1, namespace="bench", name="rows", key=["id"])

_MAIN = """
import sys
from venus.broker.service.process import serve
from venus.config import Settings
sys.exit(serve(Settings.model_validate_json(sys.argv[1])))
"""


def make_half(batch_no: int, first_sequence: int, rows: int) -> broker_pb2.Half:
    """Return a batch of new rows, 100 bytes each with their key."""
    record_ids = b"".join(b"\x0a\x0a%010d" % (first_sequence + i) for i in range(rows))
    content = b"\x12\x56" + b"x" * (ROW_BYTES - KEY_BYTES - 2)
    body = change_pb2.BatchBody(
        batch_no=batch_no,
        first_sequence=first_sequence,
        count=rows,
        cut=batch_no,
        cut_end=True,
        captured_at_us=time.time_ns() // 1000,
        schemas=[SCHEMA] if batch_no == 1 else [],
    )
    body.tables.add(
        table_id=1,
        schema_version=1,
        count=rows,
        record_ids=record_ids,
        record_id_sizes=np.full(rows, KEY_BYTES, dtype="<u4").tobytes(),
        rows=content * rows,
        row_sizes=np.full(rows, ROW_BYTES - KEY_BYTES, dtype="<u4").tobytes(),
        inserts_only=True,
    )
    encoded = body.SerializeToString()
    return broker_pb2.Half(batch_no=batch_no, digest=digest(encoded), body=encoded)


class VenusSender:
    """Producer that ships half messages like an upper adapter, without a source."""

    def __init__(
        self, address: str, *, one_at_a_time: bool, awaits_commits: bool = True, business: str = BUSINESS
    ) -> None:
        self._producer = Producer(address, business, "bench", window_bytes_max=WINDOW_BYTES)
        ack = self._producer.connect(0, 0)
        self._batch_no, self._sequence = ack.last_batch, ack.last_sequence
        self._one_at_a_time = one_at_a_time
        self._awaits_commits = awaits_commits
        self._halves: list[broker_pb2.Half] = []

    def prepare(self, wanted: Round) -> None:
        """Make the half messages."""
        self._halves = []
        for _ in range(wanted.batches):
            self._batch_no += 1
            self._halves.append(make_half(self._batch_no, self._sequence + 1, wanted.rows))
            self._sequence += wanted.rows

    def send(self, wanted: Round) -> None:
        """Send half messages, and commit each when it is on the broker's disk."""
        producer, halves = self._producer, self._halves
        first, last = halves[0].batch_no, halves[-1].batch_no
        decided = first - 1
        for half in halves:
            producer.send_half(half)
            if self._one_at_a_time:
                producer.wait_until_persisted(half.batch_no)
                producer.decide(half.batch_no, half.digest, Verdict.COMMIT)
                if self._awaits_commits:
                    producer.wait_until_decided(half.batch_no)
            elif (through := producer.persisted_through) > decided:
                decided = through
                producer.decide(decided, halves[decided - first].digest, Verdict.COMMIT)
        while decided < last and not self._one_at_a_time:
            producer.wait_until_persisted(decided + 1)
            decided = producer.persisted_through
            producer.decide(decided, halves[decided - first].digest, Verdict.COMMIT)
        producer.wait_until_decided(last)

    def close(self) -> None:
        """End the stream."""
        self._producer.close()


class VenusReceiver:
    """Consumer that reads increments like an under adapter, without a target."""

    def __init__(self, address: str, *, business: str = BUSINESS, credit_bytes: int = 16 << 20) -> None:
        self._subscriber = Subscriber(address, business, "bench", credit_bytes=credit_bytes)
        with AdminClient(address) as admin:
            known = admin.status(business).businesses
        self._offset = known[0].next_offset if known else 0
        self._subscriber.open(self._offset, 0)

    def receive(self, wanted: Round) -> None:
        """Receive and acknowledge increments until all rows of the round have arrived."""
        end = self._offset + wanted.rows * wanted.batches
        while self._offset < end:
            for increment in self._subscriber.increments(60.0):
                assert increment.base_offset == self._offset
                self._offset += increment.count
            self._subscriber.acknowledge(self._offset)

    def close(self) -> None:
        """End the stream."""
        self._subscriber.close()


class VenusSystem:
    """VENUS with half message + fsync + commit + fsync; a round is done when the full data is materialised too.

    With `one_at_a_time`, the next half message is sent when the last one is committed or, without `awaits_commits`,
    when its commit has been sent, as RocketMQ's client does.
    """

    def __init__(self, *, one_at_a_time: bool = False, awaits_commits: bool = True) -> None:
        self.name = "VENUS" + ", one at a time" * one_at_a_time + ", commits not awaited" * (not awaits_commits)
        self.rows_max = 1000 if one_at_a_time else 500_000
        self._one_at_a_time = one_at_a_time
        self._awaits_commits = awaits_commits
        self._folder = Path()
        self._process: subprocess.Popen[str] | None = None
        self._admin: AdminClient | None = None
        self.address = ""

    def missing(self) -> str:
        """Return an empty text: no program is missing."""
        return ""

    def start(self) -> None:
        """Start a broker on an empty data directory."""
        self._folder = Path(tempfile.mkdtemp(prefix="venus-bench-"))
        options = BrokerSettings(listen="127.0.0.1:0", http="", data_dir=self._folder)
        settings = Settings(broker=options, security=self.security())
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, settings.model_dump_json()], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = self.reach(self._process.stdout.readline().split()[3].rstrip(","))
        self._admin = AdminClient(self.address)
        first = VenusSender(self.address, one_at_a_time=True)  # a business exists from its first batch on
        first.prepare(Round(number=0, rows=1, batches=1))
        first.send(Round(number=0, rows=1, batches=1))
        first.close()

    def security(self) -> SecuritySettings:
        """Return the security settings of the broker: none."""
        return SecuritySettings()

    def reach(self, address: str) -> str:
        """Return the address at which clients reach the broker."""
        return address

    def pids(self) -> list[int]:
        """Return the broker's process."""
        assert self._process is not None
        return [self._process.pid]

    def stop(self) -> None:
        """Stop the broker and remove its data."""
        assert self._process is not None
        assert self._admin is not None
        self._admin.close()
        self._process.terminate()
        self._process.wait(60)
        shutil.rmtree(self._folder)

    def sender(self) -> Callable[[], Sender]:
        """Return a factory of the producer."""
        return partial(
            VenusSender, self.address, one_at_a_time=self._one_at_a_time, awaits_commits=self._awaits_commits
        )

    def receiver(self) -> Callable[[], Receiver]:
        """Return a factory of the consumer."""
        return partial(VenusReceiver, self.address)

    def finish(self, wanted: Round) -> None:
        """Wait until the broker has all rows of the round in its full data."""
        assert self._admin is not None
        while True:
            status = self._admin.status(BUSINESS).businesses[0]
            if status.materialised_offset >= status.next_offset:
                return
            time.sleep(0.002)
