"""Apache Kafka 0.9 with ZooKeeper, fsync after each append, by confluent-kafka; VENUS_BENCH_KAFKA is its folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.local import START_TIMEOUT_S, Folder, free_port, messages
from bench.rounds import Receiver, Round, Sender

#: A Kafka of that age is spoken to in its own words.
OLD = {"api.version.request": False, "broker.version.fallback": "0.9.0.1", "log_level": 0}
TAKE = 5000
TOPIC = "s"


class KafkaSender:
    """The producer, with batches as large as VENUS's; `words` are settings of its own for the servers' version."""

    def __init__(self, servers: str, words: Mapping[str, Any], *, envelope: bool) -> None:
        self._servers, self._words, self._envelope = servers, words, envelope
        self._messages: list[bytes] = []
        self._producer: Any = None
        self._rows = 0

    def prepare(self, wanted: Round) -> None:
        """Make the messages, and a producer for batches of this size."""
        from confluent_kafka import Producer

        self._messages = messages(wanted.batches, wanted.rows, envelope=self._envelope)
        if self._rows != wanted.rows:
            self._rows = wanted.rows
            size = 8 if self._envelope else wanted.rows
            self._producer = Producer(
                {
                    **self._words,
                    "bootstrap.servers": self._servers,
                    "acks": "all",
                    "linger.ms": 5 if size > 1 else 0,
                    "batch.num.messages": size,
                    "queue.buffering.max.messages": 2_000_000,
                    "queue.buffering.max.kbytes": 1 << 20,
                }
            )

    def send(self, wanted: Round) -> None:
        """Produce them and wait for every acknowledgement."""
        produce = self._producer.produce
        for message in self._messages:
            produce(TOPIC, message, partition=0)
        if self._producer.flush(300):
            raise TimeoutError("Kafka did not acknowledge")

    def close(self) -> None:
        """Nothing to close."""


class KafkaReceiver:
    """A consumer of what is produced from now on, in the only partition."""

    def __init__(self, servers: str, words: Mapping[str, Any], *, envelope: bool) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._envelope = envelope
        self._consumer = Consumer(
            {
                **words,
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
        """Consume what the round sends."""
        left = wanted.batches if self._envelope else wanted.batches * wanted.rows
        while left > 0:
            left -= sum(message.error() is None for message in self._consumer.consume(min(TAKE, left), timeout=1))

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


class Kafka:
    """ZooKeeper, the broker and the two clients."""

    def __init__(self, *, envelope: bool) -> None:
        self.name = "Kafka 0.9, batch as a message" if envelope else "Kafka 0.9"
        self._home = Path(os.environ.get("VENUS_BENCH_KAFKA", "/nonexistent"))
        self._envelope = envelope
        self.rows_max = 500_000 if envelope else 300_000
        self._port = 0
        self._folder: Folder | None = None

    def missing(self) -> str:
        """Say what is not installed."""
        if not (self._home / "libs").is_dir():
            return "VENUS_BENCH_KAFKA does not name a folder of Kafka"
        if shutil.which("java") is None:
            return "java is not installed"
        return "" if importlib.util.find_spec("confluent_kafka") else "the package confluent-kafka is not installed"

    def start(self) -> None:
        """Start both servers."""
        self._folder, keeper, self._port = Folder(), free_port(), free_port()
        path = self._folder.path
        (path / "log4j.properties").write_text(
            "log4j.rootLogger=WARN,out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\nlog4j.appender.out.layout=org.apache.log4j.SimpleLayout\n"
        )
        (path / "zookeeper.properties").write_text(f"dataDir={path}/zookeeper\nclientPort={keeper}\n")
        (path / "server.properties").write_text(
            f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{self._port}\nlog.dirs={path}/kafka\n"
            f"zookeeper.connect=127.0.0.1:{keeper}\nnum.partitions=1\nauto.create.topics.enable=true\n"
            "log.flush.interval.messages=1\nmessage.max.bytes=4000000\nreplica.fetch.max.bytes=5000000\n"
        )
        java = ["java", "-Xms1g", "-Xmx1g", f"-Dlog4j.configuration=file:{path}/log4j.properties"]
        java += ["-cp", f"{self._home}/libs/*"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._folder.run(*java, main, path / "zookeeper.properties", port=keeper)
        self._folder.run(*java, "kafka.Kafka", path / "server.properties", port=self._port)
        self._wait_for_topic()

    def _wait_for_topic(self) -> None:
        """Ask until the broker knows itself and has made the topic: it listens long before."""
        from confluent_kafka import KafkaException

        sender = KafkaSender(self._servers, OLD, envelope=True)
        sender.prepare(Round(number=0, rows=1, batches=0))
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            try:
                if sender._producer.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions:
                    return
            except KafkaException:
                pass
            time.sleep(0.2)
        raise TimeoutError("Kafka does not make a topic")

    def stop(self) -> None:
        """Stop both."""
        if self._folder is not None:
            self._folder.remove()

    @property
    def _servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def pids(self) -> list[int]:
        """Return the servers' processes."""
        assert self._folder is not None
        return [process.pid for process in self._folder.processes]

    def sender(self) -> Callable[[], Sender]:
        """Return the client that sends."""
        return partial(KafkaSender, self._servers, OLD, envelope=self._envelope)

    def receiver(self) -> Callable[[], Receiver]:
        """Return the client that receives."""
        return partial(KafkaReceiver, self._servers, OLD, envelope=self._envelope)

    def finish(self, wanted: Round) -> None:
        """Nothing is left to do."""
