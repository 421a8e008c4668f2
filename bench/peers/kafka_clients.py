"""Apache Kafka's two clients, by confluent-kafka: acks=all, one partition."""

from __future__ import annotations

import enum
from typing import Any

from bench.peers.local import messages
from bench.rounds import Round

TAKE = 5000
TOPIC = "s"
QUIET = {"log_level": 0}


class Batching(enum.Enum):
    """How rows are grouped into messages, and messages into appends of the server."""

    ROWS = "a message a row"
    WHOLE = "batch as a message"
    OWN = "a message a row, its own batching"


class KafkaSender:
    """The producer, which groups rows into messages and messages into Kafka's batches according to `batching`."""

    def __init__(self, servers: str, batching: Batching) -> None:
        self._servers, self._batching = servers, batching
        self._messages: list[bytes] = []
        self._producer: Any = None
        self._rows = 0

    def prepare(self, wanted: Round) -> None:
        """Make the messages, and a producer for batches of this size."""
        self._messages = messages(wanted.batches, wanted.rows, envelope=self._batching is Batching.WHOLE)
        if self._rows != wanted.rows:
            self._rows = wanted.rows
            self._producer = self._connect(wanted.rows)

    def _connect(self, rows: int) -> Any:
        """Return a producer with the batch size of this `Batching`; `rows`: how many rows a batch of VENUS has."""
        from confluent_kafka import Producer

        size = {Batching.ROWS: rows, Batching.WHOLE: 8, Batching.OWN: 10_000}[self._batching]
        return Producer(
            {
                **QUIET,
                "bootstrap.servers": self._servers,
                "message.max.bytes": 4_000_000,
                "acks": "all",
                "linger.ms": 5 if size > 1 else 0,
                "batch.num.messages": size,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
            }
        )

    def send(self, wanted: Round) -> None:
        """Send the messages, and wait until every one is acknowledged."""
        produce = self._producer.produce
        for message in self._messages:
            produce(TOPIC, message, partition=0)
        if self._producer.flush(300):
            raise TimeoutError("Kafka did not acknowledge")

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class KafkaReceiver:
    """Consumer of the only partition, from its current end on."""

    def __init__(self, servers: str, batching: Batching) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._whole = batching is Batching.WHOLE
        self._consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "fetch.error.backoff.ms": 20,
            }
        )
        _, end = self._consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)
        self._consumer.assign([TopicPartition(TOPIC, 0, end)])
        self._consumer.consume(1, timeout=1)

    def receive(self, wanted: Round) -> None:
        """Consume the messages of a round."""
        left = wanted.batches if self._whole else wanted.batches * wanted.rows
        while left > 0:
            left -= sum(message.error() is None for message in self._consumer.consume(min(TAKE, left), timeout=1))

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
