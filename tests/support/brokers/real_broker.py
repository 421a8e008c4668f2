"""A real broker that a `Feed` writes to: in a thread of the test, or in a process that can be killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.brokers.servers import BrokerProcess
from tests.support.brokers.servers import settings as broker_settings
from tests.support.ports import free_port
from venus.broker.service.process import RunningBroker, start_in_thread
from venus.codec.batch import Batch, digest, encode
from venus.model import Verdict
from venus.rpc.producer import Producer
from venus.wire import broker_pb2


class RealBroker:
    """A broker in a thread, and its only producer."""

    def __init__(self, data_dir: Path, **options: Any) -> None:
        self._settings = broker_settings(data_dir, listen=f"127.0.0.1:{free_port()}", **options)
        self._last_batch = 0
        self.next_offset = 0
        self.start()

    def start(self) -> None:
        self._serve()
        self._producer = Producer(self.address, "main", "test", window_bytes_max=1 << 20)
        self._producer.connect(1, self._last_batch)

    def _serve(self) -> None:
        self._running: RunningBroker = start_in_thread(self._settings)
        self.address = self._running.address
        self.http_address = self._running.http_address

    def stop(self) -> None:
        self._producer.close()
        self._running.stop()

    def commit(self, batch: Batch) -> None:
        body = encode(batch)
        number = int(batch.batch_no)
        self._producer.send_half(broker_pb2.Half(batch_no=number, digest=digest(body), body=body))
        self._producer.wait_until_persisted(number)
        if batch.cut_end:
            self._producer.decide(number, digest(body), Verdict.COMMIT)
            self.next_offset = self._producer.wait_until_decided(number).next_offset
            self._last_batch = number


class KillableBroker(RealBroker):
    """A real broker in a process of its own, with the same address after every start."""

    def _serve(self) -> None:
        self._process = BrokerProcess(self._settings)
        self.address = self._process.address

    def stop(self) -> None:
        self._producer.close()
        self._process.stop()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self._producer.close()
