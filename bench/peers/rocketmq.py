"""Apache RocketMQ 5, one broker, half message and commit one at a time; bench/peers/jars.py fetches it.

This is the paper's own peer. A whole batch is one message; with SYNC_FLUSH a half message is answered when it is on the
disk. RocketMQ's client does not wait for the answer to a commit; the consumer shows when the last batch is committed.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.peers import jars
from bench.peers.local import START_TIMEOUT_S, Folder, PeerServer, free_port, row
from bench.rounds import Receiver, Round, Sender

SOURCE = Path(__file__).with_name("RocketMqClient.java")
NAME_SERVER = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER = "org.apache.rocketmq.broker.BrokerStartup"
ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
#: Modules of Java 17 that RocketMQ's own start scripts open.
JAVA = ["java", "-Xmx1g", "--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"]
JAVA += ["--add-opens", "java.base/java.nio=ALL-UNNAMED"]
ROW_BYTES = len(row(0))


class Client:
    """Sender or receiver: a Java program that reads orders from its standard input."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._wait_for_line("ready")

    def _wait_for_line(self, wanted: str) -> None:
        """Read the program's output until this line. Raises RuntimeError if the program ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == wanted:
                return
        raise RuntimeError(f"RocketMQ's client ended with code {self._process.wait()}")

    def _order_round(self, wanted: Round) -> None:
        """Order a round, and wait until the program has done it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{wanted.batches} {wanted.rows * ROW_BYTES}\n")
        self._process.stdin.flush()
        self._wait_for_line("done")

    def prepare(self, wanted: Round) -> None:
        """Do nothing: a message is made when it is sent."""

    def send(self, wanted: Round) -> None:
        """Send half messages, each followed by its commit."""
        self._order_round(wanted)

    def receive(self, wanted: Round) -> None:
        """Receive the messages of a round."""
        self._order_round(wanted)

    def close(self) -> None:
        """Close the program's input, at which it ends."""
        self._process.communicate(timeout=30)


class RocketMq(PeerServer):
    """Name server, broker and the two clients."""

    name = "RocketMQ 5, half and commit, one at a time"
    rows_max = 500_000

    def __init__(self) -> None:
        self._names = f"127.0.0.1:{free_port()}"
        self._command: list[str] = []

    def missing(self) -> str:
        """Return the missing programs as text, empty if there are none."""
        if reason := jars.missing("rocketmq"):
            return reason
        return "" if shutil.which("javac") else "javac is not installed"

    def start(self) -> None:
        """Compile the clients, start both servers, make the topic."""
        self._folder = Folder()
        path, libs = self._folder.path, f"{jars.folder('rocketmq')}/*"
        subprocess.run(["javac", "-cp", libs, "-d", path, SOURCE], check=True, capture_output=True)
        java = [*JAVA, f"-Duser.home={path}", f"-Drocketmq.home.dir={path}", "-cp"]
        self._command = [*java, f"{path}:{libs}", "RocketMqClient"]
        name_port, broker_port = self._names.rpartition(":")[2], free_port()
        (path / "names.properties").write_text(f"listenPort={name_port}\n")
        (path / "broker.properties").write_text(self._properties(broker_port))
        self._folder.run(*java, libs, NAME_SERVER, "-c", path / "names.properties", port=int(name_port))
        self._folder.run(*java, libs, BROKER, "-c", path / "broker.properties", port=broker_port)
        self._make_topic([*java, libs, ADMIN])

    def _properties(self, port: int) -> str:
        assert self._folder is not None
        return (
            f"brokerClusterName=bench\nbrokerName=bench\nbrokerId=0\nbrokerIP1=127.0.0.1\nlistenPort={port}\n"
            f"haListenPort={port + 1}\nnamesrvAddr={self._names}\nstorePathRootDir={self._folder.path}/store\n"
            "brokerRole=ASYNC_MASTER\nflushDiskType=SYNC_FLUSH\nmappedFileSizeCommitLog=268435456\n"
        )

    def _make_topic(self, admin: list[str]) -> None:
        words = ["updateTopic", "-n", self._names, "-c", "bench", "-t", "rows", "-r", "1", "-w", "1"]
        end = time.monotonic() + START_TIMEOUT_S
        while "success" not in (done := subprocess.run([*admin, *words], capture_output=True, text=True)).stdout:
            if time.monotonic() > end:
                raise TimeoutError(f"RocketMQ does not make a topic: {done.stdout.strip()[-300:]}")
            time.sleep(0.5)

    def sender(self) -> Callable[[], Sender]:
        """Return a factory of the client that sends."""
        return partial(Client, [*self._command, "send", self._names])

    def receiver(self) -> Callable[[], Receiver]:
        """Return a factory of the client that receives."""
        return partial(Client, [*self._command, "receive", self._names])
