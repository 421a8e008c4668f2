"""NATS JetStream in files, by nats-py. Servers from 2.10 on use `sync_interval: always`, older ones no fsync."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from bench.peers.local import Folder, PeerServer, free_port, messages
from bench.rounds import Receiver, Round, Sender

ENVELOPES = 8
TAKE = 500


def server() -> str | None:
    """Return the server's path: VENUS_BENCH_NATS, or an installed server."""
    return os.environ.get("VENUS_BENCH_NATS") or shutil.which("nats-server")


def syncs() -> bool:
    """Whether the server can fsync every append."""
    found = server()
    if found is None:
        return False
    text = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"v?(\d+)\.(\d+)", text)
    return version is not None and (int(version[1]), int(version[2])) >= (2, 10)


class NatsClient:
    """One NATS connection, with an event loop of its own."""

    def __init__(self, port: int, *, envelope: bool) -> None:
        import nats

        self._loop = asyncio.new_event_loop()
        self._envelope = envelope
        self._connection: Any = self._run_to_end(nats.connect(f"nats://127.0.0.1:{port}"))
        self._stream: Any = self._connection.jetstream(publish_async_max_pending=10_000)

    def _run_to_end(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the loop and return its result."""
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Close the connection."""
        self._run_to_end(self._connection.close())
        self._loop.close()


class NatsSender(NatsClient):
    """Producer that publishes a batch, then waits for its acknowledgements."""

    def prepare(self, wanted: Round) -> None:
        """Make the messages."""
        self._messages = messages(wanted.batches, wanted.rows, envelope=self._envelope)

    def send(self, wanted: Round) -> None:
        """Publish the messages of a round."""
        self._run_to_end(self._publish(wanted))

    async def _publish(self, wanted: Round) -> None:
        """Publish the messages in parts, and wait for the acknowledgements of each part."""
        size = ENVELOPES if self._envelope else wanted.rows
        for start in range(0, len(self._messages), size):
            part = self._messages[start : start + size]
            await asyncio.gather(*[await self._stream.publish_async(f"s.{wanted.rows}", m) for m in part])


class NatsReceiver(NatsClient):
    """Pull consumer, from the stream's current end on."""

    def __init__(self, port: int, *, envelope: bool) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        super().__init__(port, envelope=envelope)
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW)
        self._pull = self._run_to_end(self._stream.pull_subscribe("s.*", stream="s", config=config))

    def receive(self, wanted: Round) -> None:
        """Fetch the messages of a round."""
        self._run_to_end(self._fetch(wanted))

    async def _fetch(self, wanted: Round) -> None:
        """Fetch messages until all of the round have arrived."""
        left = wanted.batches if self._envelope else wanted.batches * wanted.rows
        while left:
            left -= len(await self._pull.fetch(min(TAKE, left), timeout=30))


class NatsJetStream(PeerServer):
    """The server and its two clients."""

    def __init__(self, *, envelope: bool) -> None:
        mode = "fsync" if syncs() else "no fsync"
        self.name = f"NATS JetStream ({mode})" + (", batch as a message" if envelope else "")
        self._envelope = envelope
        self.rows_max = 500_000 if envelope else 5_000
        self._port = 0

    def missing(self) -> str:
        """Return the missing programs as text, empty if there are none."""
        if server() is None:
            return "nats-server is not installed"
        return "" if importlib.util.find_spec("nats") else "the package nats-py is not installed"

    def start(self) -> None:
        """Start a server of our own, with one stream in files."""
        self._folder, self._port = Folder(), free_port()
        sync = "sync_interval: always" if syncs() else ""
        config = self._folder.path / "nats.conf"
        config.write_text(f"jetstream {{ store_dir: {self._folder.path}\n{sync} }}\n")
        self._folder.run(str(server()), "-a", "127.0.0.1", "-p", str(self._port), "-c", config, port=self._port)
        client = NatsClient(self._port, envelope=False)
        client._run_to_end(client._stream.add_stream(name="s", subjects=["s.*"], storage="file"))
        client.close()

    def sender(self) -> Callable[[], Sender]:
        """Return a factory of the client that sends."""
        return partial(NatsSender, self._port, envelope=self._envelope)

    def receiver(self) -> Callable[[], Receiver]:
        """Return a factory of the client that receives."""
        return partial(NatsReceiver, self._port, envelope=self._envelope)
