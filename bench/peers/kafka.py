"""Apache Kafka 4 in KRaft mode, one broker or three, each append flushed; bench/peers/jars.py fetches it.

acks=all; with three brokers min.insync.replicas=2 and one partition with three replicas.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.peers import jars
from bench.peers.kafka_clients import QUIET, TOPIC, Batching, KafkaReceiver, KafkaSender
from bench.peers.local import START_TIMEOUT_S, Folder, PeerServer, free_port
from bench.rounds import Receiver, Sender

HEAP = "-Xmx1g"
#: Kafka's own log configuration.
LOG4J = """
status: error
Configuration:
  Appenders: {Console: {name: out}}
  Loggers: {Root: {level: warn, AppenderRef: {ref: out}}}
"""


class Kafka(PeerServer):
    """Brokers, each a controller as well, and the two clients."""

    def __init__(self, batching: Batching, *, replicas: int = 1) -> None:
        self.name = f"Kafka 4, {batching.value}" + (f", {replicas} replicas" if replicas > 1 else "")
        self.rows_max = 500_000 if batching is Batching.WHOLE else 300_000
        self._batching = batching
        self._ports = {node: (free_port(), free_port()) for node in range(1, replicas + 1)}

    @property
    def _servers(self) -> str:
        """The addresses of all brokers, for a client."""
        return ",".join(f"127.0.0.1:{port}" for port, _ in self._ports.values())

    def missing(self) -> str:
        """Return the missing programs as text, empty if there are none."""
        if reason := jars.missing("kafka"):
            return reason
        return "" if importlib.util.find_spec("confluent_kafka") else "pip install confluent-kafka"

    def start(self) -> None:
        """Format a folder for each broker, start them, make the topic."""
        self._folder = Folder()
        path, cluster = self._folder.path, urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        (path / "log4j2.yaml").write_text(LOG4J)
        java = ["java", HEAP, f"-Dlog4j2.configurationFile={path}/log4j2.yaml", "-cp", f"{jars.folder('kafka')}/*"]
        for node in self._ports:
            file = path / f"{node}.properties"
            file.write_text(self._properties(node))
            subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", file], check=True, capture_output=True
            )
        begun = {node: self._folder.begin(*java, "kafka.Kafka", path / f"{node}.properties") for node in self._ports}
        for node, process in begun.items():
            self._folder.wait_for(process, self._ports[node][0])
        self._make_topic()

    def _properties(self, node: int) -> str:
        assert self._folder is not None
        broker, controller = self._ports[node]
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, (_, port) in self._ports.items())
        replicas = len(self._ports)
        return (
            f"process.roles=broker,controller\nnode.id={node}\ncontroller.quorum.voters={voters}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
            f"log.dirs={self._folder.path}/kafka{node}\nlog.flush.interval.messages=1\n"
            f"min.insync.replicas={min(2, replicas)}\ndefault.replication.factor={replicas}\n"
            f"offsets.topic.replication.factor={replicas}\n"
            "message.max.bytes=4000000\nreplica.fetch.max.bytes=5000000\ngroup.initial.rebalance.delay.ms=0\n"
        )

    def _make_topic(self) -> None:
        from confluent_kafka import KafkaException

        words: Any = importlib.import_module("confluent_kafka.admin")
        admin = words.AdminClient({**QUIET, "bootstrap.servers": self._servers})
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            try:
                if len(admin.list_topics(timeout=5).brokers) == len(self._ports):
                    topic = words.NewTopic(TOPIC, num_partitions=1, replication_factor=len(self._ports))
                    admin.create_topics([topic])[TOPIC].result(START_TIMEOUT_S)
                    return
            except KafkaException:
                pass
            time.sleep(0.2)
        raise TimeoutError("Kafka does not make a topic")

    def sender(self) -> Callable[[], Sender]:
        """Return a factory of the client that sends."""
        return partial(KafkaSender, self._servers, self._batching)

    def receiver(self) -> Callable[[], Receiver]:
        """Return a factory of the client that receives."""
        return partial(KafkaReceiver, self._servers, self._batching)
