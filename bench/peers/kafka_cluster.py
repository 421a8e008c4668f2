"""Apache Kafka of today, three brokers in KRaft mode, by confluent-kafka; VENUS_BENCH_KAFKA_NOW is its folder of jars.

acks=all, min.insync.replicas=2, one partition with three replicas, each append flushed; each row batch is one message.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.kafka import TOPIC, KafkaReceiver, KafkaSender
from bench.peers.local import START_TIMEOUT_S, Folder, free_port
from bench.rounds import Receiver, Round, Sender

NODES = (1, 2, 3)
WORDS = {"log_level": 0, "message.max.bytes": 4_000_000}
HEAP = "-Xmx1g"
#: Of its own log lines.
LOG4J = """
status: error
Configuration:
  Appenders: {Console: {name: out}}
  Loggers: {Root: {level: warn, AppenderRef: {ref: out}}}
"""


class KafkaCluster:
    """Three brokers, each a controller as well, and the two clients."""

    name = "Kafka, 3 replicas, batch as a message"
    rows_max = 500_000

    def __init__(self) -> None:
        self._libs = Path(os.environ.get("VENUS_BENCH_KAFKA_NOW", "/nonexistent"))
        self._folder: Folder | None = None
        self._ports = {node: (free_port(), free_port()) for node in NODES}

    @property
    def _servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port, _ in self._ports.values())

    def missing(self) -> str:
        """Say what is not installed."""
        if not list(self._libs.glob("kafka_*.jar")):
            return "VENUS_BENCH_KAFKA_NOW does not name a folder of Kafka's jars"
        if shutil.which("java") is None:
            return "java is not installed"
        return "" if importlib.util.find_spec("confluent_kafka") else "the package confluent-kafka is not installed"

    def start(self) -> None:
        """Format three folders, start three brokers, make the topic."""
        self._folder = Folder()
        path, cluster = self._folder.path, urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        (path / "log4j2.yaml").write_text(LOG4J)
        java = ["java", HEAP, f"-Dlog4j2.configurationFile={path}/log4j2.yaml", "-cp", f"{self._libs}/*"]
        for node in NODES:
            file = path / f"{node}.properties"
            file.write_text(self._properties(node))
            subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", file], check=True, capture_output=True
            )
        begun = {node: self._folder.begin(*java, "kafka.Kafka", path / f"{node}.properties") for node in NODES}
        for node, process in begun.items():
            self._folder.wait_for(process, self._ports[node][0])
        self._make_topic()

    def _properties(self, node: int) -> str:
        assert self._folder is not None
        broker, controller = self._ports[node]
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, (_, port) in self._ports.items())
        return (
            f"process.roles=broker,controller\nnode.id={node}\ncontroller.quorum.voters={voters}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
            f"log.dirs={self._folder.path}/kafka{node}\nlog.flush.interval.messages=1\n"
            "min.insync.replicas=2\ndefault.replication.factor=3\noffsets.topic.replication.factor=3\n"
            "message.max.bytes=4000000\nreplica.fetch.max.bytes=5000000\ngroup.initial.rebalance.delay.ms=0\n"
        )

    def _make_topic(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin: Any = AdminClient({"log_level": 0, "bootstrap.servers": self._servers})
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            try:
                if len(admin.list_topics(timeout=5).brokers) == len(NODES):
                    made = admin.create_topics([NewTopic(TOPIC, num_partitions=1, replication_factor=3)])
                    made[TOPIC].result(START_TIMEOUT_S)
                    return
            except KafkaException:
                pass
            time.sleep(0.2)
        raise TimeoutError("Kafka does not make a topic")

    def stop(self) -> None:
        """Stop all three."""
        if self._folder is not None:
            self._folder.remove()

    def pids(self) -> list[int]:
        """Return the servers' processes."""
        assert self._folder is not None
        return [process.pid for process in self._folder.processes]

    def sender(self) -> Callable[[], Sender]:
        """Return the client that sends."""
        return partial(KafkaSender, self._servers, WORDS, envelope=True)

    def receiver(self) -> Callable[[], Receiver]:
        """Return the client that receives."""
        return partial(KafkaReceiver, self._servers, {"log_level": 0}, envelope=True)

    def finish(self, wanted: Round) -> None:
        """Nothing is left to do."""
