"""Redis Streams, every append fsynced, by redis-py: pipelines as large as VENUS's batches, or one entry per batch."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.peers.local import Folder, PeerServer, free_port, messages
from bench.rounds import Receiver, Round, Sender

#: Envelopes in one pipeline; with one at a time Redis would wait for every fsync.
ENVELOPES = 8
TAKE = 1000


class RedisSender:
    """Producer that sends XADD in pipelines."""

    def __init__(self, port: int, *, envelope: bool) -> None:
        import redis

        self._client = redis.Redis(port=port)
        self._envelope = envelope
        self._messages: list[bytes] = []

    def prepare(self, wanted: Round) -> None:
        """Build the messages of a round in memory."""
        self._messages = messages(wanted.batches, wanted.rows, envelope=self._envelope)

    def send(self, wanted: Round) -> None:
        """Append the entries."""
        size = ENVELOPES if self._envelope else wanted.rows
        for start in range(0, len(self._messages), size):
            pipeline = self._client.pipeline(transaction=False)
            for message in self._messages[start : start + size]:
                pipeline.xadd(f"s{wanted.rows}-{wanted.number}", {b"b": message})
            pipeline.execute()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class RedisReceiver:
    """Consumer by XREAD, which blocks until an entry arrives."""

    def __init__(self, port: int, *, envelope: bool) -> None:
        import redis

        self._client: Any = redis.Redis(port=port)
        self._envelope = envelope

    def receive(self, wanted: Round) -> None:
        """Read the stream of the round to its end, then drop it."""
        name = f"s{wanted.rows}-{wanted.number}"
        left, last = wanted.batches if self._envelope else wanted.batches * wanted.rows, b"0"
        while left:
            for _, entries in self._client.xread({name: last}, count=TAKE, block=10_000):
                left -= len(entries)
                last = entries[-1][0]
        self._client.delete(name)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class RedisStreams(PeerServer):
    """The server and its two clients."""

    def __init__(self, *, envelope: bool) -> None:
        self.name = "Redis Streams, batch as an entry" if envelope else "Redis Streams, pipelined"
        self._envelope = envelope
        self.rows_max = 500_000 if envelope else 100_000
        self._port = 0

    def missing(self) -> str:
        """Return the missing programs as text, empty if there are none."""
        if shutil.which("redis-server") is None:
            return "redis-server is not installed"
        return "" if importlib.util.find_spec("redis") else "the package redis is not installed"

    def start(self) -> None:
        """Start a Redis server that syncs every append."""
        self._folder, self._port = Folder(), free_port()
        flags = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        self._folder.run("redis-server", "--port", str(self._port), *flags, port=self._port)

    def sender(self) -> Callable[[], Sender]:
        """Return a factory of the client that sends."""
        return partial(RedisSender, self._port, envelope=self._envelope)

    def receiver(self) -> Callable[[], Receiver]:
        """Return a factory of the client that receives."""
        return partial(RedisReceiver, self._port, envelope=self._envelope)
